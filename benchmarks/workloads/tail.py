"""(e): consumers at the tail, in the writer's zone and in another, while producers keep a given pace.

First the producers run alone, then with consumers. The difference in an agent's CPU is the cost of reads from
it, in both zones. Its CPU without consumers is a separate figure.
"""

from collections.abc import Mapping, Sequence

from benchmarks.figures import Figures, per, percentile
from benchmarks.load.consumers import Consumed, Subscription, consume
from benchmarks.load.processes import Load, Window
from benchmarks.load.producers import Pace, paced
from benchmarks.systems.meters import Reading
from benchmarks.systems.system import System
from benchmarks.workloads.produce import Shape, frames, memory

MB_PER_S = {"tansu": 8.0}
_MB_PER_S = 40.0
CONSUMERS = {"a": 3, "b": 1}
"""By zone: the number of consumers that read everything."""
_SHAPE = Shape(partitions=10, record_bytes=1_000, batch_bytes=256 << 10, batches_per_request=1)
_PRODUCERS = 4
_IN_FLIGHT = 20
"""The bytes in flight of a client that sends five requests of 1 MiB."""
_WARM_UP_S = 1.0
_CACHE_FULL_S = 5.0
"""Consumers read this long before it counts. By then the other zone's page cache is full.
"""
_GB = 1e9


def measure(system: System, seconds: float) -> Figures:
    """The producers alone run half as long."""
    topic = system.create_topic(_SHAPE.partitions)
    (prepared,) = frames(topic, _SHAPE, system.target.client_id, connections=1)
    pace = Pace(
        connections=_PRODUCERS,
        per_s=MB_PER_S.get(system.name, _MB_PER_S) * 1e6 / prepared[0].bytes / _PRODUCERS,
        idempotent=system.idempotent,
        in_flight=_IN_FLIGHT,
    )
    alone_s = max(3.0, seconds / 2)
    alone = Window.after(_WARM_UP_S, alone_s)
    both = Window(begin_s=alone.end_s + _CACHE_FULL_S, end_s=alone.end_s + _CACHE_FULL_S + seconds)
    whole = Window(begin_s=alone.begin_s, end_s=both.end_s)
    with Load(paced, system.target, prepared, whole, pace) as producers:
        alone.wait_begin()
        before = system.meters.read()
        alone.wait_end()
        spent_alone = system.meters.read() - before
        ends = system.ends(topic, _SHAPE.partitions)
        consumers = {
            zone: Load(consume, target, _all(topic, ends, CONSUMERS[zone]), both)
            for zone, target in system.targets.items()
        }
        try:
            both.wait_begin()
            before = system.meters.read()
            both.wait_end()
            spent = system.meters.read() - before
            consumed = {zone: load.result() for zone, load in consumers.items()}
        finally:
            for load in consumers.values():
                load.end()
        produced = producers.result()
    acks = [ack for ack in produced.acks if both.holds(ack.at_s)]
    figures = {
        "produced_mb_per_s": sum(ack.bytes for ack in acks) / 1e6 / both.seconds,
        "ack_p50_ms": percentile([ack.took_s * 1000 for ack in acks], 50),
        "ack_p99_ms": percentile([ack.took_s * 1000 for ack in acks], 99),
        "errors": float(produced.errors + sum(one.errors for one in consumed.values())),
        **memory(system),
    }
    for zone in system.targets:
        alone_share = spent_alone.cpu_s[zone] / alone.seconds
        own_s = spent.cpu_s[zone] - alone_share * both.seconds
        figures |= _of_zone(zone, consumed[zone], own_s, spent, both)
        figures[f"alone_cpu_share_{zone}"] = alone_share
    return figures


def _all(topic: str, ends: Mapping[int, int], consumers: int) -> Sequence[Subscription]:
    return [Subscription(topic=topic, partitions=tuple(ends), start=ends) for _ in range(consumers)]


def _of_zone(
    zone: str, consumed: Consumed, server_cpu_s: float, spent: Reading, window: Window
) -> dict[str, float]:
    arrivals = [arrival for arrival in consumed.arrivals if window.holds(arrival.at_s)]
    size = sum(arrival.bytes for arrival in arrivals)
    ages = [age for arrival in arrivals for age in arrival.ages_ms]
    figures = {
        f"consumed_mb_per_s_{zone}": size / 1e6 / window.seconds,
        f"consume_cpu_s_per_gb_{zone}": per(server_cpu_s, size / _GB),
        f"whole_cpu_s_per_gb_{zone}": per(spent.cpu_s[zone], size / _GB),
        f"end_to_end_p50_ms_{zone}": percentile(ages, 50),
        f"end_to_end_p99_ms_{zone}": percentile(ages, 99),
        f"consumer_cpu_s_per_gb_{zone}": per(consumed.cpu_s, size / _GB),
    }
    if f"agent_gets:{zone}" in spent.counters:
        figures[f"gets_per_object_{zone}"] = per(spent.counters[f"agent_gets:{zone}"], spent.counters["puts"])
    return figures
