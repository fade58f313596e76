"""`tidelog sql "SELECT ..."`: Spark SQL over the topics that were compacted."""

import base64
import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from spark_compaction.java import JavaMissing
from spark_compaction.session import SparkUnavailable, stop_spark
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import QueryFailed, QueryResult, query
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.setting_options import with_settings
from tidelog.settings import ClientSettings

app = typer.Typer()


class Format(StrEnum):
    """`table` for people, `json` (an object per line) for programs."""

    TABLE = "table"
    JSON = "json"


@app.command()
@with_settings(ClientSettings, CompactionSettings)
def sql(
    text: Annotated[str, typer.Argument(help='For example "SELECT count(*) FROM topics.flights".', show_default=False)],
    *,
    output: Annotated[Format, typer.Option("--format", help="table or json.")] = Format.TABLE,
) -> None:
    """Run one statement; the namespace of topics is `topics`."""
    require(find_cluster(), "http_url")
    console = Console()
    try:
        with console.status("Asking Spark", spinner="dots"):
            found = query(CompactionSettings(), text)
    except (QueryFailed, SparkUnavailable, JavaMissing) as failed:
        raise UserError(str(failed)) from None
    except ValidationError as invalid:
        raise UserError(str(invalid)) from None
    finally:
        stop_spark()
    if output is Format.JSON:
        for row in found.rows:
            typer.echo(json.dumps(dict(zip(found.columns, map(_plain, row), strict=True)), default=str))
    else:
        console.print(_table(found))
    if found.truncated:
        Console(stderr=True).print(f"[yellow]Only the first {len(found.rows):,} rows; see TIDELOG_SQL_MAX_ROWS.[/]")


def _table(found: QueryResult) -> Table:
    table = Table(title=f"{len(found.rows):,} rows", header_style="bold cyan")
    for index, name in enumerate(found.columns):
        numbers = bool(found.rows) and all(isinstance(row[index], int | float | None) for row in found.rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*("[dim]null[/]" if value is None else _shown(value) for value in row))
    return table


def _shown(value: Any) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text.replace("[", "\\[")


def _plain(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
