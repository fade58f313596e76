"""`tidelog topics`: list, create, describe, alter, set, unset, delete, through an agent's HTTP side."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from tidelog.agents_client import TopicsClient, logged_in
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
    help="List, create, describe, alter and delete topics, and set their configs.",
)

_USED = ("http_url", "data_dir", "client_timeout_s")
Name = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]
Partitions = Annotated[int | None, typer.Option(min=1, help="Partitions in all.", show_default=False)]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="A setting, NAME=VALUE. May be repeated.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command("list")
@with_settings(ClientSettings, only=_USED)
def list_topics(environment: Environment, *, as_json: AsJson = False) -> None:
    """Every topic with its partitions and settings."""
    with _client(environment) as client:
        topics = client.list()
    if as_json:
        print_json(topics)
        return
    if not topics:
        Console().print("No topics yet. `tidelog topics create NAME` makes one; so does producing to it.")
        return
    title = counted(len(topics), "topic")
    table = Table("topic", "partitions", "settings", "created", title=title, header_style="bold cyan")
    for topic in topics:
        table.add_row(
            f"[bold]{topic['name']}[/]",
            str(topic["partitions"]),
            _settings_of(topic),
            topic["created_at"][:19],
        )
    Console().print(table)


@app.command()
@with_settings(ClientSettings, only=_USED)
def create(
    environment: Environment,
    name: Name,
    *,
    partitions: Partitions = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    with _client(environment) as client:
        topic = client.create(name, partitions, _parse(config))
    if as_json:
        print_json(topic)
    else:
        Console().print(
            f"[green]Created[/] [bold]{topic['name']}[/] with {counted(topic['partitions'], 'partition')}."
        )


@app.command()
@with_settings(ClientSettings, only=_USED)
def describe(
    environment: Environment,
    name: Name,
    *,
    explain: Annotated[bool, typer.Option("--explain", help="Explain each config.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a topic's settings and the offsets of its partitions."""
    with _client(environment) as client:
        topic = client.describe(name)
    if as_json:
        print_json(topic)
        return
    title = f"[bold]{topic['name']}[/]  {topic['topic_id']}"
    table = Table(
        "partition", "log start", "high watermark", "records", title=title, header_style="bold cyan"
    )
    for column in table.columns:
        column.justify = "right"
    for partition in topic["offsets"]:
        start, end = partition["log_start_offset"], partition["high_watermark"]
        table.add_row(str(partition["partition"]), f"{start:,}", f"{end:,}", f"{end - start:,}")
    console = Console()
    console.print(table)
    console.print(_configs(topic["configs"]))
    console.print(f"created: {topic['created_at'][:19]}")
    for config in topic["configs"] if explain else ():
        console.print(f"[bold]{config['name']}[/]", highlight=False)
        console.print(Padding(escape(config["documentation"]), (0, 0, 0, 2)), highlight=False)


@app.command()
@with_settings(ClientSettings, only=_USED)
def alter(
    environment: Environment,
    name: Name,
    *,
    partitions: Partitions = None,
    config: Config = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", help="A setting to return to its default.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add partitions, set or remove settings."""
    if partitions is None and not config and not remove:
        raise UserError("Nothing to alter.", "Give --partitions, --config NAME=VALUE or --remove NAME.")
    _alter(_client(environment), name, partitions, _parse(config), remove or (), as_json)


@app.command("set")
@with_settings(ClientSettings, only=_USED)
def set_configs(
    environment: Environment,
    name: Name,
    configs: Annotated[list[str], typer.Argument(help="NAME=VALUE, one or more.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Set configs: `tidelog topics set orders retention.ms=3600000`."""
    _alter(_client(environment), name, None, _parse(configs), (), as_json)


@app.command("unset")
@with_settings(ClientSettings, only=_USED)
def unset_configs(
    environment: Environment,
    name: Name,
    configs: Annotated[list[str], typer.Argument(help="Names of configs, one or more.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Return configs to their defaults: `tidelog topics unset orders retention.ms`."""
    with _client(environment) as client:
        known = {config["name"] for config in client.describe(name)["configs"]}
    for config in configs:
        if config not in known:
            raise UserError(
                f"There is no config {config}.", f"`tidelog topics describe {name}` shows those there are."
            )
    _alter(_client(environment), name, None, {}, configs, as_json)


@app.command()
@with_settings(ClientSettings, only=_USED)
def delete(
    environment: Environment,
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all its records."""
    with _client(environment) as client:
        if not yes:
            client.describe(name)  # a topic that does not exist is an error, not a question
            typer.confirm(f"Delete {name} and all its records?", abort=True)
        topic = client.delete(name)
    if as_json:
        print_json(topic)
    else:
        Console().print(f"[green]Deleted[/] [bold]{topic['name']}[/].")


def _client(environment: Environment) -> TopicsClient:
    settings = find_cluster(environment).read(ClientSettings)
    return TopicsClient(require(settings, "http_url"), settings.client_timeout_s, logged_in(settings))


def _alter(
    client: TopicsClient,
    name: str,
    partitions: int | None,
    put: dict[str, str],
    remove: Sequence[str],
    as_json: bool,
) -> None:
    with client:
        topic = client.alter(name, partitions, put, remove)
    if as_json:
        print_json(topic)
    else:
        now = f"{counted(topic['partitions'], 'partition')}, {_settings_of(topic)}"
        Console().print(f"[green]Altered[/] [bold]{topic['name']}[/]: {now}.")


def _configs(configs: Sequence[dict[str, Any]]) -> Table:
    table = Table("config", "value", "source", header_style="bold cyan")
    for config in configs:
        is_set = config["source"] == "topic"
        table.add_row(
            f"[bold]{config['name']}[/]" if is_set else config["name"], escape(config["value"]),
            "[green]topic[/]" if is_set else "default",
        )  # fmt: skip
    return table


def _parse(config: list[str] | None) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in config or ()]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise UserError(f"{name!r} is not a setting.", "Write it as NAME=VALUE: retention.ms=3600000.")
    return {name: _of_file(value) if name.endswith(".schema") else value for name, _, value in pairs}


def _of_file(value: str) -> str:
    """A schema, or with `@FILE` that of a file. What is no text, such as descriptors, becomes base64."""
    if not value.startswith("@"):
        return value
    try:
        data = Path(value[1:]).read_bytes()
    except OSError as error:
        raise UserError(f"{value[1:]} cannot be read: {error.strerror}.") from None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.lstrip()[:1] in ("{", "[", '"') else base64.b64encode(data).decode()


def _settings_of(topic: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(topic["config"].items())) or "defaults"
