"""(c) and (d): one record per request, at a rate far below what the system can take."""

from benchmarks import raw_store
from benchmarks.commit_rate import CommitLoad, own_postgres
from benchmarks.commit_rate import measure as measure_commits
from benchmarks.figures import Figures, percentile
from benchmarks.load.batches import full_batches
from benchmarks.load.consumers import Subscription, consume
from benchmarks.load.frames import ProduceFrame
from benchmarks.load.processes import Load, Window
from benchmarks.load.producers import Pace, each_once, flat_out, paced
from benchmarks.systems.system import System
from benchmarks.workloads.produce import memory, of_production

PARTITIONS, PRODUCERS, RECORDS_PER_S = 1_000, 20, 2_000
RECORD_BYTES = 1_000
_SEGMENT_BYTES = 512 << 10
"""The bytes that (c) makes in 250 ms."""
_LONE_PER_S = 3.0
"""Less than the 4 PUTs per second of the budget."""
_COMMIT_S = 2.0


def many_partitions(system: System, seconds: float) -> Figures:
    """(c): a consumer reads all partitions meanwhile."""
    raw = raw_store.put_latency(system.endpoint, _SEGMENT_BYTES) if system.endpoint else {}
    topic = system.create_topic(PARTITIONS)
    frames = single_records(topic, PARTITIONS, system.target.client_id)
    # Kafka makes files at the first append to a partition, which is not measured.
    each_once(system.target, frames)
    window = Window.after(system.settling_s, seconds)
    pace = Pace(connections=PRODUCERS, per_s=RECORDS_PER_S / PRODUCERS, idempotent=system.idempotent)
    everything = [Subscription(topic=topic, partitions=tuple(range(PARTITIONS)))]
    with (
        Load(paced, system.target, frames, window, pace) as producers,
        Load(consume, system.target, everything, window) as consumers,
    ):
        window.wait_begin()
        before = system.meters.read()
        window.wait_end()
        spent = system.meters.read() - before
        produced, consumed = producers.result(), consumers.result()
    ages = [age for arrival in consumed.arrivals if window.holds(arrival.at_s) for age in arrival.ages_ms]
    figures = {
        **of_production(produced, spent, window),
        "end_to_end_p50_ms": percentile(ages, 50),
        "end_to_end_p99_ms": percentile(ages, 99),
        "fetches_per_s": consumed.fetches / window.seconds,
        **raw,
        **memory(system),
    }
    if "puts" in spent.counters:
        figures["puts_per_s"] = spent.counters["puts"] / window.seconds
    return figures


def lone_producer(system: System, seconds: float) -> Figures:
    """(d): three records per second, which the PUT budget covers. Then each record as soon as the one before
    is answered.
    """
    raw = raw_store.put_latency(system.endpoint, raw_store.SMALL_BYTES) if system.endpoint else {}
    commit = {"commit_p50_ms": _commit_p50_ms()} if system.database_url else {}
    topic = system.create_topic(1)
    frames = single_records(topic, 1, system.target.client_id)
    slow = Window.after(1.0, 1.5 * seconds)
    pace = Pace(connections=1, per_s=_LONE_PER_S, idempotent=system.idempotent, in_flight=1)
    with Load(paced, system.target, frames, slow, pace) as load:
        within = [ack.took_s * 1000 for ack in load.result().acks if slow.holds(ack.at_s)]
    fast = Window.after(1.0, seconds / 2)
    with Load(flat_out, system.target, [frames], fast, 1, system.idempotent) as load:
        beyond = [ack.took_s * 1000 for ack in load.result().acks if fast.holds(ack.at_s)]
    return {
        "ack_p50_ms": percentile(within, 50),
        "ack_p99_ms": percentile(within, 99),
        "unpaced_ack_p50_ms": percentile(beyond, 50),
        "unpaced_records_per_s": len(beyond) / fast.seconds,
        **commit,
        **raw,
        **memory(system),
    }


def single_records(topic: str, partitions: int, client_id: str) -> list[ProduceFrame]:
    """A request for each partition, with one record of 1,000 bytes."""
    batches = full_batches(range(partitions), RECORD_BYTES, RECORD_BYTES)
    return [ProduceFrame(topic, [batch], client_id) for batch in batches]


def _commit_p50_ms() -> float:
    """Uses a separate database, because these commits name objects that do not exist."""
    with own_postgres() as database:
        return measure_commits(database, CommitLoad(partitions=1, writers=1), _COMMIT_S).p50_ms
