"""The arithmetic of costs, limits, failover and fitting, by hand."""

from pathlib import Path

import numpy as np
import pytest

from agent.read_path.settings import ReadPathSettings
from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.cost import MONTH_S, KafkaCluster, Prices, Usage, kafka_bill, tidelog_bill
from benchmarks.simulation.failover import agent_death_s
from benchmarks.simulation.fitting import fit
from benchmarks.simulation.limits import growth, limits
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.tables import Figures, renew


def test_requests_are_billed_by_the_thousand() -> None:
    usage = Usage(bytes_per_s=1e9, puts_per_s=120, gets_per_s=240, agents=100, postgres_cores=16)

    bill = tidelog_bill(usage, Prices())

    assert bill.parts["PUT"] == pytest.approx(120 * MONTH_S / 1000 * 0.005)
    assert bill.parts["GET"] == pytest.approx(240 * MONTH_S / 1000 * 0.0004)
    assert bill.parts["agents"] == pytest.approx(100 * 730 * 0.0363)
    assert bill.total == pytest.approx(sum(bill.parts.values()))


def test_storage_is_billed_in_tiers() -> None:
    assert Prices().storage(50e3) == pytest.approx(1_150)
    assert Prices().storage(600e3) == pytest.approx(50e3 * 0.023 + 450e3 * 0.022 + 100e3 * 0.021)


def test_kafka_sends_each_byte_between_zones_two_and_two_thirds_times() -> None:
    bill = kafka_bill(KafkaCluster(bytes_per_s=1e9, groups=2), Prices())
    far = kafka_bill(KafkaCluster(bytes_per_s=1e9, groups=2, fetches_from_own_zone=False), Prices())

    assert bill.parts["between zones"] == pytest.approx(MONTH_S * 8 / 3 * 0.02)
    assert far.parts["between zones"] == pytest.approx(MONTH_S * 4 * 0.02)


def test_an_agents_death_is_known_when_its_lease_is_over_and_somebody_has_looked() -> None:
    times_s = agent_death_s(5_000)

    assert times_s.min() > 8.0
    assert times_s.max() < 14.0


def test_polling_grows_with_what_is_read_and_connections_with_agents() -> None:
    calibration = Calibration.load()

    def demand(name: str, agents: int, partitions: int) -> float:
        scenario = Scenario(agents=agents, partitions=partitions, bytes_per_s=1e8)
        return next(one.demand for one in limits(scenario, calibration) if one.name.startswith(name))

    each = calibration.background.poll.each_s / ReadPathSettings().coordinate_poll_heard_s
    assert demand("polls", 100, 110_000) - demand("polls", 100, 100_000) == pytest.approx(10_000 * each)
    assert demand("connections to Postgres", 1_000, 1) == 11_000


def test_merging_makes_runs_longer_by_its_fan_in_with_each_tier() -> None:
    grown = growth(1_000, 1e6)

    assert grown.runs_per_day == 86_400_000
    assert grown.merged_runs_per_day == pytest.approx(1e6 * 86_400 / (1_000 * 16**3))


def test_costs_are_found_from_loads_and_are_not_negative() -> None:
    rows = [(1, 10, 5), (1, 100, 5), (1, 10, 50), (1, 300, 300)]
    true = np.array([0.5, 0.02, 0.0])

    assert fit(rows, [float(np.dot(row, true)) for row in rows]) == pytest.approx(true, abs=1e-9)
    assert min(fit([(1, 1), (1, 2), (1, 3)], [3.0, 2.0, 1.0])) >= 0


def test_a_calibration_is_read_back_as_it_was_written(stack_directory: Path) -> None:
    calibration = Calibration.load()

    calibration.save(stack_directory / "calibration.json")

    assert Calibration.load(stack_directory / "calibration.json") == calibration


def test_a_page_keeps_its_text_around_a_renewed_table(stack_directory: Path) -> None:
    page = stack_directory / "page.md"
    page.write_text("before\n<!-- table cost -->\nold\n<!-- end -->\nafter\n")
    table = Figures(name="cost", title="", columns=["", "$"], rows=[["PUT", "1"]])

    renew(page, [table])

    assert page.read_text() == (
        "before\n<!-- table cost -->\n|  | $ |\n| --- | ---: |\n| PUT | 1 |\n<!-- end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="no place for the table other"):
        renew(page, [Figures(name="other", title="", columns=[], rows=[])])
