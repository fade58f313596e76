"""When a gap in a producer's sequence is accepted, and for how long."""

from uuid import UUID

from agent.write_path.committer import ProducerPlace, SequenceGaps
from storage.identifiers import Partition, ProducerId, TopicId

PATIENCE_S = 60.0


def a_place(producer_id: int = 1, epoch: int = 0) -> ProducerPlace:
    return TopicId(UUID(int=1)), Partition(0), ProducerId(producer_id), epoch


def test_a_gap_is_accepted_while_patience_lasts() -> None:
    gaps = SequenceGaps(PATIENCE_S, max_gaps=10)

    accepted = [gaps.accepts(a_place(), now_s) for now_s in (1000.0, 1030.0, 1059.9, 1060.0, 1100.0)]

    assert accepted == [True, True, True, False, False]


def test_a_producer_that_goes_on_gets_new_patience() -> None:
    gaps = SequenceGaps(PATIENCE_S, max_gaps=10)
    gaps.accepts(a_place(), 1000.0)
    gaps.accepts(a_place(), 1050.0)

    gaps.closed(a_place())

    assert gaps.accepts(a_place(), 1100.0)
    assert gaps.accepts(a_place(epoch=1), 1200.0)


def test_a_gap_not_seen_for_long_is_a_new_one() -> None:
    gaps = SequenceGaps(PATIENCE_S, max_gaps=10)
    gaps.accepts(a_place(), 1000.0)

    assert gaps.accepts(a_place(), 1061.0)


def test_the_oldest_gap_is_forgotten_when_there_are_many() -> None:
    gaps = SequenceGaps(PATIENCE_S, max_gaps=2)
    for producer_id in range(5):
        assert gaps.accepts(a_place(producer_id), 1000.0)

    assert len(gaps) == 2
