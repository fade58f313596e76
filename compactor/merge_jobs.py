"""The job that finds what may be merged. The merging itself runs besides the jobs, in every agent
(`merging.py`)."""

from datetime import datetime
from uuid import UUID

from compactor.job import Step
from compactor.merge_plan import MergePolicy
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.housekeeping.merges import BEGINNING
from storage.identifiers import SegmentId


class MergeDiscoveryJob:
    """Follows the commits of segments, from its last position up to `merge_settle_s` ago, and makes
    candidates of them. Releases the claims of dead agents."""

    name = "merge-discovery"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings, policy: MergePolicy) -> None:
        self.interval_s = settings.merge_interval_s
        self._merges = sequencer.merges
        self._settings = settings
        self._policy = policy

    async def step(self, progress: str | None) -> Step:
        """Handles a page of segments. Its progress is never forgotten, so no segment is examined twice."""
        if not self._policy.tiers:
            return Step(progress=progress)
        found = await self._merges.discover(
            _moment(progress),
            settle_s=self._settings.merge_settle_s,
            long_run_bytes=self._policy.long_run_bytes,
            cap=self._settings.garbage_segments_per_step,
        )
        freed = await self._merges.free_lapsed(self._settings.garbage_segments_per_step)
        committed_at, segment_id = found.reached
        return Step(
            progress=f"{committed_at.isoformat()}/{segment_id}",
            more=found.more or freed == self._settings.garbage_segments_per_step,
            done={"candidates": found.added, "freed": freed},
        )


def _moment(progress: str | None) -> tuple[datetime, SegmentId]:
    if progress is None:
        return BEGINNING
    committed_at, _, segment_id = progress.partition("/")
    return datetime.fromisoformat(committed_at), SegmentId(UUID(segment_id))
