"""An agent: the product's own accumulator, sealing rule, PUT budget and seal queue, with modelled time.

Promises that every batch is acknowledged once or still counted as waiting, and that an agent has at most one
commit in flight per shard of the sequencer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent.write_path.accumulator import Accumulator, SealPolicy, SealReason, Taken, seal_due
from agent.write_path.put_budget import PutBudget, PutBudgetPolicy
from agent.write_path.seal_queue import SealQueue, Stage
from benchmarks.simulation.calibration import AgentCost
from benchmarks.simulation.events import EventLoop, Thread
from benchmarks.simulation.latency import Durations
from benchmarks.simulation.postgres import Done
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.store import Store

_BEFORE = 0.7
"""The share of a request's CPU before the write path takes its batches. The rest follows the commit."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Batches that came within `span_s`, the mean of them at `arrived_s`."""

    arrived_s: float
    span_s: float
    sizes: list[int]
    """Of each batch."""
    requests: int
    partitions: NDArray[np.int64]
    """Of each batch."""
    left: int = 0
    """Batches without an outcome."""

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes)


@dataclass(slots=True, eq=False)
class Segment:
    """Only the fields that the seal queue and the commit read."""

    taken: list[Taken[Chunk]]
    size_bytes: int
    rows: list[NDArray[np.int64]]
    """Per shard: the partitions that have a run in the segment."""
    batches: list[int]
    """Per shard."""
    stage: Stage = Stage.UPLOADING
    shards_left: int = 0
    number: int = 0
    """Given by its first readers."""


@dataclass(slots=True)
class Counts:
    """Of the time after the warm-up, all agents together."""

    acks: Durations = field(default_factory=Durations)
    came_batches: int = 0
    acked_batches: int = 0
    came_bytes: int = 0
    seals: dict[SealReason, int] = field(default_factory=dict)
    segments: int = 0
    segment_runs: int = 0


class CommitsThrough(Protocol):
    def commit(self, batches: int, runs: int, rows: Sequence[int], done: Done) -> None: ...


Committed = Callable[["Agent", Segment, int], None]


class Agent:
    def __init__(
        self,
        *,
        number: int,
        loop: EventLoop,
        scenario: Scenario,
        cost: AgentCost,
        thread: Thread,
        store: Store,
        sequencer: Sequence[CommitsThrough],
        shard_of: NDArray[np.int32],
        counts: Counts,
        on_commit: Committed,
        random: np.random.Generator,
    ) -> None:
        self.number = number
        self.thread = thread
        self._loop = loop
        self._scenario = scenario
        self._cost = cost
        self._store = store
        self._sequencer = sequencer
        self._shard_of = shard_of
        self._counts = counts
        self._on_commit = on_commit
        self._policy = SealPolicy(segment_size_bytes=scenario.segment_size_bytes, linger_s=scenario.linger_s)
        policy = PutBudgetPolicy(per_s=scenario.put_budget_per_s, burst=scenario.put_budget_burst)
        # As after some time of steady load, or of none, because agents of a cluster do not begin in step.
        self._budget = PutBudget(policy=policy, tokens=float(random.uniform(0, policy.burst)), at_s=0.0)
        self._gathered: Accumulator[Chunk] = Accumulator(scenario.segment_size_bytes)
        # Any: the queue takes the model's segments for the agent's, which have more fields.
        self._queues: list[Any] = [SealQueue[Any]() for _ in sequencer]
        self._committing = [False] * len(sequencer)
        self._blocked: deque[Chunk] = deque()
        self._memory_bytes = 0
        self._uploads = 0
        self.waiting_batches = 0
        self._woken_at_s = float("inf")

    def receive(self, chunk: Chunk) -> None:
        """Takes requests as clients send them. Past the memory for requests, it stops reading sockets."""
        self.waiting_batches += chunk.partitions.size
        self._counts.came_batches += chunk.partitions.size
        self._counts.came_bytes += chunk.size_bytes
        if self._blocked or self._memory_bytes >= self._scenario.request_memory_bytes:
            self._blocked.append(chunk)
        else:
            self._read(chunk)

    def _read(self, chunk: Chunk) -> None:
        size_bytes, cost = chunk.size_bytes, self._cost
        chunk.left = chunk.partitions.size
        self._memory_bytes += size_bytes
        work_s = chunk.requests * cost.per_request_s + chunk.partitions.size * cost.per_batch_s
        self.thread.submit(_BEFORE * work_s + 0.5 * size_bytes * cost.per_byte_s, lambda: self._append(chunk))

    def _append(self, chunk: Chunk) -> None:
        # The first of a chunk's batches came as long ago as it spans: its age is what seals a segment.
        self._gathered.add(chunk, chunk.sizes, self._loop.now_s - chunk.span_s)
        self._seal_when_due()

    # --- sealing and uploading

    def _seal_when_due(self) -> None:
        while self._uploads < self._scenario.max_uploads:
            now_s = self._loop.now_s
            self._budget = self._budget.at(now_s)
            due = seal_due(self._gathered.open_segment, self._policy, self._budget)
            if due is None:
                return
            if due.at_s > now_s:
                self._wake_at(due.at_s)
                return
            self._seal(due.reason)

    def _wake_at(self, at_s: float) -> None:
        if at_s < self._woken_at_s:
            self._woken_at_s = at_s
            self._loop.at(at_s, self._wake, at_s)

    def _wake(self, at_s: float) -> None:
        if at_s == self._woken_at_s:
            self._woken_at_s = float("inf")
            self._seal_when_due()

    def _seal(self, reason: SealReason) -> None:
        segment = self._laid_out(self._gathered.take())
        self._budget = self._budget.spend(self._loop.now_s)
        self._uploads += 1
        self._counts.seals[reason] = self._counts.seals.get(reason, 0) + 1
        for shard, batches in enumerate(segment.batches):
            if batches:
                self._queues[shard].append(segment)
        work_s = 0.7 * self._cost.per_flush_s + 0.5 * segment.size_bytes * self._cost.per_byte_s
        self.thread.submit(
            work_s, lambda: self._store.put(segment.size_bytes, lambda: self._uploaded(segment))
        )

    def _laid_out(self, taken: list[Taken[Chunk]]) -> Segment:
        partitions = np.concatenate([part.owner.partitions[part.start : part.end] for part in taken])
        shards = len(self._sequencer)
        if shards == 1:
            batches, rows = [partitions.size], [np.unique(partitions)]
        else:
            shard_of = self._shard_of[partitions]
            parts = [partitions[shard_of == shard] for shard in range(shards)]
            batches, rows = [part.size for part in parts], [np.unique(part) for part in parts]
        return Segment(
            taken=taken,
            size_bytes=sum(sum(part.owner.sizes[part.start : part.end]) for part in taken),
            rows=rows,
            batches=batches,
            shards_left=sum(count > 0 for count in batches),
        )

    def _uploaded(self, segment: Segment) -> None:
        segment.stage = Stage.UPLOADED
        self._uploads -= 1
        for shard, batches in enumerate(segment.batches):
            if batches:
                self._commit(shard)
        self._seal_when_due()

    # --- committing

    def _commit(self, shard: int) -> None:
        if self._committing[shard]:
            return
        segments: list[Segment] = self._queues[shard].committable(self._scenario.max_segments_per_commit)
        if not segments:
            return
        self._committing[shard] = True
        batches = sum(segment.batches[shard] for segment in segments)
        runs = sum(segment.rows[shard].size for segment in segments)
        rows = segments[0].rows[shard]
        if len(segments) > 1:
            rows = np.unique(np.concatenate([segment.rows[shard] for segment in segments]))
        self._sequencer[shard].commit(batches, runs, rows.tolist(), lambda: self._committed(shard, segments))

    def _committed(self, shard: int, segments: list[Segment]) -> None:
        self._committing[shard] = False
        self._queues[shard].remove(segments)
        batches = sum(segment.batches[shard] for segment in segments)
        requests = batches / self._scenario.batches_per_request
        work_s = (1 - _BEFORE) * (requests * self._cost.per_request_s + batches * self._cost.per_batch_s)
        work_s += 0.3 * len(segments) * self._cost.per_flush_s
        self.thread.submit(work_s, lambda: self._acknowledge(shard, segments))
        self._commit(shard)

    def _acknowledge(self, shard: int, segments: list[Segment]) -> None:
        now_s = self._loop.now_s
        for segment in segments:
            share = segment.batches[shard] / sum(segment.batches)
            for part in segment.taken:
                self._note_ack(part, now_s, share)
            self._counts.acked_batches += segment.batches[shard]
            self.waiting_batches -= segment.batches[shard]
            self._counts.segment_runs += segment.rows[shard].size
            segment.shards_left -= 1
            if not segment.shards_left:
                self._counts.segments += 1
                self._memory_bytes -= segment.size_bytes
            self._on_commit(self, segment, shard)
        self._read_blocked()

    def _note_ack(self, part: Taken[Chunk], now_s: float, share: float) -> None:
        """Acknowledges a request with its last batch. If several came together, each batch counts alone."""
        chunk, batches = part.owner, part.end - part.start
        chunk.left -= batches
        if chunk.requests > 1 or share < 1:
            self._counts.acks.add(now_s - chunk.arrived_s, batches * share)
        elif not chunk.left:
            self._counts.acks.add(now_s - chunk.arrived_s, chunk.partitions.size)

    def _read_blocked(self) -> None:
        while self._blocked and self._memory_bytes < self._scenario.request_memory_bytes:
            self._read(self._blocked.popleft())
