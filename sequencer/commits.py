"""The commit: offsets for the batches of uploaded segments, assigned once (DESIGN §4).

Promises that the outcome of a segment is decided by its first commit that Postgres finished and repeated verbatim by
every later one; that an answer other than `Assigned`, `Duplicate` or `WrittenBefore` means the batch is in no
partition; and that batches of one partition and producer are judged in the segments' order, each against what was
really accepted before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sequencer.commit_request import CommitRequest, SegmentToCommit, commit_request, committed_runs
from sequencer.coordinates import RunCoordinate
from sequencer.database import Database, Row
from sequencer.named_sql import load_statements
from sequencer.outcomes import (
    Assigned,
    BatchOutcome,
    Duplicate,
    FencedEpoch,
    OutOfOrderSequence,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
    decode_outcomes,
)

__all__ = [
    "Assigned",
    "BatchOutcome",
    "Commits",
    "Committed",
    "Duplicate",
    "FencedEpoch",
    "OutOfOrderSequence",
    "Refused",
    "SegmentToCommit",
    "UnknownPartition",
    "UnknownProducer",
    "WrittenBefore",
]

SQL = load_statements("commits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    outcomes: tuple[BatchOutcome, ...]
    """One per batch of the segment, in its order."""
    runs: tuple[RunCoordinate, ...]
    """Where the assigned batches are, as the first commit wrote it down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The reservation is gone. On a first attempt nothing was committed; on a repeat the outcome stays unknown for
    ever.
    """

    reason: Literal["doomed", "missing"]


class Commits:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(self, segments: Sequence[SegmentToCommit]) -> tuple[Committed | Refused, ...]:
        """Sequences uploaded segments in this order, in one transaction and one round trip; one answer per segment.

        Raises CommitOutcomeUnknown (repeat it with the same segments until known) or SequencerUnavailable (nothing
        was sent).
        """
        request = commit_request(segments)
        rows = await self._database.write_kept(SQL["commit"], **request.parameters)
        return _answers(segments, request, rows)


def _answers(
    segments: Sequence[SegmentToCommit], request: CommitRequest, rows: Sequence[Row]
) -> tuple[Committed | Refused, ...]:
    places: list[list[int]] = [[] for _ in segments]
    for segment, place in request.order:
        places[segment].append(place)
    return tuple(_answer(segment, row, order) for segment, row, order in zip(segments, rows, places, strict=True))


def _answer(segment: SegmentToCommit, row: Row, order: Sequence[int]) -> Committed | Refused:
    """`order` tells for each number of the outcome which batch of the segment it is for."""
    if row.state != "committed":
        return Refused(reason="doomed" if row.state == "doomed" else "missing")
    outcomes = decode_outcomes(row.outcome, len(segment.batches))
    in_place = outcomes.copy()
    for place, outcome in zip(order, outcomes, strict=True):
        in_place[place] = outcome
    return Committed(outcomes=tuple(in_place), runs=committed_runs(segment, row.object_key, in_place))
