"""Commits of writers in three zones that share partitions: the model's row locks against Postgres' own.

The writers of each zone divide all partitions among them, as the ring does. So any two writers of different
zones share some. `pg_sleep` stands for a synchronous standby's delay, during which locks are held.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.commit_rate import Database
from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.events import Cores, EventLoop
from benchmarks.simulation.postgres import Postgres, PostgresPlace
from sequencer.client import Sequencer
from sequencer.commits.commits import SQL, SegmentToCommit, commit_request
from sequencer.settings import SequencerSettings
from storage.identifiers import BytePosition, Partition, ProducerId, SegmentId, TopicId, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment_batches import PlacedBatch, PlacedBatches

_LOG_BYTES_PER_S = 400e6
_RECORDS, _BATCH_BYTES = 50, 10_000
_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    writers_per_zone: int = 4
    zones: int = 3
    partitions: int = 1_200
    per_commit: int = 40
    standby_s: float = 0.15

    def parts(self) -> list[NDArray[np.int64]]:
        """Each writer's partitions."""
        random = np.random.default_rng(5)
        return [
            np.sort(part)
            for _ in range(self.zones)
            for part in np.array_split(random.permutation(self.partitions), self.writers_per_zone)
        ]


def predicted_commits_per_s(
    contention: Contention, calibration: Calibration, cores: int, seconds: float
) -> float:
    """Of all writers together, each with one commit after the other."""
    loop = EventLoop()
    random = np.random.default_rng(1)
    postgres = Postgres(
        loop,
        Cores(loop, cores),
        calibration.commit_spaced,
        PostgresPlace(log_bytes_per_s=_LOG_BYTES_PER_S, standby_s=contention.standby_s),
        random,
    )

    def commit(part: NDArray[np.int64]) -> None:
        rows = np.sort(random.choice(part, contention.per_commit, replace=False)).tolist()
        postgres.commit(len(rows), len(rows), rows, lambda: loop.after(0.0, commit, part))

    for part in contention.parts():
        loop.after(float(random.uniform(0, contention.standby_s)), commit, part)
    loop.run_until(_WARM_UP_S)
    before = postgres.commits
    loop.run_until(_WARM_UP_S + seconds)
    return (postgres.commits - before) / seconds


def measured_commits_per_s(contention: Contention, database: Database, seconds: float) -> float:
    return asyncio.run(_measure(contention, database, seconds))


async def _measure(contention: Contention, database: Database, seconds: float) -> float:
    parts = contention.parts()
    settings = SequencerSettings(database_pool_size=len(parts) + 1)
    sequencer = await Sequencer.open(database.url, settings)
    try:
        topic = await sequencer.topics.create(f"contention-{time.time_ns()}", contention.partitions, {})
        from_s = time.perf_counter() + _WARM_UP_S
        counts = await asyncio.gather(
            *(
                _write(sequencer, topic.topic_id, part.tolist(), contention, from_s, from_s + seconds, seed)
                for seed, part in enumerate(parts)
            )
        )
    finally:
        await sequencer.close()
    return sum(counts) / seconds


async def _write(
    sequencer: Sequencer,
    topic_id: TopicId,
    part: Sequence[int],
    contention: Contention,
    from_s: float,
    until_s: float,
    seed: int,
) -> int:
    """Commits that ended between the two times."""
    random = np.random.default_rng(seed)
    sequences = dict.fromkeys(part, 0)
    producer = await sequencer.producers.new_producer_id()
    stock = [new_segment_id() for _ in range(int((until_s - from_s + _WARM_UP_S + 1) / contention.standby_s))]
    await sequencer.reservations.reserve({i: segment_key("model", i) for i in stock}, 600.0, "model")
    count = 0
    while (now_s := time.perf_counter()) < until_s:
        chosen = sorted(int(number) for number in random.choice(part, contention.per_commit, replace=False))
        segment = _segment(stock.pop(), topic_id, producer, chosen, sequences)
        async with sequencer.database.transaction() as connection:
            await connection.execute(SQL["commit"], dict(commit_request([segment]).parameters))
            await connection.execute("SELECT pg_sleep(%s)", (contention.standby_s,))
        count += from_s <= now_s and time.perf_counter() < until_s
    return count


def _segment(
    segment_id: SegmentId,
    topic_id: TopicId,
    producer: ProducerId,
    partitions: Sequence[int],
    sequences: dict[int, int],
) -> SegmentToCommit:
    now_ms = time.time_ns() // 1_000_000
    batches = []
    for place, partition in enumerate(partitions):
        batches.append(
            PlacedBatch(
                topic_id=topic_id,
                partition=Partition(partition),
                position=BytePosition(64 + place * _BATCH_BYTES),
                length=_BATCH_BYTES,
                record_count=_RECORDS,
                min_timestamp_ms=now_ms,
                max_timestamp_ms=now_ms,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequences[partition],
            )
        )
        sequences[partition] += _RECORDS
    size_bytes = 128 + len(batches) * _BATCH_BYTES
    return SegmentToCommit(segment_id=segment_id, size_bytes=size_bytes, batches=PlacedBatches.of(batches))
