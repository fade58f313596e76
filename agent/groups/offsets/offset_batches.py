"""Gathers offset commits of all groups into shared statements. The more commits wait, the more share the next
statement.

Promises:
- A group has one statement in flight at a time. Its commits are applied in the order in which they came.
- Each commit gets its verdict, or a fault if its outcome cannot be known. Such a commit is never repeated
  here, and its group is `lost`. Only the group's next claim lets it commit again, and fences whatever the
  statement still does.
- The queue is bounded.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

from agent.groups.events import GroupFault
from agent.groups.settings import GroupSettings
from agent.metrics import Metrics
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.groups.committed_offsets import CommittedOffsets, CommitVerdict, OffsetCommit

log = logging.getLogger("tidelog")


@dataclass(frozen=True, slots=True)
class _Queued:
    commit: OffsetCommit
    verdict: asyncio.Future[GroupFault | None]


class OffsetBatches:
    """`run` is its one task. `lost` gets the groups that must be claimed again, with the epochs that do not
    hold.

    A group's commits all go through one lane, and so in order. While one lane's statement is in Postgres,
    another lane gathers.
    """

    def __init__(
        self,
        offsets: CommittedOffsets,
        settings: GroupSettings,
        metrics: Metrics,
        lost: Callable[[Mapping[str, int], GroupFault], None],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._lanes = [
            _Lane(offsets, settings, metrics, lost, clock) for _ in range(settings.offset_commit_lanes)
        ]

    def add(self, commit: OffsetCommit) -> asyncio.Future[GroupFault | None] | GroupFault:
        """Queues a commit. Its future is None once the offsets are in Postgres. OVERLOADED: the queue is
        full.
        """
        if sum(len(lane) for lane in self._lanes) >= self._settings.offset_commit_queue:
            return GroupFault.OVERLOADED
        return self._lanes[crc32(commit.group_id.encode()) % len(self._lanes)].add(commit)

    async def run(self) -> None:
        """Runs until cancelled. Then every waiting commit is answered that another agent coordinates the
        group.
        """
        async with asyncio.TaskGroup() as tasks:
            for lane in self._lanes:
                tasks.create_task(lane.run())


class _Lane:
    """One statement in flight at a time."""

    def __init__(
        self,
        offsets: CommittedOffsets,
        settings: GroupSettings,
        metrics: Metrics,
        lost: Callable[[Mapping[str, int], GroupFault], None],
        clock: Callable[[], float],
    ) -> None:
        self._offsets = offsets
        self._settings = settings
        self._metrics = metrics
        self._lost = lost
        self._clock = clock
        self._queue: deque[_Queued] = deque()
        self._due = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, commit: OffsetCommit) -> asyncio.Future[GroupFault | None]:
        verdict: asyncio.Future[GroupFault | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Queued(commit, verdict))
        self._due.set()
        return verdict

    async def run(self) -> None:
        try:
            while True:
                await self._due.wait()
                while self._queue:
                    await self._write(self._take())
                self._due.clear()
        finally:
            _settle(self._queue, GroupFault.NOT_COORDINATOR)

    def _take(self) -> list[_Queued]:
        batch = [self._queue.popleft()]
        partitions = len(batch[0].commit.offsets)
        while self._queue and len(batch) < self._settings.offset_commits_per_statement:
            partitions += len(self._queue[0].commit.offsets)
            if partitions > self._settings.offset_partitions_per_statement:
                break
            batch.append(self._queue.popleft())
        return batch

    async def _write(self, batch: list[_Queued]) -> None:
        began_s = self._clock()
        try:
            verdicts = await self._offsets.commit([queued.commit for queued in batch])
        except SequencerUnavailable as error:
            # Nothing of it was written. The commits behind it would wait as long, without success.
            log.warning("offsets cannot be committed", extra={"error": str(error), "commits": len(batch)})
            _settle(chain(batch, self._queue), GroupFault.COORDINATOR_UNAVAILABLE)
            self._queue.clear()
            return
        except CommitOutcomeUnknown as error:
            log.warning("offsets may be committed", extra={"error": str(error), "commits": len(batch)})
            self._lose(batch)
            return
        except Exception:
            log.exception("commit of offsets failed unexpectedly", extra={"commits": len(batch)})
            self._lose(batch)
            return
        except asyncio.CancelledError:
            self._lose(batch)
            raise
        self._metrics.offset_commit_seconds.observe(self._clock() - began_s)
        self._metrics.offset_commits.observe(len(batch))
        for queued, verdict in zip(batch, verdicts, strict=True):
            if verdict is CommitVerdict.NOT_COORDINATOR:
                self._lost(
                    {queued.commit.group_id: queued.commit.coordinator_epoch}, GroupFault.NOT_COORDINATOR
                )
            _settle([queued], _FAULTS[verdict])

    def _lose(self, batch: list[_Queued]) -> None:
        """The statement may still run: no commit queued under the same epochs may overtake it."""
        lost = {queued.commit.group_id: queued.commit.coordinator_epoch for queued in batch}
        behind = [queued for queued in self._queue if queued.commit.group_id in lost]
        self._queue = deque(queued for queued in self._queue if queued.commit.group_id not in lost)
        self._lost(lost, GroupFault.COORDINATOR_UNAVAILABLE)
        _settle(chain(batch, behind), GroupFault.COORDINATOR_UNAVAILABLE)


def _settle(queue: Iterable[_Queued], fault: GroupFault | None) -> None:
    for queued in queue:
        if not queued.verdict.done():
            queued.verdict.set_result(fault)


_FAULTS = {
    CommitVerdict.DONE: None,
    CommitVerdict.NOT_COORDINATOR: GroupFault.NOT_COORDINATOR,
    CommitVerdict.UNKNOWN_MEMBER: GroupFault.UNKNOWN_MEMBER,
    CommitVerdict.ILLEGAL_GENERATION: GroupFault.ILLEGAL_GENERATION,
    CommitVerdict.STALE_MEMBER_EPOCH: GroupFault.STALE_MEMBER_EPOCH,
}
