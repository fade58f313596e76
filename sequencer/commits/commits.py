"""The commit: offsets for the batches of uploaded segments, assigned once (docs/design/commit.md).

Promises:
- The first commit of a segment that Postgres finished decides its outcome. Every later commit repeats it
  verbatim.
- An answer other than `Assigned`, `Duplicate` or `WrittenBefore` means that the batch is in no partition.
- Batches of one partition and producer are judged in the segments' order, each against what was accepted
  before it.

Two pure functions are the ends of the commit: one makes the arrays for `sequence_segments` from segments, the
other makes runs from its outcomes. Batches are passed by partition, and within it in the segments' order.
`commit_kernels` computes their numbers. The runs made here are those that SQL wrote. All of this is columns
of numbers: a commit of a thousand batches makes objects only for runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from psycopg import AsyncConnection

from sequencer.commits import commit_kernels
from sequencer.commits.coordinates import RunCoordinate
from sequencer.commits.outcomes import (
    Assigned,
    BatchOutcome,
    Duplicate,
    FencedEpoch,
    InvalidTransaction,
    Outcomes,
    OutOfOrderSequence,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
    decode_outcomes,
)
from sequencer.database.array_parameters import (
    EncodedArray,
    Int4Encoded,
    Int8Encoded,
    UuidEncoded,
    encoded_longs,
    encoded_uuids,
    longs_of,
)
from sequencer.database.commit_connection import KeptStatement, Values, values_of
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from storage.identifiers import ObjectKey, SegmentId, TopicId
from storage.segments.segment_batches import PARTITION, PRODUCER_ID, TOPIC, PlacedBatches

Longs = NDArray[np.int64]

_WORKED_OUT: Final = (
    ("partition_numbers", Int4Encoded),
    ("chain_parts", Int4Encoded),
    ("chain_producers", Int8Encoded),
    ("chain_epochs", Int4Encoded),
    ("chain_transactions", Int4Encoded),
    ("batch_parts", Int4Encoded),
    ("batch_segments", Int4Encoded),
    ("batch_positions", Int8Encoded),
    ("batch_lengths", Int4Encoded),
    ("batch_records", Int4Encoded),
    ("batch_min_timestamps", Int8Encoded),
    ("batch_max_timestamps", Int8Encoded),
    ("batch_chains", Int4Encoded),
    ("batch_members", Int4Encoded),
    ("batch_sequences", Int4Encoded),
    ("part_records", Int8Encoded),
    ("part_lengths", Int8Encoded),
    ("part_max_timestamps", Int8Encoded),
    ("batch_starts", Int8Encoded),
    ("run_first_batches", Int4Encoded),
    ("run_last_batches", Int4Encoded),
    ("run_min_timestamps", Int8Encoded),
    ("run_max_timestamps", Int8Encoded),
    ("run_running_max_timestamps", Int8Encoded),
    ("turn_heads", Int4Encoded),
    ("turn_producers", Int8Encoded),
    ("turn_epochs", Int4Encoded),
    ("turn_transactions", Int4Encoded),
    ("turn_recent_from", Int4Encoded),
    ("turn_recent_to", Int4Encoded),
    ("recent_batches", Int4Encoded),
)
"""In the order of the rows of `commit_kernels`."""

PARAMETERS: Final[Mapping[str, type[EncodedArray]]] = {
    "segment_ids": UuidEncoded,
    "segment_sizes": Int8Encoded,
    "topic_ids": UuidEncoded,
    **dict(_WORKED_OUT),
}
"""The parameters of `sequence_segments`, in order."""

_SIZES: Final = np.array([8 if kind is Int8Encoded else 4 for _, kind in _WORKED_OUT], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCommit:
    """An uploaded segment, with its batches as `seal_segment` placed them."""

    segment_id: SegmentId
    size_bytes: int
    batches: PlacedBatches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommitRequest:
    arrays: Sequence[bytes | memoryview]
    """The `PARAMETERS`, in Postgres' binary format."""
    places: Sequence[Longs]
    """For each segment: the batch that each number of its outcome is about."""
    parts: Sequence[Longs]
    """For each segment and each number of its outcome: the commit's partition that it is about, from 1."""

    @property
    def parameters(self) -> dict[str, EncodedArray]:
        """The parameters by name, for psycopg."""
        return {
            name: kind(array) for (name, kind), array in zip(PARAMETERS.items(), self.arrays, strict=True)
        }


def commit_request(segments: Sequence[SegmentToCommit]) -> CommitRequest:
    """Raises ValueError for a segment that is named twice: one statement would apply it twice. Raises
    OverflowError for a number that does not fit its type in Postgres."""
    if len({segment.segment_id for segment in segments}) < len(segments):
        raise ValueError("a commit names a segment twice")
    topic_ids, columns = _together([segment.batches for segment in segments])
    sizes = [len(segment.batches) for segment in segments]
    order = np.lexsort((columns[PARTITION], columns[TOPIC]))
    columns = np.take(columns, order, axis=1)
    batch_segments = np.repeat(np.arange(1, len(segments) + 1), sizes)[order]
    numbers = np.empty((commit_kernels.ROWS, len(order)), np.int64)
    counts = np.empty(commit_kernels.ROWS, np.int64)
    by_producer = np.lexsort((columns[PRODUCER_ID], columns[PARTITION], columns[TOPIC]))
    parts = commit_kernels.work_out(columns, batch_segments, by_producer, len(segments), numbers, counts)
    part_topics = numbers[commit_kernels.PART_TOPICS, :parts].tolist()
    arrays: list[bytes | memoryview] = [
        encoded_uuids([segment.segment_id for segment in segments]),
        encoded_longs([segment.size_bytes for segment in segments]),
        encoded_uuids([topic_ids[topic] for topic in part_topics]),
        *_encoded(numbers, counts),
    ]
    if len(segments) == 1:
        return CommitRequest(
            arrays=arrays, places=[order], parts=[numbers[commit_kernels.BATCH_PARTS, : len(order)]]
        )
    firsts = np.cumsum([0, *sizes])
    places = [order[batch_segments == number + 1] - firsts[number] for number in range(len(segments))]
    of_batches = numbers[commit_kernels.BATCH_PARTS, : len(order)]
    parts_of = [of_batches[batch_segments == number + 1] for number in range(len(segments))]
    return CommitRequest(arrays=arrays, places=places, parts=parts_of)


def _encoded(numbers: Longs, counts: Longs) -> list[memoryview]:
    most_bytes = commit_kernels.ARRAY_HEADER_BYTES + commit_kernels.LONGEST_ELEMENT_BYTES * numbers.shape[1]
    out = np.empty(len(_SIZES) * most_bytes, np.uint8)
    ends = np.empty(len(_SIZES), np.int64)
    if commit_kernels.put_arrays(numbers, counts, _SIZES, out, ends):
        raise OverflowError("a number does not fit 32 bits")
    whole: memoryview = out.data
    start, arrays = 0, []
    for end in ends.tolist():
        arrays.append(whole[start:end])
        start = end
    return arrays


def _together(batches: Sequence[PlacedBatches]) -> tuple[Sequence[TopicId], Longs]:
    """Returns the batches of all segments, one after another. Topics are numbered in primary-key order:
    Postgres compares uuids as bytes, and so does this."""
    if len(batches) == 1:
        return batches[0].topic_ids, batches[0].columns
    topic_ids = sorted({topic_id for each in batches for topic_id in each.topic_ids})
    numbers = {topic_id: number for number, topic_id in enumerate(topic_ids)}
    columns = np.concatenate([each.columns for each in batches], axis=1)
    columns[TOPIC] = np.concatenate(
        [
            np.array([numbers[topic_id] for topic_id in each.topic_ids], np.int64)[each.columns[TOPIC]]
            for each in batches
        ]
    )
    return topic_ids, columns


def committed_runs(
    segment: SegmentToCommit, object_key: ObjectKey, base_offsets: Longs
) -> tuple[RunCoordinate, ...]:
    """Returns where the assigned batches are. `base_offsets` (int64, shape (batches,)) is negative for the
    others. Batches of a partition that are adjacent in bytes are one run, as in SQL."""
    runs = np.empty((len(base_offsets), commit_kernels.RUN_COLUMNS), np.int64)
    count = commit_kernels.assigned_runs(segment.batches.columns, base_offsets, runs)
    topic_ids, size_bytes = segment.batches.topic_ids, segment.size_bytes
    return tuple(
        [
            RunCoordinate(
                topic_ids[topic], partition, base_offset, last_offset, object_key, size_bytes, *place
            )
            for topic, partition, base_offset, last_offset, *place in runs[:count].tolist()
        ]
    )


__all__ = [
    "Assigned",
    "BatchOutcome",
    "Commits",
    "Committed",
    "Duplicate",
    "FencedEpoch",
    "InvalidTransaction",
    "OutOfOrderSequence",
    "Outcomes",
    "SegmentRefused",
    "SegmentToCommit",
    "UnknownPartition",
    "UnknownProducer",
    "WrittenBefore",
]

SQL = load_statements("commits")
RESERVATIONS_SQL = load_statements("reservations")
_COMMIT = KeptStatement(name="commit", text=SQL["commit"], kinds=PARAMETERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    found: Outcomes
    """The outcomes of the segment's batches, in its order."""
    runs: tuple[RunCoordinate, ...]
    """Where the assigned batches are, as the first commit wrote it down."""
    is_news: bool = field(compare=False)
    """False: the runs' `first_unstable` is not known, because the commit was a repeat."""
    log_starts: NDArray[np.int64] | None = field(compare=False)
    """The log start offset of each batch's partition now; None while the commit has a partition that does not
    exist.
    """

    @property
    def outcomes(self) -> tuple[BatchOutcome, ...]:
        """One outcome per batch."""
        return self.found.each


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRefused:
    """The segment's reservation is gone. On a first attempt nothing was committed; on a repeat the outcome
    stays unknown for ever.
    """

    reason: Literal["doomed", "missing"]


class Reservations:
    """Segment ids that are reserved ahead of need, with a lease by Postgres' clock
    (docs/design/commit.md#reservations).

    Promises:
    - Every object's key is in a row before the object is written.
    - A commit succeeds only while the id is reserved.
    - Doomed is final: dooming locks the row that the commit locks, so an agent that wakes late gets a
      refusal, never a dangling run.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, keys: Mapping[SegmentId, ObjectKey], lease_s: float, writer: str) -> None:
        """Reserves these ids under these keys. It may be repeated: an existing id stays as it is."""
        await self._database.run(
            RESERVATIONS_SQL["reserve"],
            segment_ids=list(keys.keys()),
            object_keys=list(keys.values()),
            lease_s=lease_s,
            writer=writer,
        )


class Commits:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(self, segments: Sequence[SegmentToCommit]) -> tuple[Committed | SegmentRefused, ...]:
        """Sequences uploaded segments in this order, in one transaction and one round trip; one answer per
        segment.

        Raises CommitOutcomeUnknown (repeat it with the same segments until the outcome is known) or
        SequencerUnavailable (nothing was sent).
        """
        request = commit_request(segments)
        rows = await self._database.write_kept(_COMMIT, request.arrays)
        return _answers(segments, rows, request)


async def commit_on(
    connection: AsyncConnection[Row], segments: Sequence[SegmentToCommit]
) -> tuple[Committed | SegmentRefused, ...]:
    """As `Commits.commit`, within the transaction of a connection that the caller has. Raises what psycopg
    raises.
    """
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
    """`places` and `parts` tell for each number of the outcome which batch of the segment it is for, and
    which of the commit's partitions.
    """
    state, object_key, outcome, log_starts, first_unstables = row
    if state != b"committed":
        return SegmentRefused(reason="doomed" if state == b"doomed" else "missing")
    assert object_key is not None
    assert outcome is not None
    found = decode_outcomes(longs_of(outcome), len(segment.batches)).placed(places)
    runs = committed_runs(segment, ObjectKey(object_key.decode()), found.base_offsets)
    if first_unstables is not None and len(unstables := longs_of(first_unstables)):
        of_batches = np.empty(len(places), np.int64)
        of_batches[places] = unstables[parts - 1]
        runs = _with_first_unstables(segment, runs, of_batches)
    return Committed(
        found=found,
        runs=runs,
        is_news=first_unstables is not None,
        log_starts=_log_starts(log_starts, parts, places),
    )


def _with_first_unstables(
    segment: SegmentToCommit, runs: Sequence[RunCoordinate], of_batches: Longs
) -> tuple[RunCoordinate, ...]:
    columns, topic_ids = segment.batches.columns, segment.batches.topic_ids
    numbers = np.stack([columns[TOPIC], columns[PARTITION], of_batches]).T.tolist()
    found = {(topic_ids[topic], partition): offset for topic, partition, offset in numbers}
    return tuple(run._replace(first_unstable=found[run.topic_id, run.partition]) for run in runs)


def _log_starts(
    of_parts: bytes | None, parts: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    if of_parts is None:
        return None
    found = np.empty(len(places), np.int64)
    found[places] = longs_of(of_parts)[parts - 1]
    return found
