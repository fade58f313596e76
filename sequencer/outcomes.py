"""What the commit says about each batch, and how Postgres keeps it: one number per batch, kind + 8 * offset, then one
time for each duplicate (see `commit_segments`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage.identifiers import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    base_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The producer sent this batch before; `base_offset` is where it went then, and `max_timestamp_ms` its time."""

    base_offset: Offset
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBefore:
    """The producer sent this batch before, longer ago than is remembered: it is in the log, where is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfOrderSequence:
    """A batch of this producer is missing before this one: it may be on its way through another agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedEpoch:
    """A newer epoch of this producer has written here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownProducer:
    """Nothing is known of this producer here any more, and the batch is not its first."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPartition:
    """No such partition, or it is being deleted."""


BatchOutcome = (
    Assigned | Duplicate | WrittenBefore | OutOfOrderSequence | FencedEpoch | UnknownProducer | UnknownPartition
)

_DUPLICATE = 1


def decode_outcomes(stored: Sequence[int], batches: int) -> list[BatchOutcome]:
    """The outcomes of a segment of so many batches, in the order stored. Raises ValueError if they are of another."""
    numbers = stored[:batches]
    if len(stored) == batches and not any(number & 7 for number in numbers):
        return [Assigned(base_offset=Offset(number >> 3)) for number in numbers]
    duplicates = sum(number & 7 == _DUPLICATE for number in numbers)
    if len(stored) != batches + duplicates:
        raise ValueError(
            f"an outcome of {len(stored)} numbers, {duplicates} of duplicates, is not of {batches} batches"
        )
    times = iter(stored[batches:])
    return [_decode(number, times) for number in numbers]


def _decode(number: int, times: Iterator[int]) -> BatchOutcome:
    offset = Offset(number >> 3)
    match number & 7:
        case 0:
            return Assigned(base_offset=offset)
        case 1:
            return Duplicate(base_offset=offset, max_timestamp_ms=next(times))
        case 2:
            return OutOfOrderSequence()
        case 3:
            return FencedEpoch()
        case 4:
            return UnknownProducer(log_start_offset=offset)
        case 5:
            return UnknownPartition()
        case 6:
            return WrittenBefore()
        case kind:
            raise ValueError(f"an outcome of kind {kind} was written by a newer tidelog")
