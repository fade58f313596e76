"""Decides for a recovery: which side is newer, which objects may hold records that no journal names, and what
replaces a range of offsets whose object is gone.

Pure. Promise: the replacement covers the range, without gaps and overlaps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from storage.batches.record_batch import BatchHeader
from storage.identifiers import BytePosition, Offset, Partition, SegmentId, TopicId

PartitionKey = tuple[TopicId, Partition]


class Source(Enum):
    """Where the log is read from."""

    DATABASE = "the database"
    JOURNAL = "the bucket's journal"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class JournalPosition:
    """An entry of the journal. Later entries compare greater."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A database, or a bucket's journal, and how far it reaches."""

    position: JournalPosition
    known_at: datetime | None
    """Everything committed before is in it; None: nothing is certain to be."""


def newer_side(
    database: Side, bucket: Side | None, *, passes_beyond: int = 1, knows_last_commit: bool | None = None
) -> Source:
    """Returns the journal if it holds what the database does not know.

    In a later epoch another owner has continued the log. Within an epoch there is one log. A database that
    worked after the last entry was taken has all of it, even if it died before it noted that entry.

    Having worked later proves nothing if the database was set back before: agents that were not stopped
    continue in a restored database until they find that the ownership was lost. `passes_beyond`: how many
    readings the entries come from that the database has not noted; a second reading begins only when the
    first is noted. `knows_last_commit`: True if the database has the last commit of those entries; None: they
    have none.
    """
    if bucket is None or database.position >= bucket.position:
        return Source.DATABASE
    is_ahead = (
        passes_beyond <= 1
        and knows_last_commit is not False
        and database.position.epoch == bucket.position.epoch
        and database.known_at is not None
        and bucket.known_at is not None
        and database.known_at > bucket.known_at
    )
    return Source.DATABASE if is_ahead else Source.JOURNAL


def young_since(last_known_at: datetime | None, margin_s: float) -> datetime | None:
    """Returns since when objects may hold commits after `last_known_at`, by the time of their upload; None:
    all may."""
    return None if last_known_at is None else last_known_at - timedelta(seconds=margin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Consecutive offsets of a partition, `[base_offset, last_offset]`, whose objects are gone."""

    topic_id: TopicId
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    runs: int
    length: int
    """Of the runs, in bytes."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    running_max_timestamp_ms: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition

    @property
    def offsets(self) -> int:
        return self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenRun:
    """Bytes of a merged object whose footer says which offsets they hold."""

    topic_id: TopicId
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    segment_id: SegmentId
    position: BytePosition
    length: int
    crc32c: int
    min_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenBatch:
    """A batch of a proven run: its bytes `[start, end)` within the run, and its header."""

    base_offset: Offset
    start: int
    end: int
    header: BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class HolePart:
    """A part `[base_offset, last_offset]` of a hole. `run` None: no object proves it, and it is gone."""

    base_offset: Offset
    last_offset: Offset
    run: ProvenRun | None


def parts_of(hole: Hole, proven: Sequence[ProvenRun]) -> Iterator[HolePart]:
    """Covers the hole from its start by as few runs as possible. Of equal runs the one named first is
    taken."""
    useful = [
        run for run in proven if run.last_offset >= hole.base_offset and run.base_offset <= hole.last_offset
    ]
    offset = int(hole.base_offset)
    while offset <= hole.last_offset:
        here = [run for run in useful if run.base_offset <= offset <= run.last_offset]
        if here:
            run = max(here, key=lambda one: one.last_offset)
            last = min(run.last_offset, hole.last_offset)
            yield HolePart(base_offset=Offset(offset), last_offset=Offset(last), run=run)
        else:
            next_base = min((run.base_offset for run in useful if run.base_offset > offset), default=None)
            last = hole.last_offset if next_base is None else Offset(next_base - 1)
            yield HolePart(base_offset=Offset(offset), last_offset=Offset(last), run=None)
        offset = last + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run that replaces others."""

    topic_id: TopicId
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    segment_id: SegmentId
    position: BytePosition
    length: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    running_max_timestamp_ms: int


def chosen_batches(part: HolePart, batches: Sequence[ProvenBatch]) -> Sequence[ProvenBatch] | None:
    """Returns the batches of a part's run that the part takes. None if it does not begin and end between
    batches."""
    assert part.run is not None
    bases = [int(one.base_offset) for one in batches] + [part.run.last_offset + 1]
    if part.base_offset not in bases or part.last_offset + 1 not in bases:
        return None
    return batches[bases.index(part.base_offset) : bases.index(part.last_offset + 1)]


def cut(hole: Hole, part: HolePart, chosen: Sequence[ProvenBatch], most_bytes: int) -> Iterator[NewRun]:
    """Yields the runs that a part of a hole becomes, cut between batches at about `most_bytes`."""
    assert part.run is not None
    first = 0
    for index, batch in enumerate(chosen):
        begins = chosen[first]
        is_last = index + 1 == len(chosen)
        if not is_last and chosen[index + 1].end - begins.start <= most_bytes:
            continue
        yield NewRun(
            topic_id=hole.topic_id,
            partition=hole.partition,
            base_offset=begins.base_offset,
            last_offset=part.last_offset if is_last else Offset(chosen[index + 1].base_offset - 1),
            segment_id=part.run.segment_id,
            position=BytePosition(part.run.position + begins.start),
            length=batch.end - begins.start,
            min_timestamp_ms=hole.min_timestamp_ms,
            max_timestamp_ms=hole.max_timestamp_ms,
            running_max_timestamp_ms=hole.running_max_timestamp_ms,
        )
        first = index + 1


def beyond(
    key: PartitionKey, high_watermark: int, newest_timestamp_ms: int, proven: Sequence[ProvenRun]
) -> Hole | None:
    """Returns what merged objects prove after the end of the log, as a range without runs; None if
    nothing."""
    past = [run for run in proven if run.last_offset >= high_watermark]
    if not past:
        return None
    newest_ms = max(run.max_timestamp_ms for run in past)
    return Hole(
        topic_id=key[0],
        partition=key[1],
        base_offset=Offset(high_watermark),
        last_offset=max(run.last_offset for run in past),
        runs=0,
        length=0,
        min_timestamp_ms=min(run.min_timestamp_ms for run in past),
        max_timestamp_ms=newest_ms,
        running_max_timestamp_ms=max(newest_timestamp_ms, newest_ms),
    )
