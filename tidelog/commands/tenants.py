"""`tidelog tenants`: make, list and delete tenants, limit them, and show what they used, directly in Postgres
(docs/tenants.md).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent.quotas.entities import OF_WHOLE_TENANTS
from sequencer.client import Sequencer, SequencerSettings
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.tenants.tenant_limits import TenantLimits
from sequencer.tenants.tenant_names import InvalidTenantName
from sequencer.tenants.tenants import (
    TenantExists,
    TenantNotEmpty,
    TenantRow,
    Tenants,
    UnknownTenant,
    UsageOfDay,
)
from tidelog.audit import audited
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.output import counted, print_json
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Make, list and delete tenants, limit them, and show what they used.",
)

_USED = ("database_url", "data_dir")
Result = TypeVar("Result")

Name = Annotated[str, typer.Argument(help="The tenant's name.", show_default=False)]
Admins = Annotated[
    list[str] | None,
    typer.Option("--admin", help="A user of the tenant that may do everything in it. May be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command()
@with_settings(ClientSettings, only=_USED)
def create(environment: Environment, name: Name, *, admin: Admins = None) -> None:
    """Make a tenant."""
    admins = ",".join(admin or ())
    with audited(environment, "tidelog tenants create", "TENANT", name, admins=admins):
        made = _run(environment, lambda tenants: tenants.create(name, admin or [], TenantLimits()))
    console = Console()
    console.print(f"[green]Made[/] tenant [bold]{escape(made.name)}[/]. Agents know within a second.")
    console.print(f"`tidelog users add '{made.name}~NAME'` makes its users.", markup=False)


@app.command("list")
@with_settings(ClientSettings, only=_USED)
def list_tenants(environment: Environment, *, as_json: Json = False) -> None:
    """Every tenant with its admins and limits."""
    found = _run(environment, Tenants.list)
    if as_json:
        print_json(
            [
                {"tenant": one.name, "admins": list(one.admins), "limits": one.limits.as_stored()}
                for one in found
            ]
        )
        return
    if not found:
        Console().print("No tenants yet. `tidelog tenants create NAME` makes one.")
        return
    table = Table("tenant", "admins", "limits", title=counted(len(found), "tenant"), header_style="bold cyan")
    for one in found:
        limits = ", ".join(f"{name}={limit:,}" for name, limit in one.limits.as_stored().items())
        table.add_row(f"[bold]{escape(one.name)}[/]", escape(", ".join(one.admins)), limits)
    Console().print(table)


@app.command()
@with_settings(ClientSettings, only=_USED)
def delete(environment: Environment, name: Name) -> None:
    """Delete a tenant that has nothing left: no topics, groups, transactions, users, ACLs, quotas or configs
    of groups.
    """
    with audited(environment, "tidelog tenants delete", "TENANT", name):
        _run(environment, lambda tenants: tenants.delete(name))
    Console().print(f"[green]Deleted[/] tenant [bold]{escape(name)}[/].")


@app.command()
@with_settings(ClientSettings, only=_USED)
def limits(
    environment: Environment,
    name: Name,
    *,
    topics: Annotated[int | None, typer.Option(help="The most topics. -1: no limit.")] = None,
    partitions: Annotated[
        int | None, typer.Option(help="The most partitions of all topics together. -1: no limit.")
    ] = None,
    retention_ms: Annotated[
        int | None, typer.Option(help="The longest retention.ms of a topic. -1: no limit.")
    ] = None,
    retention_bytes: Annotated[
        int | None, typer.Option(help="The largest retention.bytes of a topic. -1: no limit.")
    ] = None,
    users: Annotated[int | None, typer.Option(help="The most users with passwords. -1: 10,000.")] = None,
    acls: Annotated[int | None, typer.Option(help="The most ACLs. -1: 10,000.")] = None,
    groups: Annotated[
        int | None, typer.Option(help="The most consumer groups, and groups with configs. -1: 10,000.")
    ] = None,
    transactional_ids: Annotated[int | None, typer.Option(help="The most of them. -1: 10,000.")] = None,
    quotas: Annotated[
        int | None, typer.Option(help="The most users and client ids with quotas. -1: 100.")
    ] = None,
    produce_bytes_rate: Annotated[
        int | None, typer.Option(help="Bytes per second that all its clients produce. -1: no limit.")
    ] = None,
    fetch_bytes_rate: Annotated[
        int | None, typer.Option(help="Bytes per second that all its clients fetch. -1: no limit.")
    ] = None,
    request_percentage: Annotated[
        int | None,
        typer.Option(
            help="The part of agents' time that all its clients use; 100 is one agent's. -1: no limit."
        ),
    ] = None,
    mutation_rate: Annotated[
        int | None,
        typer.Option(help="Partitions per second that it creates and deletes. -1: no limit."),
    ] = None,
    admin: Admins = None,
) -> None:
    """Set the limits that are given, or the admins. Others stay. Limits of topics hold for those that are
    created or altered from then on. Agents know rates within a second.
    """
    given = {
        "topics": topics,
        "partitions": partitions,
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
        "users": users,
        "acls": acls,
        "groups": groups,
        "transactional_ids": transactional_ids,
        "quotas": quotas,
        "produce_bytes_rate": produce_bytes_rate,
        "fetch_bytes_rate": fetch_bytes_rate,
        "request_percentage": request_percentage,
        "mutation_rate": mutation_rate,
    }
    for rate in OF_WHOLE_TENANTS:
        if given[rate] == 0:
            raise UserError(f"--{rate.replace('_', '-')} must be above 0.", "-1 removes the limit.")
    changes = {limit: None if value < 0 else value for limit, value in given.items() if value is not None}

    async def change(tenants: Tenants) -> TenantRow:
        found = next((one for one in await tenants.list() if one.name == name), None)
        if found is None:
            raise UnknownTenant(f"There is no tenant '{name}'.")
        return await tenants.change(name, admins=admin or None, limits=replace(found.limits, **changes))

    admins = None if admin is None else ",".join(admin)
    with audited(environment, "tidelog tenants limits", "TENANT", name, admins=admins, **given):
        now = _run(environment, change)
    shown = ", ".join(f"{limit}={value:,}" for limit, value in now.limits.as_stored().items()) or "no limits"
    Console().print(
        f"[bold]{escape(now.name)}[/]: {shown}; admins: {escape(', '.join(now.admins)) or 'none'}"
    )


@app.command()
@with_settings(ClientSettings, only=_USED)
def usage(
    environment: Environment,
    name: Annotated[str | None, typer.Argument(help="The tenant. By default all.")] = None,
    *,
    days: Annotated[int, typer.Option(min=1, help="How many days, with today (UTC).")] = 30,
    as_json: Json = False,
) -> None:
    """The bill: bytes in, bytes out, requests and bytes stored per day. Agents report once a minute."""

    async def measured(tenants: Tenants) -> list[UsageOfDay]:
        while await tenants.measure(age_s=1.0):
            pass
        return list(await tenants.usage(days, name))

    found = _run(environment, measured)
    if as_json:
        print_json(
            [
                {
                    "day": str(one.day),
                    "tenant": one.tenant,
                    "bytes_in": one.used.bytes_in,
                    "bytes_out": one.used.bytes_out,
                    "requests": one.used.requests,
                    "bytes_stored": one.bytes_stored,
                }
                for one in found
            ]
        )
        return
    table = Table("day (UTC)", "tenant", title="Usage of tenants", header_style="bold cyan")
    for column in ("bytes in", "bytes out", "bytes stored", "requests"):
        table.add_column(column, justify="right")
    for one in found:
        stored = "" if one.bytes_stored is None else f"{one.bytes_stored:,}"
        table.add_row(
            str(one.day),
            f"[bold]{escape(one.tenant)}[/]",
            f"{one.used.bytes_in:,}",
            f"{one.used.bytes_out:,}",
            stored,
            f"{one.used.requests:,}",
        )
    Console().print(table)


def _run(environment: Environment, work: Callable[[Tenants], Awaitable[Result]]) -> Result:
    found = find_cluster(environment)
    database_url = require(found.read(ClientSettings), "database_url")
    settings = found.read(SequencerSettings)

    async def run() -> Result:
        sequencer = await Sequencer.open(database_url, settings)
        try:
            return await work(sequencer.tenants)
        finally:
            await sequencer.close()

    try:
        return asyncio.run(run())
    except (InvalidTenantName, TenantExists, TenantNotEmpty, UnknownTenant) as error:
        raise UserError(str(error), "`tidelog tenants list` shows those there are.") from None
    except SequencerUnavailable as away:
        raise UserError(" ".join(str(away).split())) from None
    except CommitOutcomeUnknown:
        raise UserError(
            "The connection was lost; the change may have been made.", "`tidelog tenants list` shows it."
        ) from None
