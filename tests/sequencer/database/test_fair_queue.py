"""Whose turn it is, and who is refused if there is no room. One greedy client costs others one turn per
round.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sequencer.database.fair_queue import THE_AGENT, Asker, FairQueue

GREEDY, MODEST, OTHER = Asker("greedy", 1), Asker("modest", 2), Asker("other", 3)


def filled(most: int, *askers: Asker) -> FairQueue[tuple[str, int]]:
    """Each item is its asker's host and its number among all."""
    queue: FairQueue[tuple[str, int]] = FairQueue(most)
    for number, asker in enumerate(askers):
        queue.add(asker, (asker.host, number))
    return queue


def test_hosts_take_turns_however_much_one_of_them_has_waiting() -> None:
    queue = filled(100, *[GREEDY] * 50, MODEST, OTHER)

    assert [queue.next()[0] for _ in range(4)] == ["greedy", "modest", "other", "greedy"]


def test_connections_of_a_host_take_turns() -> None:
    busy, quiet = Asker("host", 1), Asker("host", 2)
    queue: FairQueue[str] = FairQueue(10)
    for asker, item in ((busy, "a"), (busy, "b"), (busy, "c"), (quiet, "d")):
        queue.add(asker, item)

    assert [queue.next() for _ in range(4)] == ["a", "d", "b", "c"]


def test_many_connections_of_one_host_count_as_one_host() -> None:
    queue = filled(100, *(Asker("greedy", number) for number in range(12)), MODEST)

    assert [queue.next()[0] for _ in range(3)] == ["greedy", "modest", "greedy"]


def test_a_full_queue_refuses_the_newest_of_whoever_has_most_waiting() -> None:
    queue = filled(10, *[GREEDY] * 9, MODEST)

    assert queue.add(OTHER, ("other", 10)) == ("greedy", 8)
    assert queue.add(GREEDY, ("greedy", 11)) == ("greedy", 11)


def test_what_the_agent_asks_for_itself_is_not_refused_for_a_client() -> None:
    queue = filled(10, *[THE_AGENT] * 9, MODEST)

    assert queue.add(OTHER, ("other", 10)) in {("modest", 9), ("other", 10)}
    assert filled(3, *[THE_AGENT] * 3).add(THE_AGENT, ("", 3)) == ("", 3), "its own is bounded as well"


def test_only_a_client_with_more_than_its_part_of_the_queue_is_asked_to_pause() -> None:
    queue = filled(100, *[GREEDY] * 80, MODEST)

    assert queue.used_share(GREEDY) > 1.0
    assert queue.used_share(MODEST) == 0.02
    assert queue.used_share(OTHER) == 0.0


_ASKERS = [Asker(host, connection) for host in ("a", "b", "") for connection in range(3)]
_STEPS = st.lists(st.one_of(st.sampled_from(_ASKERS), st.just("next"), st.integers(0, 20)), max_size=200)


@given(_STEPS, st.integers(1, 12))
def test_every_item_leaves_once_and_the_queue_keeps_to_its_bound(
    steps: list[Asker | str | int], most: int
) -> None:
    queue: FairQueue[int] = FairQueue(most)
    waiting: dict[int, Asker] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Asker):
            waiting[number] = step
            refused = queue.add(step, number)
            if refused is not None:
                del waiting[refused]
        elif step == "next" and waiting:
            del waiting[queue.next()]
        elif isinstance(step, int) and step in waiting:
            queue.remove(waiting.pop(step), step)
        assert len(queue) == len(waiting) <= most
    left = Counter(queue.next() for _ in range(len(queue)))
    assert left == Counter(waiting.keys())
