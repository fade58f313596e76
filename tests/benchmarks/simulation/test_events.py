"""Virtual time, cores and event loops of processes."""

import numpy as np
import pytest

from benchmarks.simulation.events import Cores, EventLoop, Thread
from benchmarks.simulation.latency import Durations, Latency


def test_events_of_one_moment_happen_in_the_order_in_which_they_were_asked_for() -> None:
    loop, seen = EventLoop(), list[str]()
    for name in "abc":
        loop.at(1.0, seen.append, name)
    loop.at(0.5, seen.append, "first")
    loop.at(2.5, seen.append, "too late")

    loop.run_until(2.0)

    assert seen == ["first", "a", "b", "c"]
    assert loop.now_s == 2.0


def test_cores_share_their_time_and_lose_none() -> None:
    loop, ended = EventLoop(), dict[str, float]()
    cores = Cores(loop, 1)
    cores.submit(0.100, lambda: ended.update(long=loop.now_s))
    cores.submit(0.001, lambda: ended.update(short=loop.now_s))

    loop.run_until(1.0)

    assert ended["short"] < 0.010
    assert ended["long"] == pytest.approx(0.101)
    assert cores.busy_s == pytest.approx(0.101)


def test_a_thread_uses_one_core_at_a_time() -> None:
    loop, ended = EventLoop(), list[float]()
    thread = Thread(Cores(loop, 4))
    for _ in range(3):
        thread.submit(0.002, lambda: ended.append(loop.now_s))

    loop.run_until(1.0)

    assert ended == pytest.approx([0.002, 0.004, 0.006])


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_core_with_random_arrivals_waits_as_an_m_d_1_queue(load: float) -> None:
    """Mean wait of M/D/1: load * service / (2 * (1 - load))."""
    loop, random, service_s = EventLoop(), np.random.default_rng(1), 0.001
    cores, waits = Cores(loop, 1), Durations()

    def arrive() -> None:
        came_s = loop.now_s
        cores.submit(service_s, lambda: waits.add(loop.now_s - came_s - service_s))
        loop.after(float(random.exponential(service_s / load)), arrive)

    arrive()
    loop.run_until(100.0)

    assert waits.sum_s / waits.weight == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.1)


def test_latencies_drawn_have_the_percentiles_asked_for() -> None:
    latency, random, seen = Latency(p50_s=0.02, p99_s=0.3), np.random.default_rng(2), Durations()
    for _ in range(20_000):
        seen.add(latency.draw(random))

    assert seen.percentile(0.5) == pytest.approx(0.02, rel=0.05)
    assert seen.percentile(0.99) == pytest.approx(0.3, rel=0.1)
