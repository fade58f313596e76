"""What idle agents ask Postgres, and how often, computed from the product's settings.

One agent does the work for the whole cluster, so it counts once, whatever the number of agents.
"""

from dataclasses import asdict, dataclass

from agent.settings import AgentSettings
from benchmarks.simulation.calibration import BackgroundCost
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings

_AGENTS_PER_TURN = 4
_LOOKS_PER_CHECKPOINT = 20
_MOST_PACE = 2
"""If many agents come to a job, it is done up to this many times in its interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Times per second in the whole cluster."""

    renewal: float
    shown: float
    topic_changes: float
    observation: float
    claim_in_vain: float
    durability: float
    connection: float
    compared: float
    """By one agent, as the rest."""
    measurement: float
    lapsed_merges: float


def timers(agents: int) -> Timers:
    ring, agent, sequencer, jobs = (
        CacheRingSettings(),
        AgentSettings(),
        SequencerSettings(),
        HousekeeperSettings(),
    )
    turns = max(1, min(jobs.job_patience, agents // _AGENTS_PER_TURN))
    return Timers(
        renewal=agents / ring.membership_renew_s,
        shown=agents / ring.membership_renew_s,
        topic_changes=agents / agent.topic_changes_poll_s,
        observation=agents / jobs.observation_interval_s,
        claim_in_vain=agents / turns * claims_per_agent_s(jobs),
        durability=agents / sequencer.database_durability_check_s,
        connection=agents / sequencer.database_recheck_s,
        compared=2 / ring.membership_renew_s,
        measurement=_MOST_PACE / jobs.observation_interval_s,
        lapsed_merges=_MOST_PACE / jobs.merge_interval_s,
    )


def cores(agents: int, cost: BackgroundCost) -> float:
    """Of Postgres."""
    return float(
        sum(per_s * getattr(cost, name).cpu_s(agents) for name, per_s in asdict(timers(agents)).items())
    )


def claims_per_agent_s(settings: HousekeeperSettings) -> float:
    """For an agent that comes to every job at each of its turns."""
    return sum(
        1 / interval_s
        for interval_s in (
            settings.ownership_ratchet_s,
            settings.journal_interval_s,
            settings.checkpoint_interval_s / _LOOKS_PER_CHECKPOINT,
            settings.retention_interval_s,
            settings.retention_interval_s,
            settings.retention_interval_s,
            settings.topic_sweep_interval_s,
            settings.producer_expiry_interval_s,
            settings.transaction_timeout_interval_s,
            settings.transactional_id_expiry_interval_s,
            settings.transactional_id_expiry_interval_s,
            settings.transactional_id_expiry_interval_s,
            settings.offset_expiry_interval_s,
            settings.idle_groups_interval_s,
            settings.dooming_interval_s,
            settings.garbage_interval_s,
            settings.garbage_interval_s,
            settings.garbage_interval_s,
            settings.garbage_interval_s,
            settings.merge_interval_s,
            settings.clean_interval_s,
            settings.observation_interval_s,
        )
    )
