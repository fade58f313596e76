"""Workload (h), the sequencer alone: `python -m benchmarks.commit_rate`.

Writers are processes with a client and an event loop each, like agents. A writer has one commit in flight:
one segment with a batch for each of its partitions. It reserves ids ahead, like an agent. Writers use
separate partitions or share them, and are idempotent or not. The benchmark runs its own embedded Postgres,
with fsync. It reports CPU of Postgres and of the clients separately, because both share the machine.
`--endure 100000` makes 100,000 commits to the same partitions and shows the tables afterwards.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import numpy as np
import psutil
import uvloop
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sequencer.client import Sequencer, SequencerSettings
from sequencer.commits.commits import Committed, SegmentToCommit
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from storage.identifiers import NO_PRODUCER_ID, SegmentId, TopicId, new_segment_id
from storage.segments import segment_batches
from storage.segments.keys import segment_key
from storage.segments.segment_batches import (
    BASE_SEQUENCE,
    COLUMNS,
    LENGTH,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    PARTITION,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PlacedBatches,
)
from tidelog.embedded.postgres import EmbeddedPostgres

RESERVED_AT_ONCE = 32
"""As `TIDELOG_RESERVED_SEGMENT_IDS` by default."""
RECORDS, BATCH_BYTES = 50, 10_000
PARTITIONS, WRITERS = (10, 100, 1_000), (1, 4, 8, 16)
_WARM_UP_S = 0.5
_START_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLoad:
    """What the writers do."""

    partitions: int
    """In each commit, and of each writer."""
    writers: int
    idempotent: bool = True
    shared: bool = False
    """All write to the same partitions."""
    segments_per_commit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRate:
    """The figures of a load. CPU is per commit, of all Postgres processes and of all writers."""

    load: CommitLoad
    commits_per_s: float
    batches_per_s: float
    p50_ms: float
    p99_ms: float
    postgres_cpu_us: float
    clients_cpu_us: float
    wal_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The commits of one writer, from the moment that all have started."""

    latencies_s: list[float]
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A migrated Postgres to commit to."""

    url: str
    postmaster: psutil.Process


@contextmanager
def own_postgres() -> Iterator[Database]:
    """A separate Postgres with fsync."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        data = Path(directory) / "data"
        server = EmbeddedPostgres(data)
        try:
            url = server.start()
            asyncio.run(migrate(url, MigrationSettings()))
            yield Database(
                url=url, postmaster=psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
            )
        finally:
            server.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What commits left of a table, in pages of 8 KiB. `hot` is the share of updates that stayed on their
    page.
    """

    name: str
    rows: int
    updates: int
    hot: float
    pages: int
    index_pages: int
    vacuums: int


def measure(database: Database, load: CommitLoad, seconds: float) -> CommitRate:
    """Runs the load for this long, after a short warm-up."""
    return _measure(database, load, seconds, new_topic(database, load))


def new_topic(database: Database, load: CommitLoad) -> TopicId:
    """With a partition for everything that the load writes to."""
    return asyncio.run(_topic(database.url, load.partitions * (1 if load.shared else load.writers)))


def endure(
    database: Database, load: CommitLoad, commits: int, at_a_time_s: float = 15.0
) -> Iterator[list[TableState]]:
    """Makes at least this many commits to the same partitions. Shows the tables after each round."""
    topic_id, done = new_topic(database, load), 0.0
    while done < commits:
        done += _measure(database, load, at_a_time_s, topic_id).commits_per_s * at_a_time_s
        yield asyncio.run(_tables(database.url))


def _measure(database: Database, load: CommitLoad, seconds: float, topic_id: TopicId) -> CommitRate:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager, ProcessPoolExecutor(load.writers, mp_context=context) as pool:
        barrier = manager.Barrier(load.writers + 1)
        work = partial(_write, database.url, topic_id, load, seconds, barrier)
        writers = [pool.submit(work, writer) for writer in range(load.writers)]
        barrier.wait(_START_WITHIN_S)
        time.sleep(_WARM_UP_S)
        before = asyncio.run(_used(database))
        time.sleep(seconds)
        after = asyncio.run(_used(database))
        written = [writer.result() for writer in writers]
    latencies_s = sorted(latency_s for writer in written for latency_s in writer.latencies_s)
    commits = len(latencies_s)
    percentiles = statistics.quantiles(latencies_s, n=100)
    return CommitRate(
        load=load,
        commits_per_s=commits / seconds,
        batches_per_s=commits * load.partitions * load.segments_per_commit / seconds,
        p50_ms=percentiles[49] * 1e3,
        p99_ms=percentiles[98] * 1e3,
        postgres_cpu_us=(after[0] - before[0]) / commits * 1e6,
        clients_cpu_us=sum(writer.cpu_s for writer in written) / commits * 1e6,
        wal_bytes=(after[1] - before[1]) / commits,
    )


async def _topic(url: str, partitions: int) -> TopicId:
    sequencer = await Sequencer.open(url, SequencerSettings())
    try:
        return (await sequencer.topics.create(f"commits-{time.time_ns()}", partitions, {})).topic_id
    finally:
        await sequencer.close()


async def _tables(url: str) -> list[TableState]:
    sequencer = await Sequencer.open(url, SequencerSettings())
    try:
        rows = await sequencer.database.run(_TABLES)
        return [TableState(**row._asdict()) for row in rows]
    finally:
        await sequencer.close()


_TABLES: LiteralString = """
SELECT relname::text AS name, n_live_tup AS rows, n_tup_upd AS updates,
       (n_tup_hot_upd / greatest(n_tup_upd, 1)::float8) AS hot, pg_relation_size(relid) / 8192 AS pages,
       pg_indexes_size(relid) / 8192 AS index_pages, autovacuum_count AS vacuums
FROM pg_stat_user_tables WHERE relname IN ('partitions', 'producer_state', 'runs', 'segments')
ORDER BY relname
"""


async def _used(database: Database) -> tuple[float, int]:
    """CPU seconds of Postgres and bytes of WAL so far."""
    # The CPU time first, because a connection takes time on a busy machine.
    cpu_s = await postgres_cpu_s(database.postmaster)
    sequencer = await Sequencer.open(database.url, SequencerSettings())
    try:
        [row] = await sequencer.database.run(
            "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint AS wal_bytes"
        )
        return cpu_s, row.wal_bytes
    finally:
        await sequencer.close()


def _write(
    url: str, topic_id: TopicId, load: CommitLoad, seconds: float, barrier: Any, writer: int
) -> _Written:
    return uvloop.run(_Writer(url, topic_id, load, writer).write(seconds, barrier))


class _Writer:
    """One agent's commits, one after the other."""

    def __init__(self, url: str, topic_id: TopicId, load: CommitLoad, number: int) -> None:
        self._url = url
        self._topic_id = topic_id
        self._load = load
        first = 0 if load.shared else number * load.partitions
        self._columns = _columns(range(first, first + load.partitions), load.idempotent)
        self._producer_id = NO_PRODUCER_ID
        self._sequence = 0
        self._stock: list[SegmentId] = []

    async def write(self, seconds: float, barrier: Any) -> _Written:
        sequencer = await Sequencer.open(self._url, SequencerSettings(database_pool_size=2))
        try:
            if self._load.idempotent:
                self._producer_id = await sequencer.producers.new_producer_id()
            await self._commit(sequencer)
            barrier.wait(_START_WITHIN_S)
            await self._commit_for(sequencer, _WARM_UP_S)
            used_s = time.process_time()
            latencies_s = await self._commit_for(sequencer, seconds)
            return _Written(latencies_s=latencies_s, cpu_s=time.process_time() - used_s)
        finally:
            await sequencer.close()

    async def _commit_for(self, sequencer: Sequencer, seconds: float) -> list[float]:
        latencies_s = []
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            latencies_s.append(await self._commit(sequencer))
        return latencies_s

    async def _commit(self, sequencer: Sequencer) -> float:
        """How long the commit took, without reserving ids, which an agent does at another time."""
        wanted = self._load.segments_per_commit
        if len(self._stock) < wanted:
            self._stock = [new_segment_id() for _ in range(max(RESERVED_AT_ONCE, wanted))]
            keys = {segment_id: segment_key("bench", segment_id) for segment_id in self._stock}
            await sequencer.reservations.reserve(keys, 600.0, "benchmarks")
        segments = [self._segment(self._stock.pop()) for _ in range(wanted)]
        began_s = time.perf_counter()
        answers = await sequencer.commits.commit(segments)
        took_s = time.perf_counter() - began_s
        for answer in answers:
            assert isinstance(answer, Committed), answer
            assert not answer.found.others, answer.found.others
        return took_s

    def _segment(self, segment_id: SegmentId) -> SegmentToCommit:
        """The segment as columns, as agents have it."""
        columns = self._columns.copy()
        columns[[MIN_TIMESTAMP, MAX_TIMESTAMP]] = time.time_ns() // 1_000_000
        if self._load.idempotent:
            columns[PRODUCER_ID] = self._producer_id
            columns[BASE_SEQUENCE] = self._sequence
        self._sequence += RECORDS
        return SegmentToCommit(
            segment_id=segment_id,
            size_bytes=128 + columns.shape[1] * BATCH_BYTES,
            batches=PlacedBatches(topic_ids=(self._topic_id,), columns=columns),
        )


def _columns(partitions: range, idempotent: bool) -> NDArray[np.int64]:
    """A batch for each partition, without time, producer and sequence."""
    columns = np.zeros((COLUMNS, len(partitions)), np.int64)
    columns[PARTITION] = partitions
    columns[POSITION] = 64 + np.arange(len(partitions)) * BATCH_BYTES
    columns[LENGTH] = BATCH_BYTES
    columns[segment_batches.RECORDS] = RECORDS
    columns[PRODUCER_ID] = NO_PRODUCER_ID
    columns[PRODUCER_EPOCH] = 0 if idempotent else -1
    columns[BASE_SEQUENCE] = -1
    return columns


async def postgres_cpu_s(postmaster: psutil.Process) -> float:
    """CPU of all Postgres processes, including those that have ended."""
    while True:
        with suppress(psutil.NoSuchProcess):
            children = postmaster.children()
            running = sum(times.user + times.system for times in map(psutil.Process.cpu_times, children))
            ended = postmaster.cpu_times()
            if postmaster.children() == children:
                return float(ended.children_user + ended.children_system + running)
        await asyncio.sleep(0.1)


def all_loads() -> list[CommitLoad]:
    """The loads of workload (h)."""
    return [
        CommitLoad(partitions=partitions, writers=writers, idempotent=idempotent, shared=shared)
        for partitions in PARTITIONS
        for writers in WRITERS
        for idempotent in (True, False)
        for shared in (False, True)
        if writers > 1 or not shared
    ]


def table_of(rates: Sequence[CommitRate]) -> Table:
    columns = ["partitions", "writers", "producers", "commits/s", "batches/s", "p50 ms", "p99 ms"]
    table = Table(
        *columns, "Postgres CPU µs", "clients' CPU µs", "WAL KB", title="commits", title_justify="left"
    )
    for rate in rates:
        load = rate.load
        table.add_row(
            f"{load.partitions:,} {'shared' if load.shared else 'each'}",
            str(load.writers),
            "idempotent" if load.idempotent else "plain",
            f"{rate.commits_per_s:,.0f}",
            f"{rate.batches_per_s:,.0f}",
            f"{rate.p50_ms:.2f}",
            f"{rate.p99_ms:.2f}",
            f"{rate.postgres_cpu_us:,.0f}",
            f"{rate.clients_cpu_us:,.0f}",
            f"{rate.wal_bytes / 1e3:,.1f}",
        )
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def states_of(states: Sequence[TableState]) -> Table:
    columns = ["rows", "updates", "on their page", "pages", "pages of indexes", "vacuums"]
    table = Table("", *columns, title="tables", title_justify="left")
    for state in states:
        sizes = [f"{number:,}" for number in (state.pages, state.index_pages, state.vacuums)]
        table.add_row(state.name, f"{state.rows:,}", f"{state.updates:,}", f"{state.hot:.1%}", *sizes)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commit_rate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each load (default: 4)")
    parser.add_argument("--partitions", type=int, nargs="+", default=PARTITIONS)
    parser.add_argument("--writers", type=int, nargs="+", default=WRITERS)
    parser.add_argument("--segments", type=int, default=1, help="per commit (default: 1)")
    parser.add_argument(
        "--endure",
        type=int,
        help="make this many commits by 8 writers of 10 partitions each; measure no rates",
    )
    arguments = parser.parse_args()
    chosen = [
        CommitLoad(
            partitions=load.partitions,
            writers=load.writers,
            idempotent=load.idempotent,
            shared=load.shared,
            segments_per_commit=arguments.segments,
        )
        for load in all_loads()
        if load.partitions in arguments.partitions and load.writers in arguments.writers
    ]
    if arguments.endure is not None:
        with own_postgres() as database:
            for states in endure(database, CommitLoad(partitions=10, writers=8), arguments.endure):
                Console().print(states_of(states))
        return
    with own_postgres() as database:
        Console(width=160).print(table_of([measure(database, load, arguments.seconds) for load in chosen]))


if __name__ == "__main__":
    main()
