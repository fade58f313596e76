"""The jobs for consumer groups: they remove unused offsets and empty groups."""

import json
from uuid import UUID

from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.groups.group_retention import OffsetKey
from storage.identifiers import Partition, TopicId


class OffsetExpiryJob:
    """Goes over all committed offsets. Removes those of groups without members for long (KIP-211), and those
    of deleted topics.
    """

    name = "offset-expiry"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.offset_expiry_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page."""
        step = await self._sequencer.group_retention.forget_offsets(
            self._settings.offsets_retention_minutes * 60.0, self._settings.offsets_per_step, _key(progress)
        )
        return Step(
            progress=None if step.next_after is None else json.dumps(step.next_after, default=str),
            more=step.next_after is not None,
            done={"offsets": step.unused, "offsets_of_deleted_topics": step.of_deleted_topics},
        )


class IdleGroupsJob:
    """Goes over all groups, and removes those with neither members nor offsets."""

    name = "idle-groups"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.idle_groups_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page."""
        step = await self._sequencer.group_retention.remove_idle_groups(
            self._settings.idle_group_grace_s, self._settings.groups_per_step, progress
        )
        return Step(progress=step.next_after, more=step.next_after is not None, done={"groups": step.removed})


def _key(progress: str | None) -> OffsetKey | None:
    if progress is None:
        return None
    group_id, topic_id, partition = json.loads(progress)
    return group_id, TopicId(UUID(topic_id)), Partition(partition)
