"""What this agent knows of where runs are: one contiguous interval per partition, up to its known end
(docs/design/read-path.md#coordinates).

Pure: the caller asks the sequencer and owns the clock.

Promises:
- A run is appended only if it begins at the known end. A later run is kept aside until the gap is closed
  [raced: one push overtakes another]. An earlier run is ignored. The served high watermark is the known end,
  so no reader is led past a run that this agent does not know.
- The known end never goes back, unless the sequencer itself says less than before (`Learned.REGRESSED`).
- The last stable offset is that of the known end: each run that a commit announces brings it. So it never
  passes a transaction that is open in what is served (docs/design/transactions.md#reading-committed-data).
- Runs are handed out only with every aborted transaction that overlaps them and has ended before the known
  end. An answer that is older than that end brings only those of its own time. If later ones may be missing,
  its runs are left out [raced: an answer that a push of an abort overtook]. Where there are too many to be
  listed, readers look up those of the batches that they read.
- A higher coordinate epoch drops every run. A response with a lower epoch is ignored.
- Nothing older than `max_age_s` is handed out. At most `max_runs` runs are kept.

Readers of history, far behind the end, have their own windows besides the interval. Nothing is appended to
those.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from sequencer.commits.coordinates import (
    KnownEnd,
    PartitionCoordinates,
    PartitionKey,
    RunCoordinate,
)
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import NO_OFFSET, Offset, TopicId

_RUNS_BEYOND = 32
_TIMES_BEYOND = 2
"""How much is named beyond the request, so that the pages can be loaded ahead: this many runs, or the runs
that hold this many times the requested bytes."""


class Applied(Enum):
    """What happened to a run that a push or an own commit announced."""

    APPENDED = auto()
    IGNORED = auto()
    """The run is below the known end, or the partition has no readers here."""
    AHEAD = auto()
    """There is a gap before the run: ask the sequencer."""


class Learned(Enum):
    """What happened to a response of the sequencer."""

    APPLIED = auto()
    STALE = auto()
    """It has an earlier coordinate epoch than the known one."""
    REGRESSED = auto()
    """The high watermark is lower than one that the sequencer gave before: the sequencer has lost commits.
    Everything known before was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateLimits:
    max_age_s: float
    max_runs: int
    max_runs_per_partition: int
    max_ahead: int
    max_windows: int
    max_aborted: int
    """Aborted transactions per partition. If there are more, they are not listed."""


class PartitionView(NamedTuple):
    """What is known of a partition, for a reader at one offset."""

    log_start_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    coordinate_epoch: int
    runs: tuple[RunCoordinate, ...] | None
    """The runs from the one that holds the offset on. Empty at or after the high watermark. None: ask the
    sequencer."""
    aborted: tuple[AbortedTransaction, ...] | None
    """At least all that overlap the runs from the offset on, in the order of their markers. None: the
    sequencer knows those of the batches that are read."""
    learned_s: float
    """When the oldest part of this was read from the sequencer."""
    confirmed_s: float
    """When the sequencer was last asked for newer runs."""


@dataclass(slots=True, kw_only=True)
class _Window:
    runs: tuple[RunCoordinate, ...]
    learned_s: float


_NONE_ABORTED: Final[list[AbortedTransaction]] = []
"""For all partitions without any: an empty list each would be a tenth of what a partition takes. Never
changed."""


@dataclass(slots=True, kw_only=True)
class _Interval:
    known_end: Offset
    log_start_offset: Offset
    first_unstable: int
    """Where the first transaction begins that is open at the known end; -1: none is open."""
    coordinate_epoch: int
    learned_s: float
    confirmed_s: float
    aborted_from: Offset
    """`aborted` lacks none whose marker is here or later, wherever it began, unless it is below
    `listed_from`."""
    listed_from: Offset = NO_OFFSET
    """For readers below this offset `aborted` is not complete, as there are too many."""
    runs: list[RunCoordinate] = field(default_factory=list)
    ahead: dict[Offset, RunCoordinate] = field(default_factory=dict)
    windows: tuple[_Window, ...] = ()
    """The most recently used is last."""
    aborted: list[AbortedTransaction] = field(default_factory=lambda: _NONE_ABORTED)
    """All that overlap what is kept, in the order of their markers."""

    @property
    def first_offset(self) -> Offset:
        return self.runs[0].base_offset if self.runs else self.known_end

    @property
    def size(self) -> int:
        of_windows = sum(len(window.runs) for window in self.windows)
        return 1 + len(self.runs) + len(self.ahead) + of_windows + len(self.aborted)

    @property
    def last_stable_offset(self) -> Offset:
        if self.first_unstable < 0:
            return self.known_end
        return Offset(max(self.log_start_offset, min(self.known_end, self.first_unstable)))


class CoordinateCache:
    def __init__(self, limits: CoordinateLimits) -> None:
        self._limits = limits
        self._intervals: OrderedDict[PartitionKey, _Interval] = OrderedDict()
        self._topic_ids: dict[TopicId, TopicId] = {}
        self._size = 0

    def __len__(self) -> int:
        """How many runs (and partitions) are kept."""
        return self._size

    def interned(self, topic_id: TopicId) -> TopicId:
        """Returns the object that stands for this topic in the keys kept here. A look-up with it compares no
        UUIDs, which is the slowest part of a look-up."""
        if len(self._topic_ids) > self._limits.max_runs:
            self._topic_ids.clear()
        return self._topic_ids.setdefault(topic_id, topic_id)

    def known_end(self, key: PartitionKey) -> Offset | None:
        interval = self._intervals.get(key)
        return None if interval is None else interval.known_end

    def coordinate_epoch(self, key: PartitionKey) -> int | None:
        interval = self._intervals.get(key)
        return None if interval is None else interval.coordinate_epoch

    def known_ends(self, keys: Iterable[PartitionKey]) -> list[KnownEnd]:
        """Returns what to send with a poll. Partitions of which nothing is known are left out."""
        return [
            KnownEnd(
                topic_id=key[0],
                partition=key[1],
                known_end=interval.known_end,
                log_start_offset=interval.log_start_offset,
                coordinate_epoch=interval.coordinate_epoch,
            )
            for key in keys
            if (interval := self._intervals.get(key)) is not None
        ]

    def find(self, key: PartitionKey, offset: int, max_bytes: int, now_s: float) -> PartitionView | None:
        """Returns what a reader at `offset` needs, with runs of at least `max_bytes` if there are enough.
        None: nothing is known."""
        interval = self._intervals.get(key)
        if interval is None:
            return None
        if now_s - interval.learned_s > self._limits.max_age_s:
            self.drop(key)
            return None
        self._intervals.move_to_end(key)
        runs, learned_s = self._runs_from(interval, offset, max_bytes, now_s)
        return PartitionView(
            log_start_offset=interval.log_start_offset,
            high_watermark=interval.known_end,
            last_stable_offset=interval.last_stable_offset,
            coordinate_epoch=interval.coordinate_epoch,
            runs=runs,
            aborted=_aborted_for(interval, offset),
            learned_s=learned_s,
            confirmed_s=interval.confirmed_s,
        )

    def apply(self, run: RunCoordinate) -> Applied:
        """Takes a run that this agent committed, or that another agent committed and pushed."""
        key = (run.topic_id, run.partition)
        interval = self._intervals.get(key)
        if interval is None or run.base_offset < interval.known_end:
            return Applied.IGNORED
        before = interval.size
        if run.base_offset > interval.known_end:
            if len(interval.ahead) < self._limits.max_ahead:
                interval.ahead[run.base_offset] = run
            self._size += interval.size - before
            return Applied.AHEAD
        _append_committed(interval, run)
        self._append_what_was_ahead(interval)
        self._resized(key, interval, before)
        return Applied.APPENDED

    def learn(
        self, read: PartitionCoordinates, known_end_when_asked: Offset | None, asked_s: float
    ) -> Learned:
        """Takes the sequencer's response to a read or a poll. Afterwards the known end is at least its high
        watermark."""
        key = (self.interned(read.topic_id), read.partition)
        interval = self._intervals.get(key)
        regressed = known_end_when_asked is not None and read.high_watermark < known_end_when_asked
        if interval is not None and regressed:
            self.drop(key)
            interval = None
        if interval is None:
            interval = self._intervals[key] = _Interval(
                known_end=read.high_watermark,
                log_start_offset=read.log_start_offset,
                first_unstable=NO_OFFSET,
                coordinate_epoch=read.coordinate_epoch,
                learned_s=asked_s,
                confirmed_s=asked_s,
                aborted_from=read.high_watermark,
            )
            self._size += 1
        elif read.coordinate_epoch < interval.coordinate_epoch:
            return Learned.STALE
        before = interval.size
        self._update(interval, read, asked_s)
        self._resized(key, interval, before)
        return Learned.REGRESSED if regressed else Learned.APPLIED

    def confirm(self, key: PartitionKey, known_end_when_asked: Offset, asked_s: float) -> None:
        """Notes that a poll found nothing newer than what was known when it was sent."""
        interval = self._intervals.get(key)
        if interval is not None and interval.known_end >= known_end_when_asked:
            interval.confirmed_s = max(interval.confirmed_s, asked_s)

    def drop(self, key: PartitionKey) -> None:
        interval = self._intervals.pop(key, None)
        if interval is not None:
            self._size -= interval.size

    def drop_all(self) -> None:
        """Drops everything: after a failover of the database nothing known may be trusted
        (docs/design/read-path.md#coordinates)."""
        self._intervals.clear()
        self._size = 0

    def _runs_from(
        self, interval: _Interval, offset: int, max_bytes: int, now_s: float
    ) -> tuple[tuple[RunCoordinate, ...] | None, float]:
        if offset >= interval.known_end:
            return (), interval.learned_s
        if offset >= interval.first_offset:
            return _slice(interval.runs, offset, max_bytes)[0], interval.learned_s
        window = self._window_at(interval, offset, now_s)
        if window is None:
            return None, interval.learned_s
        runs, missing_bytes = _slice(window.runs, offset, max_bytes)
        learned_s = window.learned_s
        while missing_bytes is not None and (end := _end(runs)) < interval.known_end:
            following = interval if end >= interval.first_offset else self._window_at(interval, end, now_s)
            if following is None:
                break
            more, missing_bytes = _slice(following.runs, end, missing_bytes)
            if more[0].base_offset != end:  # a merge came between the two responses
                break
            runs, learned_s = runs + more, min(learned_s, following.learned_s)
        return runs, learned_s

    def _window_at(self, interval: _Interval, offset: int, now_s: float) -> _Window | None:
        """Returns the window of history that holds the offset."""
        for at, window in enumerate(interval.windows):
            # An old one must not hide a newer one.
            is_of_age = now_s - window.learned_s > self._limits.max_age_s
            if not is_of_age and window.runs[0].base_offset <= offset <= window.runs[-1].last_offset:
                interval.windows = (*interval.windows[:at], *interval.windows[at + 1 :], window)
                return window
        return None

    def _update(self, interval: _Interval, read: PartitionCoordinates, asked_s: float) -> None:
        if read.coordinate_epoch > interval.coordinate_epoch:
            interval.coordinate_epoch = read.coordinate_epoch
            interval.runs.clear()
            interval.windows = ()
            interval.learned_s = asked_s
        interval.log_start_offset = max(interval.log_start_offset, read.log_start_offset)
        interval.confirmed_s = max(interval.confirmed_s, asked_s)
        self._place(interval, read, asked_s)
        if read.high_watermark >= interval.known_end:
            is_open = read.last_stable_offset < read.high_watermark
            interval.first_unstable = read.last_stable_offset if is_open else NO_OFFSET
        if read.aborted is None:
            interval.listed_from = interval.known_end
        elif read.aborted:
            _take_aborted(interval, read.aborted)
        self._append_what_was_ahead(interval)
        del interval.runs[
            : bisect_left(interval.runs, interval.log_start_offset, key=lambda run: run.last_offset)
        ]

    def _place(self, interval: _Interval, read: PartitionCoordinates, asked_s: float) -> None:
        """Puts the runs of a response where they belong: after the interval, before it, in its place, or into
        a window."""
        if read.high_watermark < interval.aborted_from and _reaches(read.runs, read.last_stable_offset):
            return  # transactions that were open then may have been aborted since, which is not known here
        newer = [run for run in read.runs if run.base_offset >= interval.known_end]
        older = [run for run in read.runs if run.base_offset < interval.first_offset]
        if read.high_watermark > interval.known_end:
            if newer and newer[0].base_offset == interval.known_end and _end(newer) == read.high_watermark:
                for run in newer:
                    _append(interval, run)
            else:
                reaches_end = bool(read.runs) and _end(read.runs) == read.high_watermark
                if not _covers(read.runs, interval.known_end):
                    self._forget_unstable(interval, read.high_watermark)
                interval.runs = list(read.runs) if reaches_end else []
                interval.known_end = read.high_watermark
                interval.learned_s = asked_s
                older = [] if reaches_end else list(read.runs)
        if older and _end(older) == interval.first_offset:
            interval.runs[:0] = older
            interval.learned_s = min(interval.learned_s, asked_s)
        elif older:
            window = _Window(runs=tuple(older), learned_s=asked_s)
            interval.windows = (*interval.windows, window)[-self._limits.max_windows :]

    def _forget_unstable(self, interval: _Interval, high_watermark: Offset) -> None:
        """The known end goes on to `high_watermark`. Transactions that are open at the present one may have
        been aborted between the two. So what they may have written is forgotten.
        """
        interval.aborted_from = high_watermark
        if interval.first_unstable >= 0:
            interval.windows = tuple(
                window for window in interval.windows if not _reaches(window.runs, interval.first_unstable)
            )

    def _append_what_was_ahead(self, interval: _Interval) -> None:
        while (run := interval.ahead.pop(interval.known_end, None)) is not None:
            _append_committed(interval, run)
        for base_offset in [
            base_offset for base_offset in interval.ahead if base_offset < interval.known_end
        ]:
            del interval.ahead[base_offset]

    def _resized(self, key: PartitionKey, interval: _Interval, before: int) -> None:
        """Keeps to the limits: drops the oldest runs of this partition first, then whole partitions, least
        recently used first."""
        excess = len(interval.runs) - self._limits.max_runs_per_partition
        if excess > 0:
            del interval.runs[
                : excess + self._limits.max_runs_per_partition // 8
            ]  # drops a few more, so that it does not happen each time
        if interval.aborted:
            kept = [window.runs[0].base_offset for window in interval.windows]
            kept_from = min([interval.first_offset, *kept])
            passed = _place_of(interval.aborted, kept_from)
            if passed:
                interval.aborted_from = max(interval.aborted_from, kept_from)
                del interval.aborted[:passed]
        if len(interval.aborted) > self._limits.max_aborted:
            interval.aborted, interval.listed_from = _NONE_ABORTED, interval.known_end
        self._size += interval.size - before
        self._intervals.move_to_end(key)
        while self._size > self._limits.max_runs and len(self._intervals) > 1:
            _, evicted = self._intervals.popitem(last=False)
            self._size -= evicted.size


def _append(interval: _Interval, run: RunCoordinate) -> None:
    interval.runs.append(run)
    interval.known_end = Offset(run.last_offset + 1)


def _append_committed(interval: _Interval, run: RunCoordinate) -> None:
    """Appends a run that a commit announced, with what it says of transactions."""
    _append(interval, run)
    interval.first_unstable = run.first_unstable
    if run.aborted is not None:
        if interval.aborted:
            interval.aborted.append(run.aborted)
        else:
            interval.aborted = [run.aborted]


def _take_aborted(interval: _Interval, read: Sequence[AbortedTransaction]) -> None:
    if not interval.aborted:
        interval.aborted = list(read)
        return
    known = interval.aborted[_place_of(interval.aborted, read[0].last_offset) :]
    if known != list(read):
        interval.aborted[-len(known) or len(interval.aborted) :] = sorted({*known, *read})


def _covers(runs: Sequence[RunCoordinate], offset: int) -> bool:
    """True if none is missing before the offset, and the last one ends there or later."""
    return bool(runs) and runs[0].base_offset <= offset <= _end(runs)


def _reaches(runs: Sequence[RunCoordinate], offset: int) -> bool:
    """True if a run holds the offset, or lies behind it."""
    return bool(runs) and runs[-1].last_offset >= offset


def _place_of(aborted: Sequence[AbortedTransaction], offset: int) -> int:
    """The first whose marker is at the offset or after it."""
    return bisect_left(aborted, offset, key=lambda entry: entry.last_offset)


def _aborted_for(interval: _Interval, offset: int) -> tuple[AbortedTransaction, ...] | None:
    if offset < interval.listed_from:
        return None
    if not interval.aborted:
        return ()
    return tuple(interval.aborted[_place_of(interval.aborted, offset) :])


def _end(runs: Sequence[RunCoordinate]) -> int:
    return runs[-1].last_offset + 1


def _slice(
    runs: Sequence[RunCoordinate], offset: int, max_bytes: int
) -> tuple[tuple[RunCoordinate, ...], int | None]:
    """Returns the runs from the one that holds `offset` on, until they hold `max_bytes` beyond the first,
    plus some more. The first may count only in part. If there are not enough runs, also returns how many of
    `max_bytes` are missing."""
    at = first = bisect_right(runs, offset, key=lambda run: run.base_offset) - 1
    size_bytes, beyond = 0, 0
    most_bytes = max_bytes * (1 + _TIMES_BEYOND)
    while beyond < _RUNS_BEYOND or size_bytes < most_bytes:
        if at == len(runs):
            return tuple(runs[first:]), max(0, max_bytes - size_bytes)
        beyond += size_bytes >= max_bytes
        size_bytes += runs[at].length if at > first else 0
        at += 1
    return tuple(runs[first:at]), None
