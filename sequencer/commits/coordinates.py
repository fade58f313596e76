"""Reads from Postgres where offsets are: coordinates, bounds and times.

Promises:
- A partition's coordinates, log start, high watermark, last stable offset and epoch are from one moment,
  because one statement reads them [raced: docs/design/read-path.md#coordinates §6].
- Runs are contiguous and below that high watermark.
- An answer costs what it holds, not what the log holds.
- While a commit may be on no standby, there is no answer before a standby has confirmed a later write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sequencer.database.array_parameters import Int4Array, Int8Array, UuidArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, TopicId

SQL = load_statements("coordinates")

PartitionKey = tuple[TopicId, Partition]
FIRST_OFFSET = Offset(0)
TIME_LOOKUP_STEP = 1000
"""Runs per statement of a search by time."""


class RunCoordinate(NamedTuple):
    """Where one run is: offsets `[base_offset, last_offset]` are `length` bytes at `position` of an object.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCoordinates:
    """A partition at one moment. `runs` are contiguous. The first covers the requested offset, or the log
    start if that is higher.
    """

    topic_id: TopicId
    partition: Partition
    log_start_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    coordinate_epoch: int
    runs: tuple[RunCoordinate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    log_start_offset: Offset
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
        )
        await self._heed_doubt(rows)
        return _grouped(rows)

    async def poll(self, known: Sequence[KnownEnd], max_runs: int) -> dict[PartitionKey, PartitionCoordinates | None]:
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
        )
        await self._heed_doubt(rows)
        changed: dict[PartitionKey, PartitionCoordinates | None] = {
            (row.topic_id, row.partition): None for row in rows if row.high_watermark is None
        }
        changed.update(_grouped([row for row in rows if row.high_watermark is not None]))
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
        self, topic_id: TopicId, partition: Partition, timestamp_ms: int, from_offset: Offset = FIRST_OFFSET
    ) -> RunCoordinate | None:
        """Returns the first run that ends at or after `from_offset` and holds a record of this time or later.

        That record may be below the log start: then ask again from the offset after the run. The search skips
        runs by the running maximum, and examines `TIME_LOOKUP_STEP` runs per step.
        """
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


def _grouped(rows: Sequence[Row]) -> dict[PartitionKey, PartitionCoordinates]:
    """Rows of one partition are consecutive, in offset order. A partition without runs has one row of
    nulls."""
    runs: dict[PartitionKey, list[RunCoordinate]] = {}
    heads: dict[PartitionKey, Row] = {}
    for row in rows:
        key = (row.topic_id, row.partition)
        heads.setdefault(key, row)
        found = runs.setdefault(key, [])
        if row.base_offset is not None:
            found.append(_run(row))
    return {key: _partition(head, runs[key]) for key, head in heads.items()}


def _partition(row: Row, runs: Sequence[RunCoordinate]) -> PartitionCoordinates:
    return PartitionCoordinates(
        topic_id=row.topic_id,
        partition=row.partition,
        log_start_offset=row.log_start_offset,
        high_watermark=row.high_watermark,
        last_stable_offset=row.last_stable_offset,
        coordinate_epoch=row.coordinate_epoch,
        runs=tuple(runs),
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
