"""What Postgres spends: commits of several shapes, and the statements of the background, one client after
another.

CPU is of all of Postgres' processes. Commits are measured one after the other, and spaced by some
milliseconds, as they are where there is little to do.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from uuid import uuid4

import psutil

from benchmarks.commit_rate import Database, postgres_cpu_s
from benchmarks.simulation.calibration import BackgroundCost, CommitCost, StatementCost
from benchmarks.simulation.exact_cpu import cpu_times, spent_s
from benchmarks.simulation.fitting import fit
from compactor.housekeeper import bounds_of
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress
from sequencer.commits.commits import Committed, SegmentToCommit
from sequencer.commits.coordinates import KnownEnd
from sequencer.database.servers import DURABILITY
from sequencer.settings import SequencerSettings
from storage.identifiers import (
    BytePosition,
    Offset,
    Partition,
    ProducerId,
    SegmentId,
    TopicId,
    new_segment_id,
)
from storage.segments.keys import segment_key
from storage.segments.segment_batches import PlacedBatch, PlacedBatches

_SHAPES = ((1, 1), (30, 1), (300, 1), (30, 10), (10, 3), (100, 4))
"""Partitions of a commit, and batches in each."""
_PAUSE_S = 0.02
_AGENTS = 300
_CONNECTIONS = 100
_RECORDS, _BATCH_BYTES = 50, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFigures:
    commit: CommitCost
    commit_spaced: CommitCost
    background: BackgroundCost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    cpu_s: float
    log_bytes: float
    took_s: float
    """The median."""


def measure_postgres(database: Database, seconds: float) -> PostgresFigures:
    """`seconds`: of each of some thirty measurements."""
    return asyncio.run(_measure(database, seconds))


async def _measure(database: Database, seconds: float) -> PostgresFigures:
    sequencer = await Sequencer.open(database.url, SequencerSettings())
    try:
        return PostgresFigures(
            commit=await _commits(sequencer, database, seconds, 0.0),
            commit_spaced=await _commits(sequencer, database, seconds, _PAUSE_S),
            background=await _background(sequencer, database, seconds),
        )
    finally:
        await sequencer.close()


async def _spent(
    sequencer: Sequencer,
    server: psutil.Process,
    call: Callable[[], Awaitable[object]],
    seconds: float,
    pause_s: float,
) -> _Spent:
    """Per call."""
    for _ in range(5):
        await call()
    before, log_before = cpu_times(server.pid), await _log_position(sequencer)
    took, until_s = [], time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        await call()
        took.append(time.perf_counter() - began_s)
        if pause_s:
            await asyncio.sleep(pause_s)
    log_bytes = await _log_position(sequencer) - log_before
    cpu_s = spent_s(before, cpu_times(server.pid))
    return _Spent(cpu_s=cpu_s / len(took), log_bytes=log_bytes / len(took), took_s=median(took))


async def _log_position(sequencer: Sequencer) -> int:
    [row] = await sequencer.database.run("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint AS bytes")
    return int(row.bytes)


async def _commits(sequencer: Sequencer, database: Database, seconds: float, pause_s: float) -> CommitCost:
    topic = await sequencer.topics.create(f"model-{time.time_ns()}", max(shape[0] for shape in _SHAPES), {})
    spent = []
    for partitions, each in _SHAPES:
        writer = await _Writer.of(sequencer, topic.topic_id, range(partitions), each)
        spent.append(await _spent(sequencer, database.postmaster, writer.commit, seconds, pause_s))
    rows = [(1, partitions * each, partitions) for partitions, each in _SHAPES]
    cpu, log = fit(rows, [one.cpu_s for one in spent]), fit(rows, [one.log_bytes for one in spent])
    return CommitCost(
        per_commit_s=cpu[0],
        per_batch_s=cpu[1],
        per_run_s=cpu[2],
        log_bytes_per_commit=log[0],
        log_bytes_per_batch=log[1],
        log_bytes_per_run=log[2],
        sync_s=max(1e-4, spent[0].took_s - spent[0].cpu_s),
    )


class _Writer:
    """An idempotent producer's batches, committed one segment after the other."""

    def __init__(
        self,
        sequencer: Sequencer,
        topic_id: TopicId,
        producer: ProducerId,
        partitions: Sequence[int],
        each: int,
    ) -> None:
        self._sequencer = sequencer
        self._topic_id = topic_id
        self._producer = producer
        self._partitions = partitions
        self._each = each
        self._sequence = 0
        self._stock: list[SegmentId] = []

    @classmethod
    async def of(
        cls, sequencer: Sequencer, topic_id: TopicId, partitions: Sequence[int], each: int
    ) -> "_Writer":
        return cls(sequencer, topic_id, await sequencer.producers.new_producer_id(), partitions, each)

    async def commit(self) -> None:
        if not self._stock:
            self._stock = [new_segment_id() for _ in range(100)]
            keys = {segment_id: segment_key("model", segment_id) for segment_id in self._stock}
            await self._sequencer.reservations.reserve(keys, 600.0, "model")
        [answer] = await self._sequencer.commits.commit([self._segment()])
        assert isinstance(answer, Committed)

    def _segment(self) -> SegmentToCommit:
        batches: list[PlacedBatch] = []
        now_ms = time.time_ns() // 1_000_000
        for partition in self._partitions:
            batches += [
                PlacedBatch(
                    topic_id=self._topic_id,
                    partition=Partition(partition),
                    position=BytePosition(64 + (len(batches) + turn) * _BATCH_BYTES),
                    length=_BATCH_BYTES,
                    record_count=_RECORDS,
                    min_timestamp_ms=now_ms,
                    max_timestamp_ms=now_ms,
                    producer_id=self._producer,
                    producer_epoch=0,
                    base_sequence=self._sequence + turn * _RECORDS,
                )
                for turn in range(self._each)
            ]
        self._sequence += self._each * _RECORDS
        size_bytes = 128 + len(batches) * _BATCH_BYTES
        return SegmentToCommit(
            segment_id=self._stock.pop(), size_bytes=size_bytes, batches=PlacedBatches.of(batches)
        )


async def _background(sequencer: Sequencer, database: Database, seconds: float) -> BackgroundCost:
    async def cost(call: Callable[[], Awaitable[object]]) -> float:
        return (await _spent(sequencer, database.postmaster, call, seconds / 2, 0.001)).cpu_s

    def statement(few: float, many: float, count: int) -> StatementCost:
        return StatementCost(fixed_s=few, each_s=max(0.0, (many - few) / count))

    topic = await sequencer.topics.create(f"model-{time.time_ns()}", 2_000, {})
    known = [
        KnownEnd(
            topic_id=topic.topic_id,
            partition=Partition(partition),
            known_end=Offset(0),
            log_start_offset=Offset(0),
            coordinate_epoch=0,
        )
        for partition in range(2_000)
    ]
    agent = await sequencer.agents.join(_address(0), 600.0)
    compare = partial(sequencer.agents.shown, await sequencer.agents.shown(None, not_older_than_s=0.0))
    alone = await cost(lambda: compare(not_older_than_s=0.0))
    for number in range(1, _AGENTS):
        await sequencer.agents.join(_address(number), 600.0)
    compare = partial(sequencer.agents.shown, await sequencer.agents.shown(None, not_older_than_s=0.0))
    many = await cost(lambda: compare(not_older_than_s=0.0))
    bounds = bounds_of(HousekeeperSettings())
    await sequencer.jobs.claim("taken", uuid4(), lease_s=3_600.0)
    changes = (await sequencer.topics.changes()).number

    async def always(call: Callable[[], Awaitable[object]]) -> StatementCost:
        return StatementCost(fixed_s=await cost(call), each_s=0.0)

    async def reserve(count: int) -> None:
        ids = [new_segment_id() for _ in range(count)]
        await sequencer.reservations.reserve({i: segment_key("model", i) for i in ids}, 600.0, "model")

    return BackgroundCost(
        poll=statement(
            await cost(lambda: sequencer.coordinates.poll(known[:1], 512)),
            await cost(lambda: sequencer.coordinates.poll(known, 512)),
            len(known),
        ),
        renewal=await always(lambda: sequencer.agents.renew(agent.node_id, agent.incarnation, 600.0)),
        shown=await always(lambda: compare(not_older_than_s=3_600.0)),
        compared=statement(alone, many, _AGENTS),
        measurement=await always(lambda: sequencer.observations.observe(bounds)),
        observation=await always(sequencer.observations.latest),
        lapsed_merges=await always(lambda: sequencer.merges.free_lapsed(1_000)),
        claim_in_vain=await always(lambda: sequencer.jobs.claim("taken", uuid4(), lease_s=60.0)),
        durability=await always(lambda: sequencer.database.run_local(DURABILITY)),
        connection=StatementCost(
            fixed_s=await _of_a_new_connection(sequencer, database.postmaster), each_s=0.0
        ),
        reservation=statement(await cost(lambda: reserve(1)), await cost(lambda: reserve(33)), 32),
        topic_changes=await always(lambda: sequencer.topics.changes(changes)),
        idle_per_agent_s=0.0,
    )


async def _of_a_new_connection(sequencer: Sequencer, postmaster: psutil.Process) -> float:
    """Its process ends with it, which exact times do not see."""
    before_s = await postgres_cpu_s(postmaster)
    for _ in range(_CONNECTIONS):
        await sequencer.database.check_address()
    return (await postgres_cpu_s(postmaster) - before_s) / _CONNECTIONS


def _address(number: int) -> AgentAddress:
    return AgentAddress(
        zone="abc"[number % 3],
        kafka_host=f"agent-{number}.internal",
        kafka_port=9092,
        peer_host=f"agent-{number}.internal",
        peer_port=9093,
        http_url=f"http://agent-{number}.internal:8080",
    )
