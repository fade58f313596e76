"""Which batches of a run readers of committed data leave out: those of aborted transactions, and markers.

Promises:
- The cost per batch is that of array operations: no batch and no record becomes a Python object.
- Only headers are read. Whoever decodes the batches checks their CRC, which covers what decides here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.batches.byte_arrays import Buffer
from storage.identifiers import Offset, ProducerId

_ATTRIBUTES = 21
_PRODUCER_ID = 43
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


class AbortedTransaction(NamedTuple):
    """An aborted transaction in a partition: its records lie from `first_offset` to its marker at
    `last_offset`."""

    last_offset: Offset
    first_offset: Offset
    producer_id: ProducerId


def overlapping(
    aborted: Sequence[AbortedTransaction], first_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Those that may have records at offsets `[first_offset, end_offset)`."""
    return tuple(
        entry for entry in aborted if entry.last_offset > first_offset and entry.first_offset < end_offset
    )


class AbortedIndex:
    """Finds what `overlapping` does, for many ranges of the same entries. `aborted` is in the order of its
    markers.

    A look-up costs two binary searches, and array operations over the entries from the first that ends
    behind the range's begin to the last that begins before its end.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._aborted = aborted
        columns = columns_of(aborted)
        self._markers, self._firsts = columns[:, 0].copy(), columns[:, 1].copy()
        # The least first offset of an entry and all behind it never falls, so a search ends there.
        self._least_firsts = np.minimum.accumulate(self._firsts[::-1])[::-1].copy()

    def overlapping(self, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that may have records at offsets `[first_offset, end_offset)`."""
        start = int(np.searchsorted(self._markers, first_offset, side="right"))
        end = int(np.searchsorted(self._least_firsts, end_offset))
        places = np.flatnonzero(self._firsts[start:end] < end_offset) + start
        return tuple(self._aborted[place] for place in places.tolist())


def columns_of(aborted: Sequence[AbortedTransaction]) -> NDArray[np.int64]:
    """Entries in the order of their markers, as int64 of shape (entries, 3)."""
    return np.array(aborted, np.int64).reshape(-1, 3)


def are_markers(buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each batch that ends a transaction. They begin at the byte `positions`."""
    flags = np.frombuffer(buffer, np.uint8)[positions + _ATTRIBUTES + 1]
    is_control: NDArray[np.bool_] = (flags & _CONTROL) != 0
    return is_control


def producers_of_transactions(buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The producer of each batch with records of a transaction, and -1 for all others. They begin at the byte
    `positions`."""
    data = np.frombuffer(buffer, np.uint8)
    flags = data[positions + _ATTRIBUTES + 1]
    has_records_of_one = (flags & (_TRANSACTIONAL | _CONTROL)) == _TRANSACTIONAL
    return np.where(has_records_of_one, _producers(data, positions), -1)


def left_out(
    buffer: Buffer,
    positions: NDArray[np.int64],
    base_offsets: NDArray[np.int64],
    aborted: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """True for each batch that readers of committed data leave out. The batch at byte `positions[i]` begins
    at `base_offsets[i]` (both int64, shape (batches,), in order). `aborted`, by `columns_of`, has at least
    the aborted transactions that overlap the batches.
    """
    data = np.frombuffer(buffer, np.uint8)
    flags = data[positions + _ATTRIBUTES + 1]
    is_control: NDArray[np.bool_] = (flags & _CONTROL) != 0
    if not len(aborted) or not (flags & _TRANSACTIONAL).any():
        return is_control
    aborted = aborted[np.searchsorted(aborted[:, 0], base_offsets[0]) :]
    is_aborted = _is_aborted(_producers(data, positions), base_offsets, aborted)
    is_transactional: NDArray[np.bool_] = (flags & _TRANSACTIONAL) != 0
    return is_control | (is_aborted & is_transactional)


def _producers(data: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    found = data[positions[:, np.newaxis] + np.arange(_PRODUCER_ID, _PRODUCER_ID + 8)]
    producers: NDArray[np.int64] = found.view(">i8").ravel().astype(np.int64)
    return producers


def _is_aborted(
    producers: NDArray[np.int64], base_offsets: NDArray[np.int64], aborted: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """A transaction covers the batches from number `first` up to `end`. Those of one producer follow each
    other, so the first that ends behind a batch is the only one that may cover it.
    """
    end = np.searchsorted(base_offsets, aborted[:, 0])
    first = np.searchsorted(base_offsets, aborted[:, 1])
    known, of_batch = np.unique(producers, return_inverse=True)
    of_entry = np.minimum(np.searchsorted(known, aborted[:, 2]), len(known) - 1)
    covers = (first < end) & (known[of_entry] == aborted[:, 2])
    if not covers.any():
        return np.zeros(len(producers), np.bool_)
    end, first, of_entry = end[covers], first[covers], of_entry[covers]
    # Producer and number in one key. Neither exceeds the number of batches.
    size = len(producers) + 1
    order = np.argsort(of_entry * size + end)
    keys = (of_entry * size + end)[order]
    numbers = np.arange(len(producers))
    found = np.searchsorted(keys, of_batch * size + numbers, side="right")
    entry = order[np.minimum(found, len(keys) - 1)]
    is_covered: NDArray[np.bool_] = (
        (found < len(keys)) & (of_entry[entry] == of_batch) & (first[entry] <= numbers)
    )
    return is_covered
