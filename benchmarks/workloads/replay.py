"""(f): reading everything from the beginning, alone and while others read the tail.

The consumer reads through an agent that has none of it in memory. For comparison, in the same minute: raw
GET, and the same consumer at a null agent that has the bytes in memory. Then consumers read the tail of
another topic through the same agent, without and with a replay that never ends.
"""

import socket
import time
from collections.abc import Mapping

from benchmarks import raw_store
from benchmarks.figures import Figures, per, percentile
from benchmarks.load.batches import full_batches
from benchmarks.load.consumers import Consumed, Subscription, consume
from benchmarks.load.null_agent import Answer, serve
from benchmarks.load.processes import Load, Window
from benchmarks.load.producers import Pace, Target, flat_out, paced
from benchmarks.systems.system import System
from benchmarks.workloads.produce import IN_FLIGHT, LARGE, Shape, frames, memory

TAIL_AGE_S = 10.0
ENVIRONMENT = (("TIDELOG_TAIL_AGE_S", str(TAIL_AGE_S)),)
"""Records become history after ten seconds instead of sixty."""
_WRITE_S = 6.0
_DEADLINE_S = 30.0
_CONNECTIONS = 2
_PARTITION_BYTES = 1 << 20
_TAIL = Shape(partitions=10, record_bytes=1_000, batch_bytes=16 << 10, batches_per_request=1)
_TAIL_MB_PER_S = 4.0
_WARM_UP_S = 1.0
_GB = 1e9


def measure(system: System, seconds: float) -> Figures:
    """Reads through the agent of the last zone. The tail is written in the first."""
    topic, ends = _write(system)
    reader = list(system.targets.values())[-1]
    written_s = time.monotonic()
    figures: dict[str, float] = {}
    if system.endpoint is not None:
        figures |= raw_store.throughput(system.endpoint, seconds / 4)
    figures |= _at_null_agent(seconds / 2)
    if system.stack is not None:
        time.sleep(max(0.0, written_s + TAIL_AGE_S + 1.0 - time.monotonic()))
    figures |= _catch_up(system, reader, topic, ends)
    figures |= _tail(system, reader, topic, ends, seconds)
    return {**figures, **memory(system)}


def _write(system: System) -> tuple[str, Mapping[int, int]]:
    """A topic, and the ends of its partitions."""
    topic = system.create_topic(LARGE.partitions)
    prepared = frames(topic, LARGE, system.target.client_id)
    window = Window.after(0.0, _WRITE_S)
    with Load(flat_out, system.target, prepared, window, IN_FLIGHT, system.idempotent) as load:
        load.result()
    return topic, system.ends(topic, LARGE.partitions)


def _shares(topic: str, ends: Mapping[int, int], *, again: bool = False) -> list[Subscription]:
    """The partitions, spread over the connections of one consumer."""
    dealt = [tuple(range(first, len(ends), _CONNECTIONS)) for first in range(_CONNECTIONS)]
    return [
        Subscription(topic=topic, partitions=mine, stop={one: ends[one] for one in mine}, again=again)
        for mine in dealt
    ]


def _catch_up(system: System, reader: Target, topic: str, ends: Mapping[int, int]) -> dict[str, float]:
    window = Window.after(0.0, _DEADLINE_S)
    before = system.meters.read()
    began_s = time.monotonic()
    with Load(consume, reader, _shares(topic, ends), window) as load:
        consumed = load.result()
    spent = system.meters.read() - before
    size = _size(consumed)
    figures = {
        "catch_up_mb_per_s": size / 1e6 / (consumed.ended_s - began_s),
        "catch_up_cpu_s_per_gb": per(spent.servers_s(), size / _GB),
        "catch_up_bytes": float(size),
        "errors": float(consumed.errors),
    }
    if "gets" in spent.counters:
        figures["gets_per_gib"] = per(spent.counters["gets"], size / (1 << 30))
    return figures


def _at_null_agent(seconds: float) -> dict[str, float]:
    """Both connections ask for the same partition numbers, so that any answer fits either of them."""
    mine = range(LARGE.partitions // _CONNECTIONS)
    answers = [
        Answer(
            "null",
            full_batches(mine, LARGE.record_bytes, LARGE.batch_bytes),
            _PARTITION_BYTES // LARGE.batch_bytes,
        )
        for _ in range(_CONNECTIONS)
    ]
    subscriptions = [Subscription(topic="null", partitions=tuple(mine))] * _CONNECTIONS
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = Target(host="127.0.0.1", port=listener.getsockname()[1])
        window = Window.after(0.0, seconds)
        with Load(serve, listener, answers) as server, Load(consume, target, subscriptions, window) as load:
            began_s = time.monotonic()
            consumed = load.result()
            server.result()
    return {"null_agent_mb_per_s": _size(consumed) / 1e6 / (consumed.ended_s - began_s)}


def _tail(
    system: System, reader: Target, topic: str, ends: Mapping[int, int], seconds: float
) -> dict[str, float]:
    """The ages of batches at the tail, without and with a replay."""
    tail = system.create_topic(_TAIL.partitions)
    (prepared,) = frames(tail, _TAIL, system.target.client_id, connections=1)
    pace = Pace(
        connections=2, per_s=_TAIL_MB_PER_S * 1e6 / prepared[0].bytes / 2, idempotent=system.idempotent
    )
    alone = Window.after(2 * _WARM_UP_S, seconds)
    both = Window(begin_s=alone.end_s + _WARM_UP_S, end_s=alone.end_s + _WARM_UP_S + seconds)
    whole = Window(begin_s=alone.begin_s, end_s=both.end_s)
    everything = [Subscription(topic=tail, partitions=tuple(range(_TAIL.partitions)))]
    with (
        Load(paced, system.target, prepared, whole, pace) as producers,
        Load(consume, reader, everything, whole) as consumers,
    ):
        alone.wait_end()
        with Load(consume, reader, _shares(topic, ends, again=True), both) as replay:
            replayed = replay.result()
        consumed = consumers.result()
        produced = producers.result()
    figures = {"tail_errors": float(produced.errors + consumed.errors)}
    for name, window in (("without", alone), ("with", both)):
        ages = [age for arrival in consumed.arrivals if window.holds(arrival.at_s) for age in arrival.ages_ms]
        took = [ack.took_s * 1000 for ack in produced.acks if window.holds(ack.at_s)]
        figures[f"tail_p50_ms_{name}_replay"] = percentile(ages, 50)
        figures[f"tail_p99_ms_{name}_replay"] = percentile(ages, 99)
        figures[f"ack_p99_ms_{name}_replay"] = percentile(took, 99)
    beside = sum(arrival.bytes for arrival in replayed.arrivals if both.holds(arrival.at_s))
    return {**figures, "replay_beside_tail_mb_per_s": beside / 1e6 / both.seconds}


def _size(consumed: Consumed) -> int:
    return sum(arrival.bytes for arrival in consumed.arrivals)
