"""Parameters and results of the history's facade.

This module does not import the database, so that Spark's executors, which only need the bucket, can import it
cheaply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTable:
    """A topic as the catalog shows it. `metadata_key` is None until its history is first published."""

    topic_id: TopicId
    topic_name: str
    table_name: str
    """The topic's, or with eight digits of its id behind, where an older topic's differs only in case."""
    config: Mapping[str, str]
    metadata_key: ObjectKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Where the stable part of a topic's log ended at a moment of the database's clock."""

    at: datetime | None
    """None if the topic has no live partition."""
    offsets: Mapping[Partition, Offset]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBehind:
    """A topic whose history lacks records."""

    topic_id: TopicId
    topic_name: str
    config: Mapping[str, str]
    partition_count: int
    """Of those that have records to compact."""
    records: int
    raw_bytes: int
    """An estimate."""
    behind_s: float
    """How long ago its history was complete. The oldest record that it lacks may be younger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    kind: Literal["compact", "expire", "merge", "erase"]
    state: Literal["running", "published", "abandoned"]
    age_s: float
    """Since it began."""
    took_s: float
    """Until it ended, or until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShown:
    """What a topic's history has."""

    topic_name: str
    config: Mapping[str, str]
    files: int
    records: int
    parquet_bytes: int
    raw_bytes: int
    """Of the log that agents serve."""
    raw_records: int
    """Its offsets."""
    raw_ranges: int
    """That would not decode."""
    complete_at: datetime | None
    published_at: datetime | None
    last_job: ShownJob | None
    """None before the first one, and once garbage collection has swept what it left."""

    waits: str | None
    """Why the topic's records cannot come into history; None: they can."""

    @property
    def ratio(self) -> float | None:
        """The bytes of a record in Parquet, as a part of its bytes in the log. None if either has none."""
        if not (self.records and self.raw_records and self.raw_bytes):
            return None
        return (self.parquet_bytes / self.records) / (self.raw_bytes / self.raw_records)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToCompact:
    """A committed run of which `[from_offset, end_offset)` is stable and not in history yet."""

    partition: Partition
    from_offset: Offset
    base_offset: Offset
    last_offset: Offset
    end_offset: Offset
    """After its last offset, or where the first open transaction begins in it."""
    segment_id: SegmentId
    object_key: ObjectKey
    position: BytePosition
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A state of a topic's table: its number, and the metadata JSON that describes it, if there is one."""

    number: int
    metadata_key: ObjectKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryJob:
    """A claimed topic, a reserved prefix, and the version of the table on which the publish must be
    staged."""

    job_id: UUID
    topic_id: TopicId
    prefix: str
    table: TableVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """How a job found a partition whose history is its state."""

    from_offset: Offset
    seen_to: Offset | None
    """Where its history ended; None: it had none."""
    seen_state_to: Offset
    is_begun: bool
    """True: the job adds to the state. False: it makes it, and replaces whatever history has."""
    tombstones_gone_to: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    job: HistoryJob
    runs: tuple[RunToCompact, ...]
    """In (partition, offset) order, contiguous per partition; their objects are held until the job ends."""
    aborted: Mapping[Partition, tuple[AbortedTransaction, ...]]
    """All that overlap the runs, in the order of their markers."""
    states: Mapping[Partition, StatePlan]
    """Of the partitions of a compacted topic; otherwise empty."""


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
    state: StatePlan | None = None
    """Not None: its files have the last record of each key now, and no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRange:
    """Offsets, both inclusive, that did not decode and stay in the raw log."""

    partition: Partition
    base_offset: Offset
    last_offset: Offset
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Where a row group lies in its file. Its offsets end where those of the next one begin."""

    first_offset: Offset
    position: BytePosition
    length: int
    max_timestamp_ms: int
    """-1 if no record has a timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A data file of a topic's table: the rows of one partition, in offset order."""

    object_key: ObjectKey
    partition: Partition
    first_offset: Offset
    last_offset: Offset
    row_count: int
    size_bytes: int
    is_full: bool
    """Large enough: merging leaves it alone."""
    oldest: datetime | None
    """The least timestamp; None if no record has one."""
    newest: datetime | None
    has_untimed: bool
    """Some records have no timestamp. They expire by `written_at`."""
    row_groups: Sequence[RowGroup]
    """In the order of their offsets."""
    written_at: datetime | None = None
    """When the records came into history; None before the publish, which sets it."""
    sequence_number: int = 0
    """Iceberg's, of the snapshot that added the file; 0 before the publish, which sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedVersion:
    """The next version of a table, staged in the bucket on the version before it."""

    on: TableVersion
    metadata_key: ObjectKey
    sequence_number: int
    """Of its snapshot."""
    written: Sequence[ObjectKey]
    """The metadata objects that it names and the version before did not, the metadata JSON included."""
    let_go: Sequence[ObjectKey]
    """The metadata objects that the version before named and it does not."""
    oldest_version: int
    """The version of the oldest snapshot that it retains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What a job publishes in one transaction."""

    version: StagedVersion | None
    """None if only raw ranges were found and the table stays as it is."""
    added: Sequence[TableFile] = ()
    removed: Sequence[ObjectKey] = ()
    """Data files of the version before that go."""
    advances: Sequence[Advance] = ()
    raw_ranges: Sequence[RawRange] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outrun:
    """Nothing was published: another job published first. Stage the same change on `table` and publish
    again.
    """

    table: TableVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRefused:
    """Nothing was published. The job's output is garbage, reclaimed by its prefix."""

    reason: str
    is_of_files: bool = False
    """Another job has replaced files of the table that were to be replaced. The rest may be published."""
