"""Loads that calibration did not use: predicts first, then measures, and shows the difference in percent.

There are three: mixed batches with the PUT budget partly spent; segments that are full before they are old;
and commits of many writers that share partitions, with a synchronous standby's delay between their work and
their end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.endpoints import Endpoint
from benchmarks.load.batches import full_batches
from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.cluster import simulate
from benchmarks.simulation.measured_cluster import MeasuredLoad, measure, measured_cluster
from benchmarks.simulation.scenario import MIB, ZONES, Group, Scenario

LIMIT = 0.25
_WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    name: str
    unit: str
    predicted: float
    measured: float = float("nan")
    is_main: bool = True

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured."""
        if self.measured == self.predicted:
            return 0.0
        return (self.predicted - self.measured) / self.measured if self.measured else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A load and the settings of the agents under it."""

    name: str
    load: MeasuredLoad
    linger_s: float
    put_budget_per_s: float
    put_budget_burst: float
    segment_size_bytes: int = 8 * MIB

    def environment(self) -> dict[str, str]:
        return {
            "TIDELOG_LINGER_MS": str(self.linger_s * 1000),
            "TIDELOG_PUT_BUDGET_PER_S": str(self.put_budget_per_s),
            "TIDELOG_PUT_BUDGET_BURST": str(self.put_budget_burst),
            "TIDELOG_SEGMENT_SIZE_BYTES": str(self.segment_size_bytes),
        }

    def scenario(self, machine_cores: int) -> Scenario:
        load = self.load
        sizes = tuple(
            len(full_batches(range(1), load.record_bytes, size)[0].data) for size in load.batch_bytes
        )
        batches_per_s = len(ZONES) * load.requests_per_s * load.batches_per_request
        return Scenario(
            agents=len(ZONES),
            partitions=load.partitions,
            bytes_per_s=batches_per_s * sum(sizes) / len(sizes),
            batch_bytes=sizes,
            batches_per_request=load.batches_per_request,
            groups=tuple(Group(zones=(zone,), everywhere=True) for zone in load.reading_zones),
            segment_size_bytes=self.segment_size_bytes,
            linger_s=self.linger_s,
            put_budget_per_s=self.put_budget_per_s,
            put_budget_burst=self.put_budget_burst,
            consumers_per_agent=1,
            machine_cores=machine_cores,
            warm_up_s=_WARM_UP_S,
            seconds=60.0,
            chunk_s=0.0,
        )


TRIALS = (
    Trial(
        name="mixed batches, PUT budget partly spent, linger 250 ms",
        load=MeasuredLoad(
            partitions=300,
            batch_bytes=(1_024, 8_192, 32_768),
            record_bytes=200,
            batches_per_request=1,
            requests_per_s=80,
            reading_zones=("a", "b"),
        ),
        linger_s=0.25,
        put_budget_per_s=6.0,
        put_budget_burst=4.0,
    ),
    Trial(
        name="segments of 1 MiB, sealed by size or age, linger 400 ms",
        load=MeasuredLoad(
            partitions=60,
            batch_bytes=(16_384, 65_536),
            record_bytes=1_000,
            batches_per_request=4,
            requests_per_s=25,
            reading_zones=("c",),
        ),
        linger_s=0.4,
        put_budget_per_s=1.0,
        put_budget_burst=2.0,
        segment_size_bytes=MIB,
    ),
)


def predict(trial: Trial, calibration: Calibration, machine_cores: int) -> list[Quantity]:
    result = simulate(trial.scenario(machine_cores), calibration)
    return [
        Quantity(name="PUTs", unit="/s", predicted=result.puts_per_s),
        Quantity(name="GETs per object", unit="", predicted=result.gets_per_object),
        Quantity(name="commits", unit="/s", predicted=result.commits_per_s),
        Quantity(name="runs", unit="/s", predicted=result.runs_per_s),
        Quantity(name="ack p50", unit="ms", predicted=result.ack_p50_s * 1000),
        Quantity(name="ack p99", unit="ms", predicted=result.ack_p99_s * 1000),
        Quantity(name="end to end p50", unit="ms", predicted=result.end_to_end_p50_s * 1000, is_main=False),
        Quantity(name="Postgres CPU", unit="cores", predicted=result.postgres_cpu),
        Quantity(name="agents' CPU", unit="cores", predicted=result.agent_cpu * result.scenario.agents),
    ]


def measure_trial(
    trial: Trial, predicted: Sequence[Quantity], endpoint: Endpoint, seconds: float
) -> list[Quantity]:
    with measured_cluster(endpoint, ZONES, trial.environment()) as system:
        found = measure(system, trial.load, _WARM_UP_S, seconds)
    if found.errors:
        raise RuntimeError(f"{found.errors} requests failed under '{trial.name}'")
    measured: Mapping[str, float] = {
        "PUTs": found.puts,
        "GETs per object": found.gets / found.puts,
        "commits": found.commits,
        "runs": found.runs,
        "ack p50": found.ack_p50_s * 1000,
        "ack p99": found.ack_p99_s * 1000,
        "end to end p50": found.end_to_end_p50_s * 1000,
        "Postgres CPU": found.postgres_cpu,
        "agents' CPU": sum(found.agent_cpu.values()),
    }
    return [replace(one, measured=measured[one.name]) for one in predicted]
