"""The commit: offsets for the batches of uploaded segments, assigned once (DESIGN §4).

Promises that the outcome of a segment is decided by its first commit that Postgres finished and repeated verbatim by
every later one; that an answer other than `Assigned`, `Duplicate` or `WrittenBefore` means the batch is in no
partition; and that batches of one partition and producer are judged in the segments' order, each against what was
really accepted before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from psycopg import AsyncConnection

from sequencer.array_parameters import longs_of
from sequencer.commit_request import PARAMETERS, SegmentToCommit, commit_request, committed_runs
from sequencer.coordinates import RunCoordinate
from sequencer.database import Database, Row
from sequencer.kept_connection import KeptStatement, Values, values_of
from sequencer.named_sql import load_statements
from sequencer.outcomes import (
    Assigned,
    BatchOutcome,
    Duplicate,
    FencedEpoch,
    Outcomes,
    OutOfOrderSequence,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
    decode_outcomes,
)
from storage.identifiers import ObjectKey

__all__ = [
    "Assigned",
    "BatchOutcome",
    "Commits",
    "Committed",
    "Duplicate",
    "FencedEpoch",
    "OutOfOrderSequence",
    "Outcomes",
    "Refused",
    "SegmentToCommit",
    "UnknownPartition",
    "UnknownProducer",
    "WrittenBefore",
]

SQL = load_statements("commits")
_COMMIT = KeptStatement(name="commit", text=SQL["commit"], kinds=PARAMETERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    found: Outcomes
    """Of the segment's batches, in its order."""
    runs: tuple[RunCoordinate, ...]
    """Where the assigned batches are, as the first commit wrote it down."""

    @property
    def outcomes(self) -> tuple[BatchOutcome, ...]:
        """One per batch."""
        return self.found.each


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
        rows = await self._database.write_kept(_COMMIT, request.arrays)
        return tuple(
            [_answer(segment, row, places) for segment, row, places in zip(segments, rows, request.places, strict=True)]
        )


async def commit_on(
    connection: AsyncConnection[Row], segments: Sequence[SegmentToCommit]
) -> tuple[Committed | Refused, ...]:
    """As `Commits.commit`, within the transaction of a connection that the caller has. Raises what psycopg raises."""
    request = commit_request(segments)
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(SQL["commit"], request.parameters)
        assert cursor.pgresult is not None
        rows = values_of(cursor.pgresult)
    return tuple(
        [_answer(segment, row, places) for segment, row, places in zip(segments, rows, request.places, strict=True)]
    )


def _answer(segment: SegmentToCommit, row: Values, places: NDArray[np.int64]) -> Committed | Refused:
    """`places` tells for each number of the outcome which batch of the segment it is for."""
    state, object_key, outcome = row
    if state != b"committed":
        return Refused(reason="doomed" if state == b"doomed" else "missing")
    assert object_key is not None
    assert outcome is not None
    found = decode_outcomes(longs_of(outcome), len(segment.batches)).placed(places)
    runs = committed_runs(segment, ObjectKey(object_key.decode()), found.base_offsets)
    return Committed(found=found, runs=runs)
