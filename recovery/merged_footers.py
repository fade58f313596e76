"""Reads the footers of merged objects: they say which offsets of which partitions an object holds.

Promise: bytes are used only if they match the footer's checksum.
"""

from collections.abc import Callable, Sequence

from crc32c import crc32c

from recovery.plan import PartitionKey, ProvenBatch, ProvenRun
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import index_batches, read_header
from storage.identifiers import ObjectKey, Offset, SegmentId
from storage.segments.segment import TRAILER_BYTES, CorruptSegment, SegmentFooter, footer_range, read_footer
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.side_by_side import side_by_side
from storage.threads import Threads

_LIKELY_FOOTER_BYTES = 65_536
"""How much is read first: most footers are shorter."""


class MergedFooters:
    """The merged objects that no run refers to, read once."""

    def __init__(self, store: ObjectStore, requests: int) -> None:
        self._store = store
        self._requests = requests
        self._threads = Threads("merged", 1)
        self._keys: dict[SegmentId, tuple[ObjectKey, int]] = {}
        self._proven: dict[PartitionKey, list[ProvenRun]] = {}

    async def read(
        self, objects: Sequence[tuple[SegmentId, ObjectKey, int]], on_objects: Callable[[int, int], None]
    ) -> list[SegmentId]:
        """Reads the objects, given as segment id, key and size. Returns the unreadable ones: they prove
        nothing."""
        unreadable: list[SegmentId] = []
        for start in range(0, len(objects), self._requests):
            group = objects[start : start + self._requests]
            footers = await side_by_side(self._footer(key, size_bytes) for _, key, size_bytes in group)
            for (segment_id, key, size_bytes), footer in zip(group, footers, strict=True):
                if footer is not None and footer.segment_id == segment_id:
                    self._keys[segment_id] = (key, size_bytes)
                    self._take(footer)
                else:
                    unreadable.append(segment_id)
            on_objects(start + len(group), len(objects))
        return unreadable

    def _take(self, footer: SegmentFooter) -> None:
        for run in footer.runs:
            if run.base_offset is None or run.last_offset is None:
                continue
            proven = ProvenRun(
                topic_id=run.topic_id,
                partition=run.partition,
                base_offset=run.base_offset,
                last_offset=run.last_offset,
                segment_id=footer.segment_id,
                position=run.position,
                length=run.length,
                crc32c=run.crc32c,
                min_timestamp_ms=run.min_timestamp_ms,
                max_timestamp_ms=run.max_timestamp_ms,
            )
            self._proven.setdefault(proven.key, []).append(proven)

    async def _footer(self, key: ObjectKey, size_bytes: int) -> SegmentFooter | None:
        try:
            data = await self._store.get(key, max(0, size_bytes - _LIKELY_FOOTER_BYTES), size_bytes)
            start, end = footer_range(data[-TRAILER_BYTES:], size_bytes)
            if end - start > len(data):
                data = await self._store.get(key, start, end)
            return read_footer(data[len(data) - (end - start) :])
        except (CorruptSegment, ObjectNotFound):
            return None

    def of(self, key: PartitionKey) -> Sequence[ProvenRun]:
        return self._proven.get(key, ())

    def object(self, segment_id: SegmentId) -> tuple[ObjectKey, int]:
        """Returns key and size."""
        return self._keys[segment_id]

    def keys(self) -> Sequence[PartitionKey]:
        """The partitions with proven runs, in order."""
        return sorted(self._proven)

    async def batches_of(self, run: ProvenRun) -> Sequence[ProvenBatch] | None:
        """Reads and checks the batches of a run. None if they are not what the footer says."""
        key, _ = self.object(run.segment_id)
        try:
            data = await self._store.get(key, run.position, run.position + run.length)
        except ObjectNotFound:
            return None
        return await self._threads.run(_batches, run, data)


def _batches(run: ProvenRun, data: Buffer) -> Sequence[ProvenBatch] | None:
    if len(data) != run.length or crc32c(data) != run.crc32c:
        return None
    try:
        index = index_batches(data, 0, len(data))
    except ValueError:
        return None
    found, offset = list[ProvenBatch](), int(run.base_offset)
    for position, size_bytes, delta in index.tolist():
        header = read_header(data, position)
        found.append(ProvenBatch(base_offset=Offset(offset), start=position, end=position + size_bytes, header=header))
        offset += delta + 1
    return found if offset == run.last_offset + 1 else None
