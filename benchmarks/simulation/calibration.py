"""The measured figures of the model, and assumptions where nothing could be measured.

`calibration.json` has what `python -m benchmarks.simulation calibrate` measured on one machine.
`S3_IN_A_REGION` has what such a machine cannot show: S3's latency, and the network between zones. Wherever it
is used, it is named as an assumption.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulation.latency import Latency

CALIBRATION_FILE = Path(__file__).with_name("calibration.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCost:
    """Postgres' CPU and log per commit, idempotent producers, one chain per run."""

    per_commit_s: float
    per_batch_s: float
    per_run_s: float
    log_bytes_per_commit: float
    log_bytes_per_batch: float
    log_bytes_per_run: float
    sync_s: float
    """A commit's time beyond its CPU: the sync of the log, and its round trip where that is short."""

    def cpu_s(self, batches: int, runs: int) -> float:
        return self.per_commit_s + batches * self.per_batch_s + runs * self.per_run_s

    def log_bytes(self, batches: int, runs: int) -> float:
        return self.log_bytes_per_commit + batches * self.log_bytes_per_batch + runs * self.log_bytes_per_run


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementCost:
    """Postgres' CPU of a statement of the background: fixed, and per partition, row or id that it names."""

    fixed_s: float
    each_s: float

    def cpu_s(self, count: int) -> float:
        return self.fixed_s + count * self.each_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundCost:
    poll: StatementCost
    """Per partition read, without news."""
    renewal: StatementCost
    shown: StatementCost
    """Who is alive, when that did not change."""
    compared: StatementCost
    """Leases with who is shown, per agent alive."""
    observation: StatementCost
    """Read by an agent."""
    measurement: StatementCost
    lapsed_merges: StatementCost
    claim_in_vain: StatementCost
    durability: StatementCost
    connection: StatementCost
    """A new one, to see where Postgres' address leads."""
    reservation: StatementCost
    """Per segment id."""
    topic_changes: StatementCost
    idle_per_agent_s: float
    """Postgres' CPU per second and idle agent, all of the above included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCost:
    """CPU of an agent."""

    idle_per_s: float
    per_request_s: float
    per_batch_s: float
    per_byte_s: float
    per_flush_s: float
    """Seal, upload and commit of one segment, whatever is in it."""
    per_fetch_s: float
    per_asked_partition_s: float
    per_fetched_run_s: float
    per_fetched_byte_s: float
    per_got_object_s: float
    """Loads an object from the store and gets its runs from a peer, in a zone that did not write it.
    """
    per_got_byte_s: float
    ring_per_agent_s: float
    """Makes the ring from scratch at a change of membership, per live agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCost:
    """Latency at no size, and per byte; and CPU of the store's own processes, where they share the
    machine.
    """

    put: Latency
    put_bytes_per_s: float
    get: Latency
    get_bytes_per_s: float
    cpu_per_put_s: float = 0.0
    cpu_per_put_byte_s: float = 0.0
    cpu_per_get_s: float = 0.0
    cpu_per_get_byte_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCost:
    """CPU of the load generator, which shares the machine when the model is validated."""

    per_request_s: float
    per_byte_s: float
    per_fetch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    measured_on: str
    machine: str
    commit: CommitCost
    """Of consecutive commits: a busy server."""
    commit_spaced: CommitCost
    """Of commits some milliseconds apart: an idle server, whose caches are cold each time."""
    background: BackgroundCost
    agent: AgentCost
    store: StoreCost
    client: ClientCost

    @classmethod
    def load(cls, path: Path = CALIBRATION_FILE) -> "Calibration":
        return _calibration(json.loads(path.read_text()))

    def save(self, path: Path = CALIBRATION_FILE) -> None:
        path.write_text(json.dumps(_rounded(asdict(self)), indent=2) + "\n")


def _calibration(found: dict[str, Any]) -> Calibration:
    background, store = found["background"], found["store"]
    return Calibration(
        measured_on=found["measured_on"],
        machine=found["machine"],
        commit=CommitCost(**found["commit"]),
        commit_spaced=CommitCost(**found["commit_spaced"]),
        background=BackgroundCost(
            **{name: StatementCost(**cost) for name, cost in background.items() if isinstance(cost, dict)},
            idle_per_agent_s=background["idle_per_agent_s"],
        ),
        agent=AgentCost(**found["agent"]),
        store=StoreCost(**{**store, "put": Latency(**store["put"]), "get": Latency(**store["get"])}),
        client=ClientCost(**found["client"]),
    )


def _rounded(value: Any) -> Any:
    """Four digits: more would be noise in every diff."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


S3_IN_A_REGION = StoreCost(
    put=Latency(p50_s=0.060, p99_s=0.350),
    put_bytes_per_s=85e6,
    get=Latency(p50_s=0.030, p99_s=0.200),
    get_bytes_per_s=85e6,
)
"""An assumption. AWS' performance guidelines name 100 to 200 ms for small objects and 85 to 90 MB/s per
request; for an 8 MiB object this gives a median of 160 ms.
"""
