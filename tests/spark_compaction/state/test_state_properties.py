"""Random histories of a compacted topic: after each compaction the table is the state of the model, and of
what a consumer of committed records reads up to the same offsets, whatever agents have cleaned meanwhile."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.read_path.slice_batches import take_committed
from cache_ring.pages.run_bytes import RunBytes
from compactor.cleaning import Cleaner, CleaningDiscoveryJob
from compactor.doctor import DoctorSettings, examine
from compactor.metrics import CleaningMetrics
from sequencer.client import Sequencer
from sequencer.commits.coordinates import CoordinateRequest
from spark_compaction.settings import CompactionSettings
from storage.identifiers import Offset, Partition, TopicId
from storage.stores.inline_objects import InlineObjects
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER
from tests.compactor.builders import settings as housekeeping
from tests.compactor.merging import merge_everything
from tests.compactor.test_cleaning_transactions import client_rows
from tests.spark_compaction.log import Log, Sent, SentBatch, Transaction, one
from tests.spark_compaction.reading import Rows, compact_one
from tests.spark_compaction.state.model import state_of, table_rows
from tests.support.seeds import seeds

PARTITIONS = 2
TOPIC = "prices"
NO_GRACE = {"garbage_grace_s": 1e-4, "ownership_ratchet_s": 1e-5}

pytestmark = [
    pytest.mark.spark,  # PyIceberg and the jobs' modules
    pytest.mark.usefixtures("without_spark"),
    pytest.mark.timeout(300),
]


async def a_compacted_topic(log: Log, **config: str) -> None:
    given = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "delete_retention_ms": "0"}
    await log.topic(TOPIC, PARTITIONS, **{**given, **config})


def _some_batches(chance: Random, step: int) -> list[SentBatch]:
    def sent(number: int) -> Sent:
        value = None if chance.random() < 0.25 else b"value-%d-%d" % (step, number)
        return Sent(key=b"key-%d" % chance.randrange(12), value=value)

    return [
        one(chance.randrange(PARTITIONS), *map(sent, range(chance.randint(1, 5))))
        for _ in range(chance.randint(1, 3))
    ]


async def write_at_random(log: Log, producers: Sequence[Transaction], chance: Random, steps: int) -> None:
    for step in range(steps):
        batches = _some_batches(chance, step)
        producer = chance.choice(producers)
        match chance.choice(("plain", "plain", "write", "write", "commit", "abort")):
            case "plain":
                await log.write(TOPIC, *batches)
            case "write":
                await log.write_in(producer, TOPIC, *batches)
            case end if producer.written:
                await log.end(producer, commit=end == "commit")


async def clean(log: Log, *, also_tombstones: bool = True) -> int:
    """Cleans all partitions that are due. Returns how many were."""
    own, store = housekeeping(**NO_GRACE), InlineObjects(log.store)
    if also_tombstones:  # as if the marks were a second older
        await log.sequencer.database.run(
            "UPDATE cleanings SET marks_ms = "
            "ARRAY(SELECT m - 1000 FROM unnest(marks_ms) WITH ORDINALITY AS d (m, n) ORDER BY n)"
        )
    await CleaningDiscoveryJob(log.sequencer, own).step(None)
    cleaner = Cleaner(log.sequencer, store, CLUSTER, own, CleaningMetrics(CollectorRegistry()))
    cleaned = 0
    while await cleaner.clean_once():
        cleaned += 1
    return cleaned


async def consumed(log: Log) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Partition, offset, key and value of what a consumer of committed records reads."""
    store, topic_id = InlineObjects(log.store), log.topic_ids[TOPIC]
    rows = []
    for partition in map(Partition, range(PARTITIONS)):
        asked = CoordinateRequest(
            topic_id=topic_id, partition=partition, from_offset=Offset(0), max_runs=10_000
        )
        view = (await log.sequencer.coordinates.read([asked]))[topic_id, partition]
        found = []
        for run in view.runs:
            data = await store.get(run.object_key, run.position, run.position + run.length)
            part = RunBytes.of(run, [memoryview(bytes(data))])
            assert part is not None
            found += [part] if run.base_offset < view.last_stable_offset else []
        if found:
            assert view.aborted is not None
            start = found[0].run.base_offset
            out, aborted = take_committed(
                found, start, view.last_stable_offset, 1 << 30, view.aborted, first_whatever_its_size=True
            )
            data = b"".join(bytes(chunk) for chunk in out.chunks)
            rows += [(int(partition), *row) for row in client_rows(data, aborted)]
    return rows


async def ends(log: Log, topic_id: TopicId) -> dict[int, int]:
    rows = await log.sequencer.database.read(
        "SELECT partition, compacted_to FROM history_partitions WHERE topic_id = %(topic_id)s",
        topic_id=topic_id,
    )
    return {row.partition: row.compacted_to for row in rows}


async def check(log: Log, settings: CompactionSettings) -> None:
    """The table is the state of what was committed, and of what is consumed, up to its ends."""
    to = await ends(log, log.topic_ids[TOPIC])
    table = await table_rows(settings, TOPIC)
    written: Rows = [row for row in log.expected[TOPIC] if row[1] < to.get(row[0], 0)]
    assert table == state_of(written)
    read: list[tuple[Any, ...]] = [
        (partition, offset, None, None, key, value, [])
        for partition, offset, key, value in await consumed(log)
        if offset < to.get(partition, 0)
    ]
    assert [short(row) for row in table] == [short(row) for row in state_of(read)]


def short(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[0], row[1], row[4], row[5]


async def is_healthy(sequencer: Sequencer, store: ObjectStore) -> bool:
    diagnosis = await examine(sequencer, InlineObjects(store), CLUSTER, True, DoctorSettings())
    print(diagnosis)
    return diagnosis.is_healthy


@pytest.mark.parametrize("seed", seeds(4))
async def test_the_table_is_the_state_that_a_model_and_a_consumer_have(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, seed: int
) -> None:
    chance = Random(seed)
    await a_compacted_topic(log)
    await log.write(TOPIC, one(0, Sent(key=b"first")))
    producers = [await log.transaction(f"producer {number}") for number in range(3)]
    small = settings.model_copy(
        update={
            "compact_task_bytes": chance.choice((300, 1000, 100_000)),
            "parquet_row_group_bytes": chance.choice((200, 1 << 20)),
            "parquet_file_bytes": chance.choice((1500, 1 << 20)),
            "compact_state_keys": chance.choice((3, 1000)),
            "parquet_merge_files": chance.choice((2, 8)),
        }
    )
    cleaned = 0
    for _ in range(6):
        await write_at_random(log, producers, chance, 12)
        for step in chance.sample(("clean", "merge", "compact", "clean", "compact"), 4):
            match step:
                case "clean":
                    cleaned += await clean(log)
                case "merge":
                    await merge_everything(sequencer, InlineObjects(log.store))
                case _:
                    report = await compact_one(small, TOPIC)
                    assert ([*report.stopped, *report.failed], report.raw_ranges) == ([], ())
                    await check(log, settings)
    for producer in producers:
        if producer.written:
            await log.end(producer, commit=chance.random() < 0.5)
    await compact_one(small, TOPIC)
    cleaned += await clean(log)
    assert cleaned
    await check(log, settings)
    assert await table_rows(settings, TOPIC) == state_of(log.expected[TOPIC])
    assert await is_healthy(sequencer, log.store)
