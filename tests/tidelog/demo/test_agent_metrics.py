"""Quantiles and sums over several agents' metrics."""

from typing import Any

import pytest

from tidelog.demo.run import AgentMetrics


def a_histogram(**counts_by_bound: Any) -> AgentMetrics:
    bounds = {"le_01": "0.1", "le_02": "0.2", "le_inf": "+Inf"}
    return AgentMetrics(
        {("h_bucket", (("le", bounds[name]),)): count for name, count in counts_by_bound.items()}
    )


@pytest.mark.parametrize(("quantile", "expected"), [(0.25, 0.05), (0.5, 0.1), (0.75, 0.15), (1.0, 0.2)])
def test_a_quantile_is_interpolated_within_its_bucket(quantile: float, expected: float) -> None:
    metrics = a_histogram(le_01=50, le_02=100, le_inf=100)

    assert metrics.quantile_s("h", quantile) == pytest.approx(expected)


def test_what_lies_beyond_the_last_bucket_is_told_as_its_lower_bound() -> None:
    assert a_histogram(le_01=0, le_02=0, le_inf=4).quantile_s("h", 0.5) == 0.2


def test_no_observation_is_no_quantile() -> None:
    assert a_histogram(le_01=0, le_02=0, le_inf=0).quantile_s("h", 0.5) is None


def test_totals_select_by_label() -> None:
    metrics = AgentMetrics({("puts", (("kind", "first"),)): 3.0, ("puts", (("kind", "hedged"),)): 1.0})

    assert metrics.total("puts") == 4.0
    assert metrics.total("puts", kind="hedged") == 1.0
