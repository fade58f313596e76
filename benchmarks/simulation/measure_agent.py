"""What an agent spends: a few loads that differ in one thing each, and the costs that explain them together.

Two agents in two zones share a Postgres and a store; producers and most consumers are in the first zone. CPU
seconds are what is measured, so that other work on the machine matters little.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.endpoints import Endpoint
from benchmarks.simulation.calibration import AgentCost, ClientCost
from benchmarks.simulation.fitting import fit
from benchmarks.simulation.measured_cluster import Measured, MeasuredLoad, measure, measured_cluster
from benchmarks.simulation.scenario import Scenario, place
from benchmarks.systems.system import System
from cache_ring.ring.ring import Ring

_PARTITIONS = 200
_WARM_UP_S = 1.5
_FEW_FLUSHES = {"TIDELOG_PUT_BUDGET_PER_S": "4"}
_MANY_FLUSHES = {"TIDELOG_PUT_BUDGET_PER_S": "40"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFigures:
    agent: AgentCost
    client: ClientCost
    postgres_idle_per_agent_s: float


def _load(
    batch_bytes: int,
    batches: int,
    requests_per_s: float,
    *,
    zones: Sequence[str] = (),
    read: int | None = None,
) -> MeasuredLoad:
    return MeasuredLoad(
        partitions=_PARTITIONS,
        batch_bytes=(batch_bytes,),
        record_bytes=min(1_000, batch_bytes // 4),
        batches_per_request=batches,
        requests_per_s=requests_per_s,
        reading_zones=tuple(zones),
        read_partitions=read,
    )


_PRODUCING = (_load(1_024, 1, 400), _load(16_384, 10, 60), _load(262_144, 4, 40))
_FLUSHING = (_load(1_024, 1, 150), _load(32_768, 4, 60))
_READING = (_load(1_024, 1, 400, zones="a"), _load(262_144, 4, 40, zones="a"))
_FETCHING = (_load(1_024, 1, 150, zones="a"), _load(1_024, 1, 150, zones="a", read=10))
_READING_AWAY = (_load(32_768, 4, 60, zones="b"), _load(262_144, 4, 40, zones="b"))


def measure_agent(endpoint: Endpoint, seconds: float) -> AgentFigures:
    """`seconds`: of each of a dozen loads."""
    with measured_cluster(endpoint, ("a", "b"), _FEW_FLUSHES) as system:
        idle = _measure(system, _load(1_024, 1, 0), seconds)
        producing = [_measure(system, load, seconds) for load in _PRODUCING]
        reading = [_measure(system, load, seconds) for load in _READING]
    with measured_cluster(endpoint, ("a", "b"), _MANY_FLUSHES) as system:
        producing += [_measure(system, load, seconds) for load in _FLUSHING]
        reading += [_measure(system, load, seconds) for load in _FETCHING]
        away = [_measure(system, load, seconds) for load in _READING_AWAY]
    asked = [_PARTITIONS, _PARTITIONS, _PARTITIONS, 10]
    return _figures(idle, producing, reading, asked, away)


def _measure(system: System, load: MeasuredLoad, seconds: float) -> Measured:
    return measure(system, load, _WARM_UP_S, seconds, producing_zones=("a",))


def _figures(
    idle: Measured, producing: Sequence[Measured], reading: Sequence[Measured], asked: Sequence[int],
    away: Sequence[Measured],
) -> AgentFigures:  # fmt: skip
    idle_s = sum(idle.agent_cpu.values()) / len(idle.agent_cpu)
    rows = [(one.requests, one.batches, one.bytes, one.puts) for one in producing]
    request, batch, byte, flush = fit(rows, [one.agent_cpu["a"] - idle_s for one in producing])

    def to_produce(one: Measured) -> float:
        return idle_s + one.requests * request + one.batches * batch + one.bytes * byte + one.puts * flush

    rows = [
        (one.fetches, one.fetches * partitions, one.runs * partitions / _PARTITIONS, one.fetched_bytes)
        for one, partitions in zip(reading, asked, strict=True)
    ]
    extra = [one.agent_cpu["a"] - to_produce(one) for one in reading]
    fetch, asking, run, fetched = fit(rows, extra, [one.agent_cpu["a"] for one in reading])

    def to_read(one: Measured) -> float:
        answers = one.fetches * (fetch + _PARTITIONS * asking)
        return idle_s + answers + one.runs * run + one.fetched_bytes * fetched

    got_rows = [(one.gets, one.fetched_bytes) for one in away]
    extra = [one.agent_cpu["b"] - to_read(one) for one in away]
    got, got_byte = fit(got_rows, extra, [one.agent_cpu["b"] for one in away])
    client_request, client_byte = fit(
        [(one.requests, one.bytes) for one in producing], [one.producers_cpu for one in producing]
    )
    return AgentFigures(
        agent=AgentCost(
            idle_per_s=idle_s,
            per_request_s=request,
            per_batch_s=batch,
            per_byte_s=byte,
            per_flush_s=flush,
            per_fetch_s=fetch,
            per_asked_partition_s=asking,
            per_fetched_run_s=run,
            per_fetched_byte_s=fetched,
            per_got_object_s=got,
            per_got_byte_s=got_byte,
            ring_per_agent_s=_ring_per_agent_s(),
        ),
        client=ClientCost(
            per_request_s=client_request,
            per_byte_s=client_byte,
            per_fetch_s=sum(one.consumers_cpu for one in reading)
            / max(1.0, sum(one.fetches for one in reading)),
        ),
        postgres_idle_per_agent_s=idle.postgres_cpu / len(idle.agent_cpu),
    )


def _ring_per_agent_s(agents: int = 300) -> float:
    live = place(Scenario(agents=agents, partitions=1, bytes_per_s=1.0)).ring.agents
    began_s = time.process_time()
    Ring.of(live)
    return (time.process_time() - began_s) / agents
