"""Committed offsets of groups: who may commit, fetch and delete them (docs/design/groups.md#offset-commits).

Promises:
- The group's machine judges a commit. Postgres judges it again, under the epoch and the fence that the
  machine named.
- A coordinator reads the offsets that it answers together with its epoch.
- Any other agent, and a coordinator that cannot load the group, answers a fetch only from Postgres
  (docs/decisions/0112-any-agent-reads-offsets.md).
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.groups.coordinator.coordinator import Coordinator
from agent.groups.coordinator.running_group import RunningGroup
from agent.groups.events import GroupFault
from agent.groups.offsets.offset_batches import OffsetBatches
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.groups.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    OffsetCommit,
    OffsetQuery,
    PartitionKey,
)
from storage.stores.side_by_side import few_at_a_time

log = logging.getLogger("tidelog")

_FENCED = (GroupFault.ILLEGAL_GENERATION, GroupFault.STALE_MEMBER_EPOCH, GroupFault.UNKNOWN_MEMBER)
_NO_SUCH_GROUP = (GroupFault.GROUP_NOT_FOUND, GroupFault.INVALID_GROUP)
"""As in Kafka, a fetch for a group that does not exist, or cannot exist, answers that there are no offsets.
"""
_NOT_HERE = (GroupFault.NOT_COORDINATOR, GroupFault.COORDINATOR_UNAVAILABLE, GroupFault.OVERLOADED)
"""Why a group may not be loaded here. This is not a reason to refuse a fetch: librdkafka's consumers do not
survive a refusal.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committing:
    """Who commits. `generation_or_epoch` is negative for a consumer that is not a member."""

    member_id: str
    instance_id: str | None
    generation_or_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """One group's part of an OffsetFetch. `partitions` None: all that have an offset."""

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
        """Takes a commit, without waiting. Commits are applied in the order in which they were taken. The
        future is None once they are in Postgres.
        """
        fence = running.check_commit(
            committing.member_id, committing.instance_id, committing.generation_or_epoch
        )
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
        self,
        taken: asyncio.Future[GroupFault | None] | GroupFault,
        running: RunningGroup,
        committing: Committing,
    ) -> GroupFault | None:
        """Returns the outcome of a commit that was taken. None: it is in Postgres. If its fence was broken
        meanwhile, the fault is of the protocol that the member speaks, which the machine knows.
        """
        fault = taken if isinstance(taken, GroupFault) else await taken
        if taken is fault or fault not in _FENCED:
            return fault
        again = running.check_commit(
            committing.member_id, committing.instance_id, committing.generation_or_epoch
        )
        return again if isinstance(again, GroupFault) else fault

    async def fetch(
        self, asked: Sequence[Fetching]
    ) -> list[Mapping[PartitionKey, CommittedOffset] | GroupFault]:
        """Returns one answer per group, read in one statement for the groups that are loaded here. A group
        that does not exist has no offsets.
        """
        held = await few_at_a_time(self._coordinator.group, [one.group_id for one in asked])
        answers: list[Mapping[PartitionKey, CommittedOffset] | GroupFault] = []
        reading: dict[int, OffsetQuery] = {}
        for number, (one, running) in enumerate(zip(asked, held, strict=True)):
            answers.append({})
            if isinstance(running, RunningGroup):
                fault = running.machine.check_fetch(one.member_id, one.member_epoch)
                if fault is None:
                    reading[number] = _query(one, running.coordinator_epoch)
                else:
                    answers[number] = fault
            elif running in _NOT_HERE:
                reading[number] = _query(one, None)
            elif running not in _NO_SUCH_GROUP:
                answers[number] = running
        for number, answer in (await self._read(reading)).items():
            answers[number] = answer
        return answers

    async def pending(self, group_ids: Sequence[str]) -> Mapping[str, Collection[PartitionKey]]:
        """Returns the partitions of each group that have an offset in an open transaction. Raises
        SequencerUnavailable.
        """
        return await self._offsets.pending(group_ids)

    async def _read(
        self, reading: Mapping[int, OffsetQuery]
    ) -> Mapping[int, Mapping[PartitionKey, CommittedOffset] | GroupFault]:
        try:
            found = await self._offsets.fetch(list(reading.values()))
            lost = [number for number, answer in zip(reading, found, strict=True) if answer is None]
            again = await self._offsets.fetch(
                [replace(reading[number], coordinator_epoch=None) for number in lost]
            )
        except SequencerUnavailable as error:
            log.warning("offsets cannot be fetched", extra={"error": str(error)})
            return dict.fromkeys(reading, GroupFault.COORDINATOR_UNAVAILABLE)
        answers = dict(zip(reading, found, strict=True)) | dict(zip(lost, again, strict=True))
        return {number: answer or {} for number, answer in answers.items()}

    async def delete(self, running: RunningGroup, partitions: Collection[PartitionKey]) -> GroupFault | None:
        """Deletes offsets. None: they are gone."""
        try:
            held = await self._offsets.delete(running.group_id, running.coordinator_epoch, partitions)
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            log.warning("offsets cannot be deleted", extra={"group": running.group_id, "error": str(error)})
            if isinstance(error, CommitOutcomeUnknown):
                # The statement may still run, and must not delete what is committed from now on. The next
                # claim fences it.
                self._coordinator.lost(
                    {running.group_id: running.coordinator_epoch}, GroupFault.COORDINATOR_UNAVAILABLE
                )
            return GroupFault.COORDINATOR_UNAVAILABLE
        return None if held else GroupFault.NOT_COORDINATOR


def _query(one: Fetching, coordinator_epoch: int | None) -> OffsetQuery:
    return OffsetQuery(group_id=one.group_id, coordinator_epoch=coordinator_epoch, partitions=one.partitions)
