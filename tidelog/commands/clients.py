"""`tidelog clients`: who is connected to the cluster's agents, with which library and version.

It asks each live agent for its connections over HTTP. If an agent does not answer, it shows the others and
names that agent. A login goes over plain HTTP only to the address that the user named and to this machine,
because the other addresses come over the network. It shows the connections of a client together, or one by
one with `--connections`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidelog.agents_client import ask, logged_in, may_send_login
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.output import as_text, counted, print_json
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Connection: TypeAlias = dict[str, Any]

_ANY_WIDTH = 10_000


@dataclass(slots=True, kw_only=True)
class _Client:
    """The connections of one client: the same id, library, version and host."""

    first: Connection
    since: str
    connections: int = 0
    requests: int = 0
    agents: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)

    def add(self, connection: Connection) -> None:
        self.connections += 1
        self.requests += connection["requests"]
        self.since = min(self.since, connection["connected_at"])
        self.agents.add(_agent(connection))
        self.groups.update(connection["groups"])


@app.command()
@with_settings(ClientSettings, only=("http_url", "data_dir", "client_timeout_s"))
def clients(
    *,
    environment: Environment,
    each: Annotated[bool, typer.Option("--connections", help="Show each connection of a client.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs: an object per connection.")
    ] = False,
) -> None:
    """Show who is connected: library and version, address, zone, agent, groups."""
    settings = find_cluster(environment).read(ClientSettings)
    url = require(settings, "http_url").rstrip("/")
    found: list[Connection] = []
    silent: list[str] = []
    login = logged_in(settings)
    with httpx.Client(timeout=settings.client_timeout_s, headers=login) as client:
        for agent in ask(client, "GET", f"{url}/v1/cluster")["agents"]:
            try:
                if login and not may_send_login(agent["http_url"], named=url):
                    raise _plain(agent["http_url"])
                found.extend(_connections(client, agent["http_url"].rstrip("/")))
            except UserError as error:
                silent.append(f"agent {agent['node_id']} (zone {agent['zone']}): {error.message}")
    if as_json:
        print_json(found)
    elif each:
        _show_connections(found)
    else:
        _show_clients(found)
    if not as_json:
        _show_advice(found)
    for line in silent:
        Console(stderr=True, soft_wrap=True).print(f"[yellow]Not asked:[/] {escape(line)}", highlight=False)


def _plain(url: str) -> UserError:
    return UserError(
        f"its address {url} is plain HTTP, so it gets no login. Set TIDELOG_HTTP_TLS on the agents, or "
        "TIDELOG_ADVERTISED_HTTP_URL to their https:// address, or name this one in TIDELOG_HTTP_URL."
    )


def _connections(client: httpx.Client, url: str) -> Iterator[Connection]:
    after: int | None = 0
    while after is not None:
        page = ask(client, "GET", f"{url}/v1/clients", params={"after": after})
        for connection in page["connections"]:
            yield {"node_id": page["node_id"], "agent_zone": page["zone"], **connection}
        after = page["next"]


def _show_clients(connections: list[Connection]) -> None:
    by_client: dict[tuple[str, ...], _Client] = {}
    for connection in connections:
        key = (*_names(connection), _host(connection))
        entry = by_client.setdefault(key, _Client(first=connection, since=connection["connected_at"]))
        entry.add(connection)
    table = _table(counted(len(by_client), "client"), "host", "connections")
    for told, entry in sorted(by_client.items(), key=lambda item: item[0]):
        agents = ", ".join(sorted(entry.agents))
        table.add_row(
            *map(escape, told), str(entry.connections), entry.first["zone"] or "-", agents, _age(entry.since),
            f"{entry.requests:,}", escape(", ".join(sorted(entry.groups))),
        )  # fmt: skip
    _print(table, connections)


def _show_connections(connections: list[Connection]) -> None:
    table = _table(counted(len(connections), "connection"), "address")
    for connection in sorted(
        connections, key=lambda connection: (*_names(connection), connection["connected_at"])
    ):
        table.add_row(
            *map(escape, (*_names(connection), connection["address"])), connection["zone"] or "-",
            _agent(connection),
            _age(connection["connected_at"]), f"{connection['requests']:,}",
            escape(", ".join(connection["groups"])),
        )  # fmt: skip
    _print(table, connections)


def _show_advice(connections: list[Connection]) -> None:
    """A line for each producer that its own settings slow down."""
    advised = {
        (*_names(connection), str(connection["advice"])) for connection in connections if connection["advice"]
    }
    for client_id, library, version, advice in sorted(advised):
        line = f"[yellow]{escape(client_id)}[/] ({escape(library)} {escape(version)}): {escape(advice)}."
        Console(soft_wrap=True).print(line, highlight=False)
    if advised:
        Console(soft_wrap=True).print("docs/tuning.md says more.", highlight=False)


def _table(title: str, *middle: str) -> Table:
    columns = ("client id", "library", "version", *middle, "zone", "agent", "since", "requests", "groups")
    table = Table(*columns, title=title, header_style="bold cyan")
    for column in table.columns:
        if column.header in ("connections", "since", "requests"):
            column.justify = "right"
    return table


def _print(table: Table, connections: list[Connection]) -> None:
    console = Console()
    if not connections:
        console.print("No Kafka client is connected.")
    elif console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum <= console.width:
        console.print(table)
    else:
        _print_narrow(table, console)


def _print_narrow(table: Table, console: Console) -> None:
    """For a terminal that is too narrow for the table: a few lines per row."""
    console.print(table.title, style="table.title")
    names = [str(column.header) for column in table.columns[1:]]
    for first, *cells in zip(*(column.cells for column in table.columns), strict=True):
        console.print(f"[bold]{first}[/]", highlight=False)
        lines: list[Text] = []
        for name, cell in zip(names, cells, strict=True):
            told = Text.from_markup(f"  [dim]{name}[/] {cell}")
            if lines and lines[-1].cell_len + told.cell_len <= console.width:
                lines[-1].append_text(told)
            elif cell:
                lines.append(told)
        for line in lines:
            console.print(line)


def _names(connection: Connection) -> tuple[str, str, str]:
    name = connection["client_id"]
    return (
        "-" if name is None else name,
        connection["software_name"] or "-",
        connection["software_version"] or "-",
    )


def _host(connection: Connection) -> str:
    return str(connection["address"]).rpartition(":")[0]


def _agent(connection: Connection) -> str:
    return f"{connection['node_id']} ({connection['agent_zone']})"


def _age(since: str) -> str:
    return as_text((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())
