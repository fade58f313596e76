"""`tidelog sql "SELECT ..."`: Spark SQL over the topics that were compacted."""

import base64
import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import QueryResult, query
from tidelog.output import counted
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings
from tidelog.spark_errors import spark_command

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Format(StrEnum):
    """`table` for people, `json` (an object per line) for programs."""

    TABLE = "table"
    JSON = "json"


@app.command()
@with_settings(ClientSettings, CompactionSettings)
def sql(
    environment: Environment,
    text: Annotated[str, typer.Argument(help='For example "SELECT count(*) FROM topics.flights".', show_default=False)],
    *,
    output: Annotated[Format, typer.Option("--format", help="table or json.")] = Format.TABLE,
) -> None:
    """Run one statement; the namespace of topics is `topics`."""
    with spark_command(environment, "http_url") as settings, Console(stderr=True).status("Asking Spark"):
        found = query(settings, text)
    if output is Format.JSON:
        for row in found.rows:
            typer.echo(json.dumps(dict(zip(found.columns, map(_plain, row), strict=True)), default=str))
    else:
        Console().print(_table(found))
    if found.truncated:
        Console(stderr=True).print(f"[yellow]Only the first {len(found.rows):,} rows; see TIDELOG_SQL_MAX_ROWS.[/]")


def _table(found: QueryResult) -> Table:
    table = Table(title=counted(len(found.rows), "row"), header_style="bold cyan")
    for index, name in enumerate(found.columns):
        numbers = bool(found.rows) and all(isinstance(row[index], int | float | None) for row in found.rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*("[dim]null[/]" if value is None else _shown(value) for value in row))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
    elif isinstance(value, datetime) and value.microsecond % 1000 == 0:  # Kafka's timestamps have no more
        text = value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    else:
        text = str(value)
    return text.replace("[", "\\[")


def _plain(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
