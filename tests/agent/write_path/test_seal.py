"""When a segment is sealed: full ones at once, old ones at linger, others as soon as the budget has a
token.
"""

from hypothesis import given
from hypothesis import strategies as st

from agent.write_path.accumulator import OpenSegment, SealDue, SealPolicy, SealReason, seal_due
from agent.write_path.put_budget import PutBudget, PutBudgetPolicy

POLICY = SealPolicy(segment_size_bytes=1000, linger_s=0.25)
BUDGET = PutBudgetPolicy(per_s=4.0, burst=16.0)


def a_budget(tokens: float, at_s: float = 100.0) -> PutBudget:
    return PutBudget(policy=BUDGET, tokens=tokens, at_s=at_s)


def a_segment(size_bytes: int = 10, oldest_arrival_s: float | None = 100.0) -> OpenSegment:
    return OpenSegment(size_bytes=size_bytes, oldest_arrival_s=oldest_arrival_s)


def test_an_empty_segment_is_never_due() -> None:
    empty = OpenSegment(size_bytes=0, oldest_arrival_s=None)

    assert seal_due(empty, POLICY, a_budget(16)) is None
    assert seal_due(empty, POLICY, a_budget(16), draining=True) is None


def test_sporadic_traffic_is_flushed_at_once() -> None:
    assert seal_due(a_segment(), POLICY, a_budget(1.0)) == SealDue(at_s=100.0, reason=SealReason.TOKEN)


def test_without_a_token_a_seal_waits_for_the_next_one_at_most_the_linger() -> None:
    assert seal_due(a_segment(), POLICY, a_budget(0.5)) == SealDue(at_s=100.125, reason=SealReason.TOKEN)
    assert seal_due(a_segment(), POLICY, a_budget(-16)) == SealDue(at_s=100.25, reason=SealReason.AGE)


def test_a_full_segment_does_not_wait_for_anything() -> None:
    assert seal_due(a_segment(1000), POLICY, a_budget(-16)) == SealDue(at_s=100.0, reason=SealReason.SIZE)


def test_full_windows_are_sealed_at_once_without_a_token() -> None:
    due = seal_due(a_segment(), POLICY, a_budget(-16), windows_full_at_s=100.1)

    assert due == SealDue(at_s=100.1, reason=SealReason.WINDOW)


def test_a_token_pays_before_the_budget_for_full_windows() -> None:
    due = seal_due(a_segment(), POLICY, a_budget(1.0), windows_full_at_s=100.0)

    assert due == SealDue(at_s=100.0, reason=SealReason.TOKEN)


def test_full_windows_whose_budget_is_spent_wait_for_linger() -> None:
    due = seal_due(a_segment(), POLICY, a_budget(-16), windows_full_at_s=float("inf"))

    assert due == SealDue(at_s=100.25, reason=SealReason.AGE)


def test_draining_does_not_wait_for_linger_or_tokens() -> None:
    due = seal_due(a_segment(), POLICY, a_budget(-16), draining=True)

    assert due == SealDue(at_s=100.0, reason=SealReason.DRAIN)


@given(
    size_bytes=st.integers(1, 3000),
    arrival_s=st.floats(0, 1000, allow_nan=False),
    tokens=st.floats(-16, 16, allow_nan=False),
    budget_at_s=st.floats(0, 1000, allow_nan=False),
)
def test_no_batch_waits_longer_than_linger_and_the_budget_is_not_overdrawn_by_choice(
    size_bytes: int, arrival_s: float, tokens: float, budget_at_s: float
) -> None:
    budget = a_budget(tokens, budget_at_s)

    due = seal_due(a_segment(size_bytes, arrival_s), POLICY, budget)

    assert due is not None
    assert arrival_s <= due.at_s <= arrival_s + POLICY.linger_s
    if due.reason is SealReason.TOKEN:
        assert budget.at(due.at_s).tokens >= 1.0 - 1e-6
    if size_bytes >= POLICY.segment_size_bytes:
        assert due.reason is SealReason.SIZE
