"""One test per sentence of docs/design/commit.md marked [raced]: one transaction is held open while another
races it.
 Dooming, topic deletion, holds and retention race in `test_garbage.py`, `test_retention.py` and
 `test_holds.py`;
pushes between agents in `tests/cache_ring`.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import psycopg
import pytest
from psycopg import errors

from sequencer.client import Sequencer
from sequencer.commits.commits import (
    Assigned,
    BatchOutcome,
    Duplicate,
    OutOfOrderSequence,
    SegmentToCommit,
)
from sequencer.commits.coordinates import KnownEnd
from sequencer.settings import SequencerSettings
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition, ProducerId
from tests.sequencer.builders import ABatch, accepted, committed, reserved
from tests.sequencer.housekeeping.housekeeping import records_of, waits_for_a_lock
from tests.sequencer.races import (
    IN_ONE_STATEMENT,
    IN_TURN,
    JUDGED,
    commit_within,
    create_commit_in_one_statement,
    is_kept_waiting,
)

PRODUCER = ProducerId(77)
BOTH_WAYS = pytest.mark.parametrize("function", [IN_TURN, JUDGED])


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 3, {})


def sent(topic: Topic, sequence: int, partition: int = 0) -> ABatch:
    """One record of the idempotent producer."""
    return ABatch(
        topic_id=topic.topic_id,
        partition=Partition(partition),
        producer_id=PRODUCER,
        epoch=0,
        sequence=sequence,
    )


async def raced(
    sequencer: Sequencer,
    first: SegmentToCommit,
    second: SegmentToCommit,
    *,
    function: str,
) -> tuple[Sequence[BatchOutcome], Sequence[BatchOutcome]]:
    """The outcomes of two commits, of which the second waits while the first one's transaction is open."""

    async def commit_second() -> Sequence[BatchOutcome]:
        async with sequencer.database.transaction() as connection:
            return await commit_within(connection, [second], function)

    async with sequencer.database.transaction() as held:
        outcomes = await commit_within(held, [first], function)
        waiting = await waits_for_a_lock(sequencer, commit_second)
    return outcomes, await waiting


@BOTH_WAYS
async def test_raced_a_retried_first_batch_is_assigned_once(
    sequencer: Sequencer, topic: Topic, function: str
) -> None:
    by_one_agent = await reserved(sequencer, [sent(topic, 0)])
    by_another = await reserved(sequencer, [sent(topic, 0)])

    outcomes = await raced(sequencer, by_one_agent, by_another, function=function)

    assert outcomes == (
        [Assigned(base_offset=Offset(0))],
        [Duplicate(base_offset=Offset(0), max_timestamp_ms=1_000)],
    )


@pytest.mark.superuser
async def test_in_one_statement_a_retried_first_batch_would_be_assigned_twice(
    sequencer: Sequencer, topic: Topic
) -> None:
    await create_commit_in_one_statement(sequencer)
    by_one_agent = await reserved(sequencer, [sent(topic, 0)])
    by_another = await reserved(sequencer, [sent(topic, 0)])

    outcomes = await raced(sequencer, by_one_agent, by_another, function=IN_ONE_STATEMENT)

    assert outcomes == ([Assigned(base_offset=Offset(0))], [Assigned(base_offset=Offset(1))])


@BOTH_WAYS
async def test_raced_the_next_batch_is_in_order(sequencer: Sequencer, topic: Topic, function: str) -> None:
    await committed(sequencer, [sent(topic, 0)])
    this = await reserved(sequencer, [sent(topic, 1)])
    following = await reserved(sequencer, [sent(topic, 2)])

    outcomes = await raced(sequencer, this, following, function=function)

    assert outcomes == ([Assigned(base_offset=Offset(1))], [Assigned(base_offset=Offset(2))])


@pytest.mark.superuser
async def test_in_one_statement_the_next_batch_would_be_called_out_of_order(
    sequencer: Sequencer, topic: Topic
) -> None:
    await create_commit_in_one_statement(sequencer)
    await committed(sequencer, [sent(topic, 0)])
    this = await reserved(sequencer, [sent(topic, 1)])
    following = await reserved(sequencer, [sent(topic, 2)])

    outcomes = await raced(sequencer, this, following, function=IN_ONE_STATEMENT)

    assert outcomes == ([Assigned(base_offset=Offset(1))], [OutOfOrderSequence()])


@BOTH_WAYS
async def test_raced_every_partition_goes_on_from_where_the_last_commit_left_it(
    sequencer: Sequencer, topic: Topic, function: str
) -> None:
    """Also those behind the one that was waited for, whose rows are found changed only afterwards."""
    batches = [ABatch(topic_id=topic.topic_id, partition=Partition(p), records=p + 1) for p in range(3)]
    this, following = [await reserved(sequencer, batches) for _ in range(2)]

    outcomes = await raced(sequencer, this, following, function=function)

    assert outcomes == (
        [Assigned(base_offset=Offset(0))] * 3,
        [Assigned(base_offset=Offset(records)) for records in (1, 2, 3)],
    )
    rows = await sequencer.database.run(
        "SELECT high_watermark, size_bytes FROM partitions ORDER BY partition"
    )
    assert [(row.high_watermark, row.size_bytes) for row in rows] == [(2, 200), (4, 200), (6, 200)]


@BOTH_WAYS
async def test_raced_the_same_segment_is_applied_once(
    sequencer: Sequencer, topic: Topic, function: str
) -> None:
    segment = await reserved(sequencer, [records_of(topic, 2), sent(topic, 0), sent(topic, 9)])

    first, second = await raced(sequencer, segment, segment, function=function)

    assert first == second
    bounds = await sequencer.coordinates.bounds([(topic.topic_id, Partition(0))])
    assert bounds[topic.topic_id, Partition(0)].high_watermark == 3


async def test_raced_after_a_rejected_batch_later_ones_are_judged_by_the_state_reached(
    sequencer: Sequencer, topic: Topic
) -> None:
    await committed(sequencer, [sent(topic, 0)])
    missing = await reserved(sequencer, [sent(topic, 1)])
    two_more = await reserved(sequencer, [sent(topic, 2), sent(topic, 3)])

    async def commit_two_more() -> Sequence[BatchOutcome]:
        return accepted((await sequencer.commits.commit([two_more]))[0]).outcomes

    async with sequencer.database.connection() as held:
        await held.execute("BEGIN")
        await commit_within(held, [missing])
        waiting = await waits_for_a_lock(sequencer, commit_two_more)
        await held.execute("ROLLBACK")  # the one before them never comes, so neither of them is in order

    assert await waiting == (OutOfOrderSequence(), OutOfOrderSequence())


@BOTH_WAYS
async def test_raced_a_rejected_batch_does_not_hide_the_right_one_behind_it(
    sequencer: Sequencer, topic: Topic, function: str
) -> None:
    await committed(sequencer, [sent(topic, 0)])
    this = await reserved(sequencer, [sent(topic, 1)])
    mixed = await reserved(
        sequencer, [sent(topic, 5), sent(topic, 6), sent(topic, 1), sent(topic, 2), sent(topic, 7)]
    )

    outcomes = await raced(sequencer, this, mixed, function=function)

    rejected = OutOfOrderSequence()
    assert outcomes[1] == [
        rejected,
        rejected,
        Duplicate(base_offset=Offset(1), max_timestamp_ms=1_000),
        Assigned(base_offset=Offset(2)),
        rejected,
    ]


async def test_raced_a_lock_that_the_work_does_not_need_is_taken_all_the_same(
    sequencer: Sequencer, topic: Topic
) -> None:
    """A repeat changes nothing, and a rejected batch touches no partition: a lock in a CTE that nothing reads
    would be dropped.
    """
    again = await reserved(sequencer, [records_of(topic)])
    await sequencer.commits.commit([again])
    rejected = await reserved(sequencer, [sent(topic, 4, partition=1)])

    for lock, segment in (
        ("SELECT 1 FROM segments WHERE segment_id = %(segment_id)s FOR NO KEY UPDATE", again),
        ("SELECT 1 FROM partitions WHERE partition = 1 FOR NO KEY UPDATE", rejected),
    ):
        async with sequencer.database.transaction() as held:
            await held.execute(lock, {"segment_id": segment.segment_id})
            waiting = await waits_for_a_lock(sequencer, partial(sequencer.commits.commit, [segment]))
        accepted((await waiting)[0])


async def test_raced_two_commits_in_flight_overtake_each_other_and_one_commit_of_both_does_not(
    sequencer: Sequencer, topic: Topic
) -> None:
    first, second = [await reserved(sequencer, [records_of(topic)]) for _ in range(2)]
    async with sequencer.database.transaction() as held:
        await held.execute(
            "SELECT 1 FROM segments WHERE segment_id = %s FOR NO KEY UPDATE", (first.segment_id,)
        )
        waiting = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([first]))
        overtook = await sequencer.commits.commit([second])
    assert accepted(overtook[0]).outcomes == (Assigned(base_offset=Offset(0)),)
    assert accepted((await waiting)[0]).outcomes == (Assigned(base_offset=Offset(1)),)

    third, fourth = [await reserved(sequencer, [records_of(topic)]) for _ in range(2)]
    async with sequencer.database.transaction() as held:
        await held.execute(
            "SELECT 1 FROM segments WHERE segment_id = %s FOR NO KEY UPDATE", (third.segment_id,)
        )
        both = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([third, fourth]))
    assert [accepted(answer).outcomes for answer in await both] == [
        (Assigned(base_offset=Offset(2)),),
        (Assigned(base_offset=Offset(3)),),
    ]


async def test_raced_a_late_committer_is_found_by_the_poll(sequencer: Sequencer, topic: Topic) -> None:
    late = await reserved(sequencer, [records_of(topic, partition=0)])
    known = [
        KnownEnd(
            topic_id=topic.topic_id,
            partition=Partition(partition),
            known_end=Offset(0),
            log_start_offset=Offset(0),
            coordinate_epoch=0,
        )
        for partition in range(2)
    ]

    async with sequencer.database.transaction() as held:
        await commit_within(held, [late])
        await committed(sequencer, [records_of(topic, partition=1)])
        seen = await sequencer.coordinates.poll(known, max_runs=10)
        [cursor] = await sequencer.database.run("SELECT max(committed_at) AS seen_until FROM segments")

    assert seen.keys() == {(topic.topic_id, 1)}
    by_cursor = await sequencer.database.run(
        "SELECT 1 FROM segments WHERE committed_at > %(seen_until)s", seen_until=cursor.seen_until
    )
    assert by_cursor == [], "whoever reads on from the last time seen never hears of the late committer"
    found = (await sequencer.coordinates.poll(known[:1], max_runs=10))[topic.topic_id, Partition(0)]
    assert found is not None
    assert [run.base_offset for run in found.runs] == [0]


async def test_raced_locks_are_taken_in_one_order_whatever_the_order_given(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Segments by id, then partitions by key: who waits for the first of them holds none of the others."""
    segments = [
        await reserved(sequencer, [records_of(topic, partition=p) for p in (2, 1, 0)]) for _ in range(2)
    ]
    segments.sort(key=lambda segment: segment.segment_id.bytes, reverse=True)
    for first_lock, later_lock in (
        (
            ("SELECT 1 FROM segments WHERE segment_id = %s FOR NO KEY UPDATE", segments[1].segment_id),
            ("SELECT 1 FROM segments WHERE segment_id = %s FOR NO KEY UPDATE NOWAIT", segments[0].segment_id),
        ),
        (
            ("SELECT 1 FROM segments WHERE segment_id = %s FOR NO KEY UPDATE", segments[1].segment_id),
            ("SELECT 1 FROM partitions WHERE partition = %s FOR NO KEY UPDATE NOWAIT", 0),
        ),
        (
            ("SELECT 1 FROM partitions WHERE partition = %s FOR NO KEY UPDATE", 0),
            ("SELECT 1 FROM partitions WHERE partition = %s FOR NO KEY UPDATE NOWAIT", 2),
        ),
    ):
        async with sequencer.database.transaction() as held:
            await held.execute(first_lock[0], (first_lock[1],))
            waiting = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit(segments))
            # Raises LockNotAvailable if the commit has it.
            await held.execute(later_lock[0], (later_lock[1],))
        await waiting


async def test_raced_many_commits_of_the_same_partitions_never_deadlock(
    sequencer: Sequencer, topic: Topic
) -> None:
    async def write(order: tuple[int, ...]) -> None:
        for _ in range(12):
            segments = [
                await reserved(sequencer, [records_of(topic, partition=p) for p in order]) for _ in range(2)
            ]
            await sequencer.commits.commit(segments[:: 1 if order[0] else -1])

    await asyncio.gather(*(write(order) for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1))))

    bounds = await sequencer.coordinates.bounds([(topic.topic_id, Partition(p)) for p in range(3)])
    assert {bound.high_watermark for bound in bounds.values()} == {4 * 12 * 2}
    assert sequencer.database.counters.deadlocks == 0


async def _commit_against_a_topic_lock(database_url: str, sequencer: Sequencer, topic: Topic) -> None:
    """Someone locks the topic's row for deletion; a commit starts; then the deletion wants the partition."""
    segment = await reserved(sequencer, [records_of(topic)])
    async with await psycopg.AsyncConnection.connect(database_url) as deletion:
        await deletion.execute("SET deadlock_timeout = '20ms'")
        await deletion.execute("SELECT 1 FROM topics WHERE topic_id = %s FOR UPDATE", (topic.topic_id,))
        commit = asyncio.create_task(sequencer.commits.commit([segment]))
        waits = await is_kept_waiting(sequencer, commit)
        try:
            await deletion.execute("SELECT 1 FROM partitions WHERE partition = 0 FOR NO KEY UPDATE")
            await deletion.commit()
        finally:
            await deletion.rollback()
            accepted((await commit)[0])
        assert not waits, "the commit waited for the topic"


@pytest.mark.superuser
async def test_raced_without_foreign_keys_a_commit_waits_for_no_topic(
    database_url: str, sequencer: Sequencer, topic: Topic
) -> None:
    await _commit_against_a_topic_lock(database_url, sequencer, topic)

    foreign_keys = await sequencer.database.run(
        "SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
    )
    assert foreign_keys == []


@pytest.mark.superuser
async def test_with_a_foreign_key_the_same_would_deadlock(
    database_url: str, sequencer: Sequencer, topic: Topic
) -> None:
    await sequencer.database.run("ALTER TABLE runs ADD FOREIGN KEY (topic_id) REFERENCES topics (topic_id)")
    name = database_url.split("?")[0].rsplit("/", 1)[1]
    # The deletion finds it.
    await sequencer.database.run(f"ALTER DATABASE {name} SET deadlock_timeout = '1min'")
    committer = await Sequencer.open(database_url, SequencerSettings())

    with pytest.raises(errors.DeadlockDetected):
        await _commit_against_a_topic_lock(database_url, committer, topic)
    await committer.close()


async def test_raced_coordinates_and_watermarks_are_of_one_moment(sequencer: Sequencer, topic: Topic) -> None:
    """Read in two statements, runs pass the high watermark read before them, or are gone above the log start
    read before.
    """
    await committed(sequencer, [records_of(topic, 2)])
    before = await sequencer.coordinates.bounds([(topic.topic_id, Partition(0))])
    await committed(sequencer, [records_of(topic, 3)])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(2))
    runs = await sequencer.database.run("SELECT base_offset, last_offset FROM runs ORDER BY base_offset")
    split = before[topic.topic_id, Partition(0)]
    assert runs[-1].last_offset >= split.high_watermark
    assert runs[0].base_offset > split.log_start_offset

    async def write() -> None:
        for offset in range(5, 35):
            await committed(sequencer, [records_of(topic, 1)])
            await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(offset - 2))

    writing = asyncio.create_task(write())
    known = KnownEnd(
        topic_id=topic.topic_id,
        partition=Partition(0),
        known_end=Offset(0),
        log_start_offset=Offset(-1),
        coordinate_epoch=0,
    )
    while not writing.done():
        found = (await sequencer.coordinates.poll([known], max_runs=1000))[topic.topic_id, Partition(0)]
        assert found is not None
        assert found.runs[0].base_offset <= found.log_start_offset
        assert found.runs[-1].last_offset + 1 == found.high_watermark
        assert all(run.last_offset + 1 == after.base_offset for run, after in pairwise(found.runs))
    await writing
