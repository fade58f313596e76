"""Decodes a run's bytes into Arrow rows, and sets aside what does not decode. Pure but for `reread`.

Promises:
- The results cover the run's offsets from `from_offset` on, without gaps. Decoded rows have exactly these
  offsets.
- A fault costs only the batch that has it. A batch that fails is first read once more: bytes that were
  damaged on the way are no reason to leave a range out of history.
- Memory is bounded by a group of batches, not by the run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sequencer.history.history_values import RunToCompact
from storage.arrow.arrow_columns import decode_batches
from storage.batches.batch_validation import InvalidBatch
from storage.batches.record_batch import index_batches

_GROUP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """The rows of offsets `[first_offset, end_offset)`, one per offset."""

    first_offset: int
    end_offset: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodableRange:
    first_offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Batches back to back: bytes `[start, end)` of the run, offsets `[base_offset, end_offset)`."""

    start: int
    end: int
    base_offset: int
    end_offset: int


def decode_run(
    run: RunToCompact, data: bytes, reread: Callable[[int, int], bytes]
) -> Iterator[DecodedRows | UndecodableRange]:
    """`reread(start, end)` reads bytes of the run from the store again."""
    try:
        batches = _batches(run, data)
    except ValueError:
        data = reread(0, run.length)
        try:
            batches = _batches(run, data)
        except ValueError as error:
            yield UndecodableRange(
                first_offset=run.from_offset, end_offset=run.last_offset + 1, reason=_reason(run, error)
            )
            return
    for group in _groups(batches):
        if group[-1].end_offset > run.from_offset:
            yield from _decode_group(run, data, group, reread)


def _batches(run: RunToCompact, data: bytes) -> list[_Span]:
    """Returns the batches. Raises ValueError unless they fill the run's bytes and offsets exactly."""
    if len(data) != run.length:
        raise ValueError(f"{len(data)} bytes were read of a run of {run.length}")
    spans = []
    offset = int(run.base_offset)
    for position, size_bytes, last_offset_delta in index_batches(data, 0, len(data)).tolist():
        end_offset = offset + last_offset_delta + 1
        spans.append(_Span(start=position, end=position + size_bytes, base_offset=offset, end_offset=end_offset))
        offset = end_offset
    if offset != run.last_offset + 1:
        raise ValueError(f"the batches end before offset {offset}, the run before {run.last_offset + 1}")
    return spans


def _groups(batches: list[_Span]) -> Iterator[list[_Span]]:
    group: list[_Span] = []
    for batch in batches:
        group.append(batch)
        if batch.end - group[0].start >= _GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _decode_group(
    run: RunToCompact, data: bytes, group: list[_Span], reread: Callable[[int, int], bytes]
) -> Iterator[DecodedRows | UndecodableRange]:
    try:
        yield _decode_span(run, data, 0, _joined(group))
    except (InvalidBatch, ValueError):
        for batch in group:
            if batch.end_offset > run.from_offset:
                yield _decode_batch(run, data, batch, reread)


def _decode_batch(
    run: RunToCompact, data: bytes, batch: _Span, reread: Callable[[int, int], bytes]
) -> DecodedRows | UndecodableRange:
    try:
        return _decode_span(run, data, 0, batch)
    except (InvalidBatch, ValueError):
        again = reread(batch.start, batch.end)
    try:
        return _decode_span(run, again, batch.start, batch)
    except (InvalidBatch, ValueError) as error:
        first = max(batch.base_offset, run.from_offset)
        return UndecodableRange(first_offset=first, end_offset=batch.end_offset, reason=_reason(run, error))


def _decode_span(run: RunToCompact, data: bytes, data_start: int, span: _Span) -> DecodedRows:
    rows = decode_batches(data, span.start - data_start, span.end - data_start, span.base_offset)
    offsets = rows.column("offset").to_numpy()
    if not np.array_equal(offsets, np.arange(span.base_offset, span.end_offset)):
        raise ValueError(f"{len(offsets)} records for offsets [{span.base_offset}, {span.end_offset})")
    first = max(span.base_offset, run.from_offset)
    return DecodedRows(first_offset=first, end_offset=span.end_offset, rows=rows.slice(first - span.base_offset))


def _joined(group: list[_Span]) -> _Span:
    return _Span(
        start=group[0].start,
        end=group[-1].end,
        base_offset=group[0].base_offset,
        end_offset=group[-1].end_offset,
    )


def _reason(run: RunToCompact, error: Exception) -> str:
    return f"{run.object_key} at byte {run.position}: {type(error).__name__}: {error}"[:500]
