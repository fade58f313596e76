"""The controller of merging against a modelled backlog: it converges, it is bounded, it gives way."""

import random

from hypothesis import given
from hypothesis import strategies as st

from compactor.merge_controller import (
    PATIENCE,
    CopyDebt,
    EffortLimits,
    Situation,
    ceiling_bytes_per_s,
    effort_bytes_per_s,
)

MIB = 1 << 20
LIMITS = EffortLimits(target_s=300.0, most_bytes_per_s=32 * MIB)


def situation(backlog_bytes: int, *, mergers: int = 1, load: float = 0.0, oldest_s: float = 1.0) -> Situation:
    return Situation(backlog_bytes=backlog_bytes, oldest_s=oldest_s, mergers=mergers, load=load)


@given(st.integers(0, 1 << 45), st.integers(0, 100), st.floats(0, 1), st.floats(0, 1e6), st.floats(1, 1e4))
def test_the_effort_is_never_negative_nor_above_its_ceiling(
    backlog: int, mergers: int, load: float, oldest_s: float, target_s: float
) -> None:
    limits = EffortLimits(target_s=target_s, most_bytes_per_s=32 * MIB)
    now = Situation(backlog_bytes=backlog, oldest_s=oldest_s, mergers=mergers, load=load)

    effort = effort_bytes_per_s(now, limits)

    assert 0 <= effort <= ceiling_bytes_per_s(now, limits) <= limits.most_bytes_per_s


def modelled(
    inflow: list[float], mergers: int = 1, step_s: float = 5.0, merge_bytes: int = 32 * MIB
) -> list[float]:
    """The backlog after each step. Every merger looks once per step and merges `merge_bytes` when it owes
    nothing.
    """
    backlog, now_s = 0.0, 0.0
    debts = [CopyDebt(0.0, saving_s=2 * step_s) for _ in range(mergers)]
    seen = []
    for arriving in inflow:
        now_s += step_s
        backlog += arriving * step_s
        for debt in debts:
            effort = effort_bytes_per_s(situation(int(backlog), mergers=mergers), LIMITS)
            while backlog >= merge_bytes and debt.is_paid(effort, now_s):
                debt.copied(merge_bytes)
                backlog -= merge_bytes
        seen.append(backlog)
    return seen


@given(st.floats(0.01, 16), st.integers(1, 5))
def test_a_steady_inflow_leaves_a_steady_backlog_of_about_the_target(mib_per_s: float, mergers: int) -> None:
    backlog = modelled([mib_per_s * MIB] * 2_000, mergers)

    settled = backlog[1_000:]
    assert max(settled) <= mib_per_s * MIB * LIMITS.target_s * 1.3 + 2 * mergers * 32 * MIB
    assert abs(settled[-1] - settled[0]) <= 0.3 * max(settled) + 2 * mergers * 32 * MIB


def test_a_burst_is_worked_off_over_the_target_and_not_at_once() -> None:
    backlog = modelled([200 * MIB] * 12 + [0.0] * 400)

    peak = backlog[11]
    half_way = backlog[11 + 30]
    assert half_way > 0.4 * peak, "after half the target most of it is still there"
    assert backlog[-1] < 0.02 * peak + 2 * 32 * MIB


def test_more_than_may_be_merged_lets_the_backlog_grow_at_full_effort() -> None:
    backlog = modelled([40 * MIB] * 2_000)

    assert backlog[-1] - backlog[-101] <= (40 - 32) * MIB * 500 * 1.2


@given(st.integers(0, 1_000))
def test_a_backlog_is_bounded_under_any_inflow_that_is_affordable_on_average(seed: int) -> None:
    chance = random.Random(seed)
    inflow = [chance.choice([0.0, 0.0, 4.0, 30.0]) * MIB for _ in range(1_000)]

    assert max(modelled(inflow)) <= 30 * MIB * 5 * 60 + 20 * MIB * LIMITS.target_s


def test_an_overloaded_agent_gives_way_but_not_for_ever() -> None:
    backlog = 1 << 40

    calm, busy, full = (effort_bytes_per_s(situation(backlog, load=load), LIMITS) for load in (0.3, 0.9, 1.0))
    patient = effort_bytes_per_s(
        situation(backlog, load=1.0, oldest_s=PATIENCE * LIMITS.target_s + 1), LIMITS
    )

    assert calm == LIMITS.most_bytes_per_s
    assert 0 < busy < calm / 2
    assert full == 0
    assert patient == 0.1 * LIMITS.most_bytes_per_s
