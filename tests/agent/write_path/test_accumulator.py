"""Batches leave the accumulator in the order in which they came, once each, cut by size."""

from hypothesis import given
from hypothesis import strategies as st

from agent.write_path.accumulator import Accumulator, OpenSegment

SEGMENT_BYTES = 100

requests = st.lists(st.integers(1, 250), min_size=1, max_size=8)


def batches_of(gathered: Accumulator[int]) -> list[tuple[int, int]]:
    """Returns the next segment: its requests, and which of their batches."""
    return [(part.owner, index) for part in gathered.take() for index in range(part.start, part.end)]


@given(actions=st.lists(st.one_of(requests, st.none()), max_size=40))
def test_batches_come_out_in_order_each_once_and_cut_by_size(actions: list[list[int] | None]) -> None:
    """A list adds a request with batches of these sizes, None takes a segment."""
    gathered: Accumulator[int] = Accumulator(SEGMENT_BYTES)
    sizes: dict[tuple[int, int], int] = {}
    taken: list[tuple[int, int]] = []

    for number, action in enumerate([*actions, *[None] * 8 * len(actions)]):
        if action is not None:
            sizes |= {(number, index): size_bytes for index, size_bytes in enumerate(action)}
            gathered.add(number, action, float(number))
        else:
            left = list(sizes)[len(taken) :]
            segment = batches_of(gathered)
            taken += segment
            size_bytes = sum(sizes[batch] for batch in segment)
            assert size_bytes <= SEGMENT_BYTES or len(segment) == 1
            assert bool(segment) == bool(left)
            if len(segment) < len(left):
                assert size_bytes + sizes[left[len(segment)]] > SEGMENT_BYTES, "there was room for one more"
        waiting = list(sizes)[len(taken) :]
        assert gathered.open_segment == OpenSegment(
            size_bytes=sum(sizes[batch] for batch in waiting),
            oldest_arrival_s=float(waiting[0][0]) if waiting else None,
        )

    assert taken == list(sizes)


@given(added=st.lists(requests, max_size=20), data=st.data())
def test_removed_batches_do_not_come_out(added: list[list[int]], data: st.DataObject) -> None:
    gathered: Accumulator[int] = Accumulator(SEGMENT_BYTES)
    numbers = [gathered.add(owner, sizes, 0.0) for owner, sizes in enumerate(added)]
    out = batches_of(gathered) if data.draw(st.booleans()) else []

    removed = data.draw(st.sets(st.sampled_from(range(len(added))))) if added else set()
    for owner in removed:
        left = [size for index, size in enumerate(added[owner]) if (owner, index) not in out]
        assert gathered.remove(numbers[owner]) == (len(left), sum(left))
        assert gathered.remove(numbers[owner]) == (0, 0)

    expected = [
        (owner, index)
        for owner, sizes in enumerate(added)
        for index in range(len(sizes))
        if owner not in removed and (owner, index) not in out
    ]
    assert sorted(set(gathered.owners())) == sorted({owner for owner, _ in expected})
    while segment := batches_of(gathered):
        out += segment
    assert out[len(out) - len(expected) :] == expected
    assert gathered.open_segment == OpenSegment(size_bytes=0, oldest_arrival_s=None)
