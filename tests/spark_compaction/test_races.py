"""Jobs that change one log at once, in all orders.

A job of history (compaction, merging of files, TTL) is held before its tasks, before it stages its metadata
or before its commit. There other jobs run from begin to end: retention, DeleteRecords, deletion of the topic,
merging of segments, garbage collection, another service, a change of policy. An erasure goes as far as it
can: it waits for the held job. Then the held job goes on. It publishes or is refused. Whatever it does, all
readers read what was written and not erased, and the doctor finds nothing.

The tasks run in this process: Spark only parses a schema. TIDELOG_TEST_SEEDS chooses the points and the pairs
of jobs, TIDELOG_TEST_RACES how many pairs.
"""

import asyncio
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from compactor.doctor import DoctorSettings, examine
from compactor.garbage_jobs import DoomingJob, GarbageDeletionJob, GarbageScanJob, HistoryGarbageJob
from compactor.retention_jobs import TopicSweepJob
from erasure import history_files as erasure_module
from erasure.report import ErasureFailed, ErasureProgress
from sequencer.client import Sequencer
from spark_compaction import compact as compact_module
from spark_compaction import job as job_module
from spark_compaction import merge_files as merge_module
from spark_compaction import rewrite_job as rewrite_module
from spark_compaction import ttl as ttl_module
from spark_compaction.compact import Compaction, TopicCompactor
from spark_compaction.job import SparkJobFailed
from spark_compaction.job_keys import open_job_keys
from spark_compaction.merge_files import FileMerger
from spark_compaction.settings import CompactionSettings
from spark_compaction.ttl import TopicExpirer
from storage.identifiers import Offset, Partition
from storage.stores.object_store import ObjectNotFound, ObjectStore, StoreSettings
from tests.agent.running import running
from tests.compactor.builders import CLUSTER
from tests.compactor.builders import settings as housekeeping
from tests.compactor.test_garbage_jobs import finish
from tests.sequencer.housekeeping.housekeeping import ready_to_doom
from tests.spark_compaction.test_transformations import (
    PARTITIONS,
    World,
    drop_raw_runs,
    erase_keys,
    everyone_reads,
    merge_segments,
    retention_runs,
    source_options,
    write,
)
from tests.support.seeds import seeds

PAIRS = int(os.environ.get("TIDELOG_TEST_RACES", "5"))
_LONG_AGO = "interval '9 days'"

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]

Step = Callable[[World], Awaitable[None]]
JOBS: Mapping[str, ModuleType] = {"compaction": compact_module, "merging": merge_module, "ttl": ttl_module}
POINTS = ("before the tasks", "before staging", "before the commit")


async def in_this_process(
    _session: object, rows: pa.Table, *, function: Callable[..., Iterable[pa.RecordBatch]], **_: Any
) -> list[dict[str, Any]]:
    """The tasks as Spark runs them, one batch each; it repeats a failed one, and gives up."""
    try:
        return [row for answer in function(rows.to_batches(max_chunksize=1)) for row in answer.to_pylist()]
    except ObjectNotFound as gone:
        raise SparkJobFailed(str(gone)) from gone


@dataclass
class Held:
    """Runs `meanwhile` when the held job comes to `point`, once."""

    point: str = ""
    meanwhile: Callable[[], Awaitable[None]] | None = None
    reached: list[str] = field(default_factory=list)

    async def at(self, point: str) -> None:
        meanwhile, self.meanwhile = (self.meanwhile, None) if point == self.point else (None, self.meanwhile)
        if meanwhile is not None:
            self.reached.append(point)
            await meanwhile()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Jobs of history run without Spark, and stop where it says."""
    hold = Held()

    def stops_at(point: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def stop(*given: Any, **named: Any) -> Any:
            await hold.at(point)
            return await real(*given, **named)

        return stop

    tasks = stops_at(POINTS[0], in_this_process)
    staging = stops_at(POINTS[1], job_module.publish_staged)
    commit = stops_at(POINTS[2], job_module._publish_until_known)
    monkeypatch.setattr(job_module, "_publish_until_known", commit)
    for module in (*JOBS.values(), erasure_module):
        monkeypatch.setattr(module, "publish_staged", staging)
    for module in (compact_module, rewrite_module):
        monkeypatch.setattr(module, "run_in_spark", tasks)
        monkeypatch.setattr(module, "spark_session", lambda _: None)
    return hold


async def is_there(world: World) -> bool:
    return world.topic in await world.sequencer.topics.by_name([world.topic])


# --- the jobs of history, each as a service runs it


async def compaction(world: World) -> None:
    [topic] = (await world.sequencer.topics.by_name([world.topic])).values() or [None]
    if topic is None:
        return
    async with open_job_keys(world.settings, world.sequencer) as keys:
        rounds = Compaction(_many_files(world.settings), world.sequencer, keys, lambda _: None)
        compactor = TopicCompactor(_many_files(world.settings), world.sequencer, topic, keys)
        while await rounds.run_round([compactor]):
            pass
    assert (compactor.done.failed, compactor.done.raw_ranges) == ((), ())
    assert not compactor.done.stopped or not await is_there(world), compactor.done.stopped
    world.has_table = world.has_table or compactor.done.files > 0


async def merging(world: World) -> None:
    for topic in (await world.sequencer.topics.by_name([world.topic])).values():
        pairs = world.settings.model_copy(update={"parquet_merge_files": 2})
        async with open_job_keys(pairs, world.sequencer) as keys:
            await FileMerger(pairs, world.sequencer, topic, keys).run_job()


async def ttl(world: World) -> None:
    for topic in (await world.sequencer.topics.by_name([world.topic])).values():
        at_once = world.settings.model_copy(update={"history_snapshot_grace_s": 0.0})
        async with open_job_keys(at_once, world.sequencer) as keys:
            await TopicExpirer(at_once, world.sequencer, topic, keys).run()


def _many_files(settings: CompactionSettings) -> CompactionSettings:
    """Small files, which nothing merges yet; snapshots that are let go at once."""
    return settings.model_copy(
        update={"compact_task_bytes": 2000, "parquet_merge_files": 1000, "history_snapshot_grace_s": 0.0}
    )


# --- what runs meanwhile


async def some_deleted(world: World) -> None:
    for partition, start in (await world.log_starts()).items():
        end = len(world.written[partition])
        before = min(end, start + world.chance.randrange(1, 30))
        await world.sequencer.retention.delete_records(world.topic_id, Partition(partition), Offset(before))
    await retention_runs(world)


async def everything_deleted(world: World) -> None:
    for partition in await world.log_starts():
        end = len(world.written[partition])
        await world.sequencer.retention.delete_records(world.topic_id, Partition(partition), Offset(end))
    await retention_runs(world)


async def topic_deleted(world: World) -> None:
    if await is_there(world):
        await world.sequencer.topics.delete(world.topic)
    await finish(TopicSweepJob(world.sequencer, housekeeping()))


async def garbage_collected(world: World) -> None:
    """Whatever nothing refers to, and no job holds, goes at once."""
    for table in ("segments", "history_objects"):
        await world.sequencer.database.run(
            f"UPDATE {table} SET unreferenced_since = unreferenced_since - {_LONG_AGO}"
        )
    await world.sequencer.database.run(f"UPDATE history_jobs SET ended_at = ended_at - {_LONG_AGO}")
    for job in (
        GarbageScanJob(world.sequencer, housekeeping()),
        DoomingJob(world.sequencer, housekeeping()),
        GarbageDeletionJob(world.sequencer, world.store, housekeeping()),
        HistoryGarbageJob(world.sequencer, world.store, housekeeping()),
    ):
        await ready_to_doom(world.sequencer)
        await finish(job)


async def garbage_collected_twice(world: World) -> None:
    """What the first pass found unreferenced goes in the second."""
    await garbage_collected(world)
    await garbage_collected(world)


async def switched_off_and_on(world: World) -> None:
    for policy in ("off", "table", "log"):
        if await is_there(world):
            await world.sequencer.topics.alter_config(world.topic, {"tidelog.history": policy})


async def more_written(world: World) -> None:
    if await is_there(world):
        await write(world)


async def erased(world: World) -> None:
    """Some keys, as far as the erasure comes: it waits for the held job, and ends after it."""
    waits, loop = asyncio.Event(), asyncio.get_running_loop()

    def note(progress: ErasureProgress) -> None:
        if progress.stage.startswith("waiting"):
            loop.call_soon_threadsafe(waits.set)

    if await is_there(world):
        erasing = asyncio.create_task(erase_keys(world, [None, b"", b"3", b"4"], note))
        world.erasures.append(erasing)
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait([erasing, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=60)
        waiting.cancel()


MEANWHILE: tuple[Step, ...] = (
    compaction, merging, ttl, merge_segments, drop_raw_runs, some_deleted, everything_deleted, topic_deleted,
    garbage_collected_twice, switched_off_and_on, more_written,
    erased,
)  # fmt: skip
OF_DELETED = (topic_deleted, garbage_collected_twice, merge_segments, drop_raw_runs)
"""What may come after the topic was deleted."""


def cases(seed: int) -> list[tuple[str, tuple[Step, ...]]]:
    """Each job alone, and some of the ordered pairs."""
    chance = random.Random(seed)
    pairs = [
        pair
        for pair in itertools.permutations(MEANWHILE, 2)
        if pair[0] is not topic_deleted or pair[1] in OF_DELETED
    ]
    alone = [(chance.choice(POINTS), (step,)) for step in MEANWHILE]
    outrun = (POINTS[1], (erased, garbage_collected_twice))  # what the held job began with is garbage
    return [
        *alone,
        outrun,
        *((chance.choice(POINTS), pair) for pair in chance.sample(pairs, min(PAIRS, len(pairs)))),
    ]


# --- the test


@pytest.mark.parametrize("job", [compaction, merging, ttl])
async def test_readers_read_what_was_written_whatever_runs_while_a_job_is_held(
    job: Step,
    held: Held,
    settings: CompactionSettings,
    sequencer: Sequencer,
    store: ObjectStore,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    [seed] = seeds(1)
    reached = 0
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        for number, (point, meanwhile) in enumerate(cases(seed)):
            name = f"orders-{number}"
            config = {"retention.ms": "-1", "tidelog.history": "log", "local.retention.ms": "0"}
            topic = await sequencer.topics.create(name, PARTITIONS, config)
            world = World(
                chance=random.Random(f"{seed} {number}"),  # some logs have nothing to merge
                sequencer=sequencer,
                store=store,
                settings=settings,
                source=source_options(name, agent, store_url, store_settings),
                agent=agent,
                topic_id=topic.topic_id,
                topic=name,
            )
            named = f"seed {seed}: {job.__name__}, {point}: {[step.__name__ for step in meanwhile]}"
            try:
                reached += await _hold(job, held, point, meanwhile, world)
                await _all_is_well(world)
            except BaseException as error:
                error.add_note(named)
                raise
    print(f"{reached} jobs were held")
    assert reached >= len(MEANWHILE) // 3  # TTL that finds whole files only has no tasks


async def _hold(job: Step, held: Held, point: str, meanwhile: tuple[Step, ...], world: World) -> int:
    """How often the job was held."""
    await write(world)
    await compaction(world)
    await drop_raw_runs(world)
    await write(world)
    if job is ttl:
        await some_deleted(world)

    async def others() -> None:
        for step in meanwhile:
            await step(world)

    held.point, held.meanwhile, held.reached = point, others, []
    try:
        await job(world)
    except SparkJobFailed:  # garbage collection waits for no job of a topic that was deleted
        assert not await is_there(world)
    held.meanwhile = None
    return len(held.reached)


async def _all_is_well(world: World) -> None:
    topic_is_there = await is_there(world)
    for ended in await asyncio.gather(*world.erasures, return_exceptions=True):
        assert ended is None or (isinstance(ended, ErasureFailed) and not topic_is_there), ended
    if topic_is_there:
        await everyone_reads(world)
        for step in (compaction, merging, ttl):
            await step(world)
        await drop_raw_runs(world)
        await garbage_collected_twice(world)
        await everyone_reads(world)
    await topic_deleted(world)
    diagnosis = await examine(
        world.sequencer, world.store, CLUSTER, verify_contents=True, settings=DoctorSettings()
    )
    assert diagnosis.is_healthy, diagnosis.summary()
