"""Percentiles, spreads and ratios of a run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import Spread, per, percentile
from benchmarks.results import Measurement, Results


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (1, 1), (50, 50), (51, 51), (99, 99), (100, 100)])
def test_a_percentile_is_the_nearest_rank(percent: int, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == expected


@given(st.lists(st.integers(0, 1_000), min_size=1), st.integers(0, 100))
def test_a_percentile_is_one_of_the_values_with_so_many_below_it(values: list[int], percent: int) -> None:
    found = percentile(values, percent)

    assert found in values
    assert sum(value <= found for value in values) >= math.ceil(len(values) * percent / 100)


def test_nothing_measured_is_no_number() -> None:
    assert math.isnan(percentile([], 50))
    assert math.isnan(per(1.0, 0.0))
    assert Spread.of([float("nan")]) is None


def test_a_ratio_is_taken_round_by_round() -> None:
    # The second round was three times as fast for both: what a round does to both cancels out.
    figures = [("x", 0, 10.0), ("y", 0, 5.0), ("x", 1, 30.0), ("y", 1, 15.0), ("x", 2, 1.0)]
    results = Results(
        about={},
        measurements=[
            Measurement(workload="a", system=system, round=number, figures={"mb_per_s": value})
            for system, number, value in figures
        ],
    )

    assert results.ratio("a", ("x", "mb_per_s"), ("y", "mb_per_s")) == Spread(
        median=2.0, low=2.0, high=2.0, rounds=2
    )
    assert results.ratio("a", ("x", "mb_per_s"), ("z", "mb_per_s")) is None
    assert results.spread("a", "x", "mb_per_s") == Spread(median=10.0, low=1.0, high=30.0, rounds=3)
