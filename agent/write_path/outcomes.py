"""What becomes of a batch that was handed to the write path."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from sequencer.commits.commits import BatchOutcome


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
