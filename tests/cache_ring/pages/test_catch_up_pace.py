"""The pace of history while the tail is in use: as many concurrent loads as bring more than a queue."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from cache_ring.pages.store_pages import HELD_S, LONGEST_REST_S, REST, STEPS, CatchUpPace

PAGE_BYTES = 1_000
MOST_BYTES = 4 * PAGE_BYTES
AT_ONCE = [1, 2, 4]
"""Loads at once in each step."""


def replayed(
    pace: CatchUpPace, took_s_of: Callable[[int], float], lasts_s: float, began_s: float = 0.0
) -> dict[int, float]:
    """Returns for which share of the time there were how many concurrent loads, at a store whose loads take
    `took_s_of`.
    """
    now_s, spent_s = began_s, dict.fromkeys(AT_ONCE, 0.0)
    while now_s < began_s + lasts_s:
        at_once = pace.limit_bytes // PAGE_BYTES
        took_s = took_s_of(at_once)
        now_s += took_s
        spent_s[at_once] += took_s
        for _ in range(at_once):
            pace.loaded(PAGE_BYTES, took_s, at_once * PAGE_BYTES, now_s)
    return {at_once: spent / lasts_s for at_once, spent in spent_s.items()}


def far_away(_: int) -> float:
    return 0.1


def shared(at_once: int) -> float:
    return 0.01 * at_once


def a_shared_pace() -> CatchUpPace:
    pace = CatchUpPace(MOST_BYTES)
    replayed(pace, shared, 5)
    return pace


def test_a_store_that_is_far_away_gets_all_loads_at_once() -> None:
    assert replayed(CatchUpPace(MOST_BYTES), far_away, 600)[4] > 0.85


def test_a_machine_that_one_load_keeps_busy_gets_one_nearly_always() -> None:
    spent = replayed(CatchUpPace(MOST_BYTES), shared, 600)

    assert spent[1] > 0.95
    assert spent[4] == 0


def test_a_store_that_gives_no_more_from_the_third_on_gets_two() -> None:
    spent = replayed(CatchUpPace(MOST_BYTES), lambda at_once: 0.05 * max(1, at_once / 2), 600)

    assert spent[2] > 0.85


def test_one_outlier_decides_nothing() -> None:
    measures = iter([0.1] * 16 + [0.5] * 8)  # the first at two loads at once is slow, no other

    assert replayed(CatchUpPace(MOST_BYTES), lambda _: next(measures, 0.1), 25)[4] > 0.5


def test_loads_rest_shortly_and_only_where_a_second_one_brings_little() -> None:
    far = CatchUpPace(MOST_BYTES)
    replayed(far, far_away, 20)

    assert far.rest_s(0.1) == 0
    assert a_shared_pace().rest_s(0.1) == REST * 0.1
    assert a_shared_pace().rest_s(60.0) == LONGEST_REST_S


def test_a_result_expires_even_without_new_measurements() -> None:
    pace = a_shared_pace()

    for second in range(5, 5 + int(HELD_S) + 1):
        pace.loaded(PAGE_BYTES, 0.1, 10 * MOST_BYTES, float(second))

    assert pace.rest_s(0.1) == 0


def test_a_store_that_is_no_longer_shared_gets_all_loads_at_once_again() -> None:
    pace = a_shared_pace()
    replayed(pace, far_away, HELD_S + 5, began_s=5.0)

    assert pace.limit_bytes == MOST_BYTES


def test_a_store_that_becomes_busy_is_noticed() -> None:
    pace = CatchUpPace(MOST_BYTES)
    replayed(pace, far_away, 20)
    replayed(pace, shared, HELD_S, began_s=20.0)

    assert replayed(pace, shared, 100, began_s=20.0 + HELD_S)[1] > 0.9


def test_loads_from_a_time_with_a_higher_limit_do_not_count() -> None:
    pace, now_s = CatchUpPace(MOST_BYTES), 0.0

    for _ in range(1_000):
        now_s += 0.1
        pace.loaded(PAGE_BYTES, 0.1, MOST_BYTES, now_s)

    assert pace.limit_bytes == MOST_BYTES // 4


def test_the_result_is_dropped_when_the_tail_is_not_in_use() -> None:
    pace = a_shared_pace()

    pace.forget()

    assert pace.rest_s(0.1) == 0


def test_pages_larger_than_a_step_are_measured_too() -> None:
    pace, now_s = CatchUpPace(MOST_BYTES), 0.0
    large = MOST_BYTES // 4 + 1

    for _ in range(100):
        now_s += 0.1
        pace.loaded(large, 0.1, max(large, pace.limit_bytes), now_s)

    assert pace.limit_bytes == MOST_BYTES


loads = st.tuples(st.integers(0, 1 << 27), st.floats(0, 100), st.integers(0, 1 << 30))


@given(most_bytes=st.integers(1, 1 << 30), done=st.lists(loads, max_size=300))
def test_limit_and_rest_stay_within_their_bounds(most_bytes: int, done: list[tuple[int, float, int]]) -> None:
    pace, now_s = CatchUpPace(most_bytes), 0.0

    for size_bytes, took_s, at_once_bytes in done:
        now_s += took_s
        pace.loaded(size_bytes, took_s, at_once_bytes, now_s)

        assert max(1, most_bytes >> STEPS - 1) <= pace.limit_bytes <= most_bytes
        assert 0 <= pace.rest_s(took_s) <= min(took_s, LONGEST_REST_S)
