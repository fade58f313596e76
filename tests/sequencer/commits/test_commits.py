"""Commits one at a time: what each kind of outcome means, and what a repeat answers. Random histories are in
`test_model.py`.
"""

import pytest

from sequencer.client import Sequencer
from sequencer.commits.commits import (
    Assigned,
    BatchOutcome,
    Duplicate,
    FencedEpoch,
    OutOfOrderSequence,
    SegmentRefused,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
)
from sequencer.commits.coordinates import CoordinateRequest, RunCoordinate
from sequencer.database.database import SequencerUnavailable
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition, ProducerId
from tests.sequencer.builders import ABatch, a_key, a_segment, accepted, committed, reserved
from tests.sequencer.housekeeping.housekeeping import count, records_of, segment_row

PRODUCER = ProducerId(5)


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 2, {})


def sent(topic: Topic, sequence: int, records: int = 1, epoch: int = 0) -> ABatch:
    """A batch of the idempotent producer."""
    return ABatch(
        topic_id=topic.topic_id,
        partition=Partition(0),
        producer_id=PRODUCER,
        sequence=sequence,
        records=records,
        epoch=epoch,
    )


def assigned(*offsets: int) -> tuple[BatchOutcome, ...]:
    return tuple(Assigned(base_offset=Offset(offset)) for offset in offsets)


async def runs_of(sequencer: Sequencer, topic: Topic, partition: int = 0) -> tuple[RunCoordinate, ...]:
    key = (topic.topic_id, Partition(partition))
    request = CoordinateRequest(topic_id=key[0], partition=key[1], from_offset=Offset(0), max_runs=100)
    return (await sequencer.coordinates.read([request]))[key].runs


async def test_retried_commit_returns_the_first_outcome(sequencer: Sequencer, topic: Topic) -> None:
    segment = await reserved(
        sequencer, [records_of(topic, 3), sent(topic, 0), sent(topic, 0), sent(topic, 7)]
    )
    first = await sequencer.commits.commit([segment])
    await committed(sequencer, [records_of(topic, 10)])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(14))

    again = await sequencer.commits.commit([segment])

    assert again == first
    assert accepted(first[0]).outcomes == (
        *assigned(0, 3),
        Duplicate(base_offset=Offset(3), max_timestamp_ms=1_000),
        OutOfOrderSequence(),
    )
    assert await runs_of(sequencer, topic) == ()


async def test_byte_adjacent_batches_are_one_run_and_a_duplicate_splits_it(
    sequencer: Sequencer, topic: Topic
) -> None:
    await committed(sequencer, [sent(topic, 0, records=2)])

    batches = [records_of(topic, 2), records_of(topic, 3), sent(topic, 0, records=2), records_of(topic, 1)]
    answer = await committed(sequencer, batches)

    assert answer.outcomes == (
        *assigned(2, 4),
        Duplicate(base_offset=Offset(0), max_timestamp_ms=1_000),
        *assigned(7),
    )
    assert [(run.base_offset, run.last_offset, run.position, run.length) for run in answer.runs] == [
        (2, 6, 64, 200),
        (7, 7, 364, 100),
    ]
    assert (await runs_of(sequencer, topic))[1:] == answer.runs


async def test_a_failing_partition_fails_alone(sequencer: Sequencer, topic: Topic) -> None:
    other = await sequencer.topics.create("gone", 1, {})
    segment = await reserved(
        sequencer,
        [
            records_of(topic),
            records_of(other),
            records_of(topic, partition=1),
            records_of(topic, partition=7),
        ],
    )
    await sequencer.topics.delete("gone")

    [answer] = await sequencer.commits.commit([segment])

    by_place = {
        (batch.topic_id, batch.partition): outcome
        for batch, outcome in zip(segment.batches, accepted(answer).outcomes, strict=True)
    }
    assert by_place == {
        (topic.topic_id, 0): Assigned(base_offset=Offset(0)),
        (topic.topic_id, 1): Assigned(base_offset=Offset(0)),
        (topic.topic_id, 7): UnknownPartition(),
        (other.topic_id, 0): UnknownPartition(),
    }


async def test_segments_of_one_commit_follow_one_another(sequencer: Sequencer, topic: Topic) -> None:
    segments = [
        await reserved(sequencer, [sent(topic, sequence), records_of(topic)]) for sequence in range(3)
    ]
    segments.insert(1, a_segment([records_of(topic)]))

    answers = await sequencer.commits.commit(segments)

    assert answers[1] == SegmentRefused(reason="missing")
    assert [accepted(answers[i]).outcomes for i in (0, 2, 3)] == [
        assigned(0, 1),
        assigned(2, 3),
        assigned(4, 5),
    ]
    assert await sequencer.commits.commit(segments[2:3]) == (answers[2],)


async def test_a_producers_last_ten_batches_are_remembered_and_older_ones_are_known_to_be_written(
    sequencer: Sequencer, topic: Topic
) -> None:
    await committed(sequencer, [sent(topic, sequence) for sequence in range(11)])

    answer = await committed(sequencer, [sent(topic, 1), sent(topic, 0), sent(topic, 12)])

    assert answer.outcomes == (
        Duplicate(base_offset=Offset(1), max_timestamp_ms=1_000),
        WrittenBefore(),
        OutOfOrderSequence(),
    )


async def test_the_last_ten_are_remembered_whether_they_come_one_by_one_or_many_at_once(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Over two segments of a commit, too, and from a state that exists or does not."""
    for first, batches in ((0, 12), (12, 1), (13, 3), (16, 12)):
        middle = first + batches // 2
        halves = [range(first, middle), range(middle, first + batches)]
        segments = [
            await reserved(sequencer, [sent(topic, sequence) for sequence in half]) for half in halves if half
        ]
        for answer in await sequencer.commits.commit(segments):
            assert accepted(answer).runs

        last = first + batches - 1
        again = await committed(sequencer, [sent(topic, sequence) for sequence in range(last - 10, last + 1)])

        duplicates = [
            Duplicate(base_offset=Offset(n), max_timestamp_ms=1_000)
            for n in range(max(0, last - 9), last + 1)
        ]
        assert again.outcomes == (WrittenBefore(), *duplicates)


async def test_a_batch_cut_differently_is_written_before_only_if_all_of_it_is(
    sequencer: Sequencer, topic: Topic
) -> None:
    await committed(sequencer, [sent(topic, 0, records=4)])

    answer = await committed(
        sequencer, [sent(topic, 0, records=2), sent(topic, 2, records=2), sent(topic, 3, records=2)]
    )

    assert answer.outcomes == (WrittenBefore(), WrittenBefore(), OutOfOrderSequence())


async def test_sequences_wrap_to_zero(sequencer: Sequencer, topic: Topic) -> None:
    await committed(sequencer, [sent(topic, 0)])
    await sequencer.database.run(
        "UPDATE producer_state SET sequences = ARRAY[2147483646 * 2147483648 + 2147483646]"
    )

    crossing = await committed(
        sequencer, [sent(topic, 2147483647, records=3), sent(topic, 2), sent(topic, 3)]
    )
    again = await committed(sequencer, [sent(topic, 2147483647, records=3), sent(topic, 4)])

    assert crossing.outcomes == assigned(1, 4, 5)
    assert again.outcomes == (Duplicate(base_offset=Offset(1), max_timestamp_ms=1_000), *assigned(6))


async def test_a_higher_epoch_starts_at_zero_and_fences_the_lower(sequencer: Sequencer, topic: Topic) -> None:
    await committed(sequencer, [sent(topic, 0), sent(topic, 1)])

    answer = await committed(
        sequencer, [sent(topic, 5, epoch=1), sent(topic, 0, epoch=1), sent(topic, 2), sent(topic, 1, epoch=1)]
    )

    assert answer.outcomes == (OutOfOrderSequence(), *assigned(2), FencedEpoch(), *assigned(3))


async def test_an_unknown_producer_learns_the_log_start(sequencer: Sequencer, topic: Topic) -> None:
    await committed(sequencer, [records_of(topic, 9)])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(4))

    answer = await committed(sequencer, [sent(topic, 3)])

    assert answer.outcomes == (UnknownProducer(log_start_offset=Offset(4)),)


async def test_a_commit_that_accepts_nothing_moves_nothing(sequencer: Sequencer, topic: Topic) -> None:
    answer = await committed(sequencer, [sent(topic, 3), sent(topic, 4)])

    assert answer.runs == ()
    assert await count(sequencer, "runs") == 0
    assert await count(sequencer, "producer_state") == 0


async def test_reserving_an_id_again_changes_nothing(sequencer: Sequencer, topic: Topic) -> None:
    segment = await reserved(sequencer, [records_of(topic)])
    first = await sequencer.commits.commit([segment])

    await sequencer.reservations.reserve({segment.segment_id: a_key(segment.segment_id)}, 60, "another")

    assert await sequencer.commits.commit([segment]) == first
    row = await segment_row(sequencer, segment.segment_id)
    assert row is not None
    assert (row.state, row.writer, row.size_bytes) == ("committed", "test", segment.size_bytes)


async def test_a_commit_keeps_size_and_greatest_timestamp_of_its_partitions(
    sequencer: Sequencer, topic: Topic
) -> None:
    await committed(sequencer, [records_of(topic, timestamp_ms=50, length=30)])
    await committed(
        sequencer,
        [records_of(topic, timestamp_ms=-1, length=5), records_of(topic, timestamp_ms=20, length=7)],
    )

    [row] = await sequencer.database.run(
        "SELECT size_bytes, max_timestamp_ms FROM partitions WHERE partition = 0"
    )
    assert (row.size_bytes, row.max_timestamp_ms) == (42, 50)


async def test_a_segment_named_twice_is_refused_before_it_is_sent(sequencer: Sequencer, topic: Topic) -> None:
    segment = await reserved(sequencer, [records_of(topic)])

    with pytest.raises(ValueError, match="twice"):
        await sequencer.commits.commit([segment, segment])


async def test_a_thousand_partitions_and_as_many_retries_of_one_producer_commit_at_once(
    sequencer: Sequencer,
) -> None:
    """The widest and the deepest commit: many partitions, and chains that must be judged one after
    another.
    """
    wide = await sequencer.topics.create("wide", 1000, {})
    everywhere = [records_of(wide, 2, partition=partition) for partition in range(1000)]
    retries = [sent(wide, 0) for _ in range(1000)]

    across = await committed(sequencer, everywhere)
    answer = await committed(sequencer, retries)

    assert across.outcomes == assigned(*[0] * 1000)
    assert answer.outcomes == (
        *assigned(2),
        *[Duplicate(base_offset=Offset(2), max_timestamp_ms=1_000)] * 999,
    )


async def test_many_producers_are_judged_in_the_time_of_a_statement(sequencer: Sequencer) -> None:
    """What piles up behind a store or database that stood still, and one batch that cannot be accepted: with
    a step of the fold that looked at every chain for each producer this took longer than the 15 s that a
    statement may
    take.
    """
    wide = await sequencer.topics.create("wide", 500, {})
    segments = [
        await reserved(
            sequencer,
            [
                ABatch(
                    topic_id=wide.topic_id,
                    partition=Partition(partition),
                    producer_id=PRODUCER,
                    sequence=sequence,
                )
                for partition in range(501 if sequence == 0 else 500)
            ],
        )
        for sequence in range(40)
    ]

    answers = [accepted(answer).outcomes for answer in await sequencer.commits.commit(segments)]

    assert answers[0] == (*assigned(*[0] * 500), UnknownPartition())
    assert answers[1:] == [assigned(*[sequence] * 500) for sequence in range(1, 40)]


async def test_of_a_producer_that_sends_thousands_out_of_turn_no_more_are_judged(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Judged one after another, all of these would take Postgres minutes; what others sent waits in the same
    commit.
    """
    other = records_of(topic, 2, partition=1)

    answer = await committed(sequencer, [*[sent(topic, 0) for _ in range(20_000)], other])
    goes_on = await committed(sequencer, [sent(topic, 1)])

    written, *known = answer.outcomes[:1000]
    assert (written, *answer.outcomes[-1:]) == assigned(0, 0)
    assert known == [Duplicate(base_offset=Offset(0), max_timestamp_ms=1_000)] * 999
    assert answer.outcomes[1000:-1] == (OutOfOrderSequence(),) * 19_000
    assert goes_on.outcomes == assigned(1)


async def test_nothing_is_committed_in_a_database_that_lost_the_bucket(
    sequencer: Sequencer, topic: Topic
) -> None:
    segment = await reserved(sequencer, [records_of(topic, 3)])
    await sequencer.ownership.stop("another database owns the bucket")

    with pytest.raises(SequencerUnavailable, match="another database owns the bucket"):
        await sequencer.commits.commit([segment])
    await sequencer.ownership.resume()

    assert accepted((await sequencer.commits.commit([segment]))[0]).outcomes == assigned(0)
