"""The journal from a real Postgres into a real store, and back into an empty database."""

import asyncio
import contextlib
import random
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

import pytest

from sequencer.client import Sequencer
from sequencer.cluster.ownership import OwnershipUnconfirmed
from sequencer.commits.commits import SegmentToCommit
from sequencer.groups.committed_offsets import CommittedOffset, OffsetCommit
from sequencer.housekeeping.garbage import PartitionRules
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK
from sequencer.journal.journal import CHECKPOINT_TABLES, FAMILIES, NOT_IN_THE_JOURNAL, Journal
from sequencer.journal.loading import IN_TIME_PARTITIONS, KEYS
from sequencer.journal.readings import JournalMoment, Mark, next_marks
from sequencer.security.acl import AclFilter
from sequencer.topics.topics import SQL as TOPICS_SQL
from sequencer.topics.topics import Topic
from storage.identifiers import NodeId, ObjectKey, Offset, Partition, TopicId
from storage.segments.journal_format import encode, read_container
from storage.segments.keys import checkpoint_object_of, journal_entry_of
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER, listed, pending, reserved, written
from tests.compactor.gated_store import GatedStore
from tests.compactor.journal import (
    Died,
    DyingStore,
    PausingDatabase,
    a_writer,
    contents,
    found_in,
    rebuilt,
    write_all,
)
from tests.sequencer.builders import ABatch, an_acl, committed
from tests.sequencer.builders import reserved as reserved_only
from tests.sequencer.housekeeping.housekeeping import observed
from tests.sequencer.races import commit_within
from tests.support.seeds import seeds


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def a_topic(sequencer: Sequencer, name: str = "orders", partitions: int = 3) -> Topic:
    return await sequencer.topics.create(name, partitions, {})


async def a_commit(sequencer: Sequencer, topic: Topic, *, partition: int = 0, records: int = 2) -> None:
    await committed(
        sequencer, [ABatch(topic_id=topic.topic_id, partition=Partition(partition), records=records)]
    )


async def entries_in(store: ObjectStore) -> list[tuple[int, int]]:
    places = [journal_entry_of(info.key) for info in await listed(store)]
    return [place for place in places if place is not None]


async def assert_rebuilt_alike(sequencer: Sequencer, store: ObjectStore, url: str) -> None:
    async with rebuilt(store, url) as (copy, left_out):
        assert left_out == []
        assert await contents(copy) == await contents(sequencer)


async def test_a_checkpoint_and_entries_make_an_empty_database_equal(
    sequencer: Sequencer, any_store: ObjectStore, empty_database_url: str
) -> None:
    writer = a_writer(sequencer, any_store)
    orders = await a_topic(sequencer)
    for number in range(5):
        await written(sequencer, any_store, pending(orders, 3, partition=number % 3))
    began = await writer.write_entry()
    payments = await a_topic(sequencer, "payments", 2)
    for number in range(5):
        await written(sequencer, any_store, pending(orders, 2, partition=number % 3), pending(payments, 4))
        await writer.write_entry()
    await sequencer.retention.delete_records(payments.topic_id, Partition(0), Offset(7))
    group = await sequencer.groups.claim("group", NodeId(1), create=True)
    assert group is not None
    offsets = [(orders.topic_id, Partition(0), CommittedOffset(offset=Offset(3), metadata="mine"))]
    await sequencer.committed_offsets.commit(
        [OffsetCommit(group_id="group", coordinator_epoch=group.coordinator_epoch, offsets=offsets)]
    )
    await sequencer.group_configs.alter("group", {"consumer.session.timeout.ms": "50000"})
    await sequencer.producers.new_producer_id()
    await sequencer.acls.add([an_acl("orders"), an_acl("payments")], 10)
    await sequencer.acls.remove([AclFilter(name="orders")], 10)
    await sequencer.topics.alter_config("orders", {"retention.ms": "1000"})
    await reserved(sequencer, [pending(orders)])
    await write_all(sequencer, writer)

    found = await found_in(any_store)
    assert (began.objects, len(found.entries), found.faults) == (2, 6, ())
    await assert_rebuilt_alike(sequencer, any_store, empty_database_url)
    async with rebuilt(any_store, empty_database_url) as (copy, _):
        again = await copy.groups.claim("group", NodeId(2), create=True)
        assert again is not None
        assert again.coordinator_epoch > group.coordinator_epoch


async def test_tombstones_and_outcomes_are_in_the_rebuilt_database(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    topic = await a_topic(sequencer)
    segment = await reserved_only(sequencer, [ABatch(topic_id=topic.topic_id, partition=Partition(0))])
    [answer] = await sequencer.commits.commit([segment])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.database.run("UPDATE segments SET state = 'doomed', doomed_at = clock_timestamp()")
    partitions = PartitionRules(width_s=600, lock_timeout_ms=10_000)
    await sequencer.garbage.bury([segment.segment_id], outcome_retention_s=3600, partitions=partitions)
    await a_writer(sequencer, store).write_entry()

    async with rebuilt(store, empty_database_url) as (copy, _):
        [again] = await copy.commits.commit([segment])
        assert again == answer
        assert (await observed(copy)).census == (await observed(sequencer)).census


async def test_a_checkpoint_in_small_parts_loads_alike(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    orders = await a_topic(sequencer, partitions=20)
    for number in range(60):
        await a_commit(sequencer, orders, partition=number % 20)

    written = await a_writer(sequencer, store, checkpoint_part_bytes=1024).write_entry()

    assert written.objects > 10
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_more_than_an_entry_holds_goes_into_several_of_one_moment(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    writer = a_writer(sequencer, store, journal_batches_per_entry=2)
    await writer.write_entry()
    orders = await a_topic(sequencer)
    for _ in range(7):
        await a_commit(sequencer, orders)

    wrote = await write_all(sequencer, writer)

    found = await found_in(store)
    assert (wrote.objects, wrote.segments) == (4, 7)
    assert len({entry.snapshot for entry in found.entries}) == 1
    assert [entry.follows for entry in found.entries] == [0, 1, 2, 3]
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_a_journal_that_is_far_behind_begins_again_with_a_checkpoint(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    writer = a_writer(sequencer, store, journal_segments_per_pass=3)
    await writer.write_entry()
    orders = await a_topic(sequencer)
    for _ in range(4):
        await a_commit(sequencer, orders)

    await write_all(sequencer, writer)

    assert await entries_in(store) == []
    assert (await found_in(store)).checkpoint.number == 2
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_an_idle_cluster_writes_nothing_until_its_heartbeat(
    sequencer: Sequencer, store: MemoryStore
) -> None:
    writer = a_writer(sequencer, store)
    await writer.write_entry()
    await writer.write_entry()  # the families are read for the first time

    idle = [await writer.write_entry() for _ in range(3)]
    await sequencer.database.run("UPDATE journal SET taken_at = taken_at - interval '61 seconds'")
    heartbeat = await writer.write_entry()

    assert [wrote.objects for wrote in idle] == [0, 0, 0]
    assert heartbeat.objects == 1


# --- late committers


async def test_a_commit_held_open_over_several_entries_is_in_the_first_one_after_it(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    """[raced] Its committed_at lies before the moment of entries that do not show it."""
    writer = a_writer(sequencer, store)
    held_topic, orders = await a_topic(sequencer, "held"), await a_topic(sequencer)
    await writer.write_entry()
    held = await reserved_only(sequencer, [ABatch(topic_id=held_topic.topic_id, partition=Partition(0))])

    async with sequencer.database.transaction() as connection:
        await commit_within(connection, [held])
        for _ in range(4):
            await a_commit(sequencer, orders)
            await writer.write_entry()
        # As if those entries had taken long, so that no slack of the clock helps.
        await connection.execute(
            "UPDATE segments SET committed_at = committed_at - interval '20 minutes' WHERE segment_id = %s",
            (held.segment_id,),
        )
        await sequencer.database.run(
            "UPDATE journal SET mark_times = ARRAY(SELECT t - interval '21 minutes' FROM "
            "unnest(mark_times) t LIMIT 1) || mark_times[2:]"
        )
    await a_commit(sequencer, orders)
    wrote = await write_all(sequencer, writer)

    assert wrote.segments == 2
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_an_entry_that_began_before_a_checkpoint_and_shows_more_is_loaded(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    """[raced] Between the two snapshots a transaction ends that is not the last one that began. So both
    snapshots have the same greatest id, and the entry's transaction is the older one.
    """
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    gated = GatedStore(store, "put")
    checkpoints = a_writer(sequencer, gated, checkpoint_interval_s=1e-6, checkpoint_pace=0)
    paused = PausingDatabase(sequencer.database)
    entries = a_writer(sequencer, store)
    entries._journal = Journal(paused)  # type: ignore[arg-type]

    async with sequencer.database.transaction() as connection:
        later_id = TopicId(uuid4())
        later = {"topic_id": later_id, "name": "later", "partition_count": 1, "config": "{}"}
        await connection.execute(TOPICS_SQL["create_topic"], later)
        await a_commit(sequencer, orders)
        entry = asyncio.create_task(entries.write_entry())
        await paused.reached.wait()
        checkpoint = asyncio.create_task(checkpoints.write_checkpoint_if_due())
        await gated.reached.wait()
    paused.opened.set()
    assert (await entry).objects == 1
    gated.opened.set()
    assert not (await checkpoint).overtaken
    await committed(sequencer, [ABatch(topic_id=later_id, partition=Partition(0), records=5)])
    await write_all(sequencer, a_writer(sequencer, store))

    assert (await found_in(store)).checkpoint.number == 2
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


def a_moment(second: int, *, xmin: int, next_xid: int) -> JournalMoment:
    return JournalMoment(
        taken_at=datetime.fromtimestamp(second),
        snapshot="",
        xmin=xmin,
        next_xid=next_xid,
        topic_changes=0,
        cluster_id="",
        migration=0,
        system_identifier=0,
        timeline=0,
        sequences={},
    )


def test_marks_reach_back_to_before_the_oldest_transaction_that_goes_on() -> None:
    marks: tuple[Mark, ...] = (Mark(time=datetime.fromtimestamp(0), next_xid=10),)
    marks = next_marks(marks, a_moment(1, xmin=12, next_xid=20))
    for second in range(2, 6):
        marks = next_marks(marks, a_moment(second, xmin=21, next_xid=20 + 2 * second))
    assert marks[0] == Mark(time=datetime.fromtimestamp(1), next_xid=20)

    marks = next_marks(marks, a_moment(6, xmin=27, next_xid=40))
    assert marks[0] == Mark(time=datetime.fromtimestamp(3), next_xid=26)


def test_a_transaction_that_goes_on_for_hours_costs_few_marks() -> None:
    marks: tuple[Mark, ...] = (Mark(time=datetime.fromtimestamp(0), next_xid=10),)
    for second in range(1, 5000):
        marks = next_marks(marks, a_moment(second, xmin=10, next_xid=10 + second))

    assert len(marks) <= 64
    assert marks[0] == Mark(time=datetime.fromtimestamp(0), next_xid=10)
    assert marks[-1].time == datetime.fromtimestamp(4999)


# --- crashes, other holders


@pytest.mark.parametrize("is_done_first", [False, True])
async def test_a_writer_that_dies_at_its_put_is_followed_by_one_that_loses_nothing(
    sequencer: Sequencer, empty_database_url: str, is_done_first: bool
) -> None:
    store = DyingStore()
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)
    store.die(in_puts=1, is_done_first=is_done_first)
    with pytest.raises(Died):
        await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)

    other = await write_all(sequencer, a_writer(sequencer, store))

    found = await found_in(store)
    assert other.segments == 2
    assert [(entry.number, entry.follows) for entry in found.entries] == [(2, 0)]
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_an_entry_that_was_written_and_not_confirmed_is_found(
    sequencer: Sequencer, empty_database_url: str
) -> None:
    store = DyingStore()
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)
    store.die(in_puts=1, is_done_first=True)
    with pytest.raises(Died):
        await write_all(sequencer, a_writer(sequencer, store))

    await assert_rebuilt_alike(sequencer, store, empty_database_url)


@pytest.mark.parametrize("is_done_first", [False, True])
@pytest.mark.parametrize("put", [1, 2])
async def test_a_checkpoint_whose_writer_died_does_not_count(
    sequencer: Sequencer, empty_database_url: str, put: int, is_done_first: bool
) -> None:
    """The first put is its part's, the second its manifest's: done, and not confirmed, it counts."""
    store = DyingStore()
    orders = await a_topic(sequencer)
    store.die(in_puts=put, is_done_first=is_done_first)
    with pytest.raises(Died):
        await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)

    await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)
    await write_all(sequencer, a_writer(sequencer, store))

    assert (await found_in(store)).checkpoint.number == 2
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_of_two_writers_at_once_one_goes_on_and_the_other_is_left_aside(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    orders = await a_topic(sequencer)
    await write_all(sequencer, a_writer(sequencer, store))
    for _ in range(10):
        await a_commit(sequencer, orders)
        await sequencer.topics.alter_config("orders", {"retention.ms": str(random.randrange(1 << 30))})
        wrote = await asyncio.gather(*(a_writer(sequencer, store).write_entry() for _ in range(3)))
        assert sum(not each.overtaken and each.objects > 0 for each in wrote) == 1

    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_nothing_is_written_without_a_confirmed_ownership(
    unowned: Sequencer, store: MemoryStore
) -> None:
    writer = a_writer(unowned, store)

    for attempt in (writer.write_entry, writer.write_checkpoint_if_due, writer.remove_old):
        with pytest.raises(OwnershipUnconfirmed):
            await attempt()

    assert await listed(store) == []


@pytest.mark.parametrize(
    "change",
    [
        "ownership SET epoch = epoch + 1",
        "journal SET timeline = timeline - 1",
        "journal SET system_identifier = 1",
    ],
)
async def test_a_take_over_or_a_failover_begins_with_a_checkpoint(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str, change: str
) -> None:
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)
    await a_writer(sequencer, store).write_entry()
    await sequencer.database.write(f"UPDATE {change}")
    await a_commit(sequencer, orders)

    await a_writer(sequencer, store).write_entry()

    assert (await found_in(store)).checkpoint.number == 2
    assert (await found_in(store)).entries == ()
    await a_commit(sequencer, orders)
    await write_all(sequencer, a_writer(sequencer, store))
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_an_entry_of_a_lost_postgres_under_the_next_number_is_passed_over(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    await store.put(ObjectKey(f"{CLUSTER}/journal/0000000000/000000000001"), [b"something else"])
    await a_commit(sequencer, orders)

    await write_all(sequencer, a_writer(sequencer, store))

    found = await found_in(store)
    assert [entry.number for entry in found.entries] == [2]
    assert len(found.faults) == 1
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_a_missing_entry_cuts_the_journal_there_and_is_named(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    for _ in range(3):
        await a_commit(sequencer, orders)
        await a_writer(sequencer, store).write_entry()
    await store.delete([f"{CLUSTER}/journal/0000000000/000000000002"])  # type: ignore[list-item]

    found = await found_in(store)

    assert found.is_cut
    assert [entry.number for entry in found.entries] == [1]
    assert found.faults == ("an entry after 1 is missing",)
    async with rebuilt(store, empty_database_url) as (copy, left_out):
        [row] = await copy.database.run("SELECT max(high_watermark) AS reached FROM partitions")
        assert (row.reached, left_out) == (2, [])


# --- loading


async def test_runs_that_were_merged_since_replace_those_they_cover(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    """The journal stood still while merging went on: an entry has a long run of which the end alone is
    new.
    """
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    for _ in range(3):
        await a_commit(sequencer, orders)
    await a_writer(sequencer, store).write_entry()
    for _ in range(3):
        await a_commit(sequencer, orders)
    # What publish_merge does to six runs: the output's commit is that of the newest of them.
    await sequencer.database.write(
        "WITH merged AS (DELETE FROM runs RETURNING *), newest AS ("
        " SELECT max(committed_at) AS at FROM segments),"
        " output AS (INSERT INTO segments (segment_id, object_key, size_bytes, state, writer, lease_until,"
        " committed_at, tier) SELECT '00000000-0000-0000-0000-000000000001', 'merged', 1, 'committed', "
        "'merge', now(), at, 1 FROM newest)"
        " INSERT INTO runs SELECT topic_id, partition, min(base_offset), max(last_offset),"
        " '00000000-0000-0000-0000-000000000001', 1, sum(length), 'batches', min(min_timestamp_ms),"
        " max(max_timestamp_ms), max(running_max_timestamp_ms) FROM merged GROUP BY topic_id, partition"
    )

    await write_all(sequencer, a_writer(sequencer, store))

    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_runs_that_went_before_an_entry_had_them_leave_no_gap(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)
    await a_writer(sequencer, store).write_entry()
    await a_commit(sequencer, orders)
    await sequencer.retention.delete_records(orders.topic_id, Partition(0), TO_HIGH_WATERMARK)
    # Partitions are not read again for long.
    await sequencer.database.run(
        "UPDATE journal SET families = jsonb_set(families, '{partitions,took_s}', '1000'::jsonb)"
    )
    await a_commit(sequencer, orders)

    await write_all(sequencer, a_writer(sequencer, store))

    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_a_topic_made_again_under_its_name_between_two_entries_is_the_new_one(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    first = await a_topic(sequencer)
    await a_commit(sequencer, first)
    await a_writer(sequencer, store).write_entry()
    await sequencer.topics.delete("orders")
    while (await sequencer.retention.sweep_deleted_topics(partitions_cap=100, rows_cap=100)).partitions:
        pass
    second = await a_topic(sequencer)
    await a_commit(sequencer, second)

    await a_writer(sequencer, store).write_entry()

    async with rebuilt(store, empty_database_url) as (copy, left_out):
        assert left_out == []
        assert [topic.topic_id for topic in await copy.topics.list()] == [second.topic_id]


async def test_loading_an_entry_twice_changes_nothing(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    orders = await a_topic(sequencer)
    await a_writer(sequencer, store).write_entry()
    for _ in range(3):
        await a_commit(sequencer, orders)
        await write_all(sequencer, a_writer(sequencer, store))
    key, again = (f"{CLUSTER}/journal/0000000000/{number:012d}" for number in (2, 4))
    # The same rows once more, as the continuation of the last entry.
    header, tables = read_container(await store.get(key))  # type: ignore[arg-type]
    last = (await found_in(store)).last
    repeated = replace(header, number=4, follows=3, snapshot=last.snapshot, taken_at=last.taken_at)
    await store.put(again, encode(repeated, tables))  # type: ignore[arg-type]

    assert [entry.number for entry in (await found_in(store)).entries] == [1, 2, 3, 4]
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_every_table_that_entries_hold_can_be_loaded_by_its_primary_key(sequencer: Sequencer) -> None:
    rows = await sequencer.database.run(
        "SELECT c.relname, array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum)) "
        "AS key"
        " FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid"
        " JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey::int2[])"
        " WHERE i.indisprimary AND c.relnamespace = 'public'::regnamespace GROUP BY c.relname"
    )

    primary_keys = {row.relname: tuple(row.key) for row in rows}
    assert {
        table: primary_keys[table] for table in CHECKPOINT_TABLES if table not in IN_TIME_PARTITIONS
    } == KEYS
    assert not {*IN_TIME_PARTITIONS} & {table for tables in FAMILIES.values() for table in tables}


async def test_every_table_is_in_the_journal_or_known_not_to_be(sequencer: Sequencer) -> None:
    rows = await sequencer.database.run(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
        " AND relnamespace = 'public'::regnamespace"
    )

    assert {row.relname for row in rows} == {*CHECKPOINT_TABLES, *NOT_IN_THE_JOURNAL}
    assert {table for tables in FAMILIES.values() for table in tables} < set(CHECKPOINT_TABLES)


async def test_no_function_of_the_database_writes_in_a_subtransaction(sequencer: Sequencer) -> None:
    """Snapshots do not list the ids of subtransactions that go on. So a row written in one would look old to
    the first entry that shows it, and would be in none. The two exceptions write only to catalogs and to
    `time_partitions`, which is in no entry.
    """
    rows = await sequencer.database.run(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        r" AND prosrc ~* '\mexception\s+when\M'"
    )

    assert {row.proname for row in rows} == {"add_time_partition", "drop_time_partition"}
    assert "time_partitions" in NOT_IN_THE_JOURNAL


# --- what is old


async def test_old_entries_and_checkpoints_go_once_two_newer_ones_are_complete(
    sequencer: Sequencer, store: MemoryStore, empty_database_url: str
) -> None:
    writer = a_writer(sequencer, store, restore_horizon_s=0, checkpoint_interval_s=1e-6, checkpoint_pace=0)
    orders = await a_topic(sequencer)
    await writer.write_entry()
    removed = []
    for _ in range(4):
        await a_commit(sequencer, orders)
        await write_all(sequencer, writer)
        await writer.write_checkpoint_if_due()
        removed.append(await writer.remove_old())

    checkpoints = {
        place.number for info in await listed(store) if (place := checkpoint_object_of(info.key)) is not None
    }
    assert removed == [0, 3, 3, 3]
    assert checkpoints == {4, 5}
    assert await entries_in(store) == [(0, 4)]
    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def test_nothing_goes_within_the_restore_horizon(sequencer: Sequencer, store: MemoryStore) -> None:
    writer = a_writer(sequencer, store, checkpoint_interval_s=1e-6, checkpoint_pace=0)
    await writer.write_entry()
    for _ in range(3):
        await writer.write_entry()
        await writer.write_checkpoint_if_due()

    assert await writer.remove_old() == 0


async def test_half_written_checkpoints_go_too(sequencer: Sequencer) -> None:
    store = DyingStore()
    writer = a_writer(sequencer, store, restore_horizon_s=0, checkpoint_interval_s=1e-6, checkpoint_pace=0)
    await writer.write_entry()
    store.die(in_puts=2, is_done_first=False)
    with pytest.raises(Died):
        await writer.write_checkpoint_if_due()
    for _ in range(2):
        await writer.write_checkpoint_if_due()

    await writer.remove_old()

    numbers = {
        place.number for info in await listed(store) if (place := checkpoint_object_of(info.key)) is not None
    }
    assert numbers == {3, 4}


# --- everything at once


@pytest.mark.parametrize("seed", seeds(6))
async def test_whatever_happens_the_bucket_makes_an_empty_database_equal(
    sequencer: Sequencer, empty_database_url: str, seed: int
) -> None:
    """Commits, some held open; retention; writers that die or compete; checkpoints while entries go on."""
    chance = random.Random(seed)
    store = DyingStore()
    topics = [await a_topic(sequencer, f"topic-{number}", chance.randint(1, 4)) for number in range(3)]
    writer = a_writer(
        sequencer, store, journal_batches_per_entry=3, checkpoint_interval_s=1e-6, checkpoint_pace=0
    )
    async with contextlib.AsyncExitStack() as held:
        blocked: set[tuple[object, int]] = set()
        for _ in range(60):
            topic = chance.choice(topics)
            partition = chance.randrange(topic.partition_count)
            match chance.randrange(10):
                case 0 if len(blocked) < 3 and (topic.topic_id, partition) not in blocked:
                    segment = await _reserved(sequencer, topic, partition)
                    connection = await held.enter_async_context(sequencer.database.transaction())
                    await commit_within(connection, [segment])
                    blocked.add((topic.topic_id, partition))
                case 1:
                    await held.aclose()
                    blocked.clear()
                case 2 | 3 | 4 | 5 if (topic.topic_id, partition) not in blocked:
                    await a_commit(sequencer, topic, partition=partition, records=chance.randint(1, 5))
                case 6 if (topic.topic_id, partition) not in blocked:
                    await sequencer.retention.delete_records(
                        topic.topic_id, Partition(partition), TO_HIGH_WATERMARK
                    )
                case 7:
                    with contextlib.suppress(Died):
                        await writer.write_entry()
                case 8:
                    store.die(in_puts=chance.randint(1, 3), is_done_first=chance.random() < 0.5)
                    await asyncio.gather(writer.write_entry(), writer.write_entry(), return_exceptions=True)
                case 9:
                    await asyncio.gather(
                        writer.write_checkpoint_if_due(), writer.write_entry(), return_exceptions=True
                    )
    store.dies_in = None
    # The entries of a writer that lost or died may be the youngest until the next entry of the one that won.
    await a_commit(sequencer, topics[0])
    await writer.write_entry()
    await write_all(sequencer, writer)

    await assert_rebuilt_alike(sequencer, store, empty_database_url)


async def _reserved(sequencer: Sequencer, topic: Topic, partition: int) -> SegmentToCommit:
    return await reserved_only(sequencer, [ABatch(topic_id=topic.topic_id, partition=Partition(partition))])
