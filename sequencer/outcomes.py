"""What the commit says about each batch, and how Postgres keeps it: one number per batch, kind + 8 * offset (see
`commit_segments`).
"""

from dataclasses import dataclass

from storage.identifiers import Offset


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


def decode_outcome(number: int) -> BatchOutcome:
    offset = Offset(number >> 3)
    match number & 7:
        case 0:
            return Assigned(base_offset=offset)
        case 1:
            return Duplicate(base_offset=offset)
        case 2:
            return OutOfOrderSequence()
        case 3:
            return FencedEpoch()
        case 4:
            return UnknownProducer(log_start_offset=offset)
        case 5:
            return UnknownPartition()
        case kind:
            raise ValueError(f"an outcome of kind {kind} was written by a newer tidelog")
