"""A partition whose commits are pushed rests between polls. One with a missed commit does not."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.read_path.known_coordinates import PollTurns
from sequencer.commits.coordinates import PartitionKey
from storage.identifiers import Partition, TopicId

TOPIC = TopicId(UUID(int=1))
LONGEST = 4


def key(number: int) -> PartitionKey:
    return TOPIC, Partition(number)


def asked_by(turns: PollTurns, polls: int) -> list[int]:
    """Returns the numbers of the next polls that ask for partition 0."""
    return [poll for poll in range(1, polls + 1) if turns.due([key(0)])]


def test_every_poll_asks_for_a_partition_without_pushes() -> None:
    assert asked_by(PollTurns(LONGEST), 5) == [1, 2, 3, 4, 5]


def test_a_partition_with_pushes_rests_for_one_poll_and_then_longer() -> None:
    turns = PollTurns(LONGEST)
    turns.heard(key(0))
    assert asked_by(turns, 15) == [2, 4, 8, 12]


def test_partitions_pushed_at_different_times_are_due_in_the_same_polls() -> None:
    turns, keys = PollTurns(LONGEST), [key(number) for number in range(3)]
    asked = {}
    for poll in range(1, 17):
        if poll in (2, 5, 7):
            turns.heard(keys[(2, 5, 7).index(poll)])
        asked[poll] = turns.due(keys)
    assert [poll for poll in range(9, 17) if asked[poll]] == [12, 16]
    assert asked[12] == asked[16] == keys


def test_a_missed_commit_makes_its_partition_due_in_the_next_poll() -> None:
    turns, keys = PollTurns(LONGEST), [key(0), key(1)]
    for each in keys:
        turns.heard(each)
    for _ in range(4):
        turns.due(keys)
    assert turns.until_due == LONGEST
    turns.doubt(keys[1])
    assert turns.until_due == 1
    assert turns.due(keys) == [keys[1]]
    assert turns.until_due == 1
    turns.doubt_all()
    assert turns.due(keys) == keys


def test_a_further_push_changes_nothing() -> None:
    turns = PollTurns(LONGEST)
    asked = []
    for poll in range(1, 16):
        turns.heard(key(0))
        asked += [poll] * len(turns.due([key(0)]))
    assert asked == [2, 4, 8, 12]


def test_a_partition_with_a_missed_commit_does_not_rest_until_the_next_push() -> None:
    turns = PollTurns(LONGEST)
    turns.heard(key(0))
    turns.due([key(0)])
    turns.doubt(key(0))
    assert asked_by(turns, 3) == [1, 2, 3]
    turns.heard(key(0))
    assert asked_by(turns, 3) == [2]


def test_after_a_failed_poll_all_partitions_are_due_whatever_was_pushed_meanwhile() -> None:
    turns = PollTurns(LONGEST)
    turns.heard(key(0))
    turns.doubt_all()
    turns.heard(key(0))
    assert asked_by(turns, 1) == [1]


def test_no_partition_rests_if_the_longest_rest_is_zero() -> None:
    turns = PollTurns(1)
    turns.heard(key(0))
    assert asked_by(turns, 3) == [1, 2, 3]


def test_partitions_that_are_no_longer_read_are_forgotten() -> None:
    turns = PollTurns(LONGEST)
    for number in range(3):
        turns.heard(key(number))
    turns.due([key(0)])
    assert turns.due([key(1), key(2)]) == [key(1), key(2)]


@given(st.lists(st.tuples(st.sampled_from(["heard", "doubt", "poll"]), st.integers(0, 2)), max_size=60))
def test_polls_that_are_left_out_would_have_asked_for_nothing(steps: list[tuple[str, int]]) -> None:
    each_poll, some_polls, left_out = PollTurns(LONGEST), PollTurns(LONGEST), 0
    keys = [key(number) for number in range(3)]
    for step, number in steps:
        if step == "heard":
            each_poll.heard(keys[number])
            some_polls.heard(keys[number])
        elif step == "doubt":
            each_poll.doubt(keys[number])
            some_polls.doubt(keys[number])
        elif left_out + 1 < some_polls.until_due:
            assert each_poll.due(keys) == []
            left_out += 1
        else:
            assert some_polls.due(keys, left_out + 1) == each_poll.due(keys)
            left_out = 0


@given(st.lists(st.tuples(st.sampled_from(["heard", "doubt", "poll"]), st.integers(0, 2)), max_size=60))
def test_no_partition_rests_longer_than_the_longest(steps: list[tuple[str, int]]) -> None:
    turns, since = PollTurns(LONGEST), dict.fromkeys(range(3), 0)
    doubted = set(range(3))
    for step, number in steps:
        if step == "heard":
            turns.heard(key(number))
            doubted.discard(number)
        elif step == "doubt":
            turns.doubt(key(number))
            doubted.add(number)
        else:
            asked = turns.due([key(each) for each in range(3)])
            assert {each for each in doubted if key(each) not in asked} == set()
            for each in range(3):
                since[each] = 0 if key(each) in asked else since[each] + 1
                assert since[each] < LONGEST
