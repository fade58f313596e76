"""Inspection: reads the database page by page for the doctor (`compactor/doctor.py`). Nothing here writes.

Promises: the result of a call is from one moment. Every call is bounded by its `cap`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, ProducerId, SegmentId, TopicId

SQL = load_statements("inspection")

PartitionKey = tuple[TopicId, Partition]
SegmentState = Literal["reserved", "committed", "doomed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    object_key: ObjectKey
    state: SegmentState
    has_runs: bool
    is_tombstone: bool
    """True: its object has been deleted once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencedSegment:
    segment_id: SegmentId
    object_key: ObjectKey
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRun:
    """A run, to compare with its object."""

    topic_id: TopicId
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    position: BytePosition
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRun:
    """A run, to compare with its partition's log. `segment_state` None: its segment has no row."""

    base_offset: Offset
    last_offset: Offset
    length: int
    segment_id: SegmentId
    segment_state: SegmentState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A partition's bounds and some of its runs, in offset order, at one moment."""

    log_start_offset: Offset
    high_watermark: Offset
    size_bytes: int
    runs: tuple[ChunkRun, ...]


class Inspection:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def segments_by_id(self, segment_ids: Collection[SegmentId]) -> dict[SegmentId, SegmentRow]:
        rows = await self._database.read(SQL["segments_by_id"], segment_ids=list(segment_ids))
        return {
            row.segment_id: SegmentRow(
                object_key=row.object_key,
                state=row.state,
                has_runs=row.has_runs,
                is_tombstone=row.is_tombstone,
            )
            for row in rows
        }

    async def referenced_segments(self, after: SegmentId, cap: int) -> Sequence[ReferencedSegment]:
        """Returns segments that runs refer to, in id order."""
        rows = await self._database.read(SQL["referenced_segments"], after=after, cap=cap)
        return [
            ReferencedSegment(segment_id=row.segment_id, object_key=row.object_key, size_bytes=row.size_bytes)
            for row in rows
        ]

    async def runs_of_segments(self, segment_ids: Collection[SegmentId]) -> dict[SegmentId, list[SegmentRun]]:
        """Returns the runs in these segments, in the order of their bytes."""
        found: dict[SegmentId, list[SegmentRun]] = {}
        for row in await self._database.read(SQL["runs_of_segments"], segment_ids=list(segment_ids)):
            run = SegmentRun(
                topic_id=row.topic_id,
                partition=row.partition,
                base_offset=row.base_offset,
                last_offset=row.last_offset,
                position=row.position,
                length=row.length,
            )
            found.setdefault(row.segment_id, []).append(run)
        return found

    async def live_partitions(self, after: PartitionKey, cap: int) -> Sequence[PartitionKey]:
        """Returns the next live partitions in primary-key order."""
        rows = await self._database.read(
            SQL["live_partitions"], after_topic_id=after[0], after_partition=after[1], cap=cap
        )
        return [(row.topic_id, row.partition) for row in rows]

    async def log_chunk(self, key: PartitionKey, from_offset: Offset, cap: int) -> LogChunk | None:
        """Returns at most `cap` runs with a base offset of at least `from_offset`; None if the partition is
        gone."""
        rows = await self._database.read(
            SQL["log_chunk"], topic_id=key[0], partition=key[1], from_offset=from_offset, cap=cap
        )
        if not rows:
            return None
        runs = tuple(
            ChunkRun(
                base_offset=row.base_offset,
                last_offset=row.last_offset,
                length=row.length,
                segment_id=row.segment_id,
                segment_state=row.segment_state,
            )
            for row in rows
            if row.base_offset is not None
        )
        return LogChunk(
            log_start_offset=rows[0].log_start_offset,
            high_watermark=rows[0].high_watermark,
            size_bytes=rows[0].size_bytes,
            runs=runs,
        )

    async def runs_without_partition(self, cap: int) -> Sequence[PartitionKey]:
        """Returns partitions that have runs but no row."""
        rows = await self._database.read(SQL["runs_without_partition"], cap=cap)
        return [(row.topic_id, row.partition) for row in rows]

    async def odd_producer_states(self, cap: int) -> Sequence[tuple[TopicId, Partition, ProducerId]]:
        """Returns producers' states that no sequence of commits could have left."""
        rows = await self._database.read(SQL["odd_producer_states"], cap=cap)
        return [(row.topic_id, row.partition, row.producer_id) for row in rows]
