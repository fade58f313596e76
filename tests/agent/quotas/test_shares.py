"""Shares of quotas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.quotas.shares import share_of, wanted_part

WISHES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@given(WISHES)
def test_shares_add_up_to_the_quota(wishes: list[float]) -> None:
    shares = [share_of(wish, wishes[:n] + wishes[n + 1 :]) for n, wish in enumerate(wishes)]
    assert sum(shares) == pytest.approx(1.0)


@given(WISHES)
def test_each_agent_gets_its_wish_or_an_equal_part(wishes: list[float]) -> None:
    for n, wish in enumerate(wishes):
        share = share_of(wish, wishes[:n] + wishes[n + 1 :])
        assert share >= min(wish, 1 / len(wishes)) - 1e-9


def test_agent_whose_clients_waited_gets_what_others_leave() -> None:
    assert share_of(1.0, [wanted_part(0.2, has_waited=False)]) == pytest.approx(0.77)
