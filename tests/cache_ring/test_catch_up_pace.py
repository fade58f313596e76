"""The pace of history beside the tail: as many loads at once as bring more than a queue."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from cache_ring.catch_up_pace import REST, STEPS, CatchUpPace

STEP_BYTES = 10 << 20
PAGE_BYTES = 8 << 20


def replayed(pace: CatchUpPace, rate_of: Callable[[int], float], loads: int, began_s: float = 0.0) -> list[int]:
    """The steps in use during each of the loads, of a store that gives `rate_of(step)` bytes a second."""
    now_s, steps = began_s, []
    for _ in range(loads):
        step = pace.limit_bytes // STEP_BYTES
        steps.append(step)
        now_s += PAGE_BYTES / rate_of(step)
        pace.loaded(PAGE_BYTES, now_s, is_bound=True)
    return steps


def test_a_store_that_is_far_away_gets_all_loads_at_once() -> None:
    steps = replayed(CatchUpPace(STEPS * STEP_BYTES), lambda step: 80e6 * step, 5_000)

    assert steps[200] == STEPS
    assert sum(steps) / len(steps) > 0.9 * STEPS


def test_a_machine_that_one_load_keeps_busy_gets_one_nearly_always() -> None:
    steps = replayed(CatchUpPace(STEPS * STEP_BYTES), lambda step: 800e6 + 150e6 * (step - 1), 5_000)

    assert steps.count(1) / len(steps) > 0.95
    assert max(steps) == 2


def test_loads_rest_only_where_a_second_one_brings_little() -> None:
    far_away, busy = CatchUpPace(STEPS * STEP_BYTES), CatchUpPace(STEPS * STEP_BYTES)
    replayed(far_away, lambda step: 80e6 * step, 100)
    replayed(busy, lambda step: 800e6 + 150e6 * (step - 1), 100)

    assert far_away.rest_s(0.1) == 0
    assert busy.rest_s(0.1) == REST * 0.1


def test_a_store_that_gives_no_more_from_the_third_on_gets_two() -> None:
    steps = replayed(CatchUpPace(STEPS * STEP_BYTES), lambda step: 100e6 * min(step, 2), 5_000)

    assert steps.count(2) / len(steps) > 0.9


def test_a_store_that_becomes_busy_is_noticed() -> None:
    pace = CatchUpPace(STEPS * STEP_BYTES)
    replayed(pace, lambda step: 80e6 * step, 1_000)

    steps = replayed(pace, lambda _: 80e6, 5_000, began_s=1_000.0)

    assert steps[2_000:].count(1) / len(steps[2_000:]) > 0.9


def test_loads_that_the_limit_does_not_hold_back_teach_nothing() -> None:
    pace = CatchUpPace(STEPS * STEP_BYTES)

    for number in range(1_000):
        pace.loaded(PAGE_BYTES, number / 1_000, is_bound=False)

    assert pace.limit_bytes == STEP_BYTES


loads = st.tuples(st.integers(0, 1 << 27), st.floats(0, 100), st.booleans())


@given(most_bytes=st.integers(1, 1 << 30), done=st.lists(loads, max_size=300))
def test_the_limit_stays_within_its_bounds(most_bytes: int, done: list[tuple[int, float, bool]]) -> None:
    pace, now_s = CatchUpPace(most_bytes), 0.0

    for size_bytes, took_s, is_bound in done:
        now_s += took_s
        pace.loaded(size_bytes, now_s, is_bound=is_bound)

        assert 1 <= pace.limit_bytes <= max(STEPS, most_bytes)
