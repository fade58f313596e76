"""The outcome of a commit for each batch, and its form in Postgres: one number per batch, kind + 8 * offset,
then one time for each duplicate (see `commit_segments`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.identifiers import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    base_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The producer sent this batch before. `base_offset` is its offset from then, `max_timestamp_ms` its
    time."""

    base_offset: Offset
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBefore:
    """The producer sent this batch before, longer ago than is remembered. It is in the log at an unknown
    offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfOrderSequence:
    """A batch of this producer before this one is missing. It may be on its way through another agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedEpoch:
    """A newer epoch of this producer has written here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownProducer:
    """This producer is not known here any more, and the batch is not its first."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidTransaction:
    """The batch is in no open transaction of its producer's epoch, or that does not have its partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPartition:
    """No such partition, or it is being deleted."""


BatchOutcome = (
    Assigned
    | Duplicate
    | WrittenBefore
    | OutOfOrderSequence
    | FencedEpoch
    | UnknownProducer
    | UnknownPartition
    | InvalidTransaction
)

_ASSIGNED, _DUPLICATE = 0, 1
_NOT_ASSIGNED = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcomes:
    """The outcomes of many batches. In nearly every commit nearly all batches are assigned."""

    base_offsets: NDArray[np.int64]
    """Base offsets (int64, shape (batches,)); negative for a batch with another outcome."""
    others: Mapping[int, BatchOutcome]
    """The other outcomes, by the number of the batch, from 0."""

    @classmethod
    def of(cls, outcomes: Sequence[BatchOutcome]) -> "Outcomes":
        return cls(
            base_offsets=np.array(
                [one.base_offset if isinstance(one, Assigned) else _NOT_ASSIGNED for one in outcomes],
                np.int64,
            ),
            others={index: one for index, one in enumerate(outcomes) if not isinstance(one, Assigned)},
        )

    @property
    def each(self) -> tuple[BatchOutcome, ...]:
        return tuple(
            [
                Assigned(base_offset=Offset(offset)) if offset >= 0 else self.others[index]
                for index, offset in enumerate(self.base_offsets.tolist())
            ]
        )

    @property
    def assigned(self) -> NDArray[np.int64]:
        """True for each assigned batch: bool of shape (batches,)."""
        return np.flatnonzero(self.base_offsets >= 0)

    def placed(self, places: NDArray[np.int64]) -> "Outcomes":
        """Renumbers the batches: number `i` here becomes `places[i]`."""
        base_offsets = np.empty_like(self.base_offsets)
        base_offsets[places] = self.base_offsets
        return Outcomes(
            base_offsets=base_offsets, others={int(places[index]): one for index, one in self.others.items()}
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcomes) and self.each == other.each

    __hash__ = None  # type: ignore[assignment]


def decode_outcomes(stored: Sequence[int] | NDArray[np.int64], batches: int) -> Outcomes:
    """Decodes the outcomes of a segment with `batches` batches, in the stored order. Raises ValueError for
    another number of batches."""
    numbers = np.asarray(stored, np.int64)
    if len(numbers) == batches and not np.bitwise_or.reduce(numbers) & 7:  # all _ASSIGNED, the usual case
        return Outcomes(base_offsets=numbers >> 3, others={})
    kinds = numbers[:batches] & 7
    duplicates = int((kinds == _DUPLICATE).sum())
    if len(numbers) != batches + duplicates:
        raise ValueError(
            f"an outcome of {len(numbers)} numbers, {duplicates} of duplicates, is not of {batches} batches"
        )
    times = iter(numbers[batches:].tolist())
    return Outcomes(
        base_offsets=np.where(kinds == _ASSIGNED, numbers[:batches] >> 3, _NOT_ASSIGNED),
        others={index: _decode(int(numbers[index]), times) for index in np.flatnonzero(kinds).tolist()},
    )


def encode_outcomes(outcomes: Outcomes) -> list[int]:
    """The inverse of `decode_outcomes`."""
    each = outcomes.each
    return [_encode(one) for one in each] + [
        one.max_timestamp_ms for one in each if isinstance(one, Duplicate)
    ]


def _encode(outcome: BatchOutcome) -> int:
    match outcome:
        case Assigned(base_offset=offset):
            return _ASSIGNED + 8 * offset
        case Duplicate(base_offset=offset):
            return _DUPLICATE + 8 * offset
        case OutOfOrderSequence():
            return 2
        case FencedEpoch():
            return 3
        case UnknownProducer(log_start_offset=offset):
            return 4 + 8 * offset
        case UnknownPartition():
            return 5
        case WrittenBefore():
            return 6
        case InvalidTransaction():
            return 7


def _decode(number: int, times: Iterator[int]) -> BatchOutcome:
    offset = Offset(number >> 3)
    match number & 7:
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
        case _:
            return InvalidTransaction()
