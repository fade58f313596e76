"""(a) and (b): producers as fast as the system takes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from benchmarks import raw_store
from benchmarks.figures import Figures, per, percentile
from benchmarks.load.batches import full_batches
from benchmarks.load.frames import Batch, ProduceFrame
from benchmarks.load.processes import Load, Window
from benchmarks.load.producers import Produced, flat_out
from benchmarks.systems.meters import Reading
from benchmarks.systems.system import System

IN_FLIGHT = 5
"""Requests per connection, as clients do by default."""
CONNECTIONS = 16
WARM_UP_S = 2.0
_JVM_WARM_UP_S = 3.0
_GB, _GIB = 1e9, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of the load. A request has as many batches as fit the clients' limit of 1 MiB."""

    partitions: int
    record_bytes: int
    batch_bytes: int
    batches_per_request: int


LARGE = Shape(partitions=10, record_bytes=1_000, batch_bytes=256 << 10, batches_per_request=4)
SMALL = Shape(partitions=100, record_bytes=100, batch_bytes=16 << 10, batches_per_request=50)


def frames(
    topic: str, shape: Shape, client_id: str, connections: int = CONNECTIONS
) -> list[list[ProduceFrame]]:
    """For each connection, the frames that it sends in turn. Every partition comes equally often."""
    batches = full_batches(range(shape.partitions), shape.record_bytes, shape.batch_bytes)
    return [_turns(topic, batches, shape.batches_per_request, client_id) for _ in range(connections)]


def _turns(topic: str, batches: Sequence[Batch], each: int, client_id: str) -> list[ProduceFrame]:
    count = len(batches) // gcd(len(batches), each)
    doubled = [*batches, *batches]
    starts = [turn * each % len(batches) for turn in range(count)]
    return [ProduceFrame(topic, doubled[start : start + each], client_id) for start in starts]


def warm_up(system: System) -> None:
    """Warms up a JVM, which compiles code that runs often."""
    for shape in (LARGE, SMALL):
        measure(system, shape, _JVM_WARM_UP_S)
    system.drop_topics()


def measure(system: System, shape: Shape, seconds: float) -> Figures:
    """The topic stays."""
    topic = system.create_topic(shape.partitions)
    prepared = frames(topic, shape, system.target.client_id)
    window = Window.after(WARM_UP_S, seconds)
    with Load(flat_out, system.target, prepared, window, IN_FLIGHT, system.idempotent) as load:
        window.wait_begin()
        before = system.meters.read()
        window.wait_end()
        spent = system.meters.read() - before
        produced = load.result()
    return {**of_production(produced, spent, window), **memory(system)}


def beside_raw_store(system: System, shape: Shape, seconds: float) -> Figures:
    """If the system has a store, measures raw PUT and GET on it just before and just after."""
    if system.endpoint is None:
        return measure(system, shape, seconds)
    before = raw_store.throughput(system.endpoint, seconds / 4)
    figures = measure(system, shape, seconds)
    after = raw_store.throughput(system.endpoint, seconds / 4)
    return {**figures, **{name: (before[name] + after[name]) / 2 for name in before}}


def of_production(produced: Produced, spent: Reading, window: Window) -> Figures:
    acks = [ack for ack in produced.acks if window.holds(ack.at_s)]
    size, records = sum(ack.bytes for ack in acks), sum(ack.records for ack in acks)
    took_ms = [ack.took_s * 1000 for ack in acks]
    figures = {
        "mb_per_s": size / 1e6 / window.seconds,
        "records_per_s": records / window.seconds,
        "requests_per_s": len(acks) / window.seconds,
        "ack_p50_ms": percentile(took_ms, 50),
        "ack_p99_ms": percentile(took_ms, 99),
        "server_cpu_s_per_gb": per(spent.servers_s(), size / _GB),
        "server_cpu_s_per_million_records": per(spent.servers_s(), records / 1e6),
        "server_cpu_share": spent.servers_s() / window.seconds,
        "clients_cpu_s_per_gb": per(produced.cpu_s, size / _GB),
        "errors": float(produced.errors),
        "throttled_s": produced.throttled_s,
    }
    for part in ("postgres", "store"):
        if part in spent.cpu_s:
            figures[f"{part}_cpu_s_per_gb"] = per(spent.cpu_s[part], size / _GB)
    for counter in ("puts", "gets"):
        if counter in spent.counters:
            figures[f"{counter}_per_gib"] = per(spent.counters[counter], size / _GIB)
    if "transactions" in spent.counters:
        figures["transactions_per_s"] = spent.counters["transactions"] / window.seconds
    return figures


def memory(system: System) -> Figures:
    now, most = system.meters.server_memory_mib()
    return {"memory_mib": now, "memory_peak_mib": most}
