"""`tidelog groups`: list, describe, reset-offsets, delete, over the Kafka protocol."""

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.group_offsets import (
    Bounds,
    Place,
    PlannedOffset,
    ResetTo,
    Unread,
    parse_reset,
    parse_topics,
    plan_reset,
)
from tidelog.groups_client import GroupsClient, GroupView, in_use
from tidelog.kafka_client import file_options
from tidelog.output import as_text, counted, print_json
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings
from tidelog.streams_groups import StreamsGroup, Tasks

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List and describe consumer groups, set their offsets, delete them.",
)

_USED = ("bootstrap", "client_config_file", "data_dir", "client_timeout_s")
Name = Annotated[str, typer.Argument(help="The group's id.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command("list")
@with_settings(ClientSettings, only=_USED)
def list_groups(environment: Environment, *, as_json: AsJson = False) -> None:
    """Every group with its protocol and state."""
    groups = _client(environment).list()
    if as_json:
        print_json([{"group": row.name, "type": row.kind, "state": row.state} for row in groups])
        return
    if not groups:
        Console().print(
            "No groups yet. A consumer that subscribes makes one: `tidelog consume TOPIC --group NAME`."
        )
        return
    table = Table("group", "type", "state", title=counted(len(groups), "group"), header_style="bold cyan")
    for row in groups:
        table.add_row(f"[bold]{escape(row.name)}[/]", row.kind, _colored(row.state))
    Console().print(table)


@app.command()
@with_settings(ClientSettings, only=_USED)
def describe(environment: Environment, name: Name, *, as_json: AsJson = False) -> None:
    """Show members, offsets and lag: records not read yet, and how old the first of them is."""
    client = _client(environment)
    group = client.existing(name)
    unread = _unread(client, group)
    now_ms = int(1000 * time.time())
    if as_json:
        print_json(_as_json(group, unread, now_ms))
        return
    console = Console()
    coordinator = ""
    if group.coordinator is not None:
        coordinator = f"  coordinator {group.coordinator} ({escape(group.coordinator_address)})"
    assignor = f"  assignor {escape(group.assignor)}" if group.assignor else ""
    told = f"[bold]{escape(name)}[/]  {_colored(group.state)}  {group.kind}{assignor}{coordinator}"
    console.print(told, highlight=False, soft_wrap=True)
    if group.streams is None:
        _show_members(group, console)
    else:
        _show_streams(group.streams, console)
    _show_unread(group, unread, now_ms, console)


@app.command("reset-offsets")
@with_settings(ClientSettings, only=_USED)
def reset_offsets(
    environment: Environment,
    name: Name,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="TOPIC, or TOPIC:0,2 for some partitions; repeatable.", show_default=False
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that the group has offsets for.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end, after the newest record.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(help="To this offset.", show_default=False)] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(help="This many records forwards, or backwards if negative.", show_default=False),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            help="To a time such as 2026-11-21T18:30:00 (UTC if it has no offset).", show_default=False
        ),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="Back in time from now: PT1H30M, or 1h30m.", show_default=False)
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Change the offsets. Without it, only show the plan.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set where a group continues. Shows the plan; --execute carries it out. The group must have no
    members.
    """
    try:
        to = parse_reset(
            earliest=to_earliest, latest=to_latest, offset=to_offset, shift=shift_by, moment=to_datetime,
            duration=by_duration, now=datetime.now(UTC),
        )  # fmt: skip
        topics = parse_topics(topic or ())
    except ValueError as wrong:
        text = str(wrong)
        raise UserError(f"{text[0].upper()}{text[1:]}.") from None
    if bool(topics) == all_topics:
        raise UserError("Which topics?", "Give --topic TOPIC (or TOPIC:0,2), or --all-topics.")
    client = _client(environment)
    _require_idle(client, name, may_be_new=bool(topics))
    committed = client.committed(name)
    plan = _plan(client, to, _places(client, topics) if topics else set(committed), committed)
    if execute and plan:
        client.commit(name, {(planned.topic, planned.partition): planned.new for planned in plan})
    _show_plan(name, plan, execute, as_json)


@app.command()
@with_settings(ClientSettings, only=_USED)
def delete(
    environment: Environment,
    names: Annotated[list[str], typer.Argument(help="Ids of groups, one or more.", show_default=False)],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete groups without members, with their offsets."""
    client = _client(environment)
    if not yes:
        for name in names:
            client.existing(name)
        typer.confirm(f"Delete {', '.join(names)} and all committed offsets?", abort=True)
    for name in names:
        client.delete(name)
        if not as_json:
            Console().print(f"[green]Deleted[/] [bold]{escape(name)}[/].")
    if as_json:
        print_json({"deleted": names})


def _client(environment: Environment) -> GroupsClient:
    settings = find_cluster(environment).read(ClientSettings)
    return GroupsClient(require(settings, "bootstrap"), settings.client_timeout_s, file_options(settings))


# --- reads from the cluster


def _unread(client: GroupsClient, group: GroupView) -> list[Unread]:
    """Every partition that the group has an offset for, or a member."""
    committed = client.committed(group.name)
    members = {place: member.member_id for member in group.members for place in member.places}
    bounds = client.bounds(committed.keys() | members.keys())
    behind = {
        place: bounds[place].hold(offset)
        for place, offset in committed.items()
        if place in bounds and bounds[place].hold(offset) < bounds[place].end
    }
    timestamps = client.timestamps_at(behind)
    return [
        Unread(
            topic=place[0],
            partition=place[1],
            committed=committed.get(place),
            bounds=bounds.get(place),
            first_unread_ms=timestamps.get(place),
            member_id=members.get(place),
        )
        for place in sorted(committed.keys() | members.keys())
    ]


def _require_idle(client: GroupsClient, name: str, *, may_be_new: bool) -> None:
    group = client.describe(name) if may_be_new else client.existing(name)
    if group is not None and group.members:
        raise in_use(group)


def _places(client: GroupsClient, topics: Mapping[str, Collection[int] | None]) -> set[Place]:
    places = set()
    for topic, wanted in topics.items():
        there_are = client.partitions(topic)
        unknown = sorted(set(wanted or ()) - set(there_are))
        if unknown:
            count = counted(len(there_are), "partition")
            raise UserError(f"Topic {topic} has no partition {unknown[0]}.", f"It has {count}, from 0.")
        places |= {(topic, partition) for partition in (there_are if wanted is None else wanted)}
    return places


def _plan(
    client: GroupsClient, to: ResetTo, places: set[Place], committed: Mapping[Place, int]
) -> list[PlannedOffset]:
    bounds: dict[Place, Bounds] = client.bounds(places)
    at_time = {} if to.time_ms is None else client.offsets_at(bounds, to.time_ms)
    return plan_reset(to, bounds.keys(), committed, bounds, at_time)


# --- output


def _show_members(group: GroupView, console: Console) -> None:
    if not group.members:
        console.print("No members.")
        return
    columns = ("member", "client id", "host", "instance", "partitions")
    table = Table(*columns, title=counted(len(group.members), "member"), header_style="bold cyan")
    for column in table.columns[1:4]:
        column.no_wrap = True  # a narrow terminal cuts the member's id, the least useful column
    for member in group.members:
        owned: dict[str, list[int]] = {}
        for topic, partition in sorted(member.places):
            owned.setdefault(topic, []).append(partition)
        partitions = "; ".join(f"{topic}: {', '.join(map(str, numbers))}" for topic, numbers in owned.items())
        table.add_row(
            *map(
                escape,
                (
                    member.member_id,
                    member.client_id,
                    member.host,
                    member.instance_id or "-",
                    partitions or "-",
                ),
            )
        )
    console.print(table)


def _show_streams(group: StreamsGroup, console: Console) -> None:
    """The topology, and members with their tasks, which are named `subtopology_partition`."""
    console.print(
        f"group epoch {group.group_epoch}  assignment epoch {group.assignment_epoch}  topology epoch "
        + ("-" if group.topology_epoch < 0 else str(group.topology_epoch)),
        highlight=False,
    )
    if group.subtopologies:
        columns = ("subtopology", "sources", "repartition sources", "repartition sinks", "changelogs")
        table = Table(*columns, header_style="bold cyan")
        for part in group.subtopologies:
            topics = (part.sources, part.repartition_sources, part.repartition_sinks, part.changelogs)
            table.add_row(escape(part.subtopology_id), *(escape(", ".join(some)) or "-" for some in topics))
        console.print(table)
    if not group.members:
        console.print("No members.")
        return
    of_member = ("member", "client id", "host", "process", "epoch", "active", "standby", "warm-up")
    table = Table(*of_member, title=counted(len(group.members), "member"), header_style="bold cyan")
    for member in group.members:
        epoch = f"{member.member_epoch}" + (" (reconciling)" if member.is_reconciling else "")
        named = (member.member_id, member.client_id, member.host, member.process_id, epoch)
        table.add_row(*map(escape, named), *map(_tasks, (member.active, member.standby, member.warmup)))
    console.print(table)


def _tasks(tasks: Tasks) -> str:
    return ", ".join(f"{escape(part)}_{number}" for part, number in tasks) or "-"


def _show_unread(group: GroupView, unread: list[Unread], now_ms: int, console: Console) -> None:
    if not unread:
        console.print("No committed offsets.")
        return
    clients = {member.member_id: member.client_id for member in group.members}
    table = Table(
        "topic", "partition", "committed", "end", "lag", "behind", "member", header_style="bold cyan"
    )
    for column in table.columns[1:6]:
        column.justify = "right"
    for entry in unread:
        table.add_row(
            escape(entry.topic), str(entry.partition), _number(entry.committed),
            _number(None if entry.bounds is None else entry.bounds.end), _lag(entry.lag), _behind(entry,
            now_ms),
            escape(clients.get(entry.member_id or "", "-")),
        )  # fmt: skip
    console.print(table)
    total = sum(entry.lag or 0 for entry in unread)
    oldest_s = max(entry.lag_s(now_ms) or 0.0 for entry in unread)
    if total:
        console.print(f"lag: [bold]{counted(total, 'record')}[/], the oldest of them {as_text(oldest_s)} old")
    elif all(entry.lag == 0 for entry in unread):
        console.print("[green]Everything was read.[/]")


def _as_json(group: GroupView, unread: list[Unread], now_ms: int) -> dict[str, Any]:
    return {
        "group": group.name,
        "type": group.kind,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        **({} if group.streams is None else {"streams": asdict(group.streams)}),
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.instance_id,
                "partitions": [
                    {"topic": topic, "partition": partition} for topic, partition in sorted(member.places)
                ],
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": entry.topic,
                "partition": entry.partition,
                "committed": entry.committed,
                "log_start": None if entry.bounds is None else entry.bounds.log_start,
                "end": None if entry.bounds is None else entry.bounds.end,
                "lag": entry.lag,
                "lag_s": entry.lag_s(now_ms),
                "member_id": entry.member_id,
            }
            for entry in unread
        ],
    }


def _show_plan(name: str, plan: list[PlannedOffset], executed: bool, as_json: bool) -> None:
    if as_json:
        entries = [
            {"topic": planned.topic, "partition": planned.partition, "from": planned.now, "to": planned.new}
            for planned in plan
        ]
        print_json({"group": name, "executed": executed and bool(plan), "offsets": entries})
        return
    console = Console()
    if not plan:
        console.print("Nothing to set: the group has no committed offsets of topics that exist.")
        return
    table = Table("topic", "partition", "from", "to", header_style="bold cyan")
    if any(planned.was_bounded for planned in plan):
        table.add_column("note")
    for planned in plan:
        note = ["[yellow]as far as the log goes[/]"] if planned.was_bounded else []
        table.add_row(
            escape(planned.topic), str(planned.partition), _number(planned.now), _number(planned.new), *note
        )
    for column in table.columns[1:4]:
        column.justify = "right"
    console.print(table)
    if executed:
        console.print(f"[green]Done:[/] [bold]{escape(name)}[/] reads on from there.")
    else:
        console.print("[yellow]Nothing was changed.[/] Add --execute to do this.")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _lag(lag: int | None) -> str:
    if lag is None:
        return "-"
    return f"[yellow]{lag:,}[/]" if lag else "[green]0[/]"


def _behind(entry: Unread, now_ms: int) -> str:
    lag_s = entry.lag_s(now_ms)
    return "-" if lag_s is None or entry.lag == 0 else as_text(lag_s)


def _colored(state: str) -> str:
    colors = {"Stable": "green", "Empty": "dim", "Dead": "red"}
    return f"[{colors.get(state, 'yellow')}]{state}[/]"
