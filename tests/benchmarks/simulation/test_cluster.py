"""A whole cluster: determinism, conservation, and the cost model of docs/design/parts.md#cost-model."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.cluster import Cluster, Result, simulate
from benchmarks.simulation.readers import _page
from benchmarks.simulation.scenario import MIB, ZONES, Group, Scenario, place
from cache_ring.pages.page_cache import PageCache

_SMALL = Scenario(
    agents=6,
    partitions=120,
    bytes_per_s=20e6,
    groups=(Group(everywhere=True),),
    warm_up_s=2.0,
    seconds=4.0,
)


def _run(scenario: Scenario) -> Result:
    return simulate(scenario, Calibration.load())


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    first, again, other = _run(_SMALL), _run(_SMALL), _run(replace(_SMALL, seed=2))

    assert first == again
    assert first.ack_p50_s != other.ack_p50_s


@pytest.mark.parametrize("change", [{}, {"shards": 4}, {"combined": True}, {"postgres_away": (1.0, 2.0)}])
def test_every_batch_is_acknowledged_once(change: dict[str, object]) -> None:
    cluster = Cluster(replace(_SMALL, **change), Calibration.load())  # type: ignore[arg-type]
    cluster.loop.run_until(3.0)
    cluster._arrive = lambda *_: None  # type: ignore[method-assign]  # clients stop

    cluster.loop.run_until(20.0)

    assert cluster.counts.came_batches == cluster.counts.acked_batches > 0
    assert cluster.counts.acks.weight == pytest.approx(cluster.counts.came_batches)
    assert [agent.waiting_batches for agent in cluster.agents] == [0] * _SMALL.agents


def test_puts_per_gib_are_a_gib_by_the_segment_size_under_load() -> None:
    saturated = replace(
        _SMALL, bytes_per_s=300e6, segment_size_bytes=MIB, put_budget_per_s=0.01, put_budget_burst=1.0
    )

    result = _run(saturated)

    assert result.seals["size"] > 0.95
    assert result.puts_per_s / result.bytes_per_s * 1024 * MIB == pytest.approx(1024, rel=0.03)


def test_an_object_is_fetched_once_by_each_other_zone_and_not_by_its_own() -> None:
    result = _run(_SMALL)

    assert result.own_zone_gets_per_object == 0
    assert result.other_zone_gets_per_object_and_zone == pytest.approx(1.0, abs=0.02)
    assert result.gets_per_object == pytest.approx(2.0, rel=0.05)


def test_a_batch_waits_no_longer_than_linger_and_what_follows() -> None:
    steady = replace(_SMALL, put_budget_per_s=0.01, put_budget_burst=1.0)
    calibration = Calibration.load()
    instant = replace(
        calibration.store, put=replace(calibration.store.put, p50_s=1e-4, p99_s=1e-4), put_bytes_per_s=1e12
    )

    result = simulate(steady, calibration, store=instant)

    # The first of a segment waits twice as long.
    assert result.ack_p50_s == pytest.approx(steady.linger_s / 2, rel=0.2)
    assert result.ack_p99_s < steady.linger_s + 0.05


def test_partitions_beyond_those_placed_follow_the_rings_shares() -> None:
    scenario = Scenario(agents=9, partitions=70_000, bytes_per_s=1.0)

    placement = place(scenario)

    for zone in ZONES:
        assert sorted(np.unique(placement.leaders[zone])) == [
            n for n in range(9) if placement.zone_of[n] == zone
        ]
    assert sum(written.size for written in placement.written_by) == 3 * 70_000
    for number, written in enumerate(placement.written_by):
        assert (placement.leaders[placement.zone_of[number]][written] == number).all()


def test_the_page_cache_counts_modelled_pages_by_their_size() -> None:
    cache = PageCache[int](10)
    cache.put(1, _page(6))
    cache.put(2, _page(6))

    assert (1 in cache, 2 in cache, cache.kept_bytes) == (False, True, 6)
