"""Reads from Postgres where offsets are: coordinates, bounds and times.

Promises:
- A partition's coordinates, log start, high watermark, last stable offset and epoch are from one moment,
  because one statement reads them [raced: docs/design/read-path.md#coordinates].
- Runs are contiguous and below that high watermark.
- An answer costs what it holds, not what the log holds. Nor does it cost more where very many aborted
  transactions overlap it: then they are looked up by the batches that a reader has.
- While a commit may be on no standby, there is no answer before a standby has confirmed a later write.
- Below a partition's local start, where consumers read Parquet (docs/design/history.md#parquet-is-the-log),
  coordinates name row groups, and the runs that did not decode. They are contiguous all the same: a range
  that neither holds is named `NOTHING`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sequencer.database.array_parameters import Int4Array, Int8Array, TextArray, UuidArray
from sequencer.database.database import Database, Row, SequencerUnavailable
from sequencer.database.named_sql import load_statements
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import NO_OFFSET, BytePosition, ObjectKey, Offset, Partition, ProducerId, TopicId

SQL = load_statements("coordinates")

PartitionKey = tuple[TopicId, Partition]
FIRST_OFFSET = Offset(0)
_LAST_OFFSET = Offset((1 << 63) - 1)
TIME_LOOKUP_STEP = 1000
"""Runs per statement of a search by time."""
NOTHING = ObjectKey("")
"""Stands for an object's key: no record is left at these offsets."""
_NO_TIMESTAMP_MS = -1
MAX_ABORTED = 2_000
"""Aborted transactions per partition and answer. If more may overlap the runs, readers look up those of the
batches that they read."""
_ABORTED_AT_A_TIME = 2_000
_MAX_ABORTED_OF_A_RUN = 1_000_000
_MAX_LOOKED_AT = 5_000_000
"""Aborted transactions behind a run's start. Below an open transaction, few of them may overlap the run."""
_HISTORY_FILES = 16
"""Files, and runs among them, per statement and partition."""
_NUMBERS_PER_ROW_GROUP = 4


class RunCoordinate(NamedTuple):
    """Where one run is: offsets `[base_offset, last_offset]` are `length` bytes at `position` of an object.
    In a history file these bytes are a row group; the key `NOTHING` names no object.

    A tuple, because commits, pushes and polls make one per partition: a frozen dataclass takes five times as
    long to make.
    """

    topic_id: TopicId
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    object_key: ObjectKey
    object_size_bytes: int
    position: BytePosition
    length: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    first_unstable: int = NO_OFFSET
    """Of a run that was committed just now: the partition's first unstable offset after it, or -1."""
    aborted: AbortedTransaction | None = None
    """Of a marker that was committed just now: the transaction that it aborts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCoordinates:
    """A partition at one moment. `runs` are contiguous. The first covers the requested offset, or the log
    start if that is higher.
    """

    topic_id: TopicId
    partition: Partition
    log_start_offset: Offset
    local_start_offset: Offset
    """Lower offsets may be in history only."""
    high_watermark: Offset
    last_stable_offset: Offset
    coordinate_epoch: int
    runs: tuple[RunCoordinate, ...]
    aborted: tuple[AbortedTransaction, ...] | None = ()
    """All that overlap the runs, in the order of their markers, which may come after the runs. None: too many
    to be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    log_start_offset: Offset
    local_start_offset: Offset
    """Lower offsets may be in history only."""
    high_watermark: Offset
    last_stable_offset: Offset
    max_timestamp_ms: int
    """The maximum of all records ever committed, also of deleted ones; -1 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateRequest:
    topic_id: TopicId
    partition: Partition
    from_offset: Offset
    max_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalBatches:
    """Batches of transactions that have ended, and the runs that they were read from. Batch `i` begins at
    `base_offsets[i]` (in order, at least one) and is of the producer `producer_ids[i]`."""

    runs: Sequence[RunCoordinate]
    base_offsets: Sequence[int]
    producer_ids: Sequence[int]
    from_offset: int
    """The reader needs nothing below it. The first batch may begin below it, and below the log start."""

    @property
    def key(self) -> PartitionKey:
        return self.runs[0].topic_id, self.runs[0].partition


class KnownEnd(NamedTuple):
    """What an agent knows of a partition. The poll answers only if Postgres knows otherwise."""

    topic_id: TopicId
    partition: Partition
    known_end: Offset
    log_start_offset: Offset
    coordinate_epoch: int


class Coordinates:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, requests: Sequence[CoordinateRequest]) -> dict[PartitionKey, PartitionCoordinates]:
        """Reads coordinates from an offset on, at most `max_runs` per partition. Missing partitions are left
        out."""
        rows = await self._database.read(
            SQL["read"],
            topic_ids=UuidArray(request.topic_id for request in requests),
            partitions=Int4Array(request.partition for request in requests),
            from_offsets=Int8Array(request.from_offset for request in requests),
            max_runs=Int4Array(request.max_runs for request in requests),
            max_aborted=MAX_ABORTED,
        )
        await self._heed_doubt(rows)
        found = _grouped(rows)
        history = await self._from_history(requests, found)
        return {key: each.coordinates for key, each in found.items()} | history

    async def aborted_of_batches(
        self, asked: Sequence[TransactionalBatches]
    ) -> list[tuple[AbortedTransaction, ...] | None]:
        """For each, the aborted transactions that hold one of its batches, in the order of their markers.
        None: its runs are no longer what was read, so the batches must be read again.

        Where a run was swapped or the log start has moved, transactions may be forgotten that batches of that
        run were part of. A log start within the first batch does no harm: the marker is behind the batch, and
        only transactions with markers below the log start are forgotten.
        """
        numbered = list(enumerate(asked))
        batches = [(place, each) for place, each in numbered for _ in each.base_offsets]
        runs = [(place, each, run) for place, each in numbered for run in each.runs]
        rows = await self._database.read(
            SQL["aborted_of_batches"],
            places=Int4Array(place for place, _ in batches),
            topic_ids=UuidArray(each.key[0] for _, each in batches),
            partitions=Int4Array(each.key[1] for _, each in batches),
            base_offsets=Int8Array(offset for each in asked for offset in each.base_offsets),
            producer_ids=Int8Array(producer for each in asked for producer in each.producer_ids),
            run_places=Int4Array(place for place, _, _ in runs),
            run_topic_ids=UuidArray(run.topic_id for _, _, run in runs),
            run_partitions=Int4Array(run.partition for _, _, run in runs),
            run_base_offsets=Int8Array(run.base_offset for _, _, run in runs),
            run_positions=Int8Array(run.position for _, _, run in runs),
            run_object_keys=TextArray(run.object_key for _, _, run in runs),
            read_from=Int8Array(max(each.base_offsets[0], each.from_offset) for _, each, _ in runs),
        )
        found: list[set[AbortedTransaction] | None] = [set() for _ in asked]
        for row in rows:
            entries = found[row.place]
            if row.last_offset is None:
                found[row.place] = None
            elif entries is not None:
                entries.add(AbortedTransaction(row.last_offset, row.first_offset, row.producer_id))
        return [None if entries is None else tuple(sorted(entries)) for entries in found]

    async def aborted_of_run(
        self, run: RunCoordinate, log_start_offset: Offset
    ) -> tuple[AbortedTransaction, ...] | None:
        """All aborted transactions that overlap the run, in the order of their markers. None: the run is no
        longer there, or the log start is above the one that was read with it, so the run must be read again.

        Raises SequencerUnavailable if there are a million or more, or too many to look at.
        """
        found: list[AbortedTransaction] = []
        looked_at = 0
        from_offset: int = run.base_offset
        while len(found) < _MAX_ABORTED_OF_A_RUN and looked_at < _MAX_LOOKED_AT:
            [row] = await self._database.read(
                SQL["aborted_of_run"],
                topic_id=run.topic_id,
                partition=run.partition,
                base_offset=run.base_offset,
                last_offset=run.last_offset,
                position=run.position,
                object_key=run.object_key,
                log_start=log_start_offset,
                from_offset=from_offset,
                cap=_ABORTED_AT_A_TIME,
            )
            if not row.is_there:
                return None
            found += _aborted(row.aborted or ())
            if row.looked_at < _ABORTED_AT_A_TIME or row.stable_offset > run.last_offset:
                return tuple(found)
            looked_at += row.looked_at
            from_offset = row.looked_to + 1
        raise SequencerUnavailable(
            f"a run overlaps {len(found)} aborted transactions of {looked_at} or more behind its start"
        )

    async def _from_history(
        self,
        requests: Sequence[CoordinateRequest],
        found: Mapping[PartitionKey, "_Found"],
    ) -> dict[PartitionKey, PartitionCoordinates]:
        """Coordinates for the requests that begin below a local start. They are read after the rest, so they
        may be newer and leave out more.
        """
        below = []
        for request in requests:
            key = (request.topic_id, request.partition)
            if key not in found:
                continue
            known, aborted_to = found[key]
            start = Offset(max(request.from_offset, known.log_start_offset))
            if start < known.local_start_offset:
                below.append(_Span(*key, start, known.local_start_offset, request.max_runs, aborted_to))
        answers = {}
        for span, pieces in zip(below, await self._read_history(below), strict=True):
            before = found[span.topic_id, span.partition].coordinates
            reached = pieces[-1].last_offset + 1
            behind = tuple(run for run in before.runs if run.base_offset >= reached)
            if behind and behind[0].base_offset == reached:
                pieces += behind
            answers[span.topic_id, span.partition] = replace(before, runs=pieces[: span.max_runs])
        return answers

    async def _read_history(self, spans: Sequence["_Span"]) -> list[tuple[RunCoordinate, ...]]:
        """The coordinates of each span from its start on, at least one."""
        if not spans:
            return []
        rows = await self._database.read(
            SQL["read_history"],
            topic_ids=UuidArray(span.topic_id for span in spans),
            partitions=Int4Array(span.partition for span in spans),
            from_offsets=Int8Array(span.start for span in spans),
            ends=Int8Array(span.end for span in spans),
            cap=_HISTORY_FILES,
        )
        by_place: dict[int, list[Row]] = {}
        for row in rows:
            by_place.setdefault(row.place, []).append(row)
        return [_history_of(span, by_place.get(place, [])) for place, span in enumerate(spans, start=1)]

    async def poll(
        self, known: Sequence[KnownEnd], max_runs: int
    ) -> dict[PartitionKey, PartitionCoordinates | None]:
        """Returns the partitions that have changed, each with at most `max_runs` runs from the known end on.
        None: the partition no longer exists.
        """
        rows = await self._database.read(
            SQL["poll"],
            topic_ids=UuidArray(end.topic_id for end in known),
            partitions=Int4Array(end.partition for end in known),
            known_ends=Int8Array(end.known_end for end in known),
            log_starts=Int8Array(end.log_start_offset for end in known),
            epochs=Int8Array(end.coordinate_epoch for end in known),
            max_runs=max_runs,
            max_aborted=MAX_ABORTED,
        )
        await self._heed_doubt(rows)
        changed: dict[PartitionKey, PartitionCoordinates | None] = {
            (row.topic_id, row.partition): None for row in rows if row.high_watermark is None
        }
        found = _grouped([row for row in rows if row.high_watermark is not None])
        changed.update({key: each.coordinates for key, each in found.items()})
        return changed

    async def bounds(self, partitions: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionBounds]:
        """Returns the first and the next offset of each. Missing partitions are left out."""
        rows = await self._database.read(
            SQL["bounds"],
            topic_ids=UuidArray(topic_id for topic_id, _ in partitions),
            partitions=Int4Array(partition for _, partition in partitions),
        )
        await self._heed_doubt(rows)
        return {
            (row.topic_id, row.partition): PartitionBounds(
                log_start_offset=row.log_start_offset,
                local_start_offset=row.local_start_offset,
                high_watermark=row.high_watermark,
                last_stable_offset=row.last_stable_offset,
                max_timestamp_ms=row.max_timestamp_ms,
            )
            for row in rows
        }

    async def _heed_doubt(self, rows: Sequence[Row]) -> None:
        if rows:
            await self._database.settle_doubt(rows[0].doubt)

    async def candidate_run_for_timestamp(
        self,
        topic_id: TopicId,
        partition: Partition,
        timestamp_ms: int,
        from_offset: Offset = FIRST_OFFSET,
        local_start_offset: Offset = FIRST_OFFSET,
    ) -> RunCoordinate | None:
        """Returns the first run that ends at or after `from_offset` and holds a record of this time or later.

        That record may be below the log start: then ask again from the offset after the run. The search skips
        runs by the running maximum, and examines `TIME_LOOKUP_STEP` runs per step. Below the local start it
        goes over the history's files.
        """
        if from_offset < local_start_offset:
            span = _Span(topic_id, partition, from_offset, local_start_offset, TIME_LOOKUP_STEP)
            found = await self._candidate_of_history(span, timestamp_ms)
            if found is not None:
                return found
            from_offset = local_start_offset
        return await self._candidate_run(topic_id, partition, timestamp_ms, from_offset)

    async def _candidate_of_history(self, span: "_Span", timestamp_ms: int) -> RunCoordinate | None:
        reached: int = span.start
        while reached < span.end:
            files = await self._database.read(
                SQL["history_file_for_timestamp"],
                topic_id=span.topic_id,
                partition=span.partition,
                from_offset=reached,
                end_offset=span.end,
                timestamp_ms=timestamp_ms,
            )
            if not files:
                return None
            reached = max(reached, files[0].first_offset)
            [pieces] = await self._read_history([span._replace(start=Offset(reached))])
            for piece in pieces:
                if piece.max_timestamp_ms >= timestamp_ms:
                    return piece
            reached = pieces[-1].last_offset + 1
        return None

    async def _candidate_run(
        self, topic_id: TopicId, partition: Partition, timestamp_ms: int, from_offset: Offset
    ) -> RunCoordinate | None:
        next_offset: int = from_offset
        while True:
            rows = await self._database.read(
                SQL["candidate_run_for_timestamp"],
                topic_id=topic_id,
                partition=partition,
                timestamp_ms=timestamp_ms,
                from_offset=next_offset,
                step=TIME_LOOKUP_STEP,
            )
            if not rows or rows[0].looked_until is None:
                return None
            if rows[0].base_offset is not None:
                return _run(rows[0])
            next_offset = rows[0].looked_until + 1


class _Found(NamedTuple):
    coordinates: PartitionCoordinates
    aborted_to: Offset
    """The coordinates list all aborted transactions that overlap runs up to here: the last offset of all runs
    that were read, also of those that are left out. -1: there was no run. The last offset of all: they list
    none."""


def _grouped(rows: Sequence[Row]) -> dict[PartitionKey, _Found]:
    """Rows of one partition are consecutive, in offset order. A partition without runs has one row of nulls.
    Runs that end below the local start are left out, because history lies between them.
    """
    runs: dict[PartitionKey, list[RunCoordinate]] = {}
    heads: dict[PartitionKey, Row] = {}
    aborted_to: dict[PartitionKey, Offset] = {}
    for row in rows:
        key = (row.topic_id, row.partition)
        heads.setdefault(key, row)
        found = runs.setdefault(key, [])
        if row.base_offset is not None:
            aborted_to[key] = _LAST_OFFSET if _are_too_many(heads[key]) else row.last_offset
            if row.last_offset >= row.local_start_offset:
                found.append(_run(row))
    return {
        key: _Found(
            _partition(head, runs[key], aborted_to.get(key, NO_OFFSET)), aborted_to.get(key, NO_OFFSET)
        )
        for key, head in heads.items()
    }


def _are_too_many(row: Row) -> bool:
    """True if aborted transactions may be missing in the partition's first row."""
    return len(row.aborted or ()) >= MAX_ABORTED


def _partition(row: Row, runs: Sequence[RunCoordinate], read_to: Offset) -> PartitionCoordinates:
    """`read_to`: the last offset of all runs that were read."""
    aborted = tuple(entry for entry in _aborted(row.aborted or ()) if entry.first_offset <= read_to)
    return PartitionCoordinates(
        topic_id=row.topic_id,
        partition=row.partition,
        log_start_offset=row.log_start_offset,
        local_start_offset=row.local_start_offset,
        high_watermark=row.high_watermark,
        last_stable_offset=row.last_stable_offset,
        coordinate_epoch=row.coordinate_epoch,
        runs=tuple(runs),
        aborted=None if _are_too_many(row) else aborted,
    )


def _aborted(entries: Sequence[Sequence[int]]) -> tuple[AbortedTransaction, ...]:
    return tuple(
        AbortedTransaction(Offset(last), Offset(first), ProducerId(producer))
        for last, first, producer in entries
    )


def _run(row: Row) -> RunCoordinate:
    return RunCoordinate(
        topic_id=row.topic_id,
        partition=row.partition,
        base_offset=row.base_offset,
        last_offset=row.last_offset,
        object_key=row.object_key,
        object_size_bytes=row.object_size_bytes,
        position=BytePosition(row.position),
        length=row.length,
        min_timestamp_ms=row.min_timestamp_ms,
        max_timestamp_ms=row.max_timestamp_ms,
    )


class HistoryFile(NamedTuple):
    """A row of `history_files`."""

    object_key: ObjectKey
    object_size_bytes: int
    first_offset: Offset
    last_offset: Offset
    row_groups: Sequence[int]
    """Four numbers per row group (schema.sql)."""


class _Span(NamedTuple):
    """Offsets `[start, end)` below a local start."""

    topic_id: TopicId
    partition: Partition
    start: Offset
    end: Offset
    max_runs: int
    aborted_to: Offset = _LAST_OFFSET
    """The aborted transactions of runs that end after it are not known."""


def _history_of(span: _Span, rows: Sequence[Row]) -> tuple[RunCoordinate, ...]:
    """The span as far as the rows reach, which are capped for files and for runs, and as far as its aborted
    transactions are known.
    """
    key = (span.topic_id, span.partition)
    files = [
        HistoryFile(
            row.object_key, row.object_size_bytes, row.base_offset, row.last_offset, tuple(row.row_groups)
        )
        for row in rows
        if row.row_groups is not None
    ]
    runs = [
        RunCoordinate(
            *key,
            row.base_offset,
            row.last_offset,
            row.object_key,
            row.object_size_bytes,
            BytePosition(row.position),
            row.length,
            row.min_timestamp_ms,
            row.max_timestamp_ms,
        )
        for row in rows
        if row.row_groups is None
    ]
    ends = [some[-1].last_offset + 1 for some in (files, runs) if len(some) == _HISTORY_FILES]
    end = max(span.start + 1, min([span.end, *ends]))
    pieces = history_coordinates(*key, (span.start, Offset(end)), files, runs)
    unknown = (run for run in runs if run.last_offset > span.aborted_to and run.last_offset >= span.start)
    first_unknown = next(unknown, None)
    if first_unknown is None:
        return pieces
    known = tuple(piece for piece in pieces if piece.base_offset < first_unknown.base_offset)
    if not known:
        raise SequencerUnavailable(f"offset {span.start} was moved to another run while it was read")
    return known


def history_coordinates(
    topic_id: TopicId,
    partition: Partition,
    span: tuple[Offset, Offset],
    files: Sequence[HistoryFile],
    runs: Sequence[RunCoordinate],
) -> tuple[RunCoordinate, ...]:
    """The coordinates that cover `span`, half-open. `files` and `runs` are in the order of their offsets, and
    hold all that lies in it. The first coordinate may begin before the span.
    """
    start, end = span
    groups = _between(runs, [each for file in files for each in _row_groups(topic_id, partition, file)])
    pieces = sorted([*runs, *groups], key=lambda piece: piece.base_offset)
    return tuple(_without_gaps(topic_id, partition, start, end, pieces))


def _row_groups(topic_id: TopicId, partition: Partition, file: HistoryFile) -> Iterator[RunCoordinate]:
    groups = list(zip(*[iter(file.row_groups)] * _NUMBERS_PER_ROW_GROUP, strict=True))
    ends = [group[0] - 1 for group in groups[1:]] + [file.last_offset]
    for (first_offset, position, length, max_timestamp_ms), last_offset in zip(groups, ends, strict=True):
        yield RunCoordinate(
            topic_id=topic_id,
            partition=partition,
            base_offset=Offset(first_offset),
            last_offset=Offset(last_offset),
            object_key=file.object_key,
            object_size_bytes=file.object_size_bytes,
            position=BytePosition(position),
            length=length,
            min_timestamp_ms=_NO_TIMESTAMP_MS,
            max_timestamp_ms=max_timestamp_ms,
        )


def _between(runs: Sequence[RunCoordinate], groups: Iterable[RunCoordinate]) -> Iterator[RunCoordinate]:
    """The parts of the row groups that lie outside the runs."""
    for group in groups:
        base: int = group.base_offset
        for run in runs:
            if run.last_offset < base or run.base_offset > group.last_offset:
                continue
            if run.base_offset > base:
                yield _part(group, base, run.base_offset - 1)
            base = run.last_offset + 1
        if base <= group.last_offset:
            yield _part(group, base, group.last_offset)


def _part(piece: RunCoordinate, base: int, last: int) -> RunCoordinate:
    return piece._replace(base_offset=Offset(base), last_offset=Offset(last))


def _without_gaps(
    topic_id: TopicId, partition: Partition, start: int, end: int, pieces: Sequence[RunCoordinate]
) -> Iterator[RunCoordinate]:
    reached = start
    for piece in pieces:
        if piece.last_offset < reached:
            continue
        if piece.base_offset >= end:
            break
        if piece.base_offset > reached:
            yield _nothing(topic_id, partition, reached, piece.base_offset - 1)
        yield piece
        reached = piece.last_offset + 1
    if reached < end:
        yield _nothing(topic_id, partition, reached, end - 1)


def _nothing(topic_id: TopicId, partition: Partition, base: int, last: int) -> RunCoordinate:
    return RunCoordinate(
        topic_id=topic_id,
        partition=partition,
        base_offset=Offset(base),
        last_offset=Offset(last),
        object_key=NOTHING,
        object_size_bytes=0,
        position=BytePosition(0),
        length=0,
        min_timestamp_ms=_NO_TIMESTAMP_MS,
        max_timestamp_ms=_NO_TIMESTAMP_MS,
    )
