"""Segment merging without agents: what a copied GB costs, how long runs become, what a reader from the
beginning saves, and the write amplification of a modelled day. `python -m benchmarks.merging` starts its own
MinIO and Postgres.

It writes two logs as agents would, and merges until nothing waits: *narrow* (1,000 partitions at 2,000
records of 1 kB a second, four uploads a second, each with a record in about 400 partitions) and *full* (100
partitions, uploads of 8 MiB). The reader is an agent's page cache and store, cold, that reads 20 partitions
from their beginning.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from prometheus_client import CollectorRegistry

from benchmarks.commit_rate import Database, own_postgres, postgres_cpu_s
from benchmarks.endpoints import minio
from benchmarks.load.batches import full_batches
from cache_ring.pages.store_pages import StorePages
from cache_ring.settings import CacheRingSettings
from compactor.housekeeper import bounds_of
from compactor.merge_plan import MergePolicy, choose_inputs, is_worth_merging
from compactor.merging import MergeDiscoveryJob, Merger
from compactor.metrics import MergeMetrics, write_amplification
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.commits import SegmentToCommit
from sequencer.commits.coordinates import CoordinateRequest, RunCoordinate
from sequencer.housekeeping.merge_values import Backlog, Candidate
from sequencer.settings import SequencerSettings
from sequencer.topics.topics import Topic
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.byte_arrays import Buffer
from storage.identifiers import Offset, Partition, SegmentId, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectInfo, ObjectStore
from storage.stores.open_store import open_store

_CLUSTER = "tidelog"
_DAY_S = 86_400.0
_READ_PARTITIONS = 20
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a log: its partitions and uploads. Each upload holds `run_bytes` of some partitions."""

    name: str
    partitions: int
    uploads: int
    partitions_per_upload: int
    run_bytes: int


SHAPES = (
    Shape(name="narrow", partitions=1_000, uploads=1_200, partitions_per_upload=400, run_bytes=1_300),
    Shape(name="full", partitions=100, uploads=64, partitions_per_upload=100, run_bytes=83_000),
)


class CountedStore:
    """Counts requests and bytes on their way to the store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.gets = self.puts = self.bytes_got = self.bytes_put = 0

    async def put(self, key: str, chunks: Sequence[Buffer]) -> None:
        self.puts += 1
        self.bytes_put += sum(map(len, chunks))
        await self._store.put(key, chunks)  # type: ignore[arg-type]

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | memoryview:
        data = await self._store.get(key, start, end)  # type: ignore[arg-type]
        self.gets += 1
        self.bytes_got += len(data)
        return data

    async def head(self, key: str) -> ObjectInfo:
        return await self._store.head(key)  # type: ignore[arg-type]

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete(keys)  # type: ignore[arg-type]

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)

    async def probe(self) -> None:
        await self._store.probe()

    async def close(self) -> None:
        await self._store.close()


async def write_log(sequencer: Sequencer, store: ObjectStore, shape: Shape) -> Topic:
    topic = await sequencer.topics.create(shape.name, shape.partitions, {"retention.ms": "-1"})
    [made] = full_batches(range(1), 1_000, shape.run_bytes)
    batch = validate_produced(made.data, BatchLimits())
    chance = random.Random(1)
    for _ in range(shape.uploads):
        chosen = chance.sample(range(shape.partitions), shape.partitions_per_upload)
        batches = [
            PendingBatch(topic_id=topic.topic_id, partition=Partition(each), batch=batch) for each in chosen
        ]
        segment_id = new_segment_id()
        key = segment_key(_CLUSTER, segment_id)
        await sequencer.reservations.reserve({segment_id: key}, 900.0, "benchmark")
        sealed = seal_segment(segment_id, "benchmark", PendingBatches.of(batches))
        await store.put(key, sealed.chunks)
        await sequencer.commits.commit(
            [SegmentToCommit(segment_id=segment_id, size_bytes=sealed.size_bytes, batches=sealed.placed)]
        )
    return topic


async def merge_all(sequencer: Sequencer, store: ObjectStore) -> int:
    settings = HousekeeperSettings(merge_settle_s=0, merge_target_s=0.001, merge_max_bytes_per_s=1e12)

    async def measured_just_now() -> Backlog:
        await sequencer.observations.observe(bounds_of(settings))
        seen = await sequencer.observations.latest()
        assert seen is not None, "it was measured just now"
        return seen.backlog

    merger = Merger(
        sequencer, store, _CLUSTER, settings, MergeMetrics(CollectorRegistry()), measured_just_now
    )
    job = MergeDiscoveryJob(sequencer, settings, merger.policy)
    step = await job.step(None)
    while step.more:
        step = await job.step(step.progress)
    merges = 0
    while await merger.merge_once():
        merges += 1
    return merges


async def read_from_the_beginning(
    sequencer: Sequencer, store: ObjectStore, topic: Topic
) -> tuple[int, int, float]:
    """GETs, bytes read, and seconds of a cold agent that reads some partitions one after the other."""
    settings = CacheRingSettings()
    pages = StorePages(store, store, settings)
    began_s = time.perf_counter()
    for partition in range(0, topic.partition_count, topic.partition_count // _READ_PARTITIONS):
        for run in await runs_of(sequencer, topic, partition):
            for wanted in pages.layout.ranges_of(
                run.object_key, run.object_size_bytes, run.position, run.position + run.length
            ):
                await pages.read(wanted)
    await pages.close()
    return pages.counts.gets, pages.counts.bytes_read, time.perf_counter() - began_s


async def runs_of(sequencer: Sequencer, topic: Topic, partition: int) -> Sequence[RunCoordinate]:
    request = CoordinateRequest(
        topic_id=topic.topic_id, partition=Partition(partition), from_offset=Offset(0), max_runs=100_000
    )
    [found] = (await sequencer.coordinates.read([request])).values()
    return found.runs


async def measure(database: Database, shape: Shape, store: ObjectStore) -> None:
    sequencer = await Sequencer.open(database.url, SequencerSettings())
    try:
        topic = await write_log(sequencer, store, shape)
        await sequencer.ownership.ratchet(store, _CLUSTER, ratchet_s=_DAY_S)
        before = await _counts(sequencer), await read_from_the_beginning(sequencer, store, topic)
        counted = CountedStore(store)
        postgres_s = await postgres_cpu_s(database.postmaster)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        merges = await merge_all(sequencer, counted)  # type: ignore[arg-type]
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        postgres_s = await postgres_cpu_s(database.postmaster) - postgres_s
        after = await _counts(sequencer), await read_from_the_beginning(sequencer, store, topic)
        totals = await sequencer.merges.totals()
        print(
            f"\n{shape.name}: {merges} merges in {wall_s:.1f} s, {counted.bytes_put / wall_s / 1e6:.0f} MB/s"
        )
        print(
            f"  per GB merged: merger {cpu_s / counted.bytes_put * _GB:.2f}, Postgres "
            f"{postgres_s / counted.bytes_put * _GB:.2f} CPU s; {counted.gets} GETs, {counted.puts} PUTs"
        )
        print(f"  write amplification {write_amplification(totals):.2f}")
        for tier in totals:
            print(
                f"  tier {tier.tier}: {tier.done.objects_out:,} objects, {tier.done.bytes_out / 1e6:,.0f} "
                "MB, "
                f"{tier.done.runs_out:,} runs"
            )
        print(f"  runs {before[0]:,} -> {after[0]:,}")
        for name, (gets, got, seconds) in (("before", before[1]), ("after", after[1])):
            print(
                f"  {_READ_PARTITIONS} partitions read {name}: {gets:,} GETs, {got / 1e6:,.0f} MB, "
                f"{seconds:.2f} s"
            )
    finally:
        await sequencer.close()


async def _counts(sequencer: Sequencer) -> int:
    [row] = await sequencer.database.run("SELECT count(*) AS runs FROM runs")
    return int(row.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A unit of a tier in the modelled day: an upload, or the result of a merge."""

    at_s: float
    size_bytes: float
    runs: float


def modelled_day(partitions: int, bytes_per_s: float, uploads_per_s: float, days: float = 1.0) -> None:
    """The plan's decisions (which units, how many tiers) over a day of steady uploads. Counts bytes only."""
    settings = HousekeeperSettings()
    policy = Merger.policy_of(settings)
    size_bytes = bytes_per_s / uploads_per_s
    runs = partitions * (1 - (1 - 1 / partitions) ** (size_bytes / 1_000))
    tier = [
        _Unit(at_s=number / uploads_per_s, size_bytes=size_bytes, runs=runs)
        for number in range(int(86_400 * days * uploads_per_s))
    ]
    uploaded = written = size_bytes * len(tier)
    puts, left = len(tier), 0.0
    for number in range(policy.tiers):
        if not is_worth_merging(number, int(tier[0].size_bytes), max(1, int(tier[0].runs)), policy):
            break
        merged, rest = _merge_tier(tier, policy, partitions)
        if not merged:
            break
        left += sum(unit.runs for unit in rest)
        copied = sum(unit.size_bytes for unit in merged)
        written += copied
        puts += int(copied / policy.object_bytes + len(merged))
        tier = merged
    left += sum(unit.runs for unit in tier)
    uploads = 86_400 * days * uploads_per_s
    print(
        f"  {partitions:,} partitions, {bytes_per_s / 1e6:g} MB/s, {uploads_per_s:g} uploads/s, {days:g} "
        "days: "
        f"write amplification {written / uploaded:.2f}, runs {runs * uploads:,.0f} -> {left:,.0f}, "
        f"PUTs {uploads:,.0f} -> {puts:,}"
    )


def _merge_tier(
    units: Sequence[_Unit], policy: MergePolicy, partitions: int
) -> tuple[list[_Unit], Sequence[_Unit]]:
    merged: list[_Unit] = []
    at = 0
    epoch = datetime(2026, 1, 1, tzinfo=UTC)
    while True:
        are_large = at < len(units) and units[at].size_bytes * policy.fan_in >= policy.full_bytes
        some = units[at : at + (policy.fan_in if are_large else policy.most_units)]
        chosen = len(choose_inputs([_candidate(unit, epoch) for unit in some], policy, cap=1_000_000))
        if not chosen:
            return merged, units[at:]
        taken = units[at : at + chosen]
        size_bytes = sum(unit.size_bytes for unit in taken)
        longest = max(1.0, size_bytes / partitions / policy.run_bytes)
        runs = min(sum(unit.runs for unit in taken), partitions * longest)
        merged.append(replace(taken[-1], size_bytes=size_bytes, runs=runs))
        at += chosen


def _candidate(unit: _Unit, epoch: datetime) -> Candidate:
    at = epoch + timedelta(seconds=unit.at_s)
    return Candidate(segment_id=SegmentId(UUID(int=0)), committed_at=at, size_bytes=int(unit.size_bytes))


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory,
        minio(Path(directory)) as endpoint,
    ):
        for shape in SHAPES:
            with own_postgres() as database:
                asyncio.run(_measure(database, shape, endpoint.store_url, endpoint.settings()))
    print("\na modelled day:")
    modelled_day(1_000, 2e6, 4)
    modelled_day(1_000, 100e6, 12)
    modelled_day(100, 20e6, 4)
    modelled_day(10, 100e6, 12)
    modelled_day(100_000, 100e6, 40, days=0.05)


async def _measure(database: Database, shape: Shape, store_url: str, settings: object) -> None:
    store = await open_store(store_url, settings)  # type: ignore[arg-type]
    try:
        await measure(database, shape, store)
    finally:
        await store.close()


if __name__ == "__main__":
    main()
