"""The commit: offsets for the batches of uploaded segments, assigned once (DESIGN §4).

Promises that the outcome of a segment is decided by its first commit that Postgres finished and repeated verbatim by
every later one; that an answer other than `Assigned` or `Duplicate` means the batch is in no partition; and that
batches of one partition and producer are judged in the segments' order, each against what was really accepted before
it.
"""

from dataclasses import dataclass
from typing import Literal

from sequencer.coordinates import RunCoordinate
from storage.identifiers import Offset, SegmentId
from storage.segment import PlacedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    base_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The producer sent this batch before; `base_offset` is where it went then."""

    base_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfOrderSequence:
    """A batch of this producer is missing before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedEpoch:
    """A newer epoch of this producer has written here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownProducer:
    """Nothing is known of this producer here, and the batch is not its first."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPartition:
    """No such partition, or it is being deleted."""


BatchOutcome = Assigned | Duplicate | OutOfOrderSequence | FencedEpoch | UnknownProducer | UnknownPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCommit:
    """An uploaded segment; its batches as `seal_segment` placed them."""

    segment_id: SegmentId
    size_bytes: int
    batches: tuple[PlacedBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    outcomes: tuple[BatchOutcome, ...]
    """One per batch of the segment, in its order."""
    runs: tuple[RunCoordinate, ...]
    """Where the assigned batches are, as the first commit wrote it down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The reservation is gone. On the first attempt nothing was committed; on a repeat after an unknown outcome that
    outcome stays unknown.
    """

    reason: Literal["doomed", "missing"]
