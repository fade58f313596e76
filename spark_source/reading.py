"""Reads a task's pieces from the bucket as Arrow batches, in Spark's executors.

An executor needs the bucket. It asks an agent only if an object is gone, which merging, compaction or
retention let go after the query was planned: then it asks where the rest of its offsets is now, and goes on
with the next record.

Promises:
- Rows come in offset order, each once, whatever is looked up again.
- No record becomes a Python object.
- Records of aborted transactions and markers are left out.
- At most `source_prefetch` runs are in memory, and some row groups of one Parquet file.
- A file is the one that agents name, if it is encrypted, and its offsets rise as its footer says.
- Encrypted records are read with the keys that came with the task, columns in the clear without them.
"""

import io
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from sequencer.history.history_values import RunToCompact
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.history_file import decryption_of
from spark_compaction.tasks import UndecodableRange, decode_run
from spark_source.agents import Agents, Piece
from spark_source.planning import Asked, PlannedRead, ReadContext, heed_loss, missing
from spark_source.window import offsets_between
from storage.arrow.aborted_batches import columns_of
from storage.arrow.arrow_schema import HISTORY_SCHEMA
from storage.arrow.row_groups import OffsetCheck
from storage.encryption.parquet_keys import CLEAR_COLUMNS, check_name
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId
from storage.stores.object_store import ObjectNotFound

log = logging.getLogger("tidelog")

WHOLE_FILE_BYTES = 8 << 20
_BATCH_BYTES = 8 << 20
_OFFSET_COLUMN = 1
_NO_SEGMENT = SegmentId(UUID(int=0))


def read_task(context: ReadContext, task: PlannedRead) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a task, with the wanted columns in their order. Raises DataLoss, StoreUnavailable,
    AgentsUnavailable, KeyUnavailable, SealBroken, or ObjectNotFound for an object that stays missing.
    """
    reader = _TaskReader(context, task)
    for rows in reader.rows():
        if rows.num_rows:
            yield _projected(rows, context.columns, task)


class _TaskReader:
    def __init__(self, context: ReadContext, task: PlannedRead) -> None:
        self._context = context
        self._task = task
        address = BucketAddress.of(context.settings.store_url, context.settings)
        self._bucket: Bucket = address.open()
        needed = {"offset", *context.columns} & set(HISTORY_SCHEMA.names) - {"partition"}
        if context.window.from_ms is not None or context.window.to_ms is not None:
            needed.add("timestamp")
        self._schema = pa.schema([field for field in HISTORY_SCHEMA if field.name in needed])

    def rows(self) -> Iterator[pa.RecordBatch]:
        pieces: Sequence[Piece] = self._task.pieces
        end = pieces[-1].end_offset
        reached, gone = 0, 0
        while True:
            try:
                for piece, loaded in self._read_ahead(pieces):
                    for rows in self._rows_of(piece, loaded):
                        own = offsets_between(rows, max(reached, piece.first_offset), piece.end_offset)
                        if own.num_rows:
                            reached, gone = own.column("offset")[-1].as_py() + 1, 0
                            yield self._context.window.only(own)
                    reached = max(reached, piece.end_offset)
                return
            except ObjectNotFound as missed:
                gone += 1
                if gone > self._context.settings.source_attempts:
                    raise
                log.info("tidelog: %s is gone; asking again for coordinates", missed)
                pieces = self._again(max(reached, pieces[0].first_offset), end)
                if not pieces:
                    return

    def _again(self, first: int, end: int) -> Sequence[Piece]:
        task = self._task
        agents = Agents(self._context.settings)
        pieces = list(agents.pieces(task.topic, task.partition, first, end))
        asked = Asked(
            topic=task.topic, partition=task.partition, first_offset=first, end_offset=end, is_strict=True
        )
        heed_loss(missing(asked, pieces, agents.partition), fail=self._context.fail_on_data_loss)
        return pieces

    def _read_ahead(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Any]]:
        waiting = deque(pieces)
        loading: deque[tuple[Piece, Future[Any]]] = deque()
        with ThreadPoolExecutor(self._context.settings.source_prefetch) as pool:
            while waiting or loading:
                while waiting and len(loading) < self._context.settings.source_prefetch:
                    piece = waiting.popleft()
                    loading.append((piece, pool.submit(self._load, piece)))
                piece, loaded = loading.popleft()
                yield piece, loaded.result()

    def _load(self, piece: Piece) -> Any:
        """The bytes of a run, or a Parquet file of which the footer has been read."""
        key = ObjectKey(piece.object_key)
        if piece.kind == "raw":
            return self._bucket.get(key, piece.position, piece.position + piece.length)
        if piece.length <= WHOLE_FILE_BYTES:
            data = self._bucket.get(key)
            return self._parquet_file(key, lambda: pa.BufferReader(data), pre_buffer=False)
        return self._parquet_file(
            key,
            lambda: pa.PythonFile(RangedObject(self._bucket, key, piece.length), mode="r"),
            pre_buffer=True,
        )

    def _parquet_file(self, key: ObjectKey, source: Callable[[], Any], *, pre_buffer: bool) -> pq.ParquetFile:
        """Columns in the clear need no key. Raises KeyUnavailable or SealBroken."""
        file = pq.ParquetFile(source(), pre_buffer=pre_buffer, page_checksum_verification=True)
        check_name(file.metadata, key)
        if set(self._schema.names) <= set(CLEAR_COLUMNS):
            return file
        decryption = decryption_of(self._task.keyring, file.metadata, key)
        if decryption is None:
            return file
        return pq.ParquetFile(
            source(),
            pre_buffer=pre_buffer,
            page_checksum_verification=True,
            decryption_properties=decryption,
        )

    def _rows_of(self, piece: Piece, loaded: Any) -> Iterator[pa.RecordBatch]:
        if piece.kind == "raw":
            yield from self._decoded(piece, loaded)
        else:
            yield from self._of_file(piece, loaded)

    def _decoded(self, piece: Piece, data: bytes) -> Iterator[pa.RecordBatch]:
        key = ObjectKey(piece.object_key)
        run = RunToCompact(
            partition=Partition(self._task.partition),
            from_offset=Offset(piece.first_offset),
            base_offset=Offset(piece.base_offset),
            last_offset=Offset(piece.last_offset),
            end_offset=Offset(piece.end_offset),
            segment_id=_NO_SEGMENT,  # decoding needs the bytes alone
            object_key=key,
            position=BytePosition(piece.position),
            length=piece.length,
        )

        def reread(start: int, end: int) -> bytes:
            return self._bucket.get(key, piece.position + start, piece.position + end)

        for event in decode_run(run, data, reread, columns_of(piece.aborted), self._task.keyring):
            if not isinstance(event, UndecodableRange):
                yield event.rows.select(self._schema.names)
            else:
                where = f"partition {self._task.partition} of topic {self._task.topic!r}"
                words = f"{where}: offsets [{event.first_offset}, {event.end_offset}) do not decode"
                heed_loss(f"{words} ({event.reason})", fail=self._context.fail_on_data_loss)

    def _of_file(self, piece: Piece, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        groups = [
            number
            for number in range(file.metadata.num_row_groups)
            if _overlaps(file.metadata.row_group(number), piece)
        ]
        if not groups:
            return
        size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
        rows = sum(file.metadata.row_group(number).num_rows for number in groups)
        batches = file.iter_batches(
            batch_size=max(1, rows * _BATCH_BYTES // max(size, _BATCH_BYTES)),
            row_groups=groups,
            columns=self._schema.names,
        )
        check = OffsetCheck(file.metadata, groups)
        for batch in batches:
            check.take(batch.column("offset").to_numpy())
            yield batch.select(self._schema.names).cast(self._schema)


def _overlaps(group: pq.RowGroupMetaData, piece: Piece) -> bool:
    bounds: Any = group.column(_OFFSET_COLUMN).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return bool(bounds.max >= piece.first_offset and bounds.min < piece.end_offset)


def _projected(rows: pa.RecordBatch, columns: Sequence[str], task: PlannedRead) -> pa.RecordBatch:
    """Spark takes columns by their place."""
    arrays: list[Any] = []
    for name in columns:
        if name == "topic":
            arrays.append(pa.repeat(pa.scalar(task.topic), rows.num_rows))
        elif name == "partition":
            arrays.append(pa.repeat(pa.scalar(task.partition, pa.int32()), rows.num_rows))
        else:
            arrays.append(rows.column(name))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


class RangedObject(io.RawIOBase):
    """An object of the bucket as a file: each read is one ranged GET."""

    def __init__(self, bucket: Bucket, key: ObjectKey, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def size(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        data = self._bucket.get(self._key, self._position, end)
        self._position += len(data)
        return data
