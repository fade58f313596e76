"""`tidelog ttl [TOPIC...]`: drops history that a topic's `retention.ms` has expired."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from spark_compaction.settings import CompactionSettings
from spark_compaction.ttl import TopicExpiry, TtlProgress, TtlReport, expire_history
from tidelog.output import counted
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings
from tidelog.spark_errors import spark_command

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings(ClientSettings, CompactionSettings)
def ttl(
    environment: Environment,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Which topics. By default all.", show_default=False)
    ] = None,
) -> None:
    """Drop what has expired from topics' history, as of now. Garbage collection deletes its files later."""
    console = Console()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with (
        spark_command(environment, "database_url", "store_url") as settings,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("Looking for what has expired", total=None)

        def show(now: TtlProgress) -> None:
            text = f"{now.topic}: {now.stage}"
            progress.update(bar, description=text, completed=now.tasks_done, total=now.tasks_total or None)

        report = expire_history(settings, topics or None, show)
    console.print(_table(report))
    if any(topic.waits for topic in report.topics):
        raise typer.Exit(1)


def _table(report: TtlReport) -> Table:
    title = f"{counted(report.rows_expired, 'record')} expired"
    table = Table(
        "topic", "records", "files dropped", "files rewritten", "", title=title, header_style="bold cyan"
    )
    for column in table.columns[1:4]:
        column.justify = "right"
    for topic in report.topics:
        numbers = (topic.rows_expired, topic.files_dropped, topic.files_rewritten)
        table.add_row(f"[bold]{topic.topic}[/]", *(f"{number:,}" for number in numbers), _remark(topic))
    return table


def _remark(topic: TopicExpiry) -> str:
    if topic.busy:
        return "[yellow]left to another job at work[/]"
    if topic.waits:
        return f"[bold red]{topic.files_deferred} partly expired files wait: {escape(topic.waits)}[/]"
    if topic.files_deferred:
        return f"[yellow]{topic.files_deferred} partly expired files wait for the next pass[/]"
    return ""
