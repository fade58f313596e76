"""The doctor calls a sound log healthy, even while it changes, and finds every planted fault."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from compactor.diagnosis import Diagnosis, Fault, Sight
from compactor.doctor import DoctorSettings, examine
from sequencer.client import Sequencer
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK
from storage.identifiers import ObjectKey, Offset, Partition, new_segment_id
from storage.segments.keys import backups_prefix, segment_key
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER, Segment, pending, reserved, upload, written
from tests.compactor.journal import a_writer

SMALL_PAGES = DoctorSettings(doctor_page=3, doctor_requests=2, doctor_findings=4)


async def look(sequencer: Sequencer, store: ObjectStore, *, verify_contents: bool = True) -> Diagnosis:
    return await examine(sequencer, store, CLUSTER, verify_contents, SMALL_PAGES)


async def a_sound_log(sequencer: Sequencer, store: ObjectStore) -> list[Segment]:
    """Two partitions over five segments; one segment is emptied, one reserved and uploaded, one reserved
    only.
    """
    topic = await sequencer.topics.create("orders", 2, {})
    segments = [
        await written(sequencer, store, pending(topic, 2), pending(topic, 3, partition=1), pending(topic, 1))
        for _ in range(4)
    ]
    emptied = await written(sequencer, store, pending(await sequencer.topics.create("short", 1, {}), 2))
    [short] = (await sequencer.topics.by_name(["short"])).values()
    await sequencer.retention.delete_records(short.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.retention.delete_records(topic.topic_id, Partition(1), Offset(4))
    await upload(store, await reserved(sequencer, [pending(topic)]))
    await reserved(sequencer, [pending(topic)])
    return [*segments, emptied]


async def test_a_sound_log_is_healthy_and_everything_in_it_is_counted(
    sequencer: Sequencer, any_store: ObjectStore
) -> None:
    await a_sound_log(sequencer, any_store)

    quick = await look(sequencer, any_store, verify_contents=False)
    thorough = await look(sequencer, any_store)

    assert quick.seen == thorough.seen
    assert {sight: count for sight, count in thorough.seen.items() if count} == {
        Sight.PARTITION: 3,
        Sight.RUN: 7,
        Sight.REFERENCED: 4,
        Sight.OBJECT: 6,
        Sight.LIVE: 4,
        Sight.RESERVED: 1,
        Sight.GARBAGE: 1,
    }
    assert thorough.is_healthy
    assert thorough.findings == ()
    assert thorough.summary().startswith("healthy (every byte verified)")


async def test_an_empty_cluster_is_healthy(sequencer: Sequencer, local_store: ObjectStore) -> None:
    assert (await look(sequencer, local_store)).is_healthy


async def test_backups_of_postgres_are_no_orphans(sequencer: Sequencer, any_store: ObjectStore) -> None:
    likely_mistaken = f"{backups_prefix(CLUSTER)}segments/{new_segment_id().hex[:2]}/{new_segment_id()}"
    for key in (
        f"{backups_prefix(CLUSTER)}7711/wals/0000000100000000/000000010000000000000001.lz4",
        likely_mistaken,
    ):
        await any_store.put(ObjectKey(key), [b"not Tidelog's"])

    found = await look(sequencer, any_store)

    assert found.is_healthy
    assert found.seen[Sight.BACKUP] == 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault, how it is planted, and what the doctor should call it."""

    fault: Fault
    plant: Callable[[Sequencer, ObjectStore, Segment], Awaitable[object]]
    needs_contents: bool = False


async def replace(store: ObjectStore, segment: Segment, change: Callable[[bytearray], object]) -> None:
    data = bytearray(await store.get(segment.key))
    change(data)
    await store.put(segment.key, [bytes(data)])


def flip_a_byte_of_the_first_run(data: bytearray) -> None:
    data[120] ^= 1


def cut_the_end(data: bytearray) -> None:
    del data[-1:]


async def run_sql(sequencer: Sequencer, text: str) -> object:
    async with sequencer.database.transaction() as connection:
        return await connection.execute(text)


FAULTS = {
    "missing object": Planted(
        fault=Fault.MISSING_OBJECT, plant=lambda _, store, segment: store.delete([segment.key])
    ),
    "truncated object": Planted(
        fault=Fault.CORRUPT_OBJECT, plant=lambda _, store, segment: replace(store, segment, cut_the_end)
    ),
    "flipped byte": Planted(
        fault=Fault.CORRUPT_OBJECT,
        plant=lambda _, store, segment: replace(store, segment, flip_a_byte_of_the_first_run),
        needs_contents=True,
    ),
    "orphan segment": Planted(
        fault=Fault.ORPHAN_OBJECT,
        plant=lambda _, store, segment: store.put(
            segment_key(CLUSTER, new_segment_id()), segment.sealed.chunks
        ),
    ),
    "segment under another key": Planted(
        fault=Fault.ORPHAN_OBJECT,
        plant=lambda _, store, segment: store.put(
            ObjectKey(f"{CLUSTER}/segments/zz/{segment.segment_id}"), [b"x"]
        ),
    ),
    "object of no kind": Planted(
        fault=Fault.ORPHAN_OBJECT,
        plant=lambda _, store, __: store.put(ObjectKey(f"{CLUSTER}/notes.txt"), [b"x"]),
    ),
    "orphan history file": Planted(
        fault=Fault.ORPHAN_OBJECT,
        plant=lambda _, store, __: store.put(ObjectKey(f"{CLUSTER}/history/topic/job/data.parquet"), [b"x"]),
    ),
    "run of a segment without a row": Planted(
        fault=Fault.DANGLING_RUN,
        plant=lambda sequencer, *_: run_sql(
            sequencer,
            "UPDATE runs SET segment_id = gen_random_uuid() WHERE base_offset = 3 AND partition = 0",
        ),
    ),
    "run of a doomed segment": Planted(
        fault=Fault.DANGLING_RUN,
        plant=lambda sequencer, _, segment: run_sql(
            sequencer, f"UPDATE segments SET state = 'doomed' WHERE segment_id = '{segment.segment_id}'"
        ),
    ),
    "run of a partition without a row": Planted(
        fault=Fault.DANGLING_RUN,
        plant=lambda sequencer, *_: run_sql(sequencer, "DELETE FROM partitions WHERE partition = 1"),
    ),
    "gap": Planted(
        fault=Fault.GAP,
        plant=lambda sequencer, *_: run_sql(
            sequencer, "DELETE FROM runs WHERE base_offset = 3 AND partition = 0"
        ),
    ),
    "missing end": Planted(
        fault=Fault.GAP,
        plant=lambda sequencer, *_: run_sql(
            sequencer, "UPDATE partitions SET high_watermark = high_watermark + 1"
        ),
    ),
    "wrong size of a partition": Planted(
        fault=Fault.WRONG_SIZE,
        plant=lambda sequencer, *_: run_sql(
            sequencer, "UPDATE partitions SET size_bytes = 7 WHERE high_watermark = 2"
        ),
    ),
    "run at another place": Planted(
        fault=Fault.CORRUPT_OBJECT,
        plant=lambda sequencer, *_: run_sql(
            sequencer, "UPDATE runs SET position = position + 1 WHERE base_offset = 3"
        ),
        needs_contents=True,
    ),
    "run that is too short": Planted(
        fault=Fault.CORRUPT_OBJECT,
        plant=lambda sequencer, *_: run_sql(
            sequencer, "UPDATE runs SET last_offset = last_offset - 1 WHERE base_offset = 9 AND partition = 1"
        ),
    ),
    "producer ahead of the log": Planted(
        fault=Fault.PRODUCER_STATE,
        plant=lambda sequencer, *_: run_sql(
            sequencer,
            "INSERT INTO producer_state"
            " (topic_id, partition, producer_id, producer_epoch, sequences, base_offsets, max_timestamps)"
            " SELECT topic_id, partition, 7, 0, '{0}', ARRAY[high_watermark], '{-1}'"
            " FROM partitions WHERE partition = 1",
        ),
    ),
}


@pytest.mark.parametrize("planted", FAULTS.values(), ids=FAULTS.keys())
async def test_a_planted_fault_is_found(
    sequencer: Sequencer, local_store: ObjectStore, planted: Planted
) -> None:
    segment = (await a_sound_log(sequencer, local_store))[1]

    await planted.plant(sequencer, local_store, segment)
    quick = await look(sequencer, local_store, verify_contents=False)
    thorough = await look(sequencer, local_store)

    assert thorough.of(planted.fault) != ()
    assert not thorough.is_healthy
    assert planted.fault in thorough.summary()
    assert quick.is_healthy == planted.needs_contents


async def test_a_lost_or_damaged_object_is_found_in_every_store(
    sequencer: Sequencer, any_store: ObjectStore
) -> None:
    segments = await a_sound_log(sequencer, any_store)
    await any_store.delete([segments[0].key])
    await replace(any_store, segments[1], flip_a_byte_of_the_first_run)
    orphan = segment_key(CLUSTER, new_segment_id())
    await any_store.put(orphan, segments[2].sealed.chunks)

    diagnosis = await look(sequencer, any_store)

    assert [finding.where for finding in diagnosis.dangling_runs] == [segments[0].key]
    assert [finding.where for finding in diagnosis.corrupt] == [segments[1].key]
    assert [finding.where for finding in diagnosis.orphans] == [orphan]


async def test_findings_are_listed_up_to_a_bound_and_counted_beyond_it(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    for _ in range(7):
        await local_store.put(segment_key(CLUSTER, new_segment_id()), [b"orphan"])

    diagnosis = await look(sequencer, local_store)

    assert diagnosis.fault_counts == {Fault.ORPHAN_OBJECT: 7}
    assert len(diagnosis.orphans) == SMALL_PAGES.doctor_findings
    assert "orphan object: 7, the first 4:" in diagnosis.summary()


async def test_missing_history_is_found(sequencer: Sequencer, local_store: ObjectStore) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    prefix = f"{CLUSTER}/history/{topic.topic_id}"
    async with sequencer.database.transaction() as connection:
        await connection.execute(
            "INSERT INTO history_tables (topic_id, metadata_key) VALUES (%s, %s)",
            (topic.topic_id, f"{prefix}/m.json"),
        )
        await connection.execute(
            "INSERT INTO history_objects (object_key, topic_id)"
            " SELECT %s || name, %s FROM unnest(ARRAY['/m.json', '/a.parquet', '/b.parquet']) AS file (name)",
            (prefix, topic.topic_id),
        )
    for name in ("m.json", "a.parquet"):
        await local_store.put(ObjectKey(f"{prefix}/{name}"), [b"x"])

    diagnosis = await look(sequencer, local_store)

    assert diagnosis.seen[Sight.HISTORY] == 3
    assert [finding.where for finding in diagnosis.dangling_runs] == [f"{prefix}/b.parquet"]
    assert diagnosis.orphans == ()


async def test_live_traffic_is_no_fault(sequencer: Sequencer, any_store: ObjectStore) -> None:
    topic = await sequencer.topics.create("orders", 2, {})
    await written(sequencer, any_store, pending(topic))
    stop = asyncio.Event()
    segments = 0
    diagnoses: list[Diagnosis] = []

    async def produce() -> None:
        nonlocal segments
        while not stop.is_set():
            if segments >= 20 * (
                len(diagnoses) + 1
            ):  # otherwise a log may grow faster than a slow machine reads it
                await asyncio.sleep(0.01)
                continue
            await written(sequencer, any_store, pending(topic, 2), pending(topic, 1, partition=1))
            segments += 1

    async def let_go() -> None:
        while not stop.is_set():
            await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK, cap=2)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(let_go())
        while len(diagnoses) < 5 or not segments:
            diagnoses.append(await look(sequencer, any_store))
        stop.set()

    assert [diagnosis.findings for diagnosis in diagnoses if diagnosis.findings] == []


async def test_the_journal_is_known_and_one_that_is_behind_is_named(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    writer = a_writer(sequencer, local_store)
    topic = await sequencer.topics.create("orders", 1, {})
    await writer.write_entry()
    await written(sequencer, local_store, pending(topic))
    await writer.write_entry()
    await written(sequencer, local_store, pending(topic))
    young = await look(sequencer, local_store)
    await sequencer.database.run("UPDATE segments SET committed_at = committed_at - interval '11 minutes'")
    await sequencer.database.run("UPDATE journal SET taken_at = taken_at - interval '12 minutes'")

    old = await look(sequencer, local_store)

    assert young.is_healthy
    assert young.seen[Sight.JOURNAL] == 3
    assert [finding.fault for finding in old.findings] == [Fault.OLD_JOURNAL]
