"""Kernels that work out the numbers of a commit, and the runs of its outcome: a few hundred numbers in one
pass, where numpy needs a call for each step.

Pure. Promises:
- A chain holds one producer's batches of one partition and segment, with consecutive sequences (modulo 2^31),
  all in a transaction or none.
  So SQL judges chains, not batches.
- The other numbers, relative to each partition's current end, are what `commit_segments` would compute if it
  accepted all batches. `sequence_segments` then only checks, adds and writes.
- The rows about transactions are empty if no batch is in one.
- If a producer's sequences have a gap, or a segment has no batch, there are no runs, turns and sums:
  `commit_segments` has to judge.

Arrays: `columns` is int64 of shape (COLUMNS, batches), see `segment_batches`. `numbers` is int64 of shape
(ROWS, at least batches); each row is as long as its count says. `counts` is int64 of shape (rows,). Batches,
partitions and segments are numbered from 1. A kernel takes time proportional to the batches.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.identifiers import NO_PRODUCER_ID as _NO_PRODUCER_ID
from storage.native.arguments import BYTES_OUT, LONG, LONG_ROWS_IN, LONG_ROWS_OUT, LONGS_IN, LONGS_OUT
from storage.native.kernels import helper, kernel
from storage.segments.segment_batches import (
    BASE_SEQUENCE,
    LENGTH,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    PARTITION,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORDS,
    TOPIC,
    TRANSACTION,
)

# Rows of `numbers`, with one entry per batch, partition, chain, run, turn or remembered batch.
PARTITION_NUMBERS: Final = 0
CHAIN_PARTS: Final = 1
CHAIN_PRODUCERS: Final = 2
CHAIN_EPOCHS: Final = 3
CHAIN_TRANSACTIONS: Final = 4
BATCH_PARTS: Final = 5
BATCH_SEGMENTS: Final = 6
BATCH_POSITIONS: Final = 7
BATCH_LENGTHS: Final = 8
BATCH_RECORDS: Final = 9
BATCH_MIN_TIMESTAMPS: Final = 10
BATCH_MAX_TIMESTAMPS: Final = 11
BATCH_CHAINS: Final = 12
BATCH_MEMBERS: Final = 13
BATCH_SEQUENCES: Final = 14
PART_RECORDS: Final = 15
PART_LENGTHS: Final = 16
PART_MAX_TIMESTAMPS: Final = 17
BATCH_STARTS: Final = 18
RUN_FIRST_BATCHES: Final = 19
RUN_LAST_BATCHES: Final = 20
RUN_MIN_TIMESTAMPS: Final = 21
RUN_MAX_TIMESTAMPS: Final = 22
RUN_RUNNING_MAX_TIMESTAMPS: Final = 23
TURN_HEADS: Final = 24
TURN_PRODUCERS: Final = 25
TURN_EPOCHS: Final = 26
TURN_TRANSACTIONS: Final = 27
TURN_RECENT_FROM: Final = 28
TURN_RECENT_TO: Final = 29
RECENT_BATCHES: Final = 30
SENT: Final = 31
"""The rows before this one are sent, the following ones are not."""
PART_TOPICS: Final = 31
HEADS: Final = 32
"""For each batch with a producer, the first batch of its chain, from 0."""
TURN_PLACES: Final = 33
"""For the first batch of each turn, where the turn begins in `by_producer`,"""
TURN_ENDS: Final = 34
"""and where it ends; 0 for all other batches."""
SEEN_SEGMENTS: Final = 35
ROWS: Final = 36

# Columns of the runs that a segment's outcome makes, in the order of a `RunCoordinate`.
RUN_TOPIC: Final = 0
RUN_PARTITION: Final = 1
RUN_BASE_OFFSET: Final = 2
RUN_LAST_OFFSET: Final = 3
RUN_POSITION: Final = 4
RUN_LENGTH: Final = 5
RUN_MIN_TIMESTAMP: Final = 6
RUN_MAX_TIMESTAMP: Final = 7
RUN_COLUMNS: Final = 8

REMEMBERED_BATCHES: Final = 10
"""The most batches of a producer in a partition that are remembered (see `producer_state`)."""

_SEQUENCE_MASK: Final = 2**31 - 1
_NO_PRODUCER: Final = int(_NO_PRODUCER_ID)

_INT4_LEAST: Final = -(2**31)
_INT4_MOST: Final = 2**31 - 1
_INT4_OID: Final = 23
_INT8_OID: Final = 20

ARRAY_HEADER_BYTES: Final = 20
LONGEST_ELEMENT_BYTES: Final = 12


@helper
def _is_same_part(columns: NDArray[np.int64], batch: int, other: int) -> Any:
    return (
        columns[TOPIC, batch] == columns[TOPIC, other]
        and columns[PARTITION, batch] == columns[PARTITION, other]
    )


@helper
def _number_parts(columns: NDArray[np.int64], numbers: NDArray[np.int64]) -> Any:
    """Fills the rows that every commit has for batches and partitions. Returns how many partitions there
    are."""
    parts = np.int64(0)
    for batch in range(columns.shape[1]):
        if batch == 0 or not _is_same_part(columns, batch, batch - 1):
            numbers[PARTITION_NUMBERS, parts] = columns[PARTITION, batch]
            numbers[PART_TOPICS, parts] = columns[TOPIC, batch]
            parts += 1
        numbers[BATCH_PARTS, batch] = parts
        numbers[BATCH_POSITIONS, batch] = columns[POSITION, batch]
        numbers[BATCH_LENGTHS, batch] = columns[LENGTH, batch]
        numbers[BATCH_RECORDS, batch] = columns[RECORDS, batch]
        numbers[BATCH_MIN_TIMESTAMPS, batch] = columns[MIN_TIMESTAMP, batch]
        numbers[BATCH_MAX_TIMESTAMPS, batch] = columns[MAX_TIMESTAMP, batch]
        numbers[BATCH_SEQUENCES, batch] = columns[BASE_SEQUENCE, batch]
    return parts


@helper
def _follow_producers(
    columns: NDArray[np.int64], by_producer: NDArray[np.int64], numbers: NDArray[np.int64]
) -> Any:
    """Finds heads and members of chains, and where turns begin and end. Returns 1 if no producer has a
    gap."""
    goes_on = True
    turn = np.int64(0)
    for place in range(len(by_producer)):
        batch = by_producer[place]
        numbers[TURN_ENDS, batch] = 0
        numbers[HEADS, batch] = batch
        numbers[BATCH_MEMBERS, batch] = 1
        if columns[PRODUCER_ID, batch] == _NO_PRODUCER:
            continue
        before = by_producer[place - 1] if place else batch
        if (
            place
            and columns[PRODUCER_ID, before] == columns[PRODUCER_ID, batch]
            and _is_same_part(columns, before, batch)
        ):
            next_sequence = (columns[BASE_SEQUENCE, before] + columns[RECORDS, before]) & _SEQUENCE_MASK
            if (
                columns[BASE_SEQUENCE, batch] != next_sequence
                or columns[PRODUCER_EPOCH, batch] != columns[PRODUCER_EPOCH, before]
                or columns[TRANSACTION, batch] != columns[TRANSACTION, before]
            ):
                goes_on = False
            elif numbers[BATCH_SEGMENTS, batch] == numbers[BATCH_SEGMENTS, before]:
                numbers[HEADS, batch] = numbers[HEADS, before]
                numbers[BATCH_MEMBERS, batch] = numbers[BATCH_MEMBERS, before] + 1
        else:
            turn = batch
            numbers[TURN_PLACES, turn] = place
        numbers[TURN_ENDS, turn] = place + 1
    return goes_on


@helper
def _number_chains(columns: NDArray[np.int64], numbers: NDArray[np.int64]) -> Any:
    """Numbers chains in the order of their heads. Batches without a producer are in chain 0. Returns how
    many."""
    chains = np.int64(0)
    for batch in range(columns.shape[1]):
        if columns[PRODUCER_ID, batch] == _NO_PRODUCER:
            numbers[BATCH_CHAINS, batch] = 0
            numbers[BATCH_MEMBERS, batch] = 0
        elif numbers[HEADS, batch] == batch:
            numbers[CHAIN_PARTS, chains] = numbers[BATCH_PARTS, batch]
            numbers[CHAIN_PRODUCERS, chains] = columns[PRODUCER_ID, batch]
            numbers[CHAIN_EPOCHS, chains] = columns[PRODUCER_EPOCH, batch]
            numbers[CHAIN_TRANSACTIONS, chains] = columns[TRANSACTION, batch]
            chains += 1
            numbers[BATCH_CHAINS, batch] = chains
        else:
            numbers[BATCH_CHAINS, batch] = numbers[BATCH_CHAINS, numbers[HEADS, batch]]
    return chains


@helper
def _has_batches(segments: NDArray[np.int64], segment_count: int, numbers: NDArray[np.int64]) -> Any:
    """Returns 1 if each segment has at least one batch."""
    if segment_count > len(segments):
        return False
    for number in range(segment_count):
        numbers[SEEN_SEGMENTS, number] = 0
    missing = segment_count
    for batch in range(len(segments)):
        if not numbers[SEEN_SEGMENTS, segments[batch] - 1]:
            numbers[SEEN_SEGMENTS, segments[batch] - 1] = 1
            missing -= 1
    return missing == 0


@helper
def _make_runs(columns: NDArray[np.int64], numbers: NDArray[np.int64]) -> Any:
    """Fills in the records before each batch in its partition, the partitions' sums, and the runs. Returns
    how many runs there are."""
    runs = np.int64(0)
    for batch in range(columns.shape[1]):
        part = numbers[BATCH_PARTS, batch] - 1
        is_first = batch == 0 or numbers[BATCH_PARTS, batch - 1] != numbers[BATCH_PARTS, batch]
        least, most = columns[MIN_TIMESTAMP, batch], columns[MAX_TIMESTAMP, batch]
        if is_first:
            numbers[PART_RECORDS, part] = 0
            numbers[PART_LENGTHS, part] = 0
            numbers[PART_MAX_TIMESTAMPS, part] = most
        numbers[BATCH_STARTS, batch] = numbers[PART_RECORDS, part]
        numbers[PART_RECORDS, part] += columns[RECORDS, batch]
        numbers[PART_LENGTHS, part] += columns[LENGTH, batch]
        numbers[PART_MAX_TIMESTAMPS, part] = max(numbers[PART_MAX_TIMESTAMPS, part], most)
        if (
            is_first
            or numbers[BATCH_SEGMENTS, batch] != numbers[BATCH_SEGMENTS, batch - 1]
            or columns[POSITION, batch] != columns[POSITION, batch - 1] + columns[LENGTH, batch - 1]
        ):
            numbers[RUN_FIRST_BATCHES, runs] = batch + 1
            numbers[RUN_MIN_TIMESTAMPS, runs] = least
            numbers[RUN_MAX_TIMESTAMPS, runs] = most
            runs += 1
        run = runs - 1
        numbers[RUN_LAST_BATCHES, run] = batch + 1
        numbers[RUN_MIN_TIMESTAMPS, run] = min(numbers[RUN_MIN_TIMESTAMPS, run], least)
        numbers[RUN_MAX_TIMESTAMPS, run] = max(numbers[RUN_MAX_TIMESTAMPS, run], most)
        numbers[RUN_RUNNING_MAX_TIMESTAMPS, run] = numbers[PART_MAX_TIMESTAMPS, part]
    return runs


@helper
def _make_turns(
    columns: NDArray[np.int64],
    by_producer: NDArray[np.int64],
    numbers: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> Any:
    """A turn is all batches of a producer in a partition. Turns are in the order of their first batches. For
    each turn the last batches are remembered."""
    turns, recent = np.int64(0), np.int64(0)
    for batch in range(columns.shape[1]):
        end = numbers[TURN_ENDS, batch]
        if end == 0:
            continue
        numbers[TURN_HEADS, turns] = batch + 1
        numbers[TURN_PRODUCERS, turns] = columns[PRODUCER_ID, batch]
        numbers[TURN_EPOCHS, turns] = columns[PRODUCER_EPOCH, batch]
        numbers[TURN_TRANSACTIONS, turns] = columns[TRANSACTION, batch]
        numbers[TURN_RECENT_FROM, turns] = recent + 1
        for place in range(max(numbers[TURN_PLACES, batch], end - REMEMBERED_BATCHES), end):
            numbers[RECENT_BATCHES, recent] = by_producer[place] + 1
            recent += 1
        numbers[TURN_RECENT_TO, turns] = recent
        turns += 1
    counts[TURN_HEADS:RECENT_BATCHES] = turns
    counts[RECENT_BATCHES] = recent
    return turns


@kernel(LONG_ROWS_IN, LONGS_IN, LONGS_IN, LONG, LONG_ROWS_OUT, LONGS_OUT)
def work_out(
    columns: NDArray[np.int64],
    segments: NDArray[np.int64],
    by_producer: NDArray[np.int64],
    segment_count: int,
    numbers: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> Any:
    """Fills `numbers`, and sets `counts` to the length of each row.

    The batches in `columns`, and `segments` (int64, shape (batches,)), the segments they belong to, are in
    the order of partition, then segment. `by_producer` (int64, shape (batches,)) has the same batches, from
    0, by partition, then producer. Returns how many partitions there are.
    """
    batches = len(segments)
    for batch in range(batches):
        numbers[BATCH_SEGMENTS, batch] = segments[batch]
    parts = _number_parts(columns, numbers)
    is_in_turn = _follow_producers(columns, by_producer, numbers) and _has_batches(
        segments, segment_count, numbers
    )
    counts[:] = 0
    counts[PARTITION_NUMBERS] = parts
    counts[CHAIN_PARTS : CHAIN_TRANSACTIONS + 1] = _number_chains(columns, numbers)
    counts[BATCH_PARTS : BATCH_SEQUENCES + 1] = batches
    if is_in_turn:
        counts[PART_RECORDS : PART_MAX_TIMESTAMPS + 1] = parts
        counts[BATCH_STARTS] = batches
        counts[RUN_FIRST_BATCHES : RUN_RUNNING_MAX_TIMESTAMPS + 1] = _make_runs(columns, numbers)
        _make_turns(columns, by_producer, numbers, counts)
    if not columns[TRANSACTION].any():
        counts[CHAIN_TRANSACTIONS] = 0
        counts[TURN_TRANSACTIONS] = 0
    return parts


@kernel(LONG_ROWS_IN, LONGS_IN, LONG_ROWS_OUT)
def assigned_runs(
    columns: NDArray[np.int64], base_offsets: NDArray[np.int64], runs: NDArray[np.int64]
) -> Any:
    """Computes the runs that SQL made of a segment's batches: assigned batches of one partition that are
    adjacent in bytes. `base_offsets` (int64, shape (batches,)) is negative for a batch without an offset.
    Fills a row of `runs` (int64, shape (batches, RUN_COLUMNS)) for each run. Returns how many.
    """
    count, last = np.int64(0), -1
    for batch in range(len(base_offsets)):
        if base_offsets[batch] < 0:
            continue
        if (
            last < 0
            or not _is_same_part(columns, last, batch)
            or columns[POSITION, batch] != columns[POSITION, last] + columns[LENGTH, last]
        ):
            runs[count, RUN_TOPIC] = columns[TOPIC, batch]
            runs[count, RUN_PARTITION] = columns[PARTITION, batch]
            runs[count, RUN_BASE_OFFSET] = base_offsets[batch]
            runs[count, RUN_POSITION] = columns[POSITION, batch]
            runs[count, RUN_LENGTH] = 0
            runs[count, RUN_MIN_TIMESTAMP] = columns[MIN_TIMESTAMP, batch]
            runs[count, RUN_MAX_TIMESTAMP] = columns[MAX_TIMESTAMP, batch]
            count += 1
        run = count - 1
        runs[run, RUN_LAST_OFFSET] = base_offsets[batch] + columns[RECORDS, batch] - 1
        runs[run, RUN_LENGTH] += columns[LENGTH, batch]
        runs[run, RUN_MIN_TIMESTAMP] = min(runs[run, RUN_MIN_TIMESTAMP], columns[MIN_TIMESTAMP, batch])
        runs[run, RUN_MAX_TIMESTAMP] = max(runs[run, RUN_MAX_TIMESTAMP], columns[MAX_TIMESTAMP, batch])
        last = batch
    return count


@helper
def _put(out: NDArray[np.uint8], position: int, value: int, size: int) -> Any:
    """Writes the value big-endian. Returns the position after it."""
    for place in range(size):
        out[position + place] = np.uint8((value >> (8 * (size - 1 - place))) & 0xFF)
    return position + size


@kernel(LONG_ROWS_IN, LONGS_IN, LONGS_IN, BYTES_OUT, LONGS_OUT)
def put_arrays(
    numbers: NDArray[np.int64],
    counts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> Any:
    """Writes the first rows of `numbers` to `out` (uint8) as arrays in Postgres' binary format: dimensions,
    null flag, type, length, lower bound, then each element after its length. `sizes` (int64) says for each
    row if its numbers have 4 or 8 bytes. Sets `ends` (int64) to the end of each array in `out`. Returns 0, or
    1 if a number does not fit its type.
    """
    position = np.int64(0)
    for row in range(len(sizes)):
        size, count = sizes[row], counts[row]
        position = _put(out, position, 1 if count else 0, 4)
        position = _put(out, position, 0, 4)
        position = _put(out, position, _INT8_OID if size == 8 else _INT4_OID, 4)
        if count:
            position = _put(out, position, count, 4)
            position = _put(out, position, 1, 4)
        for index in range(count):
            value = numbers[row, index]
            if size == 4 and not _INT4_LEAST <= value <= _INT4_MOST:
                return 1
            position = _put(out, position, size, 4)
            position = _put(out, position, value, size)
        ends[row] = position
    return 0
