"""How fresh a thousand tables stay: `python -m benchmarks.history_freshness`.

One agent, its Postgres, the development stack's S3 endpoint and one history service share the machine with
one producer. A topic's share of the load is that of its rank: the first gets a seventh of the bytes, the last
a record now and then. A topic is behind by the age of its oldest acknowledged record that its table lacks.
The longest of these ages is what counts, per topic.

The producer sends as fast as `--mb-s`, and every topic at least once in `--idle-s`.
"""

import argparse
import asyncio
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, LiteralString

import confluent_kafka
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

_TICK_S: Final = 1.0
_LOOK_S: Final = 2.0
_CLASSES: Final = (("first 10", 0, 10), ("next 190", 10, 200), ("the others", 200, None))
_REACHED: LiteralString = """
SELECT t.name, h.compacted_to FROM history_partitions AS h JOIN topics AS t USING (topic_id)
WHERE t.deleted_at IS NULL AND h.partition = 0
"""


@dataclass(slots=True)
class Topic:
    """What was sent to a topic of one partition, and what its table has."""

    name: str
    sent: int = 0
    acknowledged: deque[tuple[int, float]] = field(default_factory=deque)
    """The end offsets, and when they were acknowledged, of what the table lacks."""
    worst_s: float = 0.0

    def acknowledge(self, now_s: float) -> None:
        if not self.acknowledged or self.acknowledged[-1][0] < self.sent:
            self.acknowledged.append((self.sent, now_s))

    def reach(self, offset: int, now_s: float) -> None:
        """`worst_s` counts records that the table has got just now, too."""
        if self.acknowledged:
            self.worst_s = max(self.worst_s, now_s - self.acknowledged[0][1])
        while self.acknowledged and self.acknowledged[0][0] <= offset:
            self.acknowledged.popleft()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    seconds: float
    bytes_per_s: float
    record_bytes: int
    idle_s: float

    def counts(self, topics: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """The records of each topic in one tick."""
        shares = 1 / np.arange(1, topics + 1)
        records = self.bytes_per_s * _TICK_S / self.record_bytes * shares / shares.sum()
        counts: NDArray[np.int64] = generator.poisson(np.maximum(records, _TICK_S / self.idle_s))
        return counts


def produce(stack: Stack, topics: list[Topic], load: Load, progress: Progress) -> tuple[int, float]:
    """Returns the records sent, and in how many seconds. It is late rather than ahead of what is
    acknowledged.
    """
    generator = np.random.default_rng(7)
    values = [generator.bytes(load.record_bytes // 2).hex().encode() for _ in range(64)]
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": stack.addresses.bootstrap, "linger.ms": 50, "compression.type": "zstd"}
    )
    records, began_s = 0, time.monotonic()
    shown = progress.add_task("producing", total=load.seconds)
    while (now_s := time.monotonic()) < began_s + load.seconds:
        for topic, count in zip(topics, load.counts(len(topics), generator).tolist(), strict=True):
            for number in range(count):
                producer.produce(topic.name, values[(records + number) % 64], partition=0)
            topic.sent += count
            records += count
        assert producer.flush(60) == 0
        acknowledged_s = time.monotonic()
        for topic in topics:
            topic.acknowledge(acknowledged_s)
        progress.update(shown, completed=acknowledged_s - began_s)
        time.sleep(max(0.0, now_s + _TICK_S - acknowledged_s))
    return records, time.monotonic() - began_s


async def watch(database_url: str, topics: list[Topic], until_fresh: asyncio.Event, limit_s: float) -> None:
    """Looks until `until_fresh` is set and no table lacks a record, or `limit_s` have passed since."""
    by_name = {topic.name: topic for topic in topics}
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    ends_s = None
    try:
        while True:
            rows = await sequencer.database.run(_REACHED)
            reached = {row.name: row.compacted_to for row in rows}
            now_s = time.monotonic()
            for name, topic in by_name.items():
                topic.reach(reached.get(name, 0), now_s)
            if until_fresh.is_set():
                ends_s = ends_s or now_s + limit_s
                if now_s > ends_s or not any(topic.acknowledged for topic in topics):
                    return
            await asyncio.sleep(_LOOK_S)
    finally:
        await sequencer.close()


async def measure(stack: Stack, given: argparse.Namespace) -> tuple[list[Topic], int, float]:
    sequencer = await Sequencer.open(stack.addresses.database_url, SequencerSettings())
    topics = [Topic(f"fresh-{number:04}") for number in range(given.topics)]
    config = {"retention.ms": "-1", "tidelog.history.freshness.ms": str(int(1000 * given.freshness_s))}
    with Progress(transient=True) as progress:
        try:
            for topic in progress.track(topics, description="creating topics"):
                await sequencer.topics.create(topic.name, 1, config)
        finally:
            await sequencer.close()
        load = Load(
            seconds=given.seconds,
            bytes_per_s=1e6 * given.mb_s,
            record_bytes=given.record_bytes,
            idle_s=given.idle_s,
        )
        ended = asyncio.Event()
        watching = asyncio.create_task(
            watch(stack.addresses.database_url, topics, ended, 3 * given.freshness_s)
        )
        records, seconds = await asyncio.to_thread(produce, stack, topics, load, progress)
        ended.set()
        await watching
    return topics, records, seconds


def table_of(topics: list[Topic], freshness_s: float) -> Table:
    columns = ("topics", "records", "p50, s", "p90, s", "p99, s", "longest, s", "beyond the setting")
    table = Table("by load", *columns)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, start, end in (*_CLASSES, ("all", 0, None)):
        chosen = [topic for topic in topics[start:end] if topic.sent]
        if not chosen:
            continue
        worst = np.array([topic.worst_s for topic in chosen])
        table.add_row(
            name,
            f"{len(chosen):,}",
            f"{sum(topic.sent for topic in chosen):,}",
            *(f"{np.percentile(worst, each):.1f}" for each in (50, 90, 99, 100)),
            f"{int((worst > freshness_s).sum())}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_freshness", description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--freshness-s", type=float, default=300.0, help="tidelog.history.freshness.ms")
    parser.add_argument("--mb-s", type=float, default=5.0)
    parser.add_argument("--record-bytes", type=int, default=4_000)
    parser.add_argument("--idle-s", type=float, default=120.0, help="a topic's mean pause at most")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        settings = StackSettings(
            environment=Environment.of_process(),
            data_dir=Path(directory),
            agents=1,
            zones=("a",),
            history=True,
        )
        with Stack(settings) as stack:
            topics, records, seconds = asyncio.run(measure(stack, given))
    console = Console(width=120)
    megabytes = records * given.record_bytes / 1e6
    console.print(
        f"{records:,} records, {megabytes:,.0f} MB before compression, in {seconds:.0f} s "
        f"({megabytes / seconds:.1f} MB/s); freshness {given.freshness_s:g} s. Ages of the oldest record "
        "that a table lacks, the longest of each topic:"
    )
    console.print(table_of(topics, given.freshness_s))


if __name__ == "__main__":
    main()
