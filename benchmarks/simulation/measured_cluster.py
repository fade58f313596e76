"""A real cluster under a given load, for as long as it is measured: what calibration and validation have in
common.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg

from benchmarks.endpoints import Endpoint
from benchmarks.load.batches import full_batches
from benchmarks.load.consumers import Consumed, Subscription, consume
from benchmarks.load.frames import Batch, FetchLimits, ProduceFrame
from benchmarks.load.processes import Load, Window
from benchmarks.load.producers import Pace, Produced, paced
from benchmarks.simulation.exact_cpu import CpuTimes, cpu_times, spent_s
from benchmarks.systems.system import System
from benchmarks.systems.tidelog import tidelog


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """Producers in every zone of the system, at a steady pace over all partitions; consumers of
    everything.
    """

    partitions: int
    batch_bytes: tuple[int, ...]
    record_bytes: int
    batches_per_request: int
    requests_per_s: float
    """In each zone."""
    connections: int = 8
    """In each zone."""
    reading_zones: tuple[str, ...] = ()
    """One consumer of all partitions in each."""
    read_partitions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Per second, unless named otherwise."""

    ack_p50_s: float
    ack_p99_s: float
    requests: float
    batches: float
    bytes: float
    puts: float
    gets: float
    commits: float
    runs: float
    fetches: float
    fetched_bytes: float
    agent_cpu: Mapping[str, float]
    """Cores, by zone."""
    postgres_cpu: float
    store_cpu: float
    producers_cpu: float
    consumers_cpu: float
    mean_batch_bytes: tuple[float, ...]
    errors: int
    end_to_end_p50_s: float


@contextmanager
def measured_cluster(
    endpoint: Endpoint, zones: Sequence[str], environment: Mapping[str, str]
) -> Iterator[System]:  # fmt: skip
    """An agent in each zone, and nothing else."""
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-model-") as directory,
        tidelog(Path(directory) / "stack", endpoint, tuple(zones), environment) as system,
    ):
        yield system


def measure(
    system: System,
    load: MeasuredLoad,
    warm_up_s: float,
    seconds: float,
    producing_zones: Sequence[str] | None = None,
) -> Measured:
    """The topic stays. Producers are in all zones unless some are named."""
    topic = system.create_topic(load.partitions)
    frames, sizes = _frames(topic, load)
    pace = Pace(connections=load.connections, per_s=load.requests_per_s / load.connections)
    window = Window.after(warm_up_s, seconds)
    asked = tuple(range(load.read_partitions or load.partitions))
    subscription = Subscription(topic=topic, partitions=asked, limits=FetchLimits())
    consumers = [
        Load(consume, target, [subscription], window)
        for zone, target in system.targets.items()
        if zone in load.reading_zones
    ]
    producers = [
        Load(paced, target, frames, Window(begin_s=window.begin_s, end_s=window.end_s), pace, seed)
        for seed, (zone, target) in enumerate(system.targets.items())
        if load.requests_per_s and (producing_zones is None or zone in producing_zones)
    ]
    try:
        window.wait_begin()
        before = _look(system)
        window.wait_end()
        after = _look(system)
        produced = [producer.result() for producer in producers]
        consumed = [consumer.result() for consumer in consumers]
    finally:
        for producer in producers:
            producer.end()
        for consumer in consumers:
            consumer.end()
    return _measured(load, produced, consumed, before, after, window, sizes)


def _frames(topic: str, load: MeasuredLoad) -> tuple[list[ProduceFrame], tuple[float, ...]]:
    """Each partition and each size equally often; a request's batches are of neighbouring partitions."""
    kinds = [full_batches(range(load.partitions), load.record_bytes, size) for size in load.batch_bytes]
    frames = []
    for batches in kinds:
        doubled: list[Batch] = [*batches, *batches]
        step = max(1, load.batches_per_request)
        frames += [
            ProduceFrame(topic, doubled[start : start + step], "model")
            for start in range(0, load.partitions, step)
        ]
    return frames, tuple(float(np.mean([len(batch.data) for batch in batches])) for batches in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    counters: Mapping[str, float]
    runs: float
    cpu: Mapping[str, CpuTimes]


def _look(system: System) -> _Look:
    """Reads CPU last, so that the cost of the other readings is not part of the measurement."""
    return _Look(
        counters=system.meters.read().counters,
        runs=_committed_runs(system),
        cpu={part: cpu_times(pid) for part, pid in system.meters.pids.items()},
    )


def _committed_runs(system: System) -> float:
    assert system.database_url is not None
    with psycopg.connect(system.database_url) as connection:
        row = connection.execute("SELECT count(*) FROM runs").fetchone()
    return float(row[0]) if row else 0.0


def _measured(
    load: MeasuredLoad,
    produced: Sequence[Produced],
    consumed: Sequence[Consumed],
    before: _Look,
    after: _Look,
    window: Window,
    sizes: tuple[float, ...],
) -> Measured:
    acks = [ack for one in produced for ack in one.acks if window.holds(ack.at_s)]
    arrivals = [arrival for one in consumed for arrival in one.arrivals if window.holds(arrival.at_s)]
    took = np.array([ack.took_s for ack in acks] or [np.nan])
    ages = np.array([age for arrival in arrivals for age in arrival.ages_ms] or [np.nan])
    each = window.seconds
    grown = {name: (value - before.counters[name]) / each for name, value in after.counters.items()}
    cpu = {part: spent_s(before.cpu[part], after.cpu[part]) / each for part in after.cpu}
    return Measured(
        ack_p50_s=float(np.quantile(took, 0.5)),
        ack_p99_s=float(np.quantile(took, 0.99)),
        requests=len(acks) / each,
        batches=len(acks) * load.batches_per_request / each,
        bytes=sum(ack.bytes for ack in acks) / each,
        puts=grown["puts"],
        gets=grown["gets"],
        commits=sum(value for name, value in grown.items() if name.startswith("commits:")),
        runs=(after.runs - before.runs) / each,
        fetches=sum(one.fetches for one in consumed) / each,
        fetched_bytes=sum(arrival.bytes for arrival in arrivals) / each,
        agent_cpu={part: share for part, share in cpu.items() if part not in ("postgres", "store")},
        postgres_cpu=cpu["postgres"],
        store_cpu=cpu["store"],
        producers_cpu=sum(one.cpu_s for one in produced) / each,
        consumers_cpu=sum(one.cpu_s for one in consumed) / each,
        mean_batch_bytes=sizes,
        errors=sum(one.errors for one in produced) + sum(one.errors for one in consumed),
        end_to_end_p50_s=float(np.quantile(ages, 0.5)) / 1000,
    )
