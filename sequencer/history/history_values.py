"""Parameters and results of the history's facade.

This module does not import the database, so that Spark's executors, which only need the bucket, can import it
cheaply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTable:
    """A topic as the catalog shows it. `metadata_key` is None until its history is first published."""

    topic_id: TopicId
    topic_name: str
    config: Mapping[str, str]
    metadata_key: ObjectKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToCompact:
    """A committed run of which `[from_offset, last_offset]` is not in history yet."""

    partition: Partition
    from_offset: Offset
    base_offset: Offset
    last_offset: Offset
    segment_id: SegmentId
    object_key: ObjectKey
    position: BytePosition
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryJob:
    """A claimed topic, a reserved prefix, and the version of the table on which the publish must be
    staged."""

    job_id: UUID
    topic_id: TopicId
    prefix: str
    version: int
    metadata_key: ObjectKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    job: HistoryJob
    runs: tuple[RunToCompact, ...]
    """Whole runs in (partition, offset) order, contiguous per partition; their objects are held until the job
    ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Another job works on this topic's history. By `until` it has ended or renewed its lease."""

    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo:
    """The topic has nothing to compact or to expire, or is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """A partition's history, planned from `from_offset`, now ends at `to_offset` (exclusive)."""

    partition: Partition
    from_offset: Offset
    to_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRange:
    """Offsets, both inclusive, that did not decode and stay in the raw log."""

    partition: Partition
    base_offset: Offset
    last_offset: Offset
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    metadata_key: ObjectKey | None
    """The new metadata JSON, or None if only raw ranges were found and the table stays as it is."""
    added: Mapping[ObjectKey, datetime | None]
    """Every object that the new metadata names and the previous one did not. For a rewritten file, with the
    age of its records.
    """
    unreferenced: Sequence[ObjectKey] = ()
    advances: Sequence[Advance] = ()
    raw_ranges: Sequence[RawRange] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRefused:
    """Nothing was published. The job's output is garbage, reclaimed by its prefix."""

    reason: str
