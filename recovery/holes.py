"""Fills the holes of the log. Offsets whose object is gone get the bytes of a merged object that proves to
hold them, or an empty batch that consumers skip.

Promises:
- Afterwards a partition's runs have no gap, as before.
- Replacement bytes are checked against their checksum.
- Ranges that are gone for good are recorded with the reason.
- What a merged object holds and the log never had is taken over or listed.

Reads the footers of merged objects: they say which offsets of which partitions an object holds.

Promise: bytes are used only if they match the footer's checksum.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from recovery.plan import (
    Hole,
    HolePart,
    NewRun,
    PartitionKey,
    ProvenBatch,
    ProvenRun,
    beyond,
    chosen_batches,
    cut,
    parts_of,
)
from recovery.producers import SeenBatches
from recovery.report import RecordsRefused, Report
from recovery.settings import RecoverySettings
from recovery.transactions import remember_transactions
from sequencer.journal.recovery import WRITER, WRITER_BEYOND, RecoverySession
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import (
    HEADER_BYTES,
    MOST_EMPTY_OFFSETS,
    ValidBatch,
    empty_batch,
    index_batches,
    read_header,
)
from storage.identifiers import (
    NO_PRODUCER_ID,
    BytePosition,
    ObjectKey,
    Offset,
    Partition,
    SegmentId,
    TopicId,
    new_segment_id,
)
from storage.segments.keys import segment_key
from storage.segments.segment import (
    TRAILER_BYTES,
    CorruptSegment,
    SealedSegment,
    SegmentFooter,
    footer_range,
    read_footer,
    seal_segment,
)
from storage.segments.segment_batches import RECORDS, PendingBatch, PendingBatches
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
        found.append(
            ProvenBatch(base_offset=Offset(offset), start=position, end=position + size_bytes, header=header)
        )
        offset += delta + 1
    return found if offset == run.last_offset + 1 else None


NO_TIMESTAMP: Final = -1
_GONE: Final = "the object that held them is not in the bucket, and no merged object has them"
_UNKNOWN: Final = "no journal says which object held them; what still exists of them was appended to the log"
_NO_PARTITION: Final = "a merged object holds them, and the log has no such partition"
_DAMAGED: Final = (
    "the merged object that holds them is damaged; what still exists of them was appended to the log"
)

BatchMark = tuple[TopicId, Partition, int, int]
"""Of a batch: its partition, its checksum and its size."""


@dataclass(slots=True, kw_only=True)
class _Filling:
    """The rows that one step writes."""

    holes: list[Hole]
    runs: list[NewRun] = field(default_factory=list)
    gone: list[tuple[Hole, HolePart]] = field(default_factory=list)
    adopted: dict[SegmentId, tuple[ObjectKey, int]] = field(default_factory=dict)
    seen: SeenBatches = field(default_factory=SeenBatches)
    """Batches past the end of the log."""
    unended: list[tuple[PartitionKey, ProvenBatch]] = field(default_factory=list)
    """Batches of transactions, and markers, past the end of the log."""


def gone_segment(segment_id: SegmentId, gone: Sequence[tuple[Hole, int]]) -> SealedSegment:
    """A segment of empty batches, one per hole and number of offsets, in (topic, partition, offset) order."""
    pending = []
    for hole, offsets in gone:
        data = empty_batch(offsets, NO_TIMESTAMP)
        batch = ValidBatch(
            header=read_header(data),
            data=memoryview(data),
            min_timestamp_ms=NO_TIMESTAMP,
            max_timestamp_ms=NO_TIMESTAMP,
        )
        pending.append(PendingBatch(topic_id=hole.topic_id, partition=hole.partition, batch=batch))
    batches = PendingBatches.of(pending)
    # A batch takes as many offsets as it spans, even without records.
    batches.columns[RECORDS] = np.array([offsets for _, offsets in gone], np.int64)
    return seal_segment(segment_id, WRITER, batches)


class Holes:
    def __init__(
        self,
        session: RecoverySession,
        store: ObjectStore,
        cluster: str,
        settings: RecoverySettings,
        report: Report,
    ) -> None:
        self._session = session
        self._store = store
        self._cluster = cluster
        self._settings = settings
        self._report = report
        self._footers = MergedFooters(store, settings.recovery_requests)
        self.adopted_batches: Counter[BatchMark] = Counter()
        """Batches without a producer that merged objects had after the end of the log."""

    async def fill(self, on_holes: Callable[[str, int, int], None]) -> None:
        """Fills all holes, and adds what merged objects prove after the end of the log. Calls `on_holes` with
        (what, done, of)."""
        await self._remember_adopted()
        rows = await self._session.run("spare_merged_objects")
        spare = [(row.segment_id, row.object_key, row.size_bytes) for row in rows]
        unreadable = await self._footers.read(
            spare, lambda done, of: on_holes("Reading footers of merged objects", done, of)
        )
        unknown = {row.segment_id: row.object_key for row in rows if row.is_unknown}
        for segment_id in unreadable:
            if segment_id in unknown:
                self._refuse(
                    unknown[segment_id], "the log does not know this object, and its footer is damaged", None
                )
        holes = [_hole(row) for row in await self._session.run("holes")]
        await self._publish_all(holes, on_holes)
        await self._publish_all(await self._beyond(unknown), on_holes)

    async def _remember_adopted(self) -> None:
        """A killed recovery may have added batches after the end of the log that young segments hold, too."""
        rows = await self._session.run("adopted_beyond", beyond=WRITER_BEYOND)
        footers = MergedFooters(self._store, self._settings.recovery_requests)
        objects = {row.segment_id: (row.segment_id, row.object_key, row.size_bytes) for row in rows}
        await footers.read(list(objects.values()), lambda _done, _of: None)
        for row in rows:
            key = (row.topic_id, row.partition)
            for run in footers.of(key):
                if run.segment_id != row.segment_id or run.last_offset < row.base_offset:
                    continue
                for batch in await footers.batches_of(run) or ():
                    is_adopted = row.base_offset <= batch.base_offset <= row.last_offset
                    if is_adopted and batch.header.producer_id == NO_PRODUCER_ID:
                        self.adopted_batches[(*key, batch.header.crc, batch.header.size_bytes)] += 1

    async def _beyond(self, unknown: Container[SegmentId]) -> list[Hole]:
        """Returns holes after the ends of live partitions. `unknown`: merged objects that the log does not
        know."""
        keys = self._footers.keys()
        ends = await self._session.run(
            "partition_ends", topic_ids=[key[0] for key in keys], partitions=[key[1] for key in keys]
        )
        for key in set(keys) - {(row.topic_id, row.partition) for row in ends}:
            for run in self._footers.of(key):
                if run.segment_id in unknown:
                    self._refuse_offsets(key, run.base_offset, run.last_offset, _NO_PARTITION)
        found = [
            beyond(key, row.high_watermark, row.max_timestamp_ms, self._footers.of(key))
            for row in ends
            if row.state == "live" and (key := (row.topic_id, row.partition))
        ]
        return [hole for hole in found if hole is not None]

    async def _publish_all(self, holes: list[Hole], on_holes: Callable[[str, int, int], None]) -> None:
        for start in range(0, len(holes), self._settings.recovery_holes_per_step):
            some = holes[start : start + self._settings.recovery_holes_per_step]
            await self._publish(await self._plan(some))
            on_holes("Replacing what is missing", start + len(some), len(holes))

    async def _plan(self, holes: list[Hole]) -> _Filling:
        filling = _Filling(holes=holes)
        checked: dict[ProvenRun, Sequence[ProvenBatch] | None] = {}
        for hole in holes:
            usable = list(self._footers.of(hole.key))
            last_offset = hole.last_offset
            while (parts := await self._parts(hole, usable, checked)) is None:
                hole = _shortened(hole, usable)
            if hole.last_offset < last_offset:
                self._refuse_offsets(hole.key, Offset(hole.last_offset + 1), last_offset, _DAMAGED)
            for part, batches in parts:
                offsets = part.last_offset - part.base_offset + 1
                if part.run is None:
                    filling.gone.append((hole, part))
                    self._report.give_up(
                        hole.key,
                        (part.base_offset, part.last_offset),
                        _reason(hole),
                        self._settings.recovery_listed,
                    )
                else:
                    filling.runs += cut(hole, part, batches, self._settings.recovery_run_bytes)
                    filling.adopted[part.run.segment_id] = self._footers.object(part.run.segment_id)
                    self._report.of(hole.key).replaced += offsets
                    if not hole.runs:
                        self._remember(hole.key, batches, filling)
        return filling

    def _remember(self, key: PartitionKey, batches: Sequence[ProvenBatch], filling: _Filling) -> None:
        for batch in batches:
            if batch.header.is_transactional:
                filling.unended.append((key, batch))
            if batch.header.is_control:
                continue
            filling.seen.add(key, batch.header, batch.base_offset)
            if batch.header.producer_id == NO_PRODUCER_ID:
                self.adopted_batches[(*key, batch.header.crc, batch.header.size_bytes)] += 1

    async def _parts(
        self, hole: Hole, usable: list[ProvenRun], checked: dict[ProvenRun, Sequence[ProvenBatch] | None]
    ) -> list[tuple[HolePart, Sequence[ProvenBatch]]] | None:
        """None if a usable run turned out to be unusable: it is removed, and the caller tries again."""
        found: list[tuple[HolePart, Sequence[ProvenBatch]]] = []
        for part in parts_of(hole, usable):
            if part.run is None:
                found.append((part, []))
                continue
            if part.run not in checked:
                checked[part.run] = await self._footers.batches_of(part.run)
            batches = checked[part.run]
            chosen = None if batches is None else chosen_batches(part, batches)
            if chosen is None:
                usable.remove(part.run)
                return None
            found.append((part, chosen))
        return found

    def _refuse_offsets(
        self, key: PartitionKey, base_offset: Offset, last_offset: Offset, reason: str
    ) -> None:
        what = f"{self._report.of(key).name} [{base_offset}, {last_offset}]"
        self._refuse(what, reason, last_offset - base_offset + 1)

    def _refuse(self, what: str, reason: str, records: int | None) -> None:
        self._report.refuse(
            RecordsRefused(what=what, reason=reason, records=records), self._settings.recovery_listed
        )

    async def _publish(self, filling: _Filling) -> None:
        """Uploads the object, then writes the coordinates, in one transaction."""
        if filling.gone:
            segment_id = new_segment_id()
            key = segment_key(self._cluster, segment_id)
            pieces = [(hole, piece) for hole, part in filling.gone for piece in _pieces(part)]
            sealed = gone_segment(segment_id, [(hole, piece[1] - piece[0] + 1) for hole, piece in pieces])
            await self._store.put(key, sealed.chunks)
            filling.adopted[segment_id] = (key, sealed.size_bytes)
            filling.runs += _empty_runs(segment_id, sealed, pieces)
        async with self._session.transaction():
            await self._swap(filling)
            await filling.seen.remember(self._session)
            await remember_transactions(
                self._session,
                [(key, batch.header, batch.base_offset) for key, batch in filling.unended],
                self._report,
                self._settings.recovery_listed,
            )

    async def _swap(self, filling: _Filling) -> None:
        run, adopted = self._session.run, filling.adopted
        await run(
            "adopt_objects",
            segment_ids=list(adopted),
            object_keys=[key for key, _ in adopted.values()],
            sizes=[size_bytes for _, size_bytes in adopted.values()],
            writer=WRITER if any(hole.runs for hole in filling.holes) else WRITER_BEYOND,
            beyond=WRITER_BEYOND,
        )
        keys = sorted({hole.key for hole in filling.holes})
        await run("lock_partitions", topic_ids=[key[0] for key in keys], partitions=[key[1] for key in keys])
        [deleted] = await run("delete_runs", **_ranges(filling.holes))
        expected = sum(hole.runs for hole in filling.holes)
        assert deleted.deleted == expected, "nothing else works on the log"
        await run(
            "insert_runs",
            **_ranges(filling.runs),
            segment_ids=[one.segment_id for one in filling.runs],
            positions=[one.position for one in filling.runs],
            lengths=[one.length for one in filling.runs],
            min_timestamps=[one.min_timestamp_ms for one in filling.runs],
            max_timestamps=[one.max_timestamp_ms for one in filling.runs],
            running_max_timestamps=[one.running_max_timestamp_ms for one in filling.runs],
        )
        if filling.gone:
            await run(
                "note_gone",
                topic_ids=[hole.topic_id for hole, _ in filling.gone],
                partitions=[hole.partition for hole, _ in filling.gone],
                base_offsets=[part.base_offset for _, part in filling.gone],
                last_offsets=[part.last_offset for _, part in filling.gone],
                reasons=[_reason(hole) for hole, _ in filling.gone],
            )


def _reason(hole: Hole) -> str:
    return _GONE if hole.runs else _UNKNOWN


def _shortened(hole: Hole, usable: Sequence[ProvenRun]) -> Hole:
    """Ends a hole after the end of the log at the last proven offset."""
    if hole.runs:
        return hole
    last = max((run.last_offset for run in usable), default=hole.base_offset - 1)
    return replace(hole, last_offset=Offset(last))


def _ranges(ranges: Sequence[Hole] | Sequence[NewRun]) -> dict[str, list[Any]]:
    return {
        "topic_ids": [one.topic_id for one in ranges],
        "partitions": [one.partition for one in ranges],
        "base_offsets": [one.base_offset for one in ranges],
        "last_offsets": [one.last_offset for one in ranges],
    }


def _pieces(part: HolePart) -> list[tuple[int, int]]:
    """Returns the first and last offset of each empty batch."""
    return [
        (first, min(first + MOST_EMPTY_OFFSETS - 1, part.last_offset))
        for first in range(part.base_offset, part.last_offset + 1, MOST_EMPTY_OFFSETS)
    ]


def _empty_runs(
    segment_id: SegmentId, sealed: SealedSegment, pieces: Sequence[tuple[Hole, tuple[int, int]]]
) -> list[NewRun]:
    """Yields one run per empty batch. It has no timestamp, so that searches by time skip it."""
    return [
        NewRun(
            topic_id=hole.topic_id,
            partition=hole.partition,
            base_offset=Offset(first),
            last_offset=Offset(last),
            segment_id=segment_id,
            position=BytePosition(placed.position),
            length=HEADER_BYTES,
            min_timestamp_ms=NO_TIMESTAMP,
            max_timestamp_ms=NO_TIMESTAMP,
            running_max_timestamp_ms=hole.running_max_timestamp_ms,
        )
        for placed, (hole, (first, last)) in zip(sealed.placed, pieces, strict=True)
    ]


def _hole(row: Any) -> Hole:
    return Hole(**{name: getattr(row, name) for name in Hole.__dataclass_fields__})
