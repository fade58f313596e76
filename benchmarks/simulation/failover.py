"""How long a partition cannot be written: an agent dies, or Postgres fails over.

The time of an agent's death follows from the settings of membership: its lease ends by the database's clock,
other agents see this at their next look, and the client asks for metadata again. The whole cluster is
simulated for an absence of Postgres.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.scenario import Scenario
from cache_ring.settings import CacheRingSettings

_CLIENT_ASKS_AGAIN_S = 1.0
"""The longest between two metadata requests of a client whose leader does not answer; common clients: 0.1 to
1 s.
"""
_ACK_S = 0.35
"""The first acknowledgement after the client knows where to go."""


def death_seen_s(
    samples: int, seed: int = 1, settings: CacheRingSettings | None = None
) -> NDArray[np.float64]:
    """From the death of an agent until another one names another for what it served."""
    random = np.random.default_rng(seed)
    settings = settings or CacheRingSettings()
    lease_left_s = settings.membership_lease_s - random.uniform(0, settings.membership_renew_s, samples)
    return lease_left_s + random.uniform(0, settings.membership_renew_s, samples)


def agent_death_s(
    samples: int, seed: int = 1, settings: CacheRingSettings | None = None
) -> NDArray[np.float64]:
    """From the death of an agent to the first acknowledgement of a partition that it served."""
    asked_s = np.random.default_rng(seed + 1).uniform(0, _CLIENT_ASKS_AGAIN_S, samples)
    return death_seen_s(samples, seed, settings) + asked_s + _ACK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Of Postgres, as clients see it."""

    away_s: float
    silent_s: float
    """Nothing was acknowledged."""
    recovered_s: float
    """From the end of the outage until twice the usual amount waits."""
    blocked: bool
    """Whether agents stopped reading their clients for want of memory."""
    acked_per_s: tuple[float, ...]
    """Batches, second by second, relative to the usual."""


def postgres_outage(scenario: Scenario, calibration: Calibration, away_s: float, watch_s: float) -> Outage:
    """The outage begins after the warm-up."""
    begin_s = scenario.warm_up_s
    cluster = Cluster(replace(scenario, postgres_away=(begin_s, away_s)), calibration)
    acked, waiting = [], []
    until_s = int(begin_s + away_s + watch_s)
    for second in range(1, until_s + 1):
        cluster.loop.run_until(float(second))
        acked.append(cluster.counts.acked_batches)
        waiting.append(sum(agent.waiting_batches for agent in cluster.agents))
    first = int(begin_s)
    usual_per_s = (acked[first - 1] - acked[first - 3]) / 2
    usual_waiting = waiting[first - 1]
    rates = np.diff(np.array(acked))[first - 1 :] / usual_per_s
    silent = int(np.argmax(rates[1:] > 0.01)) + 1
    after = waiting[int(begin_s + away_s) :]
    recovered = next(
        (second for second, number in enumerate(after) if number <= 2 * usual_waiting), len(after)
    )
    memory_batches = scenario.agents * scenario.request_memory_bytes / scenario.mean_batch_bytes
    return Outage(
        away_s=away_s,
        silent_s=float(silent),
        recovered_s=float(recovered),
        blocked=max(waiting) > memory_batches,
        acked_per_s=tuple(float(rate) for rate in rates),
    )
