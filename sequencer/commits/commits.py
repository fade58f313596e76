"""The commit: offsets for the batches of uploaded segments, assigned once (docs/design/commit.md).

Promises:
- The first commit of a segment that Postgres finished decides its outcome. Every later commit repeats it
  verbatim.
- An answer other than `Assigned`, `Duplicate` or `WrittenBefore` means that the batch is in no partition.
- Batches of one partition and producer are judged in the segments' order, each against what was accepted
  before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from psycopg import AsyncConnection

from sequencer.commits.commit_request import PARAMETERS, CommitRequest, SegmentToCommit, commit_request, committed_runs
from sequencer.commits.coordinates import RunCoordinate
from sequencer.commits.outcomes import (
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
from sequencer.database.array_parameters import longs_of
from sequencer.database.commit_connection import KeptStatement, Values, values_of
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
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
    "SegmentRefused",
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
    """The outcomes of the segment's batches, in its order."""
    runs: tuple[RunCoordinate, ...]
    """Where the assigned batches are, as the first commit wrote it down."""
    log_starts: NDArray[np.int64] | None = field(compare=False)
    """The log start offset of each batch's partition now; None while the commit has a partition that does not exist."""

    @property
    def outcomes(self) -> tuple[BatchOutcome, ...]:
        """One outcome per batch."""
        return self.found.each


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRefused:
    """The segment's reservation is gone. On a first attempt nothing was committed; on a repeat the outcome stays
    unknown for ever.
    """

    reason: Literal["doomed", "missing"]


class Commits:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(self, segments: Sequence[SegmentToCommit]) -> tuple[Committed | SegmentRefused, ...]:
        """Sequences uploaded segments in this order, in one transaction and one round trip; one answer per segment.

        Raises CommitOutcomeUnknown (repeat it with the same segments until the outcome is known) or
        SequencerUnavailable (nothing was sent).
        """
        request = commit_request(segments)
        rows = await self._database.write_kept(_COMMIT, request.arrays)
        return _answers(segments, rows, request)


async def commit_on(
    connection: AsyncConnection[Row], segments: Sequence[SegmentToCommit]
) -> tuple[Committed | SegmentRefused, ...]:
    """As `Commits.commit`, within the transaction of a connection that the caller has. Raises what psycopg raises."""
    request = commit_request(segments)
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(SQL["commit"], request.parameters)
        assert cursor.pgresult is not None
        rows = values_of(cursor.pgresult)
    return _answers(segments, rows, request)


def _answers(
    segments: Sequence[SegmentToCommit], rows: Sequence[Values], request: CommitRequest
) -> tuple[Committed | SegmentRefused, ...]:
    return tuple(
        [
            _answer(segment, row, places, parts)
            for segment, row, places, parts in zip(segments, rows, request.places, request.parts, strict=True)
        ]
    )


def _answer(
    segment: SegmentToCommit, row: Values, places: NDArray[np.int64], parts: NDArray[np.int64]
) -> Committed | SegmentRefused:
    """`places` and `parts` tell for each number of the outcome which batch of the segment it is for, and which of the
    commit's partitions.
    """
    state, object_key, outcome, log_starts = row
    if state != b"committed":
        return SegmentRefused(reason="doomed" if state == b"doomed" else "missing")
    assert object_key is not None
    assert outcome is not None
    found = decode_outcomes(longs_of(outcome), len(segment.batches)).placed(places)
    runs = committed_runs(segment, ObjectKey(object_key.decode()), found.base_offsets)
    return Committed(found=found, runs=runs, log_starts=_log_starts(log_starts, parts, places))


def _log_starts(
    of_parts: bytes | None, parts: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    if of_parts is None:
        return None
    found = np.empty(len(places), np.int64)
    found[places] = longs_of(of_parts)[parts - 1]
    return found
