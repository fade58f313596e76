"""A run's bytes with the index of its batches.

Pure. Promises that the batches tile the run's bytes and take exactly its offsets; only headers are looked at. Indexes
of runs with many batches are kept for a while, since a run is mostly read in several pieces."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sequencer.coordinates import RunCoordinate
from storage.identifiers import ObjectKey
from storage.record_batch import index_batches

_WORTH_KEEPING = 32
"""Fewer batches are indexed faster than they are looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIndex:
    """Positions in the run's bytes, sizes in bytes and base offsets within the run, one each per batch."""

    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    relative_offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBytes:
    run: RunCoordinate
    data: memoryview
    index: BatchIndex

    @classmethod
    def of(cls, run: RunCoordinate, data: memoryview) -> "RunBytes | None":
        """None when the bytes are not those of the run."""
        index = _index(run, data)
        return None if index is None else cls(run=run, data=data, index=index)


class RunIndexes:
    """The indexes of runs read lately, of at most `most_batches` batches."""

    def __init__(self, most_batches: int) -> None:
        self._most_batches = most_batches
        self._batches = 0
        self._kept: OrderedDict[tuple[ObjectKey, int, int], tuple[int, BatchIndex]] = OrderedDict()

    @property
    def batches(self) -> int:
        return self._batches

    def run_bytes(self, run: RunCoordinate, data: memoryview) -> RunBytes | None:
        """None when the bytes are not those of the run. An index is used again only for the very same buffer."""
        key = (run.object_key, run.position, run.length)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == id(data.obj):
            self._kept.move_to_end(key)
            return RunBytes(run=run, data=data, index=kept[1])
        self._drop(key)
        found = RunBytes.of(run, data)
        if found is not None and len(found.index.sizes) >= _WORTH_KEEPING:
            self._kept[key] = (id(data.obj), found.index)
            self._batches += len(found.index.sizes)
            while self._batches > self._most_batches:
                self._drop(next(iter(self._kept)))
        return found

    def _drop(self, key: tuple[ObjectKey, int, int]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._batches -= len(dropped[1].sizes)


def _index(run: RunCoordinate, data: memoryview) -> BatchIndex | None:
    if len(data) != run.length:
        return None
    try:
        batches = index_batches(data, 0, len(data))
    except ValueError:
        return None
    last_offset_deltas = np.ascontiguousarray(batches["last_offset_delta"])
    ends = np.cumsum(last_offset_deltas + 1)
    if len(ends) == 0 or int(ends[-1]) != run.last_offset - run.base_offset + 1 or int(last_offset_deltas.min()) < 0:
        return None
    return BatchIndex(
        positions=np.ascontiguousarray(batches["position"]),
        sizes=np.ascontiguousarray(batches["size_bytes"]),
        relative_offsets=np.concatenate(([0], ends[:-1])),
    )
