"""The timers that the model counts are those of the product."""

import pytest

from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.timers import claims_per_agent_s, cores, timers
from compactor.housekeeper import Housekeeper
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from storage.stores.memory_store import MemoryStore


async def test_an_agent_comes_to_every_job(sequencer: Sequencer) -> None:
    settings = HousekeeperSettings()
    jobs = Housekeeper(sequencer, MemoryStore(), settings).jobs

    assert claims_per_agent_s(settings) == pytest.approx(sum(1 / job.interval_s for job in jobs))


def test_what_one_agent_does_for_all_is_counted_once() -> None:
    few, many = timers(100), timers(1_000)

    assert (few.compared, few.measurement, few.lapsed_merges) == (
        many.compared,
        many.measurement,
        many.lapsed_merges,
    )
    assert many.shown == 10 * few.shown


def test_ten_times_the_agents_cost_about_ten_times_as_much_and_not_a_hundred() -> None:
    cost = Calibration.load().background

    assert cores(1_000, cost) < 12 * cores(100, cost)
