"""The PUT budget: never above its burst, never below minus its burst, and early seals bounded over any
span.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.write_path.put_budget import PutBudget, PutBudgetPolicy, window_budget_policy

policies = st.builds(
    PutBudgetPolicy, per_s=st.floats(0.1, 100, allow_nan=False), burst=st.floats(1, 100, allow_nan=False)
)
steps = st.lists(st.tuples(st.floats(0, 10, allow_nan=False), st.booleans()), max_size=60)


@given(policy=policies, steps=steps)
def test_tokens_stay_within_the_burst_both_ways(
    policy: PutBudgetPolicy, steps: list[tuple[float, bool]]
) -> None:
    now_s = 0.0
    budget = PutBudget.full(policy, now_s)

    for pause_s, forced in steps:
        now_s += pause_s
        budget = budget.at(now_s)
        if forced or budget.token_at_s() <= now_s:
            budget = budget.spend(now_s)

        assert -policy.burst <= budget.tokens <= policy.burst


@given(policy=policies, pauses=st.lists(st.floats(0, 2, allow_nan=False), max_size=200))
def test_early_seals_over_any_span_are_bounded_by_burst_and_rate(
    policy: PutBudgetPolicy, pauses: list[float]
) -> None:
    now_s = 0.0
    budget = PutBudget.full(policy, now_s)
    spent_at_s = []

    for pause_s in pauses:
        now_s += pause_s
        if budget.at(now_s).token_at_s() <= now_s:
            budget = budget.spend(now_s)
            spent_at_s.append(now_s)

    for first, start_s in enumerate(spent_at_s):
        for last in range(first, len(spent_at_s)):
            spent = last - first + 1
            assert spent <= policy.burst + policy.per_s * (spent_at_s[last] - start_s) + 1e-6


@given(policy=policies, spends=st.integers(0, 300))
def test_a_token_is_there_at_the_predicted_time(policy: PutBudgetPolicy, spends: int) -> None:
    budget = PutBudget.full(policy, 0.0)
    for _ in range(spends):
        budget = budget.spend(0.0)

    assert budget.at(budget.token_at_s()).tokens >= 1.0 - 1e-9


def test_dollars_a_month_are_puts_at_the_stores_price() -> None:
    policy = window_budget_policy(usd_per_month=20.0, usd_per_million_puts=5.0, saved_h=24.0)

    assert policy is not None
    assert policy.per_s * 30 * 86_400 == pytest.approx(4e6)
    assert policy.burst == pytest.approx(4e6 / 30)


def test_free_puts_have_no_bound_and_zero_dollars_give_no_token() -> None:
    assert window_budget_policy(usd_per_month=20.0, usd_per_million_puts=0.0, saved_h=24.0) is None

    none = window_budget_policy(usd_per_month=0.0, usd_per_million_puts=5.0, saved_h=24.0)
    assert none is not None
    assert PutBudget.full(none, 0.0).at(1e9).token_at_s() == float("inf")


def test_time_that_runs_backwards_changes_nothing() -> None:
    budget = PutBudget.full(PutBudgetPolicy(per_s=1.0, burst=2.0), 10.0).spend(10.0)

    assert budget.at(5.0) == budget
