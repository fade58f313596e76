"""Batches leave the accumulator in the order they came, once each, cut by size."""

from hypothesis import given
from hypothesis import strategies as st

from agent.write_path.accumulator import Accumulator
from agent.write_path.seal import OpenSegment

SEGMENT_BYTES = 100


@given(actions=st.lists(st.one_of(st.integers(1, 250), st.none()), max_size=60))
def test_entries_come_out_in_order_each_once_and_cut_by_size(actions: list[int | None]) -> None:
    """A number adds a batch of that size, None takes a segment."""
    gathered: Accumulator[tuple[int, int]] = Accumulator(SEGMENT_BYTES, lambda entry: entry[1])
    added: list[tuple[int, int]] = []
    taken: list[tuple[int, int]] = []

    for action in [*actions, *[None] * len(actions)]:
        if action is not None:
            added.append((len(added), action))
            gathered.add(added[-1], float(len(added)))
        else:
            segment = gathered.take()
            taken += segment
            size_bytes = sum(entry[1] for entry in segment)
            assert size_bytes <= SEGMENT_BYTES or len(segment) == 1
            assert bool(segment) == (len(taken) - len(segment) < len(added))
        waiting = added[len(taken) :]
        assert gathered.open_segment == OpenSegment(
            size_bytes=sum(entry[1] for entry in waiting),
            oldest_arrival_s=float(waiting[0][0] + 1) if waiting else None,
        )

    assert taken == added


def test_a_segment_is_filled_as_far_as_it_goes() -> None:
    gathered: Accumulator[int] = Accumulator(SEGMENT_BYTES, lambda entry: entry)
    for size_bytes in (40, 40, 40, 120, 10):
        gathered.add(size_bytes, 0.0)

    assert [gathered.take() for _ in range(5)] == [[40, 40], [40], [120], [10], []]


@given(sizes=st.lists(st.integers(1, 250), max_size=30), data=st.data())
def test_what_was_removed_does_not_come_out(sizes: list[int], data: st.DataObject) -> None:
    gathered: Accumulator[tuple[int, int]] = Accumulator(SEGMENT_BYTES, lambda entry: entry[1])
    numbers = [gathered.add((index, size_bytes), 0.0) for index, size_bytes in enumerate(sizes)]

    removed = data.draw(st.sets(st.sampled_from(range(len(sizes))))) if sizes else set()
    assert all(gathered.remove(numbers[index]) for index in removed)
    assert not any(gathered.remove(numbers[index]) for index in removed)

    left = [(index, size_bytes) for index, size_bytes in enumerate(sizes) if index not in removed]
    assert gathered.open_segment.size_bytes == sum(size_bytes for _, size_bytes in left)
    assert [entry for _ in sizes for entry in gathered.take()] == left
    assert not any(gathered.remove(number) for number in numbers)
