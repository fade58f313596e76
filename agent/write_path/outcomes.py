"""What becomes of a batch that was handed to the write path."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from sequencer.commits.commits import BatchOutcome
from storage.identifiers import Offset


class WriteFailure(Enum):
    """Why a batch has no outcome from the sequencer. In each case the client may send it again."""

    NOT_WRITTEN = auto()
    """It is in no partition and will come to none."""
    UNKNOWN = auto()
    """It may have been written; the agent does not try again by itself."""
    TIMED_OUT = auto()
    """The request's time was over first; it may still be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed:
    failure: WriteFailure
    message: str


WriteOutcome: TypeAlias = BatchOutcome | WriteFailed


class AssignedBatches(NamedTuple):
    """Neighbouring batches of a request that now have their offsets."""

    start: int
    """The number of the first within the request."""
    base_offsets: Sequence[Offset]
    """One per batch."""
    log_starts: Sequence[Offset] | None
    """The log start offset of each batch's partition; None: not known."""


class Unassigned(NamedTuple):
    """A batch that got no offset now, and why."""

    outcome: WriteOutcome
    log_start_offset: Offset | None = None
    """Of its partition; None: not known."""
