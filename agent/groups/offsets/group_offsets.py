"""Committed offsets of groups: who may commit, fetch and forget them, and that it is so when it is done
(docs/design/groups.md#offset-commits).

Promises: a commit is judged by the group's machine and again by Postgres, under the epoch and the fence that the
machine named; what a coordinator answers to a fetch was read together with its epoch; any other agent, and a
coordinator that cannot load the group, answers a fetch from Postgres alone
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
"""Whoever asks for offsets of a group that does not exist, or cannot, is told that there are none, as by Kafka."""
_NOT_HERE = (GroupFault.NOT_COORDINATOR, GroupFault.COORDINATOR_UNAVAILABLE, GroupFault.OVERLOADED)
"""Why a group may not be loaded here: no reason to refuse a fetch, which librdkafka's consumers do not survive."""


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
        """One answer per group, of what is loaded here in one statement; of a group that does not exist, nothing."""
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

    async def _read(
        self, reading: Mapping[int, OffsetQuery]
    ) -> Mapping[int, Mapping[PartitionKey, CommittedOffset] | GroupFault]:
        try:
            found = await self._offsets.fetch(list(reading.values()))
            lost = [number for number, answer in zip(reading, found, strict=True) if answer is None]
            again = await self._offsets.fetch([replace(reading[number], coordinator_epoch=None) for number in lost])
        except SequencerUnavailable as error:
            log.warning("offsets cannot be fetched", extra={"error": str(error)})
            return dict.fromkeys(reading, GroupFault.COORDINATOR_UNAVAILABLE)
        answers = dict(zip(reading, found, strict=True)) | dict(zip(lost, again, strict=True))
        return {number: answer or {} for number, answer in answers.items()}

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


def _query(one: Fetching, coordinator_epoch: int | None) -> OffsetQuery:
    return OffsetQuery(group_id=one.group_id, coordinator_epoch=coordinator_epoch, partitions=one.partitions)
