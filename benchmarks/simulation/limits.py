"""Limits that need no simulation: what grows with agents and partitions, and what bounds it.

Each is arithmetic on settings and calibrated costs. The limit is reached if `demand` exceeds `limit`.
"""

from dataclasses import dataclass

from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from benchmarks.simulation.background import share_polled
from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.timers import cores
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings

_POSTGRES_CONNECTIONS = 2_000
"""Direct connections that a large server can serve."""
_LOOP_STALL_S = 0.1
_S3_PUTS_PER_PREFIX_S = 3_500
_ONE_CORE = 1.0
_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: str
    unit: str
    demand: float
    limit: float
    way_past: str

    @property
    def is_met(self) -> bool:
        return self.demand > self.limit


def limits(scenario: Scenario, calibration: Calibration) -> list[Limit]:
    """Limits of a cluster whose partitions are each read in one zone, by one consumer."""
    ring, reads, agent = CacheRingSettings(), ReadPathSettings(), AgentSettings()
    agents, zones = scenario.agents, len(scenario.zones)
    per_zone = agents / zones
    read_per_agent = scenario.partitions / agents
    writers_heard = min(agents - 1, zones * read_per_agent)
    background = calibration.background
    polls_per_s = agents / reads.coordinate_poll_s
    asked = read_per_agent * share_polled(reads)
    statements = max(1.0, asked / reads.coordinate_poll_partitions)
    polling = polls_per_s * (statements * background.poll.fixed_s + asked * background.poll.each_s)
    groups = agents * background.topic_changes.fixed_s
    puts_per_s = max(agents * agent.put_budget_per_s, scenario.bytes_per_s / scenario.segment_size_bytes)
    return [
        Limit(
            name="polls for coordinates, Postgres cores",
            unit="cores",
            demand=polling,
            limit=scenario.postgres_cores / 4,
            way_past="a longer TIDELOG_COORDINATE_POLL_HEARD_S",
        ),
        Limit(
            name="idle agents: leases, jobs, changes, new connections, Postgres cores",
            unit="cores",
            demand=cores(agents, background) + groups,
            limit=_ONE_CORE,
            way_past="a longer TIDELOG_DATABASE_RECHECK_S and TIDELOG_TOPIC_CHANGES_POLL_S",
        ),
        Limit(
            name="a change of membership: the ring made from scratch, on each event loop",
            unit="s",
            demand=agents * calibration.agent.ring_per_agent_s,
            limit=_LOOP_STALL_S,
            way_past="change the ring instead of making it from scratch; fewer points per agent",
        ),
        Limit(
            name="connections accepted from peers, per agent",
            unit="",
            demand=writers_heard + (per_zone - 1) * (ring.peer_connections + ring.peer_history_connections),
            limit=ring.peer_accepted_connections,
            way_past="fewer page connections per peer; a larger TIDELOG_PEER_ACCEPTED_CONNECTIONS",
        ),
        Limit(
            name="subscriptions to one agent",
            unit="",
            demand=scenario.partitions / per_zone,
            limit=ring.max_subscriptions,
            way_past="TIDELOG_MAX_SUBSCRIPTIONS; what is refused is polled",
        ),
        Limit(
            name="connections to Postgres",
            unit="",
            demand=agents * SequencerSettings().most_connections,
            limit=_POSTGRES_CONNECTIONS,
            way_past=(
                "a smaller TIDELOG_DATABASE_POOL_SIZE, or a pooler in transaction mode with prepared "
                "statements"
            ),
        ),
        Limit(
            name="PUTs per second into a bucket that S3 has not split yet",
            unit="/s",
            demand=puts_per_s,
            limit=_S3_PUTS_PER_PREFIX_S,
            way_past="S3 splits under load, by 256 prefixes; ask for it beforehand, or lower the PUT budget",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Rows of metadata."""

    runs_per_day: float
    bytes_per_day: float
    merged_runs_per_day: float
    """That stay once segments were merged: a partition's runs grow `fan_in`-fold with each tier, up to
    `merge_run_bytes`."""


def growth(
    runs_per_s: float, bytes_per_s: float, *, merging: HousekeeperSettings | None = None,
    row_bytes: float = 350.0,
) -> Growth:  # fmt: skip
    """`row_bytes`: a row of `runs` and its entries in three indexes."""
    merging = merging or HousekeeperSettings()
    run_bytes = bytes_per_s / runs_per_s
    merged_bytes = min(merging.merge_run_bytes, run_bytes * merging.merge_fan_in**merging.merge_tiers)
    return Growth(
        runs_per_day=runs_per_s * _DAY_S,
        bytes_per_day=runs_per_s * _DAY_S * row_bytes,
        merged_runs_per_day=bytes_per_s * _DAY_S / max(run_bytes, merged_bytes),
    )
