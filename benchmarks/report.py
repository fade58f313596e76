"""The figures as tables, each next to what it is compared with."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks import offset_commits
from benchmarks.offset_commits import OffsetCommitRates
from benchmarks.parts import BATCHES_PER_COMMIT, CodecRate, CommitRate
from benchmarks.raw_store import AT_A_TIME, OBJECT_BYTES, RawThroughput
from benchmarks.through_agent import Latency, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that one run measured. `consume_far` is through the other zone's agent, which had none of it in memory."""

    endpoint: str
    raw: RawThroughput
    produce: Transfer
    consume_near: Transfer
    consume_far: Transfer
    latency: Latency
    commits: CommitRate
    codecs: list[CodecRate]
    offsets: OffsetCommitRates


def show(figures: Figures, console: Console) -> None:
    console.print(_throughput(figures))
    console.print(_rates(figures))
    console.print(_codecs(figures.codecs))
    console.print(offset_commits.table_of(figures.offsets))


def _throughput(figures: Figures) -> Table:
    title = f"{figures.endpoint}: throughput, {OBJECT_BYTES >> 20} MiB objects, {AT_A_TIME} at a time for the raw store"
    table = Table("", "MB/s", "of raw", "agent CPU s per GB", title=title, title_justify="left")
    raw = figures.raw
    table.add_row("raw PUT", _mb(raw.put), "", "")
    table.add_row("produce through an agent", *_transfer(figures.produce, raw.put))
    table.add_row("raw GET", _mb(raw.get), "", "")
    table.add_row("consume in the writer's zone", *_transfer(figures.consume_near, raw.get))
    table.add_row("consume in the other zone", *_transfer(figures.consume_far, raw.get))
    return _right(table)


def _transfer(transfer: Transfer, raw: float) -> tuple[str, str, str]:
    return _mb(transfer.bytes_per_s), f"{transfer.bytes_per_s / raw:.2f}", f"{transfer.cpu_s_per_gb:.2f}"


def _rates(figures: Figures) -> Table:
    table = Table("", "", title="latency and commits", title_justify="left")
    table.add_row("ack p50", f"{figures.latency.p50_ms:.0f} ms")
    table.add_row("ack p99", f"{figures.latency.p99_ms:.0f} ms")
    table.add_row(f"commits of {BATCHES_PER_COMMIT} batches, one after the other", f"{figures.commits.commits:,.0f} /s")
    table.add_row("batches committed", f"{figures.commits.batches:,.0f} /s")
    return _right(table)


def _codecs(codecs: list[CodecRate]) -> Table:
    table = Table("compression", "validation MB/s", "decoded records/s", title="one core", title_justify="left")
    for codec in codecs:
        table.add_row(codec.compression, _mb(codec.validated_bytes), f"{codec.decoded_records:,.0f}")
    return _right(table)


def _mb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.0f}"


def _right(table: Table) -> Table:
    for column in table.columns[1:]:
        column.justify = "right"
    return table
