"""Deadlines are due as in a plain dictionary of them."""

from hypothesis import given
from hypothesis import strategies as st

from agent.groups.coordinator.deadlines import Deadlines

KEYS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("set_if_absent"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("clear"), KEYS, st.just(0)),
        st.tuples(st.just("take_due"), st.just(""), st.integers(0, 20)),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_deadlines_are_due_in_their_order_however_often_they_move(steps: list[tuple[str, str, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    expected: dict[str, int] = {}
    for step, key, at_ms in steps:
        if step == "set":
            deadlines.set(key, at_ms)
            expected[key] = at_ms
        elif step == "set_if_absent":
            deadlines.set_if_absent(key, at_ms)
            expected.setdefault(key, at_ms)
        elif step == "clear":
            deadlines.clear(key)
            expected.pop(key, None)
        else:
            due = deadlines.take_due(at_ms)
            assert sorted(due) == sorted(key for key, due_ms in expected.items() if due_ms <= at_ms)
            taken = [expected.pop(key) for key in due]
            assert taken == sorted(taken)
        assert deadlines.next_ms() == min(expected.values(), default=None)


def test_deadlines_that_were_cleared_leave_nothing_behind() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("first", 1)
    for number in range(5_000):
        deadlines.set(f"guest-{number}", 1_000 + number)
        deadlines.clear(f"guest-{number}")
    deadlines.set("last", 2)

    assert len(deadlines._heap) < 200
    assert deadlines.take_due(1_000_000) == ["first", "last"]
