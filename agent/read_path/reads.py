"""Answers fetches: coordinates, then bytes, then the batches that fit (DESIGN §6).

Deciding is in plan_fetch and slice_batches; here it is carried out. Promises: a failure of one partition is a value
in its result; an object that is not there is never an empty answer, the coordinates are asked for again, and if the
sequencer still names it that is an alarm and a retriable failure; a fetch wakes as soon as a commit it waits for is
heard of; it waits no longer than its deadline."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.read_path.known_coordinates import KnownCoordinates
from agent.read_path.plan_fetch import (
    Ask,
    Decision,
    FetchPlan,
    Moment,
    Nothing,
    PartitionPlan,
    ReadFailure,
    Refuse,
    Take,
    available_bytes,
    decide,
    select_runs,
)
from agent.read_path.read_ahead import ReadAhead
from agent.read_path.settings import ReadPathSettings
from agent.read_path.slice_batches import take_batches
from cache_ring.byte_budget import ByteBudget
from cache_ring.coordinate_cache import PartitionView
from cache_ring.page_reader import PageReader
from cache_ring.run_bytes import RunBytes
from cache_ring.store_pages import DamagedPage
from sequencer.coordinates import PartitionKey, RunCoordinate
from sequencer.database import CommitOutcomeUnknown, SequencerUnavailable
from storage.identifiers import ObjectKey
from storage.object_store import ObjectNotFound, StoreUnavailable

_log = logging.getLogger(__name__)

_ROUNDS = 4
"""How often coordinates that turn out to be old are asked for again within one fetch."""
NO_OFFSET = -1


@dataclass(slots=True)
class ReadCounts:
    """What happened so far, for metrics."""

    fetches: int = 0
    bytes_out: int = 0
    waits: int = 0
    sequencer_asks: int = 0
    objects_missing: int = 0
    """Objects the sequencer names and the store has not: each is an alarm."""
    pages_damaged: int = 0
    unavailable: int = 0
    throttled: int = 0
    """Fetches answered empty because too many bytes of answers were in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """One partition's part of an answer. Offsets are -1 where nothing is known."""

    plan: PartitionPlan
    failure: ReadFailure | None = None
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    chunks: Sequence[bytes | bytearray | memoryview] = ()
    size_bytes: int = 0


class FetchAnswer:
    """The results of a fetch, and the bytes it holds of the budget for answers until it is released."""

    __slots__ = ("_budget", "_is_kept", "_taken", "results")

    def __init__(self, budget: ByteBudget, results: tuple[PartitionResult, ...] = ()) -> None:
        self.results = results
        self._budget = budget
        self._taken = 0
        self._is_kept = False

    @property
    def size_bytes(self) -> int:
        return sum(result.size_bytes for result in self.results)

    @property
    def has_failure(self) -> bool:
        return any(result.failure is not None for result in self.results)

    async def take(self, size_bytes: int) -> None:
        self._taken = await self._budget.take(size_bytes)

    def kept(self) -> "FetchAnswer":
        self._is_kept = True
        return self

    def release(self) -> None:
        """Give the bytes back; again does nothing."""
        taken, self._taken = self._taken, 0
        self._budget.give_back(taken)

    def release_unless_kept(self) -> None:
        if not self._is_kept:
            self.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What became of a partition's runs: their bytes in order, up to the first that could not be had."""

    runs: tuple[RunBytes, ...] = ()
    failure: ReadFailure | None = None
    missing: ObjectKey | None = None


@dataclass(slots=True)
class _Attempt:
    """What one fetch has learned on the way."""

    began_s: float
    unknown: set[PartitionKey] = field(default_factory=set)
    missing: set[tuple[PartitionKey, ObjectKey]] = field(default_factory=set)
    unavailable: bool = False


class ReadPath:
    def __init__(
        self,
        coordinates: KnownCoordinates,
        pages: PageReader,
        settings: ReadPathSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinates = coordinates
        self._pages = pages
        self._settings = settings
        self._clock = clock
        self._read_ahead = ReadAhead(pages, settings.catch_up_read_ahead_bytes)
        self._answers = ByteBudget(settings.fetch_answer_bytes)
        self._is_draining = False
        self.counts = ReadCounts()

    @property
    def settings(self) -> ReadPathSettings:
        return self._settings

    @property
    def coordinates(self) -> KnownCoordinates:
        return self._coordinates

    @property
    def pages(self) -> PageReader:
        return self._pages

    def committed(self, runs: Sequence[RunCoordinate]) -> None:
        """This agent has committed these runs: their readers wake, here and at the agents that subscribed."""
        self._coordinates.committed(runs)

    @property
    def answer_bytes(self) -> int:
        """Bytes of answers in memory."""
        return self._answers.taken_bytes

    async def fetch(self, plan: FetchPlan, wait_s: float) -> FetchAnswer:
        """One result per partition of the plan, in its order, after at most about `wait_s`. Release it once it is
        sent."""
        self.counts.fetches += 1
        began_s = self._clock()
        deadline_s = began_s + wait_s
        with self._coordinates.watching([partition.key for partition in plan.partitions]) as more:
            while True:
                more.clear()
                attempt = _Attempt(began_s=began_s)
                is_last_chance = self._is_draining or self._clock() >= deadline_s
                answer = await self._fetch_now(plan, attempt, is_last_chance=is_last_chance)
                if answer is not None:
                    self.counts.bytes_out += sum(result.size_bytes for result in answer.results)
                    return answer
                self.counts.waits += 1
                await self._wait(more, deadline_s)

    def drain(self) -> None:
        """Answer every waiting fetch now with what there is, and let none wait any more: the agent is stopping."""
        self._is_draining = True
        self._coordinates.wake_all()

    async def close(self) -> None:
        await self._read_ahead.close()

    async def _wait(self, more: asyncio.Event, deadline_s: float) -> None:
        """For news or the deadline, but not so long that this reader is forgotten as one."""
        wait_s = min(deadline_s - self._clock(), self._settings.recent_reader_s / 2)
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await more.wait()
        except TimeoutError:
            return

    async def _fetch_now(self, plan: FetchPlan, attempt: _Attempt, *, is_last_chance: bool) -> FetchAnswer | None:
        """An answer, or None if there is too little for one and time to wait."""
        for _ in range(_ROUNDS):
            decisions = await self._decide(plan, attempt)
            is_final = is_last_chance or _is_urgent(plan, decisions)
            available = available_bytes(plan, decisions)
            if not is_final and available < plan.min_bytes:
                return None
            answer = FetchAnswer(budget=self._answers)
            try:
                loaded = await self._load_in_turn(plan, decisions, available, answer)
                if self._must_ask_again(plan, decisions, loaded, attempt):
                    continue
                answer.results = self._results(plan, decisions, loaded)
                # Enough was there; whole batches within the limits may be less than `min_bytes` all the same.
                if is_final or answer.has_failure or answer.size_bytes >= min(plan.min_bytes, 1):
                    return answer.kept()
            finally:
                answer.release_unless_kept()
            return None
        self.counts.unavailable += 1
        failed = tuple(_failed(partition, ReadFailure.UNAVAILABLE) for partition in plan.partitions)
        return FetchAnswer(budget=self._answers, results=failed)

    async def _load_in_turn(
        self, plan: FetchPlan, decisions: Sequence[Decision], available: int, answer: FetchAnswer
    ) -> list[_Loaded]:
        """Load once the budget for answers has room; when it has none for long, nothing: the client asks again."""
        try:
            async with asyncio.timeout(self._settings.fetch_answer_wait_s):
                await answer.take(available)
        except TimeoutError:
            self.counts.throttled += 1
            return [_Loaded() for _ in decisions]
        return await self._load(plan, decisions)

    async def _decide(self, plan: FetchPlan, attempt: _Attempt) -> list[Decision]:
        for _ in range(_ROUNDS):
            decisions = [self._decide_one(partition, plan, attempt) for partition in plan.partitions]
            asked = {
                partition.key: partition.offset
                for partition, decision in zip(plan.partitions, decisions, strict=True)
                if isinstance(decision, Ask)
            }
            if not asked:
                return decisions
            self.counts.sequencer_asks += 1
            try:
                attempt.unknown |= await self._coordinates.ask(asked)
            except (SequencerUnavailable, CommitOutcomeUnknown):
                attempt.unavailable = True
        return [
            Refuse(failure=ReadFailure.UNAVAILABLE) if isinstance(decision, Ask) else decision for decision in decisions
        ]

    def _decide_one(self, partition: PartitionPlan, plan: FetchPlan, attempt: _Attempt) -> Decision:
        if partition.failure is not None:
            return Refuse(failure=partition.failure)
        if partition.key in attempt.unknown:
            return Refuse(failure=ReadFailure.UNKNOWN_PARTITION)
        view = self._coordinates.find(partition.key, partition.offset, min(partition.max_bytes, plan.max_bytes))
        moment = Moment(began_s=attempt.began_s, now_s=self._clock(), freshness_s=self._settings.coordinate_freshness_s)
        decision = decide(partition, view, moment, plan.read_committed)
        if isinstance(decision, Ask) and attempt.unavailable:
            is_at_end = view is not None and partition.offset == view.high_watermark
            return Nothing(view=view) if view and is_at_end else Refuse(failure=ReadFailure.UNAVAILABLE)
        is_elsewhere = partition.preferred_replica is not None or partition.diverges
        return Nothing(view=decision.view) if isinstance(decision, Take) and is_elsewhere else decision

    async def _load(self, plan: FetchPlan, decisions: Sequence[Decision]) -> list[_Loaded]:
        selected = select_runs(plan, decisions, self._settings.fetch_max_runs)
        waits = [place for place, runs in enumerate(selected) if not all(self._pages.has(run) for run in runs)]
        async with asyncio.TaskGroup() as group:
            tasks = {place: group.create_task(self._load_runs(selected[place])) for place in waits}
        loaded = [
            tasks[place].result() if place in tasks else await self._load_runs(runs)
            for place, runs in enumerate(selected)
        ]
        for decision, runs in zip(decisions, selected, strict=True):
            if isinstance(decision, Take):
                self._read_ahead.reader_at(decision.runs, runs)
        return loaded

    async def _load_runs(self, runs: Sequence[RunCoordinate]) -> _Loaded:
        """All of one partition's runs at once; what comes after one that failed is left out."""
        complete: list[RunBytes] = []
        if all(self._pages.has(run) for run in runs):
            found = [await self._try_read(run) for run in runs]
        else:
            found = await asyncio.gather(*(self._try_read(run) for run in runs))
        for run, data in zip(runs, found, strict=True):
            if isinstance(data, ObjectNotFound):
                return _Loaded(missing=run.object_key)
            if isinstance(data, Exception):
                self.counts.pages_damaged += isinstance(data, DamagedPage)
                _log.warning("fetch: a run cannot be read", extra={"object_key": run.object_key, "error": str(data)})
                return _Loaded(runs=tuple(complete), failure=None if complete else ReadFailure.UNAVAILABLE)
            complete.append(data)
        return _Loaded(runs=tuple(complete))

    async def _try_read(self, run: RunCoordinate) -> RunBytes | ObjectNotFound | StoreUnavailable | DamagedPage:
        try:
            return await self._pages.read_run(run)
        except (ObjectNotFound, StoreUnavailable, DamagedPage) as error:
            return error

    def _must_ask_again(
        self, plan: FetchPlan, decisions: Sequence[Decision], loaded: list[_Loaded], attempt: _Attempt
    ) -> bool:
        """Whether some coordinates proved old. They are then forgotten; an object missing for the second time is an
        alarm."""
        again = False
        for index, (partition, decision) in enumerate(zip(plan.partitions, decisions, strict=True)):
            if not isinstance(decision, Take):
                continue
            missing = loaded[index].missing
            if missing is not None and (partition.key, missing) in attempt.missing:
                self._alarm(partition, missing)
                loaded[index] = _Loaded(failure=ReadFailure.DATA_MISSING)
            elif missing is not None or not self._coordinates.is_current(partition.key, decision.view):
                if missing is not None:
                    attempt.missing.add((partition.key, missing))
                self._coordinates.forget(partition.key)
                again = True
        return again

    def _alarm(self, partition: PartitionPlan, object_key: ObjectKey) -> None:
        self.counts.objects_missing += 1
        _log.error(
            "fetch: the sequencer names an object that the store has not",
            extra={
                "topic_id": str(partition.topic_id),
                "partition": partition.partition,
                "offset": partition.offset,
                "object_key": object_key,
            },
        )

    @staticmethod
    def _results(
        plan: FetchPlan, decisions: Sequence[Decision], loaded: Sequence[_Loaded]
    ) -> tuple[PartitionResult, ...]:
        """Cut what was loaded to the limits: the first batch of the answer goes out whatever its size (KIP-74)."""
        results: list[PartitionResult] = []
        room_bytes, is_empty = plan.max_bytes, True
        for partition, decision, part in zip(plan.partitions, decisions, loaded, strict=True):
            if isinstance(decision, Refuse):
                results.append(_failed(partition, decision.failure))
            elif part.failure is not None:
                results.append(_failed(partition, part.failure))
            elif isinstance(decision, Take):
                outgoing = take_batches(
                    part.runs,
                    partition.offset,
                    decision.end_offset,
                    max(0, min(partition.max_bytes, room_bytes)),
                    first_whatever_its_size=is_empty,
                )
                room_bytes -= outgoing.size_bytes
                is_empty = is_empty and not outgoing.chunks
                results.append(_result(partition, decision.view, outgoing.chunks, outgoing.size_bytes))
            elif isinstance(decision, Nothing):
                results.append(_result(partition, decision.view, (), 0))
        return tuple(results)


def _is_urgent(plan: FetchPlan, decisions: Sequence[Decision]) -> bool:
    """Whether to answer now: an error, another agent to ask, or nothing to wait for."""
    return not plan.partitions or any(
        isinstance(decision, Refuse) or partition.preferred_replica is not None or partition.diverges
        for partition, decision in zip(plan.partitions, decisions, strict=True)
    )


def _result(
    partition: PartitionPlan, view: PartitionView, chunks: Sequence[bytes | bytearray | memoryview], size_bytes: int
) -> PartitionResult:
    return PartitionResult(
        plan=partition,
        high_watermark=view.high_watermark,
        last_stable_offset=view.last_stable_offset,
        log_start_offset=view.log_start_offset,
        chunks=chunks,
        size_bytes=size_bytes,
    )


def _failed(partition: PartitionPlan, failure: ReadFailure) -> PartitionResult:
    return PartitionResult(plan=partition, failure=failure)
