"""Recovery with a real Postgres and a real store: what is missing, what is young, what is gone."""

import asyncio

import psycopg
import pytest

from compactor.doctor import DoctorSettings, examine
from recovery.recover import BEING_RECOVERED, CannotRecover
from recovery.young import YoungSegments
from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Committed, Duplicate
from sequencer.housekeeping.garbage import PartitionRules
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK
from sequencer.journal.recovery import RecoveryAtWork, RecoverySession
from sequencer.topics.topics import Topic
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.identifiers import ObjectKey, Partition, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import empty_segment, seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from tests.agent.running import a_batch as produced
from tests.compactor.builders import CLUSTER, Segment, keys_in, pending, upload, written
from tests.compactor.merging import a_log, read_all, read_back
from tests.recovery.conftest import Place

pytestmark = pytest.mark.superuser


@pytest.fixture
async def topic(place: Place) -> Topic:
    return await place.sequencer.topics.create("orders", 2, {"retention.ms": "-1"})


async def is_healthy(place: Place) -> bool:
    diagnosis = await examine(
        place.sequencer, place.store, CLUSTER, verify_contents=True, settings=DoctorSettings()
    )
    assert diagnosis.is_healthy, diagnosis.summary()
    return True


async def unknown(place: Place, *batches: PendingBatch) -> Segment:
    """An object in the bucket that the database does not know."""
    segment_id = new_segment_id()
    sealed = seal_segment(segment_id, "lost", PendingBatches.of(batches))
    segment = Segment(key=segment_key(CLUSTER, segment_id), sealed=sealed)
    await upload(place.store, segment)
    return segment


def idempotent(topic: Topic, sequence: int, producer_id: int = 7, epoch: int = 0) -> PendingBatch:
    data = produced(b"value %d" % sequence, producer=(producer_id, epoch, sequence))
    return PendingBatch(
        topic_id=topic.topic_id, partition=Partition(0), batch=validate_produced(data, BatchLimits())
    )


async def test_a_log_that_is_whole_stays_as_it_is(place: Place, topic: Topic) -> None:
    await a_log(place.sequencer, place.store, topic, segments=3)
    before = await read_all(place.sequencer, place.store, topic)

    report = await place.recover()

    assert report.is_lossless
    assert (report.appended, report.replaced, report.leftovers) == (0, 0, 0)
    assert await read_all(place.sequencer, place.store, topic) == before
    assert await is_healthy(place)


async def test_ranges_without_any_object_are_skipped_and_recorded(place: Place, topic: Topic) -> None:
    segments = [await written(place.sequencer, place.store, pending(topic, 5)) for _ in range(6)]
    await place.store.delete([segments[1].key, segments[2].key, segments[4].key])

    report = await place.recover()

    read = await read_back(place.sequencer, place.store, topic)
    assert [offset for offset, _ in read.batches] == [0, 5, 15, 20, 25]
    assert read.high_watermark == 30
    assert (report.missing_objects, report.gone) == (3, 15)
    gone = await place.sequencer.gone_ranges.first(10)
    assert [(one.topic, one.base_offset, one.last_offset) for one in gone] == [
        ("orders", 5, 14),
        ("orders", 20, 24),
    ]
    assert "not in the bucket" in gone[0].reason
    assert await is_healthy(place)


async def test_young_segments_are_appended_in_the_order_of_their_ids(place: Place, topic: Topic) -> None:
    await written(place.sequencer, place.store, pending(topic, 2))
    young = [await unknown(place, pending(topic, records)) for records in (1, 3, 2, 4)]

    report = await place.recover()

    read = await read_back(place.sequencer, place.store, topic)
    assert [offset for offset, _ in read.batches] == [0, 2, 3, 6, 8]
    assert (report.young_segments, report.appended) == (len(young), 10)
    assert await is_healthy(place)


async def test_batches_of_a_producer_that_came_in_another_order_are_all_appended(
    place: Place, topic: Topic
) -> None:
    await written(place.sequencer, place.store, idempotent(topic, 0))
    later = await unknown(place, idempotent(topic, 2), idempotent(topic, 0, producer_id=8))
    await unknown(place, idempotent(topic, 1, producer_id=8), idempotent(topic, 1))

    report = await place.recover()

    read = await read_back(place.sequencer, place.store, topic)
    assert report.is_lossless, report.refused
    assert (report.appended, read.high_watermark) == (4, 5)
    [outcome] = await place.sequencer.commits.commit([later.to_commit])  # an agent that asks late
    assert isinstance(outcome, Committed)
    assert all(isinstance(each, Assigned) for each in outcome.outcomes)
    assert await is_healthy(place)


async def test_what_was_committed_before_is_not_appended_again(place: Place, topic: Topic) -> None:
    await written(place.sequencer, place.store, idempotent(topic, 0))
    await unknown(place, idempotent(topic, 0), idempotent(topic, 1))

    report = await place.recover()

    assert report.appended == 1
    assert sum(change.duplicates for change in report.partitions.values()) == 1
    assert (await read_back(place.sequencer, place.store, topic)).high_watermark == 2
    again = await written(place.sequencer, place.store, idempotent(topic, 1))
    [outcome] = await place.sequencer.commits.commit([again.to_commit])
    assert isinstance(outcome, Committed)
    assert isinstance(outcome.outcomes[0], Duplicate)
    assert await is_healthy(place)


async def test_what_cannot_be_appended_is_listed(place: Place, topic: Topic) -> None:
    await written(place.sequencer, place.store, pending(topic))
    other = await place.sequencer.topics.create("gone", 1, {})
    await unknown(place, pending(other))
    await place.sequencer.topics.delete("gone")
    too_early = await unknown(place, idempotent(topic, 5))
    broken = await unknown(place, pending(topic))
    data = bytearray(await place.store.get(broken.key))
    data[len(data) // 2] ^= 1
    await place.store.put(broken.key, [bytes(data)])

    report = await place.recover()

    reasons = {one.what: one.reason for one in report.refused}
    assert len(report.refused) == 3
    assert "missing before it" in reasons[too_early.key] or "not the first" in reasons[too_early.key]
    assert "checksum" in reasons[broken.key]
    assert not report.is_lossless
    assert await is_healthy(place)


async def test_an_agents_trial_upload_is_not_listed(place: Place, topic: Topic) -> None:
    await written(place.sequencer, place.store, pending(topic))
    unknown_id, reserved_id = new_segment_id(), new_segment_id()
    await place.sequencer.reservations.reserve(
        {reserved_id: segment_key(CLUSTER, reserved_id)}, 60.0, "agent"
    )
    for segment_id in (unknown_id, reserved_id):
        await place.store.put(segment_key(CLUSTER, segment_id), [empty_segment(segment_id)])

    report = await place.recover()

    assert (report.refused, report.is_lossless) == ([], True)
    assert await is_healthy(place)


async def test_objects_too_old_to_have_been_acknowledged_since_are_left_to_the_garbage_collector(
    place: Place, topic: Topic
) -> None:
    old = await unknown(place, pending(topic))
    await asyncio.sleep(0.01)
    await written(place.sequencer, place.store, pending(topic))

    report = await place.recover(recovery_young_margin_s=0)

    assert (report.young_segments, report.leftovers) == (0, 1)
    assert old.key in await keys_in(place.store)
    assert await is_healthy(place)


async def test_a_dry_run_says_what_would_happen_and_writes_nothing(place: Place, topic: Topic) -> None:
    segments = [await written(place.sequencer, place.store, pending(topic, 5)) for _ in range(3)]
    await place.store.delete([segments[1].key])
    await unknown(place, pending(topic, 2))
    objects, rows = await keys_in(place.store), _everything(place)

    would = await place.rehearse()

    assert (would.gone, would.appended) == (5, 2)
    assert await keys_in(place.store) == objects
    assert _everything(place) == rows
    did = await place.recover()
    assert (did.gone, did.appended) == (would.gone, would.appended)


def _everything(place: Place) -> dict[str, list[object]]:
    """All rows of all tables, and the sequences."""
    with psycopg.connect(place.database_url) as connection:
        names = connection.execute(
            "SELECT schemaname || '.' || relname FROM pg_stat_user_tables UNION ALL"
            " SELECT schemaname || '.' || sequencename FROM pg_sequences"
        ).fetchall()
        return {
            name: list[object](
                connection.execute(f"SELECT (t.*)::text FROM (SELECT * FROM {name}) AS t ORDER BY 1")
            )
            for (name,) in names
        }


async def test_of_two_recoveries_at_once_the_second_is_refused(place: Place, topic: Topic) -> None:
    await a_log(place.sequencer, place.store, topic, segments=1)
    async with RecoverySession.open(place.database_url, statement_timeout_s=60):
        with pytest.raises(RecoveryAtWork, match="another"):
            await place.recover()


async def test_a_recovery_that_was_killed_is_finished_by_the_next(
    place: Place, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [await written(place.sequencer, place.store, pending(topic, 5)) for _ in range(3)]
    await place.store.delete([segments[1].key])
    await unknown(place, idempotent(topic, 1))
    await unknown(place, idempotent(topic, 0))

    async def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(YoungSegments, "_try_again", killed)
        with pytest.raises(KeyboardInterrupt):
            await place.recover()
    assert (await place.sequencer.ownership.state()).lost_because == BEING_RECOVERED
    report = await place.recover()

    assert report.is_lossless
    read = await read_back(place.sequencer, place.store, topic)
    assert read.high_watermark == 17
    assert (await place.sequencer.ownership.state()).lost_because is None
    assert await is_healthy(place)


async def test_an_empty_database_without_a_journal_is_not_taken_for_the_log(place: Place) -> None:
    key = ObjectKey(f"{CLUSTER}/segments/00/00000000-0000-7000-8000-000000000000")
    await place.store.put(key, [b"someone's data"])

    with pytest.raises(CannotRecover, match="restore a backup"):
        await place.recover()

    assert await keys_in(place.store) >= {key}


async def test_agents_find_nothing_as_it_was(place: Place, topic: Topic, sequencer: Sequencer) -> None:
    await a_log(sequencer, place.store, topic, segments=1)
    with psycopg.connect(place.database_url) as connection:
        before = connection.execute("SELECT min(coordinate_epoch) FROM partitions").fetchone()

    await place.recover(recovery_sequence_margin=1000)

    with psycopg.connect(place.database_url) as connection:
        after = connection.execute(
            "SELECT (SELECT min(coordinate_epoch) FROM partitions), (SELECT count(*) FROM jobs),"
            " nextval('node_ids'), nextval('coordinator_epochs')"
        ).fetchone()
    assert before is not None
    assert after is not None
    assert after[0] > before[0]
    assert after[1] == 0
    assert min(after[2:]) > 1000


async def test_a_late_upload_of_a_deleted_object_is_not_taken_for_a_young_segment(
    place: Place, topic: Topic
) -> None:
    segment = await written(place.sequencer, place.store, pending(topic, 3))
    await place.sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await place.sequencer.database.run("UPDATE segments SET state = 'doomed', doomed_at = clock_timestamp()")
    partitions = PartitionRules(width_s=600, lock_timeout_ms=10_000)
    await place.sequencer.garbage.bury([segment.segment_id], outcome_retention_s=3600, partitions=partitions)
    await upload(place.store, segment)

    report = await place.recover()

    read = await read_back(place.sequencer, place.store, topic)
    assert (report.young_segments, report.appended, read.high_watermark) == (0, 0, 3)
    assert read.batches == ()
