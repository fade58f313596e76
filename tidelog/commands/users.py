"""`tidelog users`: add, list and remove users, and change passwords, directly in Postgres. So the first user
needs no user. A password comes from a prompt, a file or standard input, never from the command line, which
other processes see.
"""

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent.quotas.entities import QuotaKind
from agent.quotas.settings import QuotaSettings
from agent.security.sasl import scram
from agent.traffic_class import MARKS_OF_USERS, TrafficClass
from sequencer.client import Sequencer, SequencerSettings
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.security.credentials import (
    CredentialKey,
    InvalidUserName,
    ListedCredential,
    ScramKeys,
    ScramMechanism,
    UserCredentials,
    check_user,
)
from sequencer.security.quotas import Entity, TooManyQuotas
from sequencer.tenants.tenant_limits import TenantLimitReached
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
    help="Add, list and remove users of Kafka's SASL, and change their passwords.",
)

_USED = ("database_url", "data_dir")
_LONGEST_PASSWORD_BYTES = 4_096
_RANDOM_BYTES = 64
Result = TypeVar("Result")


class Mechanism(StrEnum):
    """What `--mechanism` takes."""

    BOTH = "both"
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def mechanisms(self) -> tuple[ScramMechanism, ...]:
        return tuple(ScramMechanism) if self is Mechanism.BOTH else (ScramMechanism(self.value),)


Name = Annotated[str, typer.Argument(help="The user's name.", show_default=False)]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Read the password from the first line of this file; - reads standard input. By default a "
        "prompt asks.",
        show_default=False,
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        min=scram.LEAST_ITERATIONS,
        max=scram.MOST_ITERATIONS,
        help="The work of a guess. With another number than TIDELOG_SASL_DECOY_ITERATIONS, strangers can "
        "tell the user from one that does not exist.",
    ),
]
Mechanisms = Annotated[
    Mechanism,
    typer.Option("--mechanism", help="The SCRAM mechanisms that the user may use. PLAIN needs any."),
]


@app.command()
@with_settings(ClientSettings, only=_USED)
def add(
    environment: Environment,
    name: Name,
    *,
    password_file: PasswordFile = None,
    iterations: Iterations = scram.LEAST_ITERATIONS,
    mechanism: Mechanisms = Mechanism.BOTH,
) -> None:
    """Add a user."""
    _set(environment, name, password_file, iterations, mechanism, is_new=True)
    Console().print(f"[green]Added[/] [bold]{escape(name)}[/]. Agents know within a second.")


@app.command()
@with_settings(ClientSettings, only=_USED)
def passwd(
    environment: Environment,
    name: Name,
    *,
    password_file: PasswordFile = None,
    iterations: Iterations = scram.LEAST_ITERATIONS,
    mechanism: Mechanisms = Mechanism.BOTH,
) -> None:
    """Change a user's password. Open connections stay until they must authenticate again."""
    _set(environment, name, password_file, iterations, mechanism, is_new=False)
    Console().print(f"[green]Changed[/] the password of [bold]{escape(name)}[/].")


@app.command("list")
@with_settings(ClientSettings, only=_USED)
def list_users(
    environment: Environment,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Every user with its mechanisms."""
    users: dict[str, list[ListedCredential]] = {}
    for one in _run(environment, UserCredentials.list):
        users.setdefault(one.key.user, []).append(one)
    if as_json:
        print_json(
            [
                {"user": user, "mechanisms": {str(one.key.mechanism): one.iterations for one in credentials}}
                for user, credentials in users.items()
            ]
        )
        return
    if not users:
        Console().print("No users yet. `tidelog users add NAME` makes one.")
        return
    table = Table("user", "mechanisms", title=counted(len(users), "user"), header_style="bold cyan")
    for user, credentials in users.items():
        shown = ", ".join(f"{one.key.mechanism} ({one.iterations:,} iterations)" for one in credentials)
        table.add_row(f"[bold]{escape(user)}[/]", shown)
    Console().print(table)


@app.command()
@with_settings(ClientSettings, only=_USED)
def remove(environment: Environment, name: Name) -> None:
    """Remove a user. Its connections end within seconds."""
    with audited(environment, "tidelog users remove", "USER", name):
        if not _run(environment, lambda credentials: _remove(credentials, name)):
            raise _unknown(name)
    Console().print(f"[green]Removed[/] [bold]{escape(name)}[/].")


@app.command()
@with_settings(ClientSettings, only=_USED)
def priority(
    environment: Environment,
    name: Name,
    priority: Annotated[TrafficClass, typer.Argument(help="What overload does to the user's requests.")],
) -> None:
    """Mark a user's traffic as interactive or bulk (docs/overload.md). The user needs no password here."""
    values = {traffic: value for value, traffic in MARKS_OF_USERS.items()}
    marked: dict[str, float | None] = {QuotaKind.PRIORITY: values.get(priority)}
    most = find_cluster(environment).read(QuotaSettings).max_client_quotas
    entity: Entity = frozenset({("user", name)})
    with audited(environment, "tidelog users priority", "USER", name, priority=priority.value):
        try:
            _run_with(environment, lambda sequencer: sequencer.client_quotas.alter({entity: marked}, most))
        except TooManyQuotas as error:
            raise UserError(str(error)) from None
    Console().print(f"[bold]{escape(name)}[/] is [green]{priority}[/]. Agents know within a second.")


async def _remove(credentials: UserCredentials, name: str) -> bool:
    found = (await credentials.of([name])).get(name, ())
    return bool(found) and not await credentials.alter((), [one.key for one in found])


def _set(
    environment: Environment,
    name: str,
    password_file: str | None,
    iterations: int,
    mechanism: Mechanism,
    *,
    is_new: bool,
) -> None:
    try:
        check_user(name)
    except InvalidUserName as error:
        raise UserError(f"{error}.") from None
    password = _password(password_file)
    upserted = [
        (CredentialKey(name, one), _new_keys(one, password, iterations)) for one in mechanism.mechanisms
    ]
    command = "tidelog users add" if is_new else "tidelog users passwd"
    with audited(environment, command, "USER", name, mechanism=mechanism.value, iterations=iterations):
        refused = _run(
            environment, lambda credentials: credentials.alter(upserted, users_must_exist=not is_new)
        )
        if refused and is_new:
            raise UserError(
                f"There is a user {name} already.", f"`tidelog users passwd {name}` changes its password."
            )
        if refused:
            raise _unknown(name)


def _new_keys(mechanism: ScramMechanism, password: str, iterations: int) -> ScramKeys:
    salt = scram.a_salt(secrets.token_bytes(_RANDOM_BYTES))
    salted = scram.salted_password(mechanism, password, salt, iterations)
    return scram.keys_of(mechanism, salted, salt, iterations)


def _password(file: str | None) -> str:
    if file is None:
        if not sys.stdin.isatty():
            raise UserError(
                "There is no terminal to ask for the password.", "Give --password-file FILE, or -."
            )
        found: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        try:
            with sys.stdin.buffer if file == "-" else Path(file).open("rb") as source:
                line = source.readline(_LONGEST_PASSWORD_BYTES + 2)
            found = line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise UserError("The password is not UTF-8.") from None
    if not found or "\0" in found or len(found.encode()) > _LONGEST_PASSWORD_BYTES:
        raise UserError(f"A password has 1 to {_LONGEST_PASSWORD_BYTES} bytes, none of them NUL.")
    return found


def _unknown(name: str) -> UserError:
    return UserError(f"There is no user {name}.", "`tidelog users list` shows those there are.")


def _run(environment: Environment, work: Callable[[UserCredentials], Awaitable[Result]]) -> Result:
    return _run_with(environment, lambda sequencer: work(sequencer.user_credentials))


def _run_with(environment: Environment, work: Callable[[Sequencer], Awaitable[Result]]) -> Result:
    found = find_cluster(environment)
    database_url = require(found.read(ClientSettings), "database_url")
    settings = found.read(SequencerSettings)

    async def run() -> Result:
        sequencer = await Sequencer.open(database_url, settings)
        try:
            return await work(sequencer)
        finally:
            await sequencer.close()

    try:
        return asyncio.run(run())
    except SequencerUnavailable as away:
        raise UserError(" ".join(str(away).split())) from None
    except TenantLimitReached as limit:
        raise UserError(str(limit), "`tidelog tenants limits` shows and raises the limit.") from None
    except CommitOutcomeUnknown:
        raise UserError(
            "The connection was lost; the change may have been made.", "`tidelog users list` shows it."
        ) from None
