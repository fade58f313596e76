"""Answers fetches: coordinates, then bytes, then the batches that fit (docs/design/read-path.md#plan).

read_decisions and slice_batches decide; this module carries it out.

Promises:
- A failure of one partition is a value in its result.
- A missing object is never an empty answer. The coordinates are asked for again. If the sequencer still names
  the object, that is an alarm and a retriable failure.
- A fetch wakes as soon as a commit that it waits for is known, and then looks only at the partitions of that
  commit. It waits no longer than its deadline.
- An answer is cut in pieces, between which others have their turn.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from agent.read_path.fetch_answer import FetchAnswer, PartitionResult, failed, found
from agent.read_path.known_coordinates import KnownCoordinates
from agent.read_path.load_runs import NOTHING_LOADED, Loaded, load_runs
from agent.read_path.look_up_aborted import LookedUp, look_up_aborted
from agent.read_path.read_ahead import AheadLimits, ReadAhead, Reader
from agent.read_path.read_decisions import (
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
    is_at_end,
    select_runs,
)
from agent.read_path.settings import ReadPathSettings
from agent.read_path.slice_batches import Outgoing, take_committed
from agent.read_path.watch import Watch
from agent.topic_traffic import TopicTraffic
from cache_ring.pages.byte_budget import ByteBudget
from cache_ring.pages.page_reader import PageReader
from sequencer.commits.coordinates import PartitionKey, RunCoordinate
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.topics.topic_key_cache import TopicKeys
from storage.batches.byte_arrays import Buffer
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import SealBroken
from storage.identifiers import ObjectKey, TopicId

log = logging.getLogger("tidelog")

_ROUNDS = 4
"""How often one fetch asks again for coordinates that prove to be old."""
_FURTHER_PARTITIONS = 512
"""The most partitions whose next coordinates are asked for ahead in one statement."""
_FEWEST_RUNS_AHEAD = 16
"""The coordinates of at least so many runs must be known behind those that a reader of history gets.
Otherwise the next ones are asked for.
"""
_BYTES_AT_ONCE = 4_194_304
"""Bytes cut out of pages before others have their turn: about a millisecond if batches are small and
copied.
"""


@dataclass(slots=True)
class ReadCounts:
    """Counters for metrics."""

    fetches: int = 0
    bytes_out: int = 0
    records_out: int = 0
    """Counted by the offsets that their batches take, so records that log compaction removed count too."""
    waits: int = 0
    sequencer_asks: int = 0
    sequencer_asks_ahead: int = 0
    """Coordinates asked for before a reader of history reached the end of the known ones."""
    aborted_look_ups: int = 0
    """Fetches for which the aborted transactions of their batches were looked up."""
    objects_missing: int = 0
    """Objects that the sequencer names and the store lacks. Each is an alarm."""
    pages_damaged: int = 0
    unavailable: int = 0
    throttled: int = 0
    """Fetches answered without records because too many bytes of answers were in memory."""


IsBulk: TypeAlias = Callable[[Collection[TopicId]], Awaitable[bool]]
"""Returns whether a fetch is bulk that brings records of these topics."""


@dataclass(slots=True)
class _Fetch:
    """One fetch, and what it has learned since it last waited."""

    plan: FetchPlan
    watch: Watch
    began_s: float
    reader: Reader | None
    is_bulk: IsBulk | None
    decisions: list[Decision] = field(default_factory=list)
    """One per partition, as of its last look. Empty before the first look."""
    places: dict[PartitionKey, list[int]] = field(default_factory=dict)
    unknown: set[PartitionKey] = field(default_factory=set)
    missing: set[tuple[PartitionKey, ObjectKey]] = field(default_factory=set)
    unavailable: bool = False
    looked_s: float = 0.0
    """The monotonic time of the last look at all partitions."""

    def forget_troubles(self) -> None:
        self.unknown.clear()
        self.missing.clear()
        self.unavailable = False

    def places_of(self, keys: Iterable[PartitionKey]) -> list[int]:
        if not self.places:
            for place, partition in enumerate(self.plan.partitions):
                self.places.setdefault(partition.key, []).append(place)
        return [place for key in keys for place in self.places[key]]


class ReadPath:
    def __init__(
        self,
        coordinates: KnownCoordinates,
        pages: PageReader,
        settings: ReadPathSettings,
        topics: TopicTraffic,
        clock: Callable[[], float] = time.monotonic,
        keys: TopicKeys | None = None,
    ) -> None:
        self._keys = keys
        self._coordinates = coordinates
        self._pages = pages
        self._settings = settings
        self._topics = topics
        self._clock = clock
        self._read_ahead = ReadAhead(pages, AheadLimits.of(settings, pages.pages.catch_up_cache.budget_bytes))
        self._further: dict[PartitionKey, int] = {}
        """Where the coordinates continue that readers of history need next."""
        self._asks_further: asyncio.Task[None] | None = None
        self._answers = ByteBudget(settings.fetch_answer_bytes)
        self._bulk_answers = ByteBudget(min(settings.bulk_answer_bytes, settings.fetch_answer_bytes))
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
        """Takes runs that this agent committed. Their readers wake, here and at the agents that
        subscribed.
        """
        self._coordinates.committed(runs)

    def missed(self, runs: Sequence[RunCoordinate]) -> None:
        """Takes runs that were committed some time ago: the next poll finds what followed."""
        self._coordinates.missed(runs)

    @property
    def read_ahead(self) -> ReadAhead:
        return self._read_ahead

    @property
    def is_going_ahead(self) -> bool:
        """True if pages or coordinates are being loaded ahead."""
        return bool(self._read_ahead.loading or self._asks_further)

    @property
    def answer_bytes(self) -> int:
        """The bytes of answers in memory."""
        return self._answers.taken_bytes

    @property
    def bulk_answer_bytes(self) -> int:
        """How many of them are bulk."""
        return self._bulk_answers.taken_bytes

    async def fetch(
        self,
        plan: FetchPlan,
        wait_s: float,
        watch: Watch | None = None,
        reader: Reader | None = None,
        is_bulk: IsBulk | None = None,
    ) -> FetchAnswer:
        """Returns one result per partition of the plan, in its order, after at most about `wait_s`. Release
        it once it is sent. The caller may end the wait through its own `watch`. History is read ahead for a
        `reader`.
        """
        self.counts.fetches += 1
        began_s = self._clock()
        deadline_s = began_s + wait_s
        watch = watch or Watch()
        with self._coordinates.watching([partition.key for partition in plan.partitions], watch):
            fetch = _Fetch(plan=plan, watch=watch, began_s=began_s, reader=reader, is_bulk=is_bulk)
            while True:
                is_last_chance = self._is_draining or watch.is_over or self._clock() >= deadline_s
                answer = await self._fetch_now(fetch, is_last_chance=is_last_chance)
                if answer is not None:
                    self._count(answer)
                    return answer
                self.counts.waits += 1
                fetch.forget_troubles()
                await self._wait(fetch, deadline_s)

    def _count(self, answer: FetchAnswer) -> None:
        self.counts.bytes_out += answer.size_bytes
        self.counts.records_out += sum(records for _, _, records in answer.sent)
        self._topics.fetched(answer.sent)

    def drain(self) -> None:
        """Answers every waiting fetch now with what there is, and lets no fetch wait any more: the agent is
        stopping.
        """
        self._is_draining = True
        self._coordinates.wake_all()

    async def close(self) -> None:
        await self._read_ahead.close()
        if self._asks_further is not None:
            self._asks_further.cancel()
            await asyncio.gather(self._asks_further, return_exceptions=True)

    async def _wait(self, fetch: _Fetch, deadline_s: float) -> None:
        """Waits for news or the deadline. Even if only some partitions have news, all are looked at again
        within half of `recent_reader_s`, so that this one stays noted as their reader.
        """
        look_again_s = fetch.looked_s + self._settings.recent_reader_s / 2
        is_news = await fetch.watch.wait(min(deadline_s, look_again_s) - self._clock())
        if not is_news or self._clock() >= look_again_s:
            fetch.decisions.clear()

    async def _fetch_now(self, fetch: _Fetch, *, is_last_chance: bool) -> FetchAnswer | None:
        """Returns an answer, or None if there is too little for one and time to wait."""
        plan = fetch.plan
        for _ in range(_ROUNDS):
            await self._decide(fetch)
            is_final = is_last_chance or _is_urgent(fetch)
            available = available_bytes(plan, fetch.decisions)
            if not is_final and available < plan.min_bytes:
                return None
            answer = FetchAnswer(self._answers)
            try:
                loaded = await self._load_in_turn(fetch, available, answer)
                looked_up = await self._look_up_aborted(fetch, loaded)
                if self._must_ask_again(fetch, loaded, looked_up):
                    continue
                await self._cut(fetch, loaded, looked_up, answer)
                # There was enough. Whole batches within the limits may still be less than `min_bytes`.
                if is_final or answer.size_bytes >= min(plan.min_bytes, 1) or answer.has_failure:
                    return answer.kept()
            finally:
                answer.release_unless_kept()
            return None
        self.counts.unavailable += 1
        return FetchAnswer(
            self._answers, [failed(partition, ReadFailure.UNAVAILABLE) for partition in plan.partitions]
        )

    async def _load_in_turn(self, fetch: _Fetch, available: int, answer: FetchAnswer) -> dict[int, Loaded]:
        """Loads once the budget for answers has room. If it has none for long, returns no records: the client
        asks again.
        """
        if not available:
            return {}
        try:
            async with asyncio.timeout(self._settings.fetch_answer_wait_s):
                is_bulk = fetch.is_bulk is not None and await fetch.is_bulk(_topics_with_records(fetch))
                if is_bulk:
                    most_bytes = self._settings.bulk_answer_bytes
                    fetch.plan = replace(fetch.plan, max_bytes=min(fetch.plan.max_bytes, most_bytes))
                    available = min(available, most_bytes)
                await answer.take(available, self._bulk_answers if is_bulk else None)
        except TimeoutError:
            self.counts.throttled += 1
            return {}
        selected = select_runs(fetch.plan, fetch.decisions, self._settings.fetch_max_runs)
        if fetch.reader is not None and not is_bulk:
            self._go_ahead(fetch, fetch.reader, selected)
        return await load_runs(self._pages, selected)

    async def _look_up_aborted(self, fetch: _Fetch, loaded: dict[int, Loaded]) -> dict[int, LookedUp]:
        """The aborted transactions that are not listed with the coordinates. Where the sequencer is away, the
        partitions that need them fail."""
        ask, plan = self._coordinates.aborted_of_batches, fetch.plan
        try:
            found = await look_up_aborted(plan, fetch.decisions, loaded, ask)
            self.counts.aborted_look_ups += bool(found)
            return found
        except (SequencerUnavailable, CommitOutcomeUnknown):
            for place in loaded:
                decision = fetch.decisions[place]
                if isinstance(decision, Take) and decision.view.aborted is None:
                    loaded[place] = Loaded(failure=ReadFailure.UNAVAILABLE)
            return {}

    def _go_ahead(
        self, fetch: _Fetch, reader: Reader, selected: Mapping[int, Sequence[RunCoordinate]]
    ) -> None:
        """Begins to load what these readers read next and the coordinates behind that, without waiting."""
        for place, runs in selected.items():
            partition, decision = fetch.plan.partitions[place], fetch.decisions[place]
            if not isinstance(decision, Take):
                continue
            self._read_ahead.reader_at(reader, partition.key, decision.runs, runs)
            end = decision.runs[-1].last_offset + 1
            if end >= decision.end_offset or len(self._further) >= _FURTHER_PARTITIONS:
                continue
            beyond = decision.runs[len(runs) :]
            if len(beyond) < _FEWEST_RUNS_AHEAD or sum(run.length for run in beyond) < partition.max_bytes:
                self._further[partition.key] = end
        if self._further and self._asks_further is None:
            # A separate context: it asks for all readers, not for the client whose fetch began it.
            self._asks_further = asyncio.create_task(self._ask_further(), context=Context())

    async def _ask_further(self) -> None:
        """Runs one statement at a time, for all partitions whose readers reached the end of what is known
        meanwhile.
        """
        try:
            while self._further:
                asked, self._further = self._further, {}
                self.counts.sequencer_asks_ahead += 1
                await self._coordinates.ask(asked)
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            log.info("fetch: coordinates are not known ahead", extra={"error": str(error)})
        finally:
            self._asks_further = None

    async def _decide(self, fetch: _Fetch) -> None:
        """Decides for the partitions with news, at first for all, and asks the sequencer until none must be
        asked for.
        """
        news = fetch.watch.take()
        places: Iterable[int] = (
            fetch.places_of(news) if fetch.decisions else range(len(fetch.plan.partitions))
        )
        if not fetch.decisions:
            fetch.decisions, fetch.looked_s = [Ask()] * len(fetch.plan.partitions), self._clock()
        for _ in range(_ROUNDS):
            asked = self._decide_for(fetch, places)
            if not asked:
                return
            self.counts.sequencer_asks += 1
            partitions = [fetch.plan.partitions[place] for place in asked]
            try:
                fetch.unknown |= await self._coordinates.ask(
                    {partition.key: partition.offset for partition in partitions}
                )
            except (SequencerUnavailable, CommitOutcomeUnknown):
                fetch.unavailable = True
            places = {*asked, *fetch.places_of(fetch.watch.take())}
        for place in self._decide_for(fetch, places):
            fetch.decisions[place] = Refuse(ReadFailure.UNAVAILABLE)

    def _decide_for(self, fetch: _Fetch, places: Iterable[int]) -> list[int]:
        """Returns the indexes of those that must be asked for."""
        partitions, decisions, read_committed = (
            fetch.plan.partitions,
            fetch.decisions,
            fetch.plan.read_committed,
        )
        now_s, max_bytes = self._clock(), fetch.plan.max_bytes
        primary_seen_s = self._coordinates.primary_seen_s
        moment = Moment.of(fetch.began_s, now_s, self._settings.coordinate_freshness_s, primary_seen_s)
        asked = []
        for place in places:
            partition = partitions[place]
            if partition.failure is not None:
                decisions[place] = Refuse(partition.failure)
                continue
            key = partition.key
            if fetch.unknown and key in fetch.unknown:
                decisions[place] = Refuse(ReadFailure.UNKNOWN_PARTITION)
                continue
            view = self._coordinates.find(key, partition.offset, min(partition.max_bytes, max_bytes), now_s)
            decision = decide(partition, view, moment, read_committed)
            if isinstance(decision, Ask):
                if fetch.unavailable:
                    has_all = view is not None and is_at_end(partition, view, read_committed)
                    decision = Nothing(view) if view and has_all else Refuse(ReadFailure.UNAVAILABLE)
                else:
                    asked.append(place)
            elif isinstance(decision, Take) and (
                partition.preferred_replica is not None or partition.diverges
            ):
                decision = Nothing(decision.view)
            decisions[place] = decision
        return asked

    def _must_ask_again(
        self, fetch: _Fetch, loaded: dict[int, Loaded], looked_up: Mapping[int, LookedUp]
    ) -> bool:
        """Returns True if some coordinates proved old. They are then forgotten. An object that is missing for
        the second time is an alarm.
        """
        again = []
        for place, part in loaded.items():
            self.counts.pages_damaged += part.damaged
            partition, decision, missing = fetch.plan.partitions[place], fetch.decisions[place], part.missing
            if not isinstance(decision, Take):
                continue
            if missing is not None and (partition.key, missing) in fetch.missing:
                self._alarm(partition, missing)
                loaded[place] = Loaded(failure=ReadFailure.DATA_MISSING)
            elif (
                missing is not None
                or (place in looked_up and looked_up[place].aborted is None)
                or not self._coordinates.is_current(partition.key, decision.view)
            ):
                if missing is not None:
                    fetch.missing.add((partition.key, missing))
                self._coordinates.forget(partition.key)
                again.append(partition.key)
        for key in again:
            fetch.watch.tell(key)
        return bool(again)

    def _alarm(self, partition: PartitionPlan, object_key: ObjectKey) -> None:
        self.counts.objects_missing += 1
        log.error(
            "fetch: the store lacks an object that the sequencer names",
            extra={
                "topic_id": str(partition.topic_id),
                "partition": partition.partition,
                "offset": partition.offset,
                "object_key": object_key,
            },
        )

    async def _cut(
        self,
        fetch: _Fetch,
        loaded: Mapping[int, Loaded],
        looked_up: Mapping[int, LookedUp],
        answer: FetchAnswer,
    ) -> None:
        """Cuts what was loaded to the limits. The first batch of the answer goes out whatever its size is
        (KIP-74).
        """
        if self._keys:
            await self._keys.get_ready(_first_batches(fetch, loaded, self._keys))
        results: list[PartitionResult] = []
        room_bytes, pause_at_bytes = fetch.plan.max_bytes, _BYTES_AT_ONCE
        for place, (partition, decision) in enumerate(
            zip(fetch.plan.partitions, fetch.decisions, strict=True)
        ):
            if isinstance(decision, Nothing):
                results.append(found(partition, decision.view))
            elif isinstance(decision, Refuse):
                results.append(failed(partition, decision.failure))
            elif isinstance(decision, Take):
                part = loaded.get(place, NOTHING_LOADED)
                if part.failure is not None:
                    results.append(failed(partition, part.failure))
                    continue
                known = looked_up.get(place) or LookedUp(decision.end_offset, decision.view.aborted)
                outgoing, aborted = take_committed(
                    part.runs,
                    partition.offset,
                    known.end_offset,
                    max(0, min(partition.max_bytes, room_bytes)),
                    known.aborted or () if fetch.plan.read_committed else (),
                    first_whatever_its_size=not answer.size_bytes,
                )
                if outgoing.chunks and self._keys and self._keys.may_be_sealed(partition.topic_id):
                    failure = await self._open(self._keys, partition, outgoing)
                    if failure is not None:
                        results.append(failed(partition, failure))
                        continue
                room_bytes -= outgoing.size_bytes
                answer.size_bytes += outgoing.size_bytes
                if outgoing.size_bytes:
                    answer.sent.append((partition.topic_id, outgoing.size_bytes, outgoing.records))
                results.append(found(partition, decision.view, outgoing.chunks, outgoing.size_bytes, aborted))
                if answer.size_bytes >= pause_at_bytes:
                    pause_at_bytes = answer.size_bytes + _BYTES_AT_ONCE
                    await asyncio.sleep(0)
        answer.results = results

    async def _open(
        self, keys: TopicKeys, partition: PartitionPlan, outgoing: Outgoing
    ) -> ReadFailure | None:
        """Opens sealed batches in place. Returns why the partition cannot be read."""
        try:
            batches = await keys.opened(partition.topic_id, partition.partition, b"".join(outgoing.chunks))
        except KeyUnavailable as error:
            failure, reason = ReadFailure.UNAVAILABLE, str(error)
        except SealBroken as error:
            failure, reason = ReadFailure.DAMAGED, str(error)
        else:
            outgoing.chunks, outgoing.size_bytes = [batches], len(batches)
            return None
        log.warning(
            "fetch: batches cannot be opened",
            extra={
                "topic_id": str(partition.topic_id),
                "partition": partition.partition,
                "offset": partition.offset,
                "error": reason,
            },
        )
        return failure


def _topics_with_records(fetch: _Fetch) -> set[TopicId]:
    decided = zip(fetch.plan.partitions, fetch.decisions, strict=True)
    return {partition.topic_id for partition, decision in decided if isinstance(decision, Take)}


def _first_batches(
    fetch: _Fetch, loaded: Mapping[int, Loaded], keys: TopicKeys
) -> Iterator[tuple[TopicId, Buffer]]:
    """The first batch of each run of topics that may be encrypted. Mostly a run has one key."""
    for place, part in loaded.items():
        topic_id = fetch.plan.partitions[place].topic_id
        if keys.may_be_sealed(topic_id):
            for run in part.runs:
                start = run.batches.positions[0]
                yield topic_id, b"".join(run.views(start, start + run.batches.sizes[0]))


def _is_urgent(fetch: _Fetch) -> bool:
    """True if the answer must go out now: an error, another agent to ask, or nothing to wait for."""
    return not fetch.plan.partitions or any(
        isinstance(decision, Refuse) or partition.preferred_replica is not None or partition.diverges
        for partition, decision in zip(fetch.plan.partitions, fetch.decisions, strict=True)
    )
