"""Keeps this agent's coordinates up to date, and wakes fetches that wait for more
(docs/design/read-path.md#pushes-and-polls).

There are three sources: this agent's own commits, pushes of other agents, and the sequencer. The agent asks
the sequencer for what a reader lacks, and polls it for every partition that is read here. A poll sends what
is known of each partition, never a global cursor [raced: a late committer].

Promises:
- The next poll for the partition repairs a missed or overtaken push. If the partition is still being written,
  the next push shows the gap.
- If another Postgres becomes the primary (a failover), the cache is emptied.
- If Postgres is away, that is one log line.

`PollTurns` decides which partitions a poll asks for. It is pure, and counts time in polls. Its promises:
- Each poll asks for a partition until the agent has heard of one of its commits by a push or made one itself.
  Then the partition rests: polls leave it out.
- A rest lasts for one poll at first. While polls find nothing new, it doubles, up to every `longest`-th poll.
  The rest ends when a poll finds a commit that no push had reported.
- Partitions that rest are due in the same polls, so that the polls between, which ask for none, can be left
  out.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from agent.read_path.settings import ReadPathSettings
from agent.read_path.watch import Watch
from cache_ring.coordinates.coordinate_cache import (
    Applied,
    CoordinateCache,
    CoordinateLimits,
    Learned,
    PartitionView,
)
from cache_ring.coordinates.coordinate_push import PartitionsRead
from sequencer.client import Sequencer
from sequencer.commits.coordinates import (
    MAX_ABORTED,
    CoordinateRequest,
    KnownEnd,
    PartitionCoordinates,
    PartitionKey,
    RunCoordinate,
    TransactionalBatches,
)
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import Offset, TopicId

_FIRST = 2


class _Rest(NamedTuple):
    polls: int
    until: int
    """The number of the poll that asks again."""


class PollTurns:
    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._polls = self._next_due = 0
        self._rests: dict[PartitionKey, _Rest] = {}
        self._all_doubted = False
        self._doubted: set[PartitionKey] = set()
        """Since the last poll. The next one asks for them, whatever pushes come meanwhile."""

    def heard(self, key: PartitionKey) -> None:
        """Notes a commit of this partition that a push reported, or that this agent made. None before it is
        missing.
        """
        if self._all_doubted or key in self._doubted or self._longest < _FIRST:
            return
        if key not in self._rests:
            self._rests[key] = self._rest(_FIRST)

    def doubt(self, key: PartitionKey) -> None:
        """Notes that no push reported a commit of the partition."""
        self._rests.pop(key, None)
        self._doubted.add(key)
        self._next_due = self._polls + 1

    def doubt_all(self) -> None:
        self._rests.clear()
        self._all_doubted = True
        self._next_due = self._polls + 1

    @property
    def until_due(self) -> int:
        """Polls until the first of the partitions last given to `due` is due."""
        return max(1, self._next_due - self._polls)

    def due(self, keys: Sequence[PartitionKey], passed: int = 1) -> list[PartitionKey]:
        """Returns the partitions to ask for in the next poll, of `keys`, which are read here. Forgets all
        others. `passed`: the polls since the last one, this one included.
        """
        self._polls += passed
        self._next_due = self._polls + self._longest
        self._doubted.clear()
        self._all_doubted = False
        if len(self._rests) > len(keys):
            self._rests = {key: self._rests[key] for key in keys if key in self._rests}
        asked = []
        for key in keys:
            rest = self._rests.get(key)
            if rest is None:
                asked.append(key)
                self._next_due = self._polls + 1
                continue
            if rest.until <= self._polls:
                asked.append(key)
                rest = self._rests[key] = self._rest(min(2 * rest.polls, self._longest))
            self._next_due = min(self._next_due, rest.until)
        return asked

    def _rest(self, polls: int) -> _Rest:
        """Rests until the next poll whose number is a multiple of `polls`."""
        return _Rest(polls=polls, until=self._polls + polls - self._polls % polls)


log = logging.getLogger("tidelog")

_AWAY = (SequencerUnavailable, CommitOutcomeUnknown, TimeoutError)
_POLLS_BETWEEN_TRIES_WHEN_AWAY = 10
_FEWEST_RUNS = 4
"""The fewest runs asked for per partition, however many partitions a question has."""


class KnownCoordinates:
    """`push` gets this agent's own commits and sends them to the agents that subscribed."""

    def __init__(
        self,
        sequencer: Sequencer,
        partitions_read: PartitionsRead,
        settings: ReadPathSettings,
        push: Callable[[Sequence[RunCoordinate]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sequencer = sequencer
        self._partitions_read = partitions_read
        self._settings = settings
        self._push = push
        self._clock = clock
        self._cache = CoordinateCache(
            CoordinateLimits(
                max_age_s=settings.coordinate_max_age_s,
                max_runs=settings.coordinate_cache_runs,
                max_runs_per_partition=settings.coordinate_cache_runs_per_partition,
                max_ahead=settings.coordinate_runs_ahead,
                max_windows=settings.coordinate_history_windows,
                max_aborted=MAX_ABORTED,
            )
        )
        self._waiting: dict[PartitionKey, set[Watch]] = {}
        self._turns = PollTurns(int(settings.coordinate_poll_heard_s / settings.coordinate_poll_s + 0.5))
        self._poll_now = asyncio.Event()
        self._is_away = False
        self.last_poll_s: float | None = None
        """The monotonic time at which the last successful poll was sent."""
        self.primary_seen_s = -math.inf
        """The monotonic time of the last question whether the sequencer's Postgres is the primary."""
        self.regressions = 0
        """How often the sequencer knew less than before. Each time is an alarm."""
        partitions_read.when_new(self._poll_now.set)
        sequencer.database.on_change(self._forget_all)

    @property
    def cached_runs(self) -> int:
        return len(self._cache)

    @property
    def watchers(self) -> int:
        """The number of partitions that fetches wait for."""
        return len(self._waiting)

    def interned(self, topic_id: TopicId) -> TopicId:
        """Returns the object that stands for this topic in the keys kept here. Comparing it takes no time."""
        return self._cache.interned(topic_id)

    def known_end(self, key: PartitionKey) -> Offset | None:
        """Returns the high watermark that this agent serves. None: it knows nothing of the partition."""
        return self._cache.known_end(key)

    def find(self, key: PartitionKey, offset: int, max_bytes: int, now_s: float) -> PartitionView | None:
        """Returns what is known for a reader at an offset. If the partition exists, the reader is noted."""
        view = self._cache.find(key, offset, max_bytes, now_s)
        if view is not None:
            self._partitions_read.note(key, now_s)
        return view

    def is_current(self, key: PartitionKey, view: PartitionView) -> bool:
        """True if the coordinates that a reader took before it waited for bytes may still be answered."""
        if self._clock() - view.learned_s > self._settings.coordinate_max_age_s:
            return False
        epoch = self._cache.coordinate_epoch(key)
        return epoch is None or epoch <= view.coordinate_epoch

    def forget(self, key: PartitionKey) -> None:
        self._cache.drop(key)

    def committed(self, runs: Sequence[RunCoordinate]) -> None:
        """Takes runs that this agent committed."""
        self.heard(runs)
        self._push(runs)

    def missed(self, runs: Sequence[RunCoordinate]) -> None:
        """Takes runs of a repeated commit. Transactions that were open then may have ended since, so only the
        sequencer knows what is stable.
        """
        for run in runs:
            self._turns.doubt((run.topic_id, run.partition))
        if runs:
            self._poll_now.set()

    def heard(self, runs: Sequence[RunCoordinate]) -> None:
        """Takes runs that were committed here, or by a peer that pushed them."""
        for run in runs:
            applied, key = self._cache.apply(run), (run.topic_id, run.partition)
            if applied is Applied.APPENDED:
                self._turns.heard(key)
                self._wake(key)
            elif applied is Applied.AHEAD:
                self._turns.doubt(key)
                self._poll_now.set()

    async def ask(self, asked: Mapping[PartitionKey, int]) -> set[PartitionKey]:
        """Asks the sequencer from these offsets on. Returns the partitions that do not exist.

        Raises SequencerUnavailable.
        """
        asked_s, generation = self._clock(), self._sequencer.database.generation
        known_ends = {key: self._cache.known_end(key) for key in asked}
        answers = await self._read(asked)
        if any(
            answer.high_watermark < max(asked[key], known_ends[key] or 0) for key, answer in answers.items()
        ):
            await self._confirm_primary()
            if self._sequencer.database.generation != generation:
                answers = await self._read(asked)
        if self._sequencer.database.generation != generation:  # the answer must be of the present primary
            known_ends = {key: self._cache.known_end(key) for key in asked}
        for key, answer in answers.items():
            if self._learn(key, answer, known_ends[key], asked_s):
                self._poll_now.set()
            self._wake(key)
        unknown = asked.keys() - answers.keys()
        for key in unknown:
            self._cache.drop(key)
        return unknown

    async def aborted_of_batches(
        self, asked: Sequence[TransactionalBatches]
    ) -> list[tuple[AbortedTransaction, ...] | None]:
        """Asks the sequencer. Raises SequencerUnavailable."""
        return await self._sequencer.coordinates.aborted_of_batches(asked)

    async def _confirm_primary(self) -> None:
        """Checks the primary if Postgres knows less than a reader or a peer: it may be an old primary."""
        seen_s = self._clock()
        await self._sequencer.database.confirm_primary()
        self.primary_seen_s = max(self.primary_seen_s, seen_s)

    async def _read(self, asked: Mapping[PartitionKey, int]) -> dict[PartitionKey, PartitionCoordinates]:
        share = max(_FEWEST_RUNS, self._settings.coordinate_answer_runs // max(1, len(asked)))
        requests = [
            CoordinateRequest(
                topic_id=key[0],
                partition=key[1],
                from_offset=Offset(max(0, offset)),
                max_runs=min(self._settings.coordinate_read_runs, share),
            )
            for key, offset in asked.items()
        ]
        try:
            async with asyncio.timeout(self._settings.coordinate_timeout_s):
                return await self._sequencer.coordinates.read(requests)
        except TimeoutError as error:
            raise SequencerUnavailable(
                "no coordinates within TIDELOG_COORDINATE_TIMEOUT_S "
                f"({self._settings.coordinate_timeout_s} s)"
            ) from error

    @contextmanager
    def watching(self, keys: Sequence[PartitionKey], watch: Watch) -> Iterator[None]:
        """`watch` hears when more is known of one of these partitions."""
        waiting = self._waiting
        for key in keys:
            watches = waiting.get(key)
            if watches is None:
                watches = waiting[key] = set()
            watches.add(watch)
        try:
            yield
        finally:
            for key in keys:
                watches = waiting.get(key)
                if watches is not None:
                    watches.discard(watch)
                    if not watches:
                        del waiting[key]

    def wake_all(self) -> None:
        """Lets every waiting fetch look again."""
        for key in self._waiting:
            self._wake(key)

    async def run(self) -> None:
        """Polls until cancelled."""
        poll_s, passed = self._settings.coordinate_poll_s, 1
        while True:
            try:
                await self._poll_all(passed)
                self._is_away, waits_for_polls = False, self._turns.until_due
            except _AWAY as error:
                if not self._is_away:
                    log.warning("coordinates: cannot poll the sequencer", extra={"error": str(error)})
                self._is_away, waits_for_polls = True, _POLLS_BETWEEN_TRIES_WHEN_AWAY
                self._turns.doubt_all()
            paused_s = self._clock()
            await self._pause(waits_for_polls * poll_s)
            passed = max(1, round((self._clock() - paused_s) / poll_s))

    async def _pause(self, wait_s: float) -> None:
        """Waits until the next poll is due: not at all after a gap or a doubt, without end while there are no
        readers.
        """
        if self._is_away:
            await asyncio.sleep(wait_s)
        else:
            try:
                async with asyncio.timeout(wait_s if len(self._partitions_read) else None):
                    await self._poll_now.wait()
            except TimeoutError:
                return
        self._poll_now.clear()

    async def _poll_all(self, passed: int = 1) -> None:
        keys = self._turns.due(self._partitions_read.current(), passed)
        for first in range(0, len(keys), self._settings.coordinate_poll_partitions):
            known = self._cache.known_ends(keys[first : first + self._settings.coordinate_poll_partitions])
            if known:
                await self._poll(known)

    async def _poll(self, known: Sequence[KnownEnd]) -> None:
        asked_s, generation = self._clock(), self._sequencer.database.generation
        async with asyncio.timeout(self._settings.coordinate_timeout_s):
            changed = await self._sequencer.coordinates.poll(known, self._settings.coordinate_read_runs)
        if any(
            (answer := changed.get((end.topic_id, end.partition))) is not None
            and answer.high_watermark < end.known_end
            for end in known
        ):
            await self._confirm_primary()
        if self._sequencer.database.generation != generation:
            return  # what was known at the question is forgotten, and the next poll asks for all
        self.last_poll_s = asked_s
        for end in known:
            key = (end.topic_id, end.partition)
            if key not in changed:
                self._cache.confirm(key, end.known_end, asked_s)
                continue
            answer = changed[key]
            if answer is None:
                self._cache.drop(key)
            else:
                self._learn(key, answer, end.known_end, asked_s)
            self._wake(key)

    def _learn(
        self,
        key: PartitionKey,
        answer: PartitionCoordinates,
        known_end_when_asked: Offset | None,
        asked_s: float,
    ) -> bool:
        """Returns True if it shows commits that no push reported."""
        is_news = answer.high_watermark > (self._cache.known_end(key) or 0)
        if is_news:
            self._turns.doubt(key)
        learned = self._cache.learn(answer, known_end_when_asked, asked_s)
        if learned is Learned.REGRESSED:
            self.regressions += 1
            log.error(
                "coordinates: the sequencer's high watermark went back; acknowledged records may be lost",
                extra={
                    "topic_id": str(key[0]),
                    "partition": key[1],
                    "known_end": known_end_when_asked,
                    "high_watermark": answer.high_watermark,
                },
            )
        return is_news

    def _forget_all(self) -> None:
        """Another Postgres became the primary. It may know less."""
        self._cache.drop_all()
        self._turns.doubt_all()
        self._poll_now.set()
        self.wake_all()

    def _wake(self, key: PartitionKey) -> None:
        for watch in self._waiting.get(key, ()):
            watch.tell(key)
