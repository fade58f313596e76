"""Takes the records of some keys out of the batches of a run, without moving any other record's offset.

As Kafka's log compaction leaves them: a batch keeps its base offset, last offset delta, producer, epoch and
sequence, so its offsets have gaps, and an idempotent producer goes on. A batch that loses all its records
stays as an empty one.

Promises:
- Kept records keep their bytes, their batch's compression and their timestamps.
- A batch without a record of these keys keeps its bytes.
- The greatest timestamp in a changed batch's header is that of a record that is still there.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from storage.arrow.arrow_columns import MOST_PLAIN_BYTES, decode_batches, decode_pieces
from storage.batches.batch_kernels import MAX_TIMESTAMP, copy_kept
from storage.batches.batch_validation import plain_records, scan, span_row
from storage.batches.byte_arrays import Buffer
from storage.batches.compression import compress
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    BatchHeader,
    TimestampType,
    erased_batch,
    index_batches,
    read_header,
    write_header,
)

MOST_KEYS = 100_000
_GROUP_BYTES = 1 << 20


class ErasedKeys:
    """The keys of one erasure. None among them stands for records without a key."""

    def __init__(self, keys: Collection[bytes | None]) -> None:
        """Raises ValueError without keys, or for more than MOST_KEYS."""
        if not 1 <= len(keys) <= MOST_KEYS:
            raise ValueError(f"an erasure takes 1 to {MOST_KEYS:,} keys, not {len(keys):,}")
        self.keys = tuple(sorted(set(keys), key=lambda key: (key is not None, key or b"")))
        self._values = pa.array(self.keys, pa.binary())

    def among(self, keys: "pa.Array[Any]") -> NDArray[np.bool_]:
        """True for each key that is to be erased."""
        found: Any = pc.is_in(keys, value_set=self._values)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRun:
    """The run's bytes without the erased records, and how many went."""

    data: bytes
    records: int


class _Place(NamedTuple):
    """A batch's bytes `[start, end)` in a run, and its first offset."""

    start: int
    end: int
    base_offset: int


def holds_keys(data: Buffer, base_offset: int, keys: ErasedKeys, *, before: int) -> bool:
    """True if the batches, which begin at `base_offset`, hold a record of these keys below the offset
    `before`. Raises InvalidBatch or ValueError for damaged bytes."""
    return any(len(_found(data, group, keys, before)) for group in _groups(data, base_offset))


def erase_keys(data: Buffer, base_offset: int, keys: ErasedKeys, *, before: int) -> ErasedRun | None:
    """Returns the batches without the records of these keys below the offset `before`; None if there are
    none. Raises InvalidBatch or ValueError for damaged bytes."""
    view = memoryview(data)
    pieces: list[Buffer] = []
    erased = 0
    for group in _groups(data, base_offset):
        offsets = _found(data, group, keys, before)
        for place in group:
            last = np.searchsorted(offsets, [place.base_offset, _end(view, place)])
            gone = offsets[last[0] : last[1]]
            batch = view[place.start : place.end]
            pieces.append(_without(batch, gone - place.base_offset) if len(gone) else batch)
        erased += len(offsets)
    return ErasedRun(data=b"".join(pieces), records=erased) if erased else None


def _groups(data: Buffer, base_offset: int) -> Iterator[list[_Place]]:
    """Neighbours that are decoded together: memory is bounded by them, not by the run."""
    group: list[_Place] = []
    for position, size_bytes, last_offset_delta in index_batches(data, 0, len(data)).tolist():
        group.append(_Place(position, position + size_bytes, base_offset))
        base_offset += last_offset_delta + 1
        if group[-1].end - group[0].start >= _GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _end(data: memoryview, place: _Place) -> int:
    """The offset after the batch's last one."""
    return place.base_offset + read_header(data, place.start).last_offset_delta + 1


def _found(data: Buffer, group: list[_Place], keys: ErasedKeys, before: int) -> NDArray[np.int64]:
    """The offsets of the records to erase, in order."""
    found: list[NDArray[np.int64]] = []
    for rows, _ in decode_pieces(memoryview(data)[group[0].start : group[-1].end], group[0].base_offset):
        offsets = rows.column("offset").to_numpy()
        found.append(offsets[keys.among(rows.column("key")) & (offsets < before)])
    return np.concatenate(found)


def _without(batch: memoryview, deltas: NDArray[np.int64]) -> bytes:
    """The batch without the records of these offset deltas."""
    header = read_header(batch)
    plain = plain_records(batch, header, MOST_PLAIN_BYTES)
    spans = np.array([span_row(header, 0, len(plain), 0)], np.int64)
    rows = decode_batches(batch, 0, len(batch), 0)
    is_kept = ~np.isin(rows.column("offset").to_numpy(), deltas)
    out = np.empty(len(plain), np.uint8)
    kept = out[: copy_kept(plain, spans, is_kept.astype(np.uint8), out)]
    count = int(is_kept.sum())
    if not count:
        return erased_batch(header)
    changed = replace(header, record_count=count)
    if header.timestamp_type is TimestampType.CREATE_TIME:
        found = scan(kept, np.array([span_row(changed, 0, len(kept), 0)], np.int64))
        changed = replace(changed, max_timestamp_ms=int(found[MAX_TIMESTAMP]))
    return _written(changed, compress(kept.data, header.compression))


def _written(header: BatchHeader, records: bytes) -> bytes:
    header = replace(header, size_bytes=HEADER_BYTES + len(records))
    after_crc = write_header(header)[CRC_START:]
    return write_header(replace(header, crc=crc32c(records, crc32c(after_crc)))) + records
