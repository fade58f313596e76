"""`tidelog compact [TOPIC...]`: new records of topics become Parquet."""

from collections.abc import Sequence
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

from spark_compaction.compact import CompactionProgress, CompactionReport, TopicCompaction, compact_topics
from spark_compaction.settings import CompactionSettings
from tidelog.output import counted
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings
from tidelog.spark_errors import spark_command

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings(ClientSettings, CompactionSettings)
def compact(
    environment: Environment,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Which topics. By default all.", show_default=False)
    ] = None,
) -> None:
    """Compact topics into Parquet with Spark. A topic without new records costs nothing."""
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
        bar = progress.add_task("Looking for new records", total=None)

        def show(now: CompactionProgress) -> None:
            text = f"{_named(now.topics)}: {now.stage}"
            progress.update(bar, description=text, completed=now.tasks_done, total=now.tasks_total or None)

        report = compact_topics(settings, topics or None, show)
    console.print(_table(report))
    if any(topic.stopped or topic.raw_ranges or topic.failed or topic.waits for topic in report.topics):
        raise typer.Exit(1)


def _named(topics: Sequence[str]) -> str:
    return topics[0] if len(topics) == 1 else counted(len(topics), "topic")


def _table(report: CompactionReport) -> Table:
    title = f"{counted(report.rows, 'record')} in {counted(report.files, 'file')}"
    table = Table(
        "topic", "records", "files", "raw bytes", "Parquet bytes", "", title=title, header_style="bold cyan"
    )
    for column in table.columns[1:5]:
        column.justify = "right"
    for topic in report.topics:
        numbers = (topic.rows, topic.files, topic.raw_bytes, topic.parquet_bytes)
        table.add_row(f"[bold]{topic.topic}[/]", *(f"{number:,}" for number in numbers), _remark(topic))
    return table


def _remark(topic: TopicCompaction) -> str:
    if topic.stopped:
        stopped = counted(len(topic.stopped), "partition")
        return f"[bold red]{stopped} stopped: an object is missing; see `tidelog doctor`[/]"
    if topic.failed:
        return f"[bold red]a task failed, to be tried again: {topic.failed[0].reason}[/]"
    if topic.waits:
        return f"[bold red]waits: {escape(topic.waits)}[/]"
    if topic.raw_ranges:
        return f"[red]{len(topic.raw_ranges)} ranges would not decode and stay raw[/]"
    if topic.busy:
        return "[yellow]left to another compaction at work[/]"
    if topic.rewritten_files:
        return f"{counted(topic.rewritten_files, 'file')} had rows that were replaced"
    return "" if topic.advanced else "[dim]nothing new[/]"
