"""`tidelog history`: keeps the topics' tables fresh, and shows what they have."""

import asyncio
import signal
from typing import Annotated

import typer
from prometheus_client import REGISTRY, start_http_server
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.history.history_values import TopicBehind, TopicShown
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
    """Compact the topics as they are written, merge their files and apply TTL, until it is told to stop."""
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
    topic: Annotated[str | None, typer.Argument(help="Which; by default all.", show_default=False)] = None,
) -> None:
    """Show what the topics' tables have, and how far they are behind."""
    found = find_cluster(environment)
    database_url, settings = require(found.read(ClientSettings), "database_url"), found.read(SequencerSettings)
    try:
        shown, behind = asyncio.run(_ask(database_url, settings, topic))
    except SequencerUnavailable as away:
        raise UserError(" ".join(str(away).split())) from None
    if topic is not None and not shown:
        raise UserError(f"There is no topic '{topic}'.", "`tidelog topics list` shows those there are.")
    Console().print(_table(shown, {each.topic_name: each for each in behind}))


async def _ask(
    database_url: str, settings: SequencerSettings, topic: str | None
) -> tuple[tuple[TopicShown, ...], tuple[TopicBehind, ...]]:
    sequencer = await Sequencer.open(database_url, settings)
    try:
        return await sequencer.history.shown(topic), await sequencer.history.behind()
    finally:
        await sequencer.close()


def _table(shown: tuple[TopicShown, ...], behind: dict[str, TopicBehind]) -> Table:
    table = Table(
        "topic", "history", "raw", "Parquet", "files", "records", "behind", "backlog", header_style="bold cyan"
    )
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[2:]:
        column.justify = "right"
    for topic in shown:
        late = behind.get(topic.topic_name)
        table.add_row(
            f"[bold]{topic.topic_name}[/]",
            TopicConfig.of(topic.config).history,
            decimal(topic.raw_bytes),
            decimal(topic.parquet_bytes),
            f"{topic.files:,}",
            f"{topic.records:,}",
            _age(topic, late),
            f"{late.records:,}" if late else "0",
        )
    broken = [topic for topic in shown if topic.raw_ranges]
    if broken:
        ranges = ", ".join(f"{topic.topic_name}: {topic.raw_ranges}" for topic in broken)
        table.caption = f"[red]Ranges that would not decode and stay raw: {ranges}[/]"
    return table


def _age(topic: TopicShown, behind: TopicBehind | None) -> str:
    if TopicConfig.of(topic.config).history == "off":
        return "[dim]off[/]"
    if behind is None:
        return "[green]fresh[/]" if topic.published_at else "[dim]empty[/]"
    text = as_text(behind.behind_s)
    return f"[red]{text}[/]" if lateness(behind) > 1 else f"[yellow]{text}[/]"
