"""The outcomes of batches in the write path, and whether uploads and commits work now
(docs/design/failure-rules.md#start-and-stop).

`LastOutcomes` is pure: time is a parameter, in monotonic seconds. Its promises:
- `complaint` is None after a success, until the next failure.
- Work without an answer for `stalled_after_s` is a complaint too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from sequencer.commits.commits import BatchOutcome
from storage.identifiers import Offset


class WriteFailure(Enum):
    """Why a batch has no outcome from the sequencer. In each case the client may send it again."""

    NOT_WRITTEN = auto()
    """It is in no partition and never will be."""
    UNKNOWN = auto()
    """It may have been written. The agent does not try again by itself."""
    TIMED_OUT = auto()
    """The request's time was over first. It may still be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed:
    failure: WriteFailure
    message: str


WriteOutcome: TypeAlias = BatchOutcome | WriteFailed


class AssignedBatches(NamedTuple):
    """Neighbouring batches of a request that now have their offsets."""

    start: int
    """The index of the first within the request."""
    base_offsets: Sequence[Offset]
    """One per batch."""
    log_starts: Sequence[Offset] | None
    """The log start offset of each batch's partition. None: unknown."""


class Unassigned(NamedTuple):
    """A batch that got no offset now, and why."""

    outcome: WriteOutcome
    log_start_offset: Offset | None = None
    """The log start offset of its partition. None: unknown."""


class LastOutcomes:
    def __init__(self, what: str, stalled_after_s: float) -> None:
        """`what` is a plural for people, such as "uploads"."""
        self._what = what
        self._stalled_after_s = stalled_after_s
        self._under_way = 0
        self._silent_since_s = 0.0
        self._failure: str | None = None

    @property
    def is_failing(self) -> bool:
        return self._failure is not None

    @property
    def is_idle(self) -> bool:
        return not self._under_way

    def began(self, now_s: float) -> None:
        if not self._under_way:
            self._silent_since_s = now_s
        self._under_way += 1

    def ended(self) -> None:
        """Notes the end of work, whatever its outcome is. Once for each that began."""
        self._under_way -= 1

    def succeeded(self, now_s: float) -> None:
        self._silent_since_s = now_s
        self._failure = None

    def failed(self, reason: str, now_s: float) -> None:
        self._silent_since_s = now_s
        self._failure = reason

    def answered_busy(self, now_s: float) -> None:
        """The other side answered that it is busy, which is not a fault."""
        self._silent_since_s = now_s

    def complaint(self, now_s: float) -> str | None:
        """Returns why they do not work now, or None if they work."""
        if self._failure is not None:
            return f"{self._what} fail: {self._failure}"
        silent_s = now_s - self._silent_since_s
        if self._under_way and silent_s > self._stalled_after_s:
            return f"{self._what} have had no answer for {silent_s:.0f} s"
        return None
