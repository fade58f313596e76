"""Parameters and results of `sequencer/housekeeping/merges.py`: values without behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId

PartitionKey = tuple[TopicId, Partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A segment that may be merged. Segments with the same `committed_at` come from one merge, and are merged
    together."""

    segment_id: SegmentId
    committed_at: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBacklog:
    """The unclaimed candidates of a tier. `units` are uploads, or merges that made its objects. Large numbers
    are estimates."""

    tier: int
    segments: int
    units: int
    size_bytes: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    tiers: tuple[TierBacklog, ...]
    agents: int
    """Live agents in the cluster: each may merge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """A claimed segment: how much of it the log still refers to, and how much of that is in long runs."""

    segment_id: SegmentId
    object_key: ObjectKey
    size_bytes: int
    live_bytes: int
    long_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClaim:
    """The right to merge these segments as long as the job's holds last. `newest`: their latest commit."""

    job_id: UUID
    tier: int
    inputs: Mapping[SegmentId, MergeInput]
    newest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToMerge:
    """A run in a claimed segment, or a marker behind one. Retention by time counts from `aged_from_ms`."""

    topic_id: TopicId
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    segment_id: SegmentId
    position: BytePosition
    length: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    aged_from_ms: int
    marker_key: ObjectKey | None = None
    """Of a transaction's marker: its key, which holds its bytes. No claim has its segment."""

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRun:
    """A run as it will be in the merged object."""

    base_offset: Offset
    last_offset: Offset
    position: BytePosition
    length: int
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSwap:
    """Consecutive runs of a partition, and the runs of a merged object that replace them."""

    replaced: tuple[RunToMerge, ...]
    made: tuple[MergedRun, ...]

    @property
    def key(self) -> PartitionKey:
        return self.replaced[0].key


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutput:
    """A merged object before its publish. `may_be_merged_again`: there is a higher tier."""

    segment_id: SegmentId
    object_key: ObjectKey
    size_bytes: int
    tier: int
    newest: datetime
    may_be_merged_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapsDone:
    """The indexes of the swaps that are done. The partitions of the others had changed meanwhile."""

    places: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapsRefused:
    """Nothing was published: the output is gone or doomed, or the job's hold on it has ended. The job must
    end."""

    reason: Literal["missing", "doomed", "lapsed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDone:
    """The work of a merge, for the totals."""

    objects_in: int = 0
    objects_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    runs_in: int = 0
    runs_out: int = 0
    swaps_refused: int = 0
    runs_damaged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTotals:
    """The total work to make the objects of a tier; for tier 0: the agents' uploads."""

    tier: int
    merges: int
    done: MergeDone
    success_age_s: float | None
