"""Committed offsets of groups: who may commit, fetch and forget them, and that it is so when it is done (DESIGN §8).

Promises: a commit is judged by the group's machine and again by Postgres, under the epoch and the fence that the
machine named; what a fetch answers was read together with the epoch.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.groups.coordinator import Coordinator
from agent.groups.few_at_a_time import few_at_a_time
from agent.groups.offset_batches import OffsetBatches
from agent.groups.running_group import RunningGroup
from agent.groups.values import GroupFault
from sequencer.committed_offsets import CommittedOffset, CommittedOffsets, OffsetCommit, OffsetQuery, PartitionKey
from sequencer.database import CommitOutcomeUnknown, SequencerUnavailable

log = logging.getLogger(__name__)

_FENCED = (GroupFault.ILLEGAL_GENERATION, GroupFault.STALE_MEMBER_EPOCH, GroupFault.UNKNOWN_MEMBER)
_NO_SUCH_GROUP = (GroupFault.GROUP_NOT_FOUND, GroupFault.INVALID_GROUP)
"""Whoever asks for offsets of a group that does not exist, or cannot, is told that there are none, as by Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committing:
    """Who commits. `generation_or_epoch` is negative for a consumer that is no member."""

    member_id: str
    instance_id: str | None
    generation_or_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """One group's part of an OffsetFetch. `partitions` None: all that it has."""

    group_id: str
    member_id: str | None
    member_epoch: int
    partitions: Collection[PartitionKey] | None


class GroupOffsets:
    def __init__(self, coordinator: Coordinator, batches: OffsetBatches, offsets: CommittedOffsets) -> None:
        self._coordinator = coordinator
        self._batches = batches
        self._offsets = offsets

    def commit(
        self,
        running: RunningGroup,
        committing: Committing,
        offsets: Sequence[tuple[PartitionKey, CommittedOffset]],
    ) -> asyncio.Future[GroupFault | None] | GroupFault:
        """Take a commit, without waiting: commits are applied in the order in which they were taken. The future is None
        once they are in Postgres."""
        fence = running.check_commit(committing.member_id, committing.instance_id, committing.generation_or_epoch)
        if isinstance(fence, GroupFault):
            return fence
        taken = self._batches.add(
            OffsetCommit(
                group_id=running.group_id,
                coordinator_epoch=running.coordinator_epoch,
                offsets=[(*key, offset) for key, offset in offsets],
                generation=fence.generation,
                member_id=fence.member_id,
                member_epoch=fence.member_epoch,
            )
        )
        if not isinstance(taken, GroupFault):
            running.note_commit(taken)
        return taken

    async def outcome(
        self, taken: asyncio.Future[GroupFault | None] | GroupFault, running: RunningGroup, committing: Committing
    ) -> GroupFault | None:
        """What became of a commit that was taken; None: it is in Postgres. A fence that fell in the meantime is told in
        the words of the protocol that the member speaks, which the machine knows."""
        fault = taken if isinstance(taken, GroupFault) else await taken
        if taken is fault or fault not in _FENCED:
            return fault
        again = running.check_commit(committing.member_id, committing.instance_id, committing.generation_or_epoch)
        return again if isinstance(again, GroupFault) else fault

    async def fetch(self, asked: Sequence[Fetching]) -> list[Mapping[PartitionKey, CommittedOffset] | GroupFault]:
        """One answer per group, all read in one statement; of a group that does not exist, nothing."""
        held = await few_at_a_time(self._coordinator.group, [one.group_id for one in asked])
        answers: list[Mapping[PartitionKey, CommittedOffset] | GroupFault] = []
        reading: list[tuple[int, RunningGroup]] = []
        for number, (one, running) in enumerate(zip(asked, held, strict=True)):
            answers.append({})
            if isinstance(running, RunningGroup):
                fault = running.machine.check_fetch(one.member_id, one.member_epoch)
                if fault is None:
                    reading.append((number, running))
                else:
                    answers[number] = fault
            elif running not in _NO_SUCH_GROUP:
                answers[number] = running
        found = await self._read([(asked[number], running) for number, running in reading])
        for (number, running), answer in zip(reading, found, strict=True):
            answers[number] = running.standing() or answer
        return answers

    async def _read(
        self, reading: Sequence[tuple[Fetching, RunningGroup]]
    ) -> Sequence[Mapping[PartitionKey, CommittedOffset] | GroupFault]:
        if not reading:
            return []
        queries = [
            OffsetQuery(
                group_id=one.group_id, coordinator_epoch=running.coordinator_epoch, partitions=one.partitions
            )
            for one, running in reading
        ]  # fmt: skip
        try:
            found = await self._offsets.fetch(queries)
        except SequencerUnavailable as error:
            log.warning("offsets cannot be fetched", extra={"error": str(error)})
            return [GroupFault.COORDINATOR_UNAVAILABLE] * len(reading)
        return [GroupFault.NOT_COORDINATOR if answer is None else answer for answer in found]

    async def delete(self, running: RunningGroup, partitions: Collection[PartitionKey]) -> GroupFault | None:
        """Forget offsets. None: they are gone."""
        try:
            held = await self._offsets.delete(running.group_id, running.coordinator_epoch, partitions)
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            log.warning("offsets cannot be deleted", extra={"group": running.group_id, "error": str(error)})
            if isinstance(error, CommitOutcomeUnknown):
                # It may still be at work, and must not delete what is committed from now on: the next claim fences it.
                self._coordinator.lost(
                    {running.group_id: running.coordinator_epoch}, GroupFault.COORDINATOR_UNAVAILABLE
                )
            return GroupFault.COORDINATOR_UNAVAILABLE
        return None if held else GroupFault.NOT_COORDINATOR
