"""How long an overloaded agent asks clients to pause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.transport.overload import ThrottlePolicy, throttle_ms

POLICY = ThrottlePolicy(from_share=0.75, longest_ms=1000)


@pytest.mark.parametrize(
    ("shares", "pause_ms"),
    [
        ((), 0),
        ((0.0,), 0),
        ((0.75,), 0),
        ((0.8, 0.1), 200),
        ((0.1, 0.875), 500),
        ((1.0,), 1000),
        ((3.0, 0.0), 1000),
    ],
)
def test_the_pause_grows_with_the_fullest_budget(shares: tuple[float, ...], pause_ms: int) -> None:
    assert throttle_ms(shares, POLICY) == pause_ms


def test_a_longest_pause_of_zero_is_none() -> None:
    assert throttle_ms((5.0,), ThrottlePolicy(from_share=0.0, longest_ms=0)) == 0


@given(st.lists(st.floats(0, 10), max_size=4), st.floats(0, 10), st.floats(0, 0.99), st.integers(0, 10_000))
def test_more_use_never_means_a_shorter_pause(
    shares: list[float], more: float, start: float, longest: int
) -> None:
    policy = ThrottlePolicy(from_share=start, longest_ms=longest)

    before, after = throttle_ms(shares, policy), throttle_ms([*shares, more], policy)

    assert 0 <= before <= after <= longest
