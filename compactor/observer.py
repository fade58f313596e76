"""The observer measures, once for the whole cluster, what all agents need. Each agent reads the result.

Promises:
- One agent measures at a time, under the job's lease. If it dies, another agent takes its next turn; if it
  dies while it measures, once the lease has ended. Two at once do no harm
  (`sequencer/housekeeping/observations.py`).
- An agent keeps the last result. Decisions get a result younger than `observation_stale_s`, or none.
"""

import time

from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.housekeeping.merge_values import Backlog
from sequencer.housekeeping.observations import Observation, ObservationBounds


class ObserverJob:
    """Measures."""

    name = "observation"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.observation_interval_s
        self._observations = sequencer.observations
        self._bounds = bounds_of(settings)

    async def step(self, progress: str | None) -> Step:
        """Measures once. The result is dropped if another agent has a newer one."""
        is_newest = await self._observations.observe(self._bounds)
        return Step(progress=progress, done={"measured" if is_newest else "late": 1})


class LastObservation:
    """The last result that this agent read. The caller reads it again every `observation_interval_s`."""

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self._observations = sequencer.observations
        self._stale_s = settings.observation_stale_s
        self._last: Observation | None = None
        self._measured_s = float("-inf")

    async def read(self) -> Observation | None:
        """None if there is no result yet. Raises SequencerUnavailable."""
        asked_s = time.monotonic()
        last = await self._observations.latest()
        if last is not None:
            self._last, self._measured_s = last, asked_s - last.age_s
        return last

    @property
    def age_s(self) -> float:
        """Grows between two readings, also while the database is away. Infinite before the first."""
        return time.monotonic() - self._measured_s

    def fresh(self) -> Observation | None:
        """Returns the result for decisions; None if it is stale."""
        return self._last if self.age_s <= self._stale_s else None

    async def backlog(self) -> Backlog:
        """Returns what waits to be merged. A stale result counts as nothing, so nothing is merged because of
        it."""
        fresh = self.fresh()
        return Backlog(tiers=(), agents=1) if fresh is None else fresh.backlog


def bounds_of(settings: HousekeeperSettings) -> ObservationBounds:
    return ObservationBounds(segments=settings.observation_segments, candidates=settings.observation_candidates)
