"""From a valid batch to its offset: gather, seal, upload, commit, acknowledge (DESIGN §5).

Promises: batches are sequenced in the order in which `append` took them; a batch is acknowledged only once its bytes
are in the store and its place is in the sequencer; every batch taken gets exactly one outcome. Memory is bounded by
whoever calls `append` (requests stay reserved in the agent's memory budget until their batches have an outcome).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.accumulator import Accumulator
from agent.write_path.committer import Committer
from agent.write_path.outcomes import WriteFailed, WriteFailure, WriteOutcome
from agent.write_path.put_budget import PutBudget, PutBudgetPolicy
from agent.write_path.seal import SealPolicy, SealReason, seal_due
from agent.write_path.seal_queue import QueuedSegment, SealQueue, Stage
from agent.write_path.segment_ids import SegmentIds
from agent.write_path.sequence_gaps import SequenceGaps
from agent.write_path.uploader import Uploader, UploadFailed
from cache_ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.commits import Assigned, BatchOutcome, Committed, OutOfOrderSequence, SegmentToCommit
from sequencer.coordinates import RunCoordinate
from storage.identifiers import NO_PRODUCER_ID, ObjectKey
from storage.object_store import ObjectStore
from storage.segment import PendingBatch, PlacedBatch, seal_segment

log = logging.getLogger(__name__)

OutcomeFuture: TypeAlias = asyncio.Future[WriteOutcome]


class Written(Protocol):
    """Who is told of what was written, so that this agent's readers need not ask for it."""

    def put_own(self, object_key: ObjectKey, data: bytes) -> None: ...

    def committed(self, runs: Sequence[RunCoordinate]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    pending: PendingBatch
    outcome: OutcomeFuture


_Queued: TypeAlias = QueuedSegment[OutcomeFuture]


class WritePath:
    """`append` batches; `run` carries them through; `drain` on the way out."""

    def __init__(
        self,
        *,
        sequencer: Sequencer,
        store: ObjectStore,
        membership: Membership,
        settings: AgentSettings,
        metrics: Metrics,
        written: Written,
        clock: Callable[[], float],
    ) -> None:
        self._membership = membership
        self._settings = settings
        self._metrics = metrics
        self._written = written
        self._clock = clock
        self._ids = SegmentIds(sequencer.reservations, membership, settings, clock)
        self._uploader = Uploader(store, settings, metrics, clock, self._spend_token)
        self._committer = Committer(sequencer.commits, settings, metrics)
        self._policy = SealPolicy(segment_size_bytes=settings.segment_size_bytes, linger_s=settings.linger_ms / 1000)
        self._budget = PutBudget.full(
            PutBudgetPolicy(per_s=settings.put_budget_per_s, burst=settings.put_budget_burst), clock()
        )
        self._gathered: Accumulator[_Entry] = Accumulator(settings.segment_size_bytes, _size_of)
        self._queue: SealQueue[OutcomeFuture] = SealQueue()
        self._gaps = SequenceGaps(settings.sequence_gap_patience_s, settings.max_sequence_gaps)
        self._uploads = asyncio.Semaphore(settings.max_uploads)
        self._arrived = asyncio.Event()
        self._uploaded = asyncio.Event()
        self._emptied = asyncio.Event()
        self._unacknowledged_bytes = 0
        self._draining = False

    @property
    def unacknowledged_bytes(self) -> int:
        return self._unacknowledged_bytes

    @property
    def sealed_segments(self) -> int:
        """Segments that wait for their upload or their commit."""
        return len(self._queue)

    def append(self, batches: Sequence[PendingBatch]) -> list[OutcomeFuture]:
        """Take batches over, in order, without waiting. A future that its holder completes first (its time is over)
        releases its batch at once if that is not sealed yet: no segment may be sealed for long."""
        loop = asyncio.get_running_loop()
        now_s = self._clock()
        outcomes = []
        for pending in batches:
            outcome: OutcomeFuture = loop.create_future()
            number = self._gathered.add(_Entry(pending=pending, outcome=outcome), now_s)
            self._unacknowledged_bytes += len(pending.batch.data)
            outcome.add_done_callback(partial(self._let_go, number, len(pending.batch.data)))
            outcomes.append(outcome)
        self._metrics.unacknowledged.set(self._unacknowledged_bytes)
        self._arrived.set()
        return outcomes

    async def run(self) -> None:
        """Seal, upload and commit until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ids.run())
                tasks.create_task(self._commit_in_order())
                await self._seal_when_due(tasks)
        finally:
            self._give_up()

    async def drain(self) -> None:
        """Seal what is there without waiting for linger or tokens; return when every batch has its outcome."""
        self._draining = True
        self._arrived.set()
        while self._unacknowledged_bytes:
            self._emptied.clear()
            await self._emptied.wait()

    # --- sealing

    async def _seal_when_due(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            now_s = self._clock()
            self._budget = self._budget.at(now_s)
            due = seal_due(self._gathered.open_segment, self._policy, self._budget, draining=self._draining)
            if due is None:
                self._arrived.clear()
                await self._arrived.wait()
            elif due.at_s > now_s:
                await self._wait_for_batches(due.at_s - now_s)
            else:
                await self._seal(due.reason, tasks)

    async def _wait_for_batches(self, longest_s: float) -> None:
        self._arrived.clear()
        try:
            async with asyncio.timeout(longest_s):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def _seal(self, reason: SealReason, tasks: asyncio.TaskGroup) -> None:
        await self._uploads.acquire()
        reserved = await self._ids.take()
        entries = [entry for entry in self._gathered.take() if not self._was_given_up(entry)]
        if not entries:
            self._uploads.release()
            return
        self_ = self._membership.self_
        sealed = seal_segment(
            reserved.segment_id, "" if self_ is None else str(self_.node_id), [entry.pending for entry in entries]
        )
        queued: _Queued = QueuedSegment(
            segment_id=reserved.segment_id,
            object_key=reserved.object_key,
            size_bytes=sealed.size_bytes,
            placed=sealed.placed,
            waiters=tuple(entries[index].outcome for index in sealed.order),
            data=b"".join(sealed.chunks),
        )
        self._metrics.seals.labels(reason.value).inc()
        self._queue.append(queued)
        self._metrics.sealed_segments.set(len(self._queue))
        tasks.create_task(self._upload(queued))

    def _was_given_up(self, entry: _Entry) -> bool:
        if entry.outcome.done():
            self._acknowledged(len(entry.pending.batch.data))
            return True
        return False

    def _let_go(self, number: int, size_bytes: int, _: OutcomeFuture) -> None:
        if self._gathered.remove(number):
            self._acknowledged(size_bytes)

    # --- uploading

    async def _upload(self, queued: _Queued) -> None:
        try:
            await self._uploader.upload(queued.object_key, queued.data)
            self._written.put_own(queued.object_key, queued.data)
            queued.stage = Stage.UPLOADED
        except UploadFailed as error:
            queued.stage = Stage.FAILED
            self._fail(queued, WriteFailed(failure=WriteFailure.NOT_WRITTEN, message=str(error)))
        finally:
            self._uploads.release()
            queued.data = b""
            self._uploaded.set()

    def _spend_token(self) -> None:
        self._budget = self._budget.spend(self._clock())
        self._metrics.put_tokens.set(self._budget.tokens)

    # --- committing

    async def _commit_in_order(self) -> None:
        while True:
            segments = self._queue.committable(self._settings.max_segments_per_commit)
            if not segments:
                self._uploaded.clear()
                await self._uploaded.wait()
                continue
            answers = await self._committer.commit(
                [
                    SegmentToCommit(
                        segment_id=segment.segment_id, size_bytes=segment.size_bytes, batches=segment.placed
                    )
                    for segment in segments
                ]
            )
            self._queue.remove(segments)
            self._metrics.sealed_segments.set(len(self._queue))
            for segment, answer in zip(segments, answers, strict=True):
                self._acknowledge(segment, answer)

    def _acknowledge(self, segment: _Queued, answer: Committed | WriteFailed) -> None:
        if isinstance(answer, WriteFailed):
            self._fail(segment, answer)
            return
        self._written.committed(answer.runs)
        for batch, waiter, outcome in zip(segment.placed, segment.waiters, answer.outcomes, strict=True):
            if isinstance(outcome, Assigned):
                self._metrics.batches.inc()
                self._metrics.records.inc(batch.record_count)
                self._metrics.batch_bytes.inc(batch.length)
            self._settle(waiter, self._judged(batch, outcome), batch.length)

    def _judged(self, batch: PlacedBatch, outcome: BatchOutcome) -> WriteOutcome:
        """A batch whose predecessor is missing is not written, for as long as that may still come."""
        if batch.producer_id == NO_PRODUCER_ID:
            return outcome
        place = (batch.topic_id, batch.partition, batch.producer_id, batch.producer_epoch)
        if not isinstance(outcome, OutOfOrderSequence):
            self._gaps.closed(place)
        elif self._gaps.bears(place, self._clock()):
            self._metrics.sequence_gaps.inc()
            return WriteFailed(
                failure=WriteFailure.NOT_WRITTEN,
                message="an earlier batch of this producer is not written yet; it may be on its way",
            )
        return outcome

    def _fail(self, segment: _Queued, failure: WriteFailed) -> None:
        for batch, waiter in zip(segment.placed, segment.waiters, strict=True):
            self._settle(waiter, failure, batch.length)

    def _settle(self, waiter: OutcomeFuture, outcome: WriteOutcome, size_bytes: int) -> None:
        if not waiter.done():
            waiter.set_result(outcome)
        self._acknowledged(size_bytes)

    def _acknowledged(self, size_bytes: int) -> None:
        self._unacknowledged_bytes -= size_bytes
        self._metrics.unacknowledged.set(self._unacknowledged_bytes)
        if not self._unacknowledged_bytes:
            self._emptied.set()

    def _give_up(self) -> None:
        """The agent stops: whatever has no outcome gets one, so that no request waits for ever."""
        failure = WriteFailed(failure=WriteFailure.UNKNOWN, message="the agent stopped before the outcome was known")
        while entries := self._gathered.take():
            for entry in entries:
                self._settle(entry.outcome, failure, len(entry.pending.batch.data))
        for segment in self._queue.drain():
            if segment.stage is not Stage.FAILED:
                self._fail(segment, failure)


def _size_of(entry: _Entry) -> int:
    return len(entry.pending.batch.data)
