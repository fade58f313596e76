"""Carries a valid batch to its offset: gather, seal, upload, commit, acknowledge (docs/design/write-path.md).

Promises:
- Batches of a lane (`lane.py`) are sequenced in the order in which `append` took them. Those of bulk have a
  lane for themselves, and no other batch waits for one of them.
- A batch is acknowledged only once its bytes are in the store and its place is in the sequencer.
- Every batch gets exactly one outcome.
- The caller of `append` bounds the memory: requests stay reserved in the agent's memory budget until their
  batches have an outcome.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.accumulator import SealPolicy, SealReason, Taken, seal_due
from agent.write_path.appended_batches import Appended
from agent.write_path.committer import Committer, SequenceGaps
from agent.write_path.lane import Lane
from agent.write_path.outcomes import LastOutcomes, WriteFailed, WriteFailure, WriteOutcome
from agent.write_path.producer_window import OpenWindows, ProducerWindow, WindowPolicy
from agent.write_path.put_budget import PutBudget, PutBudgetPolicy, window_budget_policy
from agent.write_path.seal_queue import QueuedSegment, Stage
from agent.write_path.segment_ids import SegmentIds
from agent.write_path.uploader import Uploader, UploadFailed
from cache_ring.ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.commits.commits import BatchOutcome, Committed, OutOfOrderSequence, SegmentToCommit
from sequencer.commits.coordinates import RunCoordinate
from storage.identifiers import NO_PRODUCER_ID, ObjectKey, Offset, TopicId
from storage.segments.segment import empty_segment, seal_segment
from storage.segments.segment_batches import (
    LENGTH,
    RECORDS,
    PendingBatches,
    PlacedBatch,
    PlacedBatches,
)
from storage.stores.object_store import ObjectStore

log = logging.getLogger("tidelog")


class Written(Protocol):
    """Gets what was written, so that this agent's readers need not ask for it."""

    def put_own(self, object_key: ObjectKey, data: bytes) -> None: ...

    def committed(self, runs: Sequence[RunCoordinate]) -> None: ...
    def missed(self, runs: Sequence[RunCoordinate]) -> None: ...


_Waiter: TypeAlias = Taken[Appended]
"""Some batches of a request."""
_Queued: TypeAlias = QueuedSegment[_Waiter]


class WritePath:
    """`append` takes batches, `run` carries them through, `drain` finishes them."""

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
        self._uploads = LastOutcomes("uploads to the object store", settings.stalled_after_s)
        uploader = Uploader(store, settings, metrics, clock, self._spend_token, self._uploads)
        bulk_uploader = Uploader(store, settings, metrics, clock, lambda: None, self._uploads)
        self._committer = Committer(sequencer.commits, settings, metrics, lambda: membership.lost_because)
        self._policy = SealPolicy(
            segment_size_bytes=settings.segment_size_bytes, linger_s=settings.linger_ms / 1000
        )
        self._budget = PutBudget.full(
            PutBudgetPolicy(per_s=settings.put_budget_per_s, burst=settings.put_budget_burst), clock()
        )
        window_policy = window_budget_policy(
            usd_per_month=settings.window_seals_usd_per_month,
            usd_per_million_puts=settings.put_price(),
            saved_h=settings.window_seals_saved_h,
        )
        self._window_budget = None if window_policy is None else PutBudget.full(window_policy, clock())
        """None: it has no bound."""
        windows = OpenWindows(
            WindowPolicy(
                refill_s=max(settings.window_refill_ms, settings.linger_ms / 2) / 1000,
                refill_wait_s=settings.window_wait_ms / 1000,
            )
        )
        self._shared = Lane(settings, uploader, windows)
        self._bulk = Lane(settings, bulk_uploader, None)
        self._gaps = SequenceGaps(settings.sequence_gap_patience_s, settings.max_sequence_gaps)
        self._places = self._shared.places
        self._uploaded = asyncio.Event()
        self._emptied = asyncio.Event()
        self._draining = False

    @property
    def unacknowledged_bytes(self) -> int:
        return self._shared.unacknowledged_bytes + self._bulk.unacknowledged_bytes

    @property
    def sealed_segments(self) -> int:
        """The number of segments without bulk that wait for their upload or their commit."""
        return len(self._shared.queue)

    def wait_s(self) -> float:
        """Returns how long the oldest batch that is not bulk has waited for its outcome."""
        oldest_s = self._shared.oldest_arrival_s
        return 0.0 if oldest_s is None else self._clock() - oldest_s

    def complaint(self) -> str | None:
        """Returns why nothing can be written now, as the last uploads and commits showed. None: they work."""
        now_s = self._clock()
        return self._uploads.complaint(now_s) or self._committer.outcomes.complaint(time.monotonic())

    def append(
        self, batches: PendingBatches, window: ProducerWindow | None = None, *, is_bulk: bool = False
    ) -> Appended:
        """Takes the batches of a request over, in order, without waiting. `window` is that of the connection
        that waits for the answer.
        """
        appended = Appended(batches)
        if len(batches):
            lane = self._bulk if is_bulk else self._shared
            appended.is_bulk = is_bulk
            gathered, windows = lane.gathered, lane.windows
            sizes, before_bytes = batches.columns[LENGTH].tolist(), gathered.size_bytes
            size_bytes, now_s = sum(sizes), self._clock()
            appended.number = gathered.add(appended, sizes, now_s)
            self._account(lane, size_bytes)
            if windows is not None:
                windows.took(window, len(sizes), size_bytes, now_s)
                if window is not None:
                    appended.when_answered(lambda: windows.answered(window, now_s, self._clock()))
            is_due = gathered.size_bytes >= self._policy.segment_size_bytes or lane.nothing_more_comes
            if not before_bytes or is_due:
                lane.arrived.set()  # nothing between makes a seal due earlier
        return appended

    def give_up(self, appended: Appended, failure: WriteFailed) -> None:
        """The request waits no longer. Batches that are not sealed yet are dropped. The others go on, and
        nothing waits for their outcome.
        """
        complaint = self.complaint() if failure.failure is WriteFailure.TIMED_OUT else None
        if complaint is not None:
            failure = replace(failure, message=f"{failure.message}; {complaint}")
        lane = self._bulk if appended.is_bulk else self._shared
        waiting, size_bytes = lane.gathered.remove(appended.number)
        appended.answer_all(failure)
        if waiting:
            appended.settle_last(waiting, failure)
            self._account(lane, -size_bytes)

    async def run(self) -> None:
        """Seals, uploads and commits until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ids.run())
                tasks.create_task(self._commit_in_order())
                tasks.create_task(self._try_failing_store())
                tasks.create_task(self._seal_when_due(self._bulk, tasks))
                await self._seal_when_due(self._shared, tasks)
        finally:
            self._give_up()

    async def drain(self) -> None:
        """Seals what is there without waiting for linger or tokens. Returns when every batch has its
        outcome.
        """
        self._draining = True
        self._shared.arrived.set()
        self._bulk.arrived.set()
        while self.unacknowledged_bytes:
            self._emptied.clear()
            await self._emptied.wait()

    # --- sealing

    async def _seal_when_due(self, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        while True:
            now_s = self._clock()
            self._budget = self._budget.at(now_s)
            due = seal_due(
                lane.gathered.open_segment,
                self._policy,
                None if lane.is_bulk else self._budget,
                draining=self._draining,
                windows_full_at_s=self._windows_full_at_s(lane, now_s),
            )
            if due is None:
                lane.arrived.clear()
                await lane.arrived.wait()
            elif due.at_s > now_s:
                await self._wait_for_batches(lane, due.at_s - now_s)
            else:
                await self._seal(lane, due.reason, tasks)

    def _windows_full_at_s(self, lane: Lane, now_s: float) -> float | None:
        """Returns the time from which waiting brings nothing and the budget has a token. None: waiting may
        bring more.
        """
        windows = lane.windows
        full_at_s = windows.full_at_s(now_s) if windows is not None and lane.nothing_more_comes else None
        if full_at_s is None or self._window_budget is None:
            return full_at_s
        self._window_budget = self._window_budget.at(now_s)
        return max(full_at_s, self._window_budget.token_at_s())

    async def _wait_for_batches(self, lane: Lane, longest_s: float) -> None:
        lane.arrived.clear()
        try:
            async with asyncio.timeout(longest_s):
                await lane.arrived.wait()
        except TimeoutError:
            return

    async def _seal(self, lane: Lane, reason: SealReason, tasks: asyncio.TaskGroup) -> None:
        await lane.places.acquire()
        if lane.is_bulk:
            await self._places.acquire()
        reserved = await self._ids.take()
        arrived_s = lane.gathered.open_segment.oldest_arrival_s
        taken = lane.gathered.take()
        if lane.windows is not None:
            lane.windows.sealed(is_rest_empty=not lane.gathered.size_bytes)
        if not taken or arrived_s is None:  # the requests gave up meanwhile
            self._free_place(lane)
            return
        self_ = self._membership.self_
        sealed = seal_segment(
            reserved.segment_id,
            "" if self_ is None else str(self_.node_id),
            PendingBatches.joined([(part.owner.batches, part.start, part.end) for part in taken]),
        )
        queued: _Queued = QueuedSegment(
            segment_id=reserved.segment_id,
            object_key=reserved.object_key,
            size_bytes=sealed.size_bytes,
            placed=sealed.placed,
            order=sealed.order,
            waiters=tuple(taken),
            data=b"".join(sealed.chunks),
            arrived_s=arrived_s,
        )
        for part in taken:
            part.owner.sealed_until(part.end)
        self._metrics.seals.labels(reason.value).inc()
        if reason is SealReason.WINDOW and self._window_budget is not None:
            self._window_budget = self._window_budget.spend(self._clock())
            self._metrics.window_tokens.set(self._window_budget.tokens)
        lane.queue.append(queued)
        self._count_segments()
        tasks.create_task(self._upload(lane, queued))

    def _free_place(self, lane: Lane) -> None:
        lane.places.release()
        if lane.is_bulk:
            self._places.release()

    def _count_segments(self) -> None:
        self._metrics.sealed_segments.set(len(self._shared.queue) + len(self._bulk.queue))

    # --- uploading

    async def _upload(self, lane: Lane, queued: _Queued) -> None:
        try:
            await lane.uploader.upload(queued.object_key, queued.data)
            self._written.put_own(queued.object_key, queued.data)
            queued.stage = Stage.UPLOADED
        except UploadFailed as error:
            queued.stage = Stage.FAILED
            self._fail(lane, queued, WriteFailed(failure=WriteFailure.NOT_WRITTEN, message=str(error)))
        finally:
            self._free_place(lane)
            queued.data = b""
            self._uploaded.set()

    async def _try_failing_store(self) -> None:
        """Tries the store. An agent that is not ready gets no traffic whose uploads could show that the store
        works again.
        """
        while True:
            await asyncio.sleep(self._settings.store_trial_s)
            if self._uploads.is_failing and self._uploads.is_idle:
                reserved = await self._ids.take()
                await self._shared.uploader.try_out(reserved.object_key, empty_segment(reserved.segment_id))

    def _spend_token(self) -> None:
        self._budget = self._budget.spend(self._clock())
        self._metrics.put_tokens.set(self._budget.tokens)

    # --- committing

    async def _commit_in_order(self) -> None:
        """Bulk goes last, one segment at a time, so the others' commit is never much longer for it."""
        while True:
            segments = [
                (lane, segment)
                for lane in (self._shared, self._bulk)
                for segment in lane.queue.committable(lane.most_per_commit)
            ]
            if not segments:
                self._uploaded.clear()
                await self._uploaded.wait()
            while segments:  # what the committer leaves over goes before everything else
                answers = await self._committer.commit(
                    [
                        SegmentToCommit(
                            segment_id=segment.segment_id,
                            size_bytes=segment.size_bytes,
                            batches=segment.placed,
                        )
                        for _, segment in segments
                    ]
                )
                for (lane, segment), answer in zip(segments, answers, strict=False):
                    lane.queue.remove([segment])
                    self._acknowledge(lane, segment, answer)
                segments = segments[len(answers) :]
                self._count_segments()
            if self._shared.gathered.size_bytes and self._shared.nothing_more_comes:
                self._shared.arrived.set()

    def _acknowledge(self, lane: Lane, segment: _Queued, answer: Committed | WriteFailed) -> None:
        if isinstance(answer, WriteFailed):
            self._fail(lane, segment, answer)
            return
        if answer.is_news:
            self._written.committed(answer.runs)
        else:
            self._written.missed(answer.runs)
        assigned = answer.found.assigned
        self._count(segment.placed.topic_ids, segment.placed.columns[:, assigned])
        if self._gaps or len(assigned) < len(segment.placed):
            self._settle_each(segment, answer)
        else:
            offsets, start = _placed(answer.found.base_offsets, segment.order), 0
            log_starts = None if answer.log_starts is None else _placed(answer.log_starts, segment.order)
            for part in segment.waiters:
                end = start + part.end - part.start
                part.owner.assign(
                    part.start, offsets[start:end], None if log_starts is None else log_starts[start:end]
                )
                start = end
        self._account(lane, -_size_bytes(segment.placed))
        self._metrics.write_wait_seconds.labels(lane.name).observe(self._clock() - segment.arrived_s)

    def _settle_each(self, segment: _Queued, answer: Committed) -> None:
        waiters = [(part.owner, index) for part in segment.waiters for index in range(part.start, part.end)]
        log_starts = [None] * len(segment.placed) if answer.log_starts is None else answer.log_starts.tolist()
        found = zip(segment.placed, answer.found.each, log_starts, segment.order.tolist(), strict=True)
        for batch, outcome, log_start, number in found:
            appended, index = waiters[number]
            appended.settle(index, self._judged(batch, outcome), log_start)

    def _count(self, topic_ids: Sequence[TopicId], written: NDArray[np.int64]) -> None:
        self._metrics.topics.produced(topic_ids, written)
        self._metrics.batches.inc(written.shape[1])
        self._metrics.records.inc(int(written[RECORDS].sum()))
        self._metrics.batch_bytes.inc(int(written[LENGTH].sum()))

    def _judged(self, batch: PlacedBatch, outcome: BatchOutcome) -> WriteOutcome:
        """Returns the outcome for the client. If the predecessor of a batch is missing and may still come,
        the batch counts as not written.
        """
        if batch.producer_id == NO_PRODUCER_ID:
            return outcome
        place = (batch.topic_id, batch.partition, batch.producer_id, batch.producer_epoch)
        if not isinstance(outcome, OutOfOrderSequence):
            self._gaps.closed(place)
        elif self._gaps.accepts(place, self._clock()):
            self._metrics.sequence_gaps.inc()
            return WriteFailed(
                failure=WriteFailure.NOT_WRITTEN,
                message="an earlier batch of this producer is not written yet; it may be on its way",
            )
        return outcome

    def _fail(self, lane: Lane, segment: _Queued, failure: WriteFailed) -> None:
        for part in segment.waiters:
            part.owner.settle_part(part.start, part.end, failure)
        self._account(lane, -_size_bytes(segment.placed))

    def _account(self, lane: Lane, bytes_more: int) -> None:
        lane.unacknowledged_bytes += bytes_more
        unacknowledged_bytes = self.unacknowledged_bytes
        self._metrics.unacknowledged.set(unacknowledged_bytes)
        if lane.is_bulk:
            self._metrics.bulk_unacknowledged.set(lane.unacknowledged_bytes)
        if not unacknowledged_bytes:
            self._emptied.set()

    def _give_up(self) -> None:
        """The agent stops. Every batch without an outcome gets one, so that no request waits for ever."""
        failure = WriteFailed(
            failure=WriteFailure.UNKNOWN, message="the agent stopped before the outcome was known"
        )
        for lane in (self._shared, self._bulk):
            for appended in lane.gathered.owners():
                self.give_up(appended, failure)
            for segment in lane.queue.drain():
                if segment.stage is not Stage.FAILED:
                    self._fail(lane, segment, failure)


def _size_bytes(placed: PlacedBatches) -> int:
    return int(placed.columns[LENGTH].sum())


def _placed(offsets: NDArray[np.int64], places: NDArray[np.int64]) -> list[Offset]:
    """Reorders: entry `i` of the input becomes entry `places[i]` of the result."""
    placed = np.empty_like(offsets)
    placed[places] = offsets
    found: list[Offset] = placed.tolist()
    return found
