"""`tidelog history`: keeps the topics' tables fresh, and shows what they have."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from prometheus_client import REGISTRY, start_http_server
from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table

from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.history.history_values import ShownJob, TopicBehind, TopicShown
from sequencer.settings import SequencerSettings
from sequencer.topics.topic_config import TopicConfig
from spark_compaction.service import lateness, run_service
from spark_compaction.settings import CompactionSettings
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.output import as_text
from tidelog.process.environment import Environment
from tidelog.process.logs import configure_logs
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings, ProcessSettings
from tidelog.spark_errors import spark_command

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Keep the topics' tables fresh; show what they have.",
)


@app.command()
@with_settings(ClientSettings, CompactionSettings, ProcessSettings)
def run(environment: Environment) -> None:
    """Compact the topics as they are written, merge their files and apply TTL, until a signal ends it."""
    with spark_command(environment, "database_url", "store_url") as settings:
        process = environment.read(ProcessSettings)
        configure_logs(process.log_format, process.log_level)
        if settings.history_metrics_port:
            start_http_server(settings.history_metrics_port)
        asyncio.run(_until_stopped(settings))


async def _until_stopped(settings: CompactionSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await run_service(settings, REGISTRY, stop)


@app.command()
@with_settings(ClientSettings, only=("database_url", "data_dir"))
def show(
    environment: Environment,
    topic: Annotated[
        str | None, typer.Argument(help="Which topics. By default all.", show_default=False)
    ] = None,
) -> None:
    """Show what the topics' tables have, and how far they are behind."""
    found = find_cluster(environment)
    database_url, settings = (
        require(found.read(ClientSettings), "database_url"),
        found.read(SequencerSettings),
    )
    try:
        shown, behind = asyncio.run(_ask(database_url, settings, topic))
    except SequencerUnavailable as away:
        raise UserError(" ".join(str(away).split())) from None
    if topic is not None and not shown:
        raise UserError(f"There is no topic '{topic}'.", "`tidelog topics list` shows those there are.")
    console = Console(width=None if sys.stdout.isatty() else _WIDEST)
    for part in _shown(shown, {each.topic_name: each for each in behind}, console.width):
        console.print(part)


async def _ask(
    database_url: str, settings: SequencerSettings, topic: str | None
) -> tuple[tuple[TopicShown, ...], tuple[TopicBehind, ...]]:
    sequencer = await Sequencer.open(database_url, settings)
    try:
        return await sequencer.history.shown(topic), await sequencer.history.behind()
    finally:
        await sequencer.close()


_WIDEST = 500
_COLUMNS = (
    *("topic", "history", "raw", "Parquet", "ratio", "files", "records", "behind", "backlog"),
    "last job",
)


def _shown(
    shown: tuple[TopicShown, ...], behind: dict[str, TopicBehind], width: int
) -> Iterator[RenderableType]:
    """One table of all topics, or of each topic where they do not fit side by side."""
    rows = [_row(topic, behind.get(topic.topic_name)) for topic in shown]
    table = Table(*_COLUMNS, header_style="bold cyan")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for column in table.columns[2:-1]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    needed = Measurement.get(Console(width=_WIDEST), Console(width=_WIDEST).options, table).maximum
    if needed <= width:
        yield table
    else:
        for row in rows:
            facts = Table.grid(padding=(0, 2))
            for name, value in zip(_COLUMNS, row, strict=True):
                facts.add_row(f"[cyan]{name}[/]", value)
            yield Padding(facts, (0, 0, 1, 0))
    for topic in shown:
        if topic.waits:
            yield f"[red]{topic.topic_name} waits: {escape(topic.waits)}[/]"
    broken = [topic for topic in shown if topic.raw_ranges]
    if broken:
        ranges = ", ".join(f"{topic.topic_name}: {topic.raw_ranges}" for topic in broken)
        yield f"[red]Ranges that would not decode and stay raw: {ranges}[/]"


def _row(topic: TopicShown, late: TopicBehind | None) -> tuple[str, ...]:
    return (
        f"[bold]{topic.topic_name}[/]",
        TopicConfig.of(topic.config).history,
        decimal(topic.raw_bytes),
        decimal(topic.parquet_bytes),
        "" if topic.ratio is None else f"{topic.ratio:.2f}",
        f"{topic.files:,}",
        f"{topic.records:,}",
        _age(topic, late),
        f"{late.records:,}" if late else "0",
        _job(topic.last_job),
    )


def _job(job: ShownJob | None) -> str:
    """What it was, how it ended or that it runs, when and how long."""
    if job is None:
        return ""
    state = {"published": "ended", "running": "[cyan]runs[/]", "abandoned": "[red]gave up[/]"}[job.state]
    return f"{job.kind} {state}, {as_text(job.age_s)} ago, took {as_text(job.took_s)}"


def _age(topic: TopicShown, behind: TopicBehind | None) -> str:
    if TopicConfig.of(topic.config).history == "off":
        return "[dim]off[/]"
    if behind is None:
        return "[green]fresh[/]" if topic.published_at else "[dim]empty[/]"
    text = as_text(behind.behind_s)
    return f"[red]{text}[/]" if lateness(behind) > 1 else f"[yellow]{text}[/]"
