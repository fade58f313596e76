"""A log rebuilt from the bucket alone: the journal, and the segments that are younger."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from compactor.doctor import DoctorSettings, examine
from compactor.housekeeper import Housekeeper
from compactor.journal_writer import JournalWriter
from recovery.plan import Source
from sequencer.commits.commits import Committed, Duplicate
from sequencer.journal.reading import JournalFound, JournalInBucket
from sequencer.tenants.tenant_limits import TenantLimitReached, TenantLimits
from sequencer.topics.topics import Topic
from storage.segments.journal_format import encode, read_container
from storage.segments.keys import checkpoints_prefix, journal_prefix, merged_prefix
from tests.compactor.builders import CLUSTER, pending, settings, written
from tests.compactor.merging import a_log, read_all, read_back
from tests.compactor.test_cleaning import Place as Compacted
from tests.recovery.conftest import Place
from tests.recovery.test_old_backups import merge_and_delete
from tests.recovery.test_recover import idempotent, is_healthy
from tests.spark_compaction.log import Log
from tests.support.postgres import TEMPLATE

pytestmark = pytest.mark.superuser


@pytest.fixture
async def topic(place: Place) -> Topic:
    return await place.sequencer.topics.create("orders", 2, {"retention.ms": "-1"})


async def journal(place: Place, *, checkpoint: bool = False, **changed: Any) -> None:
    """An entry, or the checkpoint that comes first."""
    await place.sequencer.ownership.ratchet(place.store, CLUSTER)
    writer = JournalWriter(
        place.sequencer,
        place.store,
        CLUSTER,
        settings(checkpoint_interval_s=0.001, checkpoint_pace=0, **changed),
    )
    await writer.write_entry()
    if checkpoint:
        await writer.write_checkpoint_if_due()


async def begin(place: Place) -> None:
    await place.sequencer.store_identity.bind(place.store, CLUSTER, place.store_url)
    await journal(place)


def destroy(place: Place) -> None:
    """Only an empty database is left."""
    place.restore(TEMPLATE)
    with psycopg.connect(place.database_url) as connection:
        connection.execute("UPDATE ownership SET confirmed_at = NULL, system_identifier = NULL")


async def test_tenants_are_back_with_their_limits_quotas_and_topics(place: Place) -> None:
    await begin(place)
    quota = frozenset({("user", "acme~"), ("client-id", "acme~app")})
    limits = TenantLimits(topics=2, produce_bytes_rate=1_000)
    await place.sequencer.tenants.create("acme", ["alice"], limits)
    await place.sequencer.tenants.create("gone", [], TenantLimits())
    await place.sequencer.client_quotas.alter({quota: {"producer_byte_rate": 10.0}}, 10)
    topic = await place.sequencer.topics.create("acme~orders", 1, {"retention.ms": "-1"})
    await written(place.sequencer, place.store, pending(topic, 3))
    await place.sequencer.tenants.delete("gone")
    await journal(place)
    known = await read_all(place.sequencer, place.store, topic)

    destroy(place)
    report = await place.recover()

    assert report.source is Source.JOURNAL
    [row] = await place.sequencer.tenants.list()
    assert (row.name, row.admins, row.limits) == ("acme", ("alice",), limits)
    assert await place.sequencer.client_quotas.all() == {quota: {"producer_byte_rate": 10.0}}
    [found] = (await place.sequencer.topics.of_tenants(["acme"]))["acme"]
    assert await read_all(place.sequencer, place.store, found) == known
    await place.sequencer.topics.create("acme~second", 1, {})
    with pytest.raises(TenantLimitReached):
        await place.sequencer.topics.create("acme~third", 1, {})


async def test_what_the_journal_knows_is_back_at_its_offsets_and_what_is_younger_is_appended(
    place: Place, topic: Topic
) -> None:
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=5)
    await journal(place)
    other = await place.sequencer.topics.create("later", 1, {"retention.ms": "-1"})
    await written(place.sequencer, place.store, pending(other, 3))
    await journal(place)
    known = [
        *await read_all(place.sequencer, place.store, topic),
        *await read_all(place.sequencer, place.store, other),
    ]
    await a_log(place.sequencer, place.store, topic, segments=2, first=5)
    all_of_it = await read_all(place.sequencer, place.store, topic)

    destroy(place)
    report = await place.recover()

    assert (report.source, report.is_lossless) == (Source.JOURNAL, True)
    assert (report.young_segments, report.appended) == (2, 8)
    after = await read_all(place.sequencer, place.store, topic)
    assert [one.batches for one in after] == [one.batches for one in all_of_it]
    assert (await read_back(place.sequencer, place.store, other)).batches == known[-1].batches
    await place.sequencer.store_identity.check(place.store, CLUSTER, place.store_url)
    assert await is_healthy(place)


async def test_segments_of_a_reading_whose_last_entries_were_not_written_are_appended(
    place: Place, topic: Topic
) -> None:
    """However long ago they were uploaded, because a late journal reads much at once."""
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=6)
    before = await read_all(place.sequencer, place.store, topic)
    await journal(place, journal_batches_per_entry=2)
    keys = sorted([info.key async for info in place.store.list(journal_prefix(CLUSTER))])
    assert len(keys) > 2
    await place.store.delete(keys[1:])

    destroy(place)
    report = await place.recover(recovery_young_margin_s=0)

    assert report.appended > 0
    after = await read_all(place.sequencer, place.store, topic)
    assert [one.batches for one in after] == [one.batches for one in before]


async def test_what_only_merged_objects_hold_of_a_partition_that_no_entry_has_is_listed(
    place: Place, topic: Topic
) -> None:
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=1)
    await journal(place)
    later = await place.sequencer.topics.create("later", 1, {"retention.ms": "-1"})
    await a_log(place.sequencer, place.store, later, segments=16)
    assert await merge_and_delete(place) > 8

    destroy(place)
    report = await place.recover()

    listed = [one for one in report.refused if one.what.startswith(f"{later.topic_id}/0 [")]
    assert {one.reason for one in listed} == {"a merged object holds them, and the log has no such partition"}
    assert sum(one.records or 0 for one in report.refused) == 32  # with young segments that were not merged
    assert not report.is_lossless
    assert await is_healthy(place)


@pytest.mark.parametrize("damaged", ["footer", "run"])
async def test_a_damaged_merged_object_past_the_end_of_the_log_is_listed(
    place: Place, topic: Topic, damaged: str
) -> None:
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=16)
    assert await merge_and_delete(place) > 8
    for key in [info.key async for info in place.store.list(merged_prefix(CLUSTER))]:
        data = bytearray(await place.store.get(key))
        data[len(data) // 3 if damaged == "run" else -30] ^= 1
        await place.store.put(key, [bytes(data)])

    destroy(place)
    report = await place.recover()

    assert not report.is_lossless
    assert report.refused
    assert all("damaged" in one.reason for one in report.refused)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_an_entry_whose_rows_cannot_be_read_ends_the_journal_and_is_named(
    place: Place, topic: Topic, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header is whole; or it is deleted once its header was read."""
    await begin(place)
    for number in range(3):
        await a_log(place.sequencer, place.store, topic, segments=2, first=2 * number)
        await journal(place)
    before = await read_all(place.sequencer, place.store, topic)
    keys = sorted([info.key async for info in place.store.list(journal_prefix(CLUSTER))])
    if is_deleted:
        find = JournalInBucket.find

        async def find_and_delete(found_in: JournalInBucket) -> JournalFound | None:
            found = await find(found_in)
            await place.store.delete([keys[1]])
            return found

        monkeypatch.setattr(JournalInBucket, "find", find_and_delete)
    else:
        data = bytearray(await place.store.get(keys[1]))
        data[-1] ^= 1
        await place.store.put(keys[1], [bytes(data)])

    destroy(place)
    report = await place.recover()

    assert ["entry 2 cannot be read" in fault for fault in report.journal_faults] == [True]
    assert report.bucket_position is not None
    assert report.bucket_position.number == 1
    assert (report.appended, report.is_lossless) == (16, True)
    after = await read_all(place.sequencer, place.store, topic)
    assert [one.batches for one in after] == [one.batches for one in before]
    assert await is_healthy(place)


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("lost_tables", [("topics", "partitions"), ("partitions",)])
async def test_runs_of_a_partition_that_no_entry_has_are_listed(
    place: Place, lost_tables: Sequence[str]
) -> None:
    await begin(place)
    other = await place.sequencer.topics.create("later", 1, {})
    await written(place.sequencer, place.store, pending(other, 5))
    await journal(place)
    [key] = [info.key async for info in place.store.list(journal_prefix(CLUSTER))]
    header, tables = read_container(await place.store.get(key))
    kept = [rows for rows in tables if rows.table not in lost_tables]
    await place.store.put(key, encode(header, kept))

    destroy(place)
    report = await place.recover()

    name = other.topic_id if "topics" in lost_tables else "later"
    listed = [(one.what, one.records, one.reason) for one in report.refused]
    assert listed == [(f"{name}/0 [0, 4]", 5, "its partition is in no entry of the journal")]
    assert (report.records_refused, report.is_lossless) == (5, False)


async def test_a_first_checkpoint_without_entries_brings_the_log_back(place: Place, topic: Topic) -> None:
    await a_log(place.sequencer, place.store, topic, segments=2)
    before = await read_all(place.sequencer, place.store, topic)
    await begin(place)

    destroy(place)
    report = await place.recover()

    assert (report.source, report.is_lossless) == (Source.JOURNAL, True)
    assert await read_all(place.sequencer, place.store, topic) == before
    assert await is_healthy(place)


async def test_a_database_that_is_newer_than_the_journal_stays(place: Place, topic: Topic) -> None:
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=2)
    await journal(place)
    await a_log(place.sequencer, place.store, topic, segments=2, first=2)
    before = await read_all(place.sequencer, place.store, topic)

    report = await place.recover()

    assert (report.source, report.young_segments) == (Source.DATABASE, 0)
    assert await read_all(place.sequencer, place.store, topic) == before


async def test_a_backup_older_than_the_journal_goes_on_where_the_journal_ends(
    place: Place, topic: Topic
) -> None:
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=2)
    await journal(place)
    backup = place.back_up()
    await a_log(place.sequencer, place.store, topic, segments=3, first=2)
    await journal(place, checkpoint=True)
    before = await read_all(place.sequencer, place.store, topic)

    place.restore(backup)
    report = await place.recover()

    assert report.source is Source.JOURNAL
    assert await read_all(place.sequencer, place.store, topic) == before
    assert await is_healthy(place)


async def test_a_retry_of_a_batch_that_the_journal_knows_is_a_duplicate(place: Place, topic: Topic) -> None:
    """Producers' states are journaled more rarely than segments: the headers of the batches say the rest."""
    await begin(place)
    for sequence in range(12):
        await written(place.sequencer, place.store, idempotent(topic, sequence))
        await journal(place)

    destroy(place)
    await place.recover()

    outcomes: Sequence[object] = []
    for sequence in (11, 12):
        segment = await written(place.sequencer, place.store, idempotent(topic, sequence))
        [answer] = await place.sequencer.commits.commit([segment.to_commit])
        assert isinstance(answer, Committed)
        outcomes = [*outcomes, *answer.outcomes]
    assert isinstance(outcomes[0], Duplicate)
    assert outcomes[0].base_offset == 11
    assert (await read_back(place.sequencer, place.store, topic)).high_watermark == 13
    diagnosis = await examine(
        place.sequencer, place.store, CLUSTER, verify_contents=True, settings=DoctorSettings()
    )
    assert diagnosis.is_healthy, diagnosis.summary()


async def test_a_dry_run_on_an_empty_database_reads_the_journal_and_leaves_it_empty(
    place: Place, topic: Topic
) -> None:
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=2)
    await journal(place)
    await a_log(place.sequencer, place.store, topic, segments=1, first=2)
    place.server_without(place.name)

    would = await place.rehearse()

    with psycopg.connect(place.database_url) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone()
    assert tables == (0,)
    assert (would.source, would.appended) == (Source.JOURNAL, 4)
    did = await place.recover()
    assert did.appended == would.appended
    assert await is_healthy(place)


async def test_the_journal_goes_on_after_a_recovery(place: Place, topic: Topic) -> None:
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=2)
    await journal(place)
    destroy(place)
    await place.recover()

    await place.sequencer.ownership.resume()
    # The recovery's ratchets are so short that a busy machine misses them.
    await place.sequencer.database.run("UPDATE ownership SET ratchet_s = 60")
    await journal(place)
    await a_log(place.sequencer, place.store, topic, segments=2, first=2)
    await journal(place)
    before = await read_all(place.sequencer, place.store, topic)
    destroy(place)
    report = await place.recover()

    assert report.young_segments == 0
    assert await read_all(place.sequencer, place.store, topic) == before
    kinds = {key.split("/")[1] for key in [info.key async for info in place.store.list(f"{CLUSTER}/")]}
    assert {checkpoints_prefix("x").split("/")[1], journal_prefix("x").split("/")[1]} <= kinds


async def test_an_old_backup_on_which_an_agents_jobs_ran_is_not_taken_for_newer_than_the_journal(
    place: Place, topic: Topic
) -> None:
    """Agents that were not stopped find the restored database, whose jobs succeed until the ownership is
    found lost.
    """
    await begin(place)
    await a_log(place.sequencer, place.store, topic, segments=2)
    await journal(place)
    backup = place.back_up()
    await a_log(place.sequencer, place.store, topic, segments=3, first=2)
    await journal(place)
    before = await read_all(place.sequencer, place.store, topic)

    place.restore(backup)
    housekeeper = Housekeeper(place.sequencer, place.store, settings(), cluster=CLUSTER)
    assert await housekeeper.run_once(housekeeper.jobs[0])
    report = await place.recover(recovery_young_margin_s=0)

    assert report.source is Source.JOURNAL
    assert await read_all(place.sequencer, place.store, topic) == before
    assert await is_healthy(place)


async def test_what_was_written_after_the_last_entry_comes_once_though_a_cleaning_came_between(
    place: Place,
) -> None:
    log = Log(sequencer=place.sequencer, store=place.store)
    compacted = Compacted(sequencer=place.sequencer, store=place.store, log=log)
    await compacted.topic()
    await begin(place)
    await compacted.write((b"a", b"1"), (b"c", b"1"))
    await compacted.write((b"c", b"2"))
    await compacted.clean()

    destroy(place)
    await place.recover()

    assert await compacted.read() == compacted.written
