"""Both pure ends of the commit: from segments to the arrays for `sequence_segments`, and from its outcomes to
runs.

Promises: batches are passed by partition, in the segments' order within it. `commit_kernels` computes the
numbers about them. The runs made here from a segment's outcome are those that SQL wrote. All of this is
columns of numbers: a commit of a thousand batches makes objects only for runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sequencer.commits import commit_kernels
from sequencer.commits.coordinates import RunCoordinate
from sequencer.database.array_parameters import (
    EncodedArray,
    Int4Encoded,
    Int8Encoded,
    UuidEncoded,
    encoded_longs,
    encoded_uuids,
)
from storage.identifiers import ObjectKey, SegmentId, TopicId
from storage.segments.segment_batches import PARTITION, PRODUCER_ID, TOPIC, PlacedBatches

Longs = NDArray[np.int64]

_WORKED_OUT: Final = (
    ("partition_numbers", Int4Encoded),
    ("chain_parts", Int4Encoded),
    ("chain_producers", Int8Encoded),
    ("chain_epochs", Int4Encoded),
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
        return {name: kind(array) for (name, kind), array in zip(PARAMETERS.items(), self.arrays, strict=True)}


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
        return CommitRequest(arrays=arrays, places=[order], parts=[numbers[commit_kernels.BATCH_PARTS, : len(order)]])
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


def committed_runs(segment: SegmentToCommit, object_key: ObjectKey, base_offsets: Longs) -> tuple[RunCoordinate, ...]:
    """Returns where the assigned batches are. `base_offsets` (int64, shape (batches,)) is negative for the
    others. Batches of a partition that are adjacent in bytes are one run, as in SQL."""
    runs = np.empty((len(base_offsets), commit_kernels.RUN_COLUMNS), np.int64)
    count = commit_kernels.assigned_runs(segment.batches.columns, base_offsets, runs)
    topic_ids, size_bytes = segment.batches.topic_ids, segment.size_bytes
    return tuple(
        [
            RunCoordinate(topic_ids[topic], partition, base_offset, last_offset, object_key, size_bytes, *place)
            for topic, partition, base_offset, last_offset, *place in runs[:count].tolist()
        ]
    )
