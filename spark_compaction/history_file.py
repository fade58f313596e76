"""Writes one history file: Parquet, zstd, field ids of the Iceberg schema, row groups of bounded size.

Promises:
- A row group holds offsets of one partition, in order. Its statistics have the first and the last one. The
  offsets are contiguous until TTL removes some.
- The footer's key-value metadata names the topic id, the partition, and the first and last offset
  (`METADATA_KEYS`). So the file alone says which part of the log it holds.
- The object appears in the bucket whole, under a name that no other attempt of any task uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from spark_compaction.bucket import Bucket
from spark_compaction.record_digest import RecordDigest
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.identifiers import ObjectKey, Partition, TopicId

METADATA_KEYS: Final = ("tidelog.topic_id", "tidelog.partition", "tidelog.base_offset", "tidelog.last_offset")
"""Keys in the footer. The values are text; numbers are decimal with leading zeros."""
_ZSTD_LEVEL = 3
_FOOTER_TAIL_BYTES = 8
_COLUMNS_WITH_BOUNDS = ["partition", "offset", "timestamp", "timestamp_type"]
_COLUMNS_WITH_DICTIONARY = [
    "partition",
    "timestamp_type",
    "key",
    "headers.list.element.key",
    "headers.list.element.value",
]
_ENCODINGS = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}


class FileDiffers(Exception):
    """What was written does not read back as what was added; it was not put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    object_key: ObjectKey
    first_offset: int
    last_offset: int
    row_count: int
    size_bytes: int
    footer_crc32c: int


class HistoryFile:
    """Takes rows in offset order. `close` puts the object."""

    def __init__(
        self, bucket: Bucket, prefix: str, topic_id: TopicId, partition: Partition, *, row_group_bytes: int
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._topic_id = topic_id
        self._partition = partition
        self._row_group_bytes = row_group_bytes
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            PARQUET_SCHEMA,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=_COLUMNS_WITH_DICTIONARY,  # type: ignore[arg-type]
            column_encoding=_ENCODINGS,
            write_statistics=_COLUMNS_WITH_BOUNDS,
            store_schema=False,
            sorting_columns=[pq.SortingColumn(0), pq.SortingColumn(1)],
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._first_offset = self._last_offset = -1
        self._row_count = 0
        self._added = RecordDigest()

    @property
    def row_count(self) -> int:
        return self._row_count

    @property
    def size_bytes(self) -> int:
        """Bytes of the row groups written so far."""
        return int(self._sink.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows of the record schema. Their offsets follow the earlier ones."""
        if rows.num_rows == 0:
            return
        if self._row_count == 0:
            self._first_offset = rows.column("offset")[0].as_py()
        self._last_offset = rows.column("offset")[-1].as_py()
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        self._row_count += rows.num_rows
        self._added.add(rows)
        if self._pending_bytes >= self._row_group_bytes:
            self._flush()

    def close(self) -> WrittenFile:
        """Puts the object. It needs at least one row."""
        self._flush()
        values = (
            str(self._topic_id),
            f"{self._partition:05d}",
            f"{self._first_offset:020d}",
            f"{self._last_offset:020d}",
        )
        self._writer.add_key_value_metadata(dict(zip(METADATA_KEYS, values, strict=True)))
        self._writer.close()
        written = self._sink.getvalue()
        self._check(written)
        data = memoryview(written)
        name = f"{self._partition:05d}-{self._first_offset:020d}-{uuid4().hex}.parquet"
        key = ObjectKey(f"{self._prefix}{name}")
        self._bucket.put(key, data)
        return WrittenFile(
            object_key=key,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            row_count=self._row_count,
            size_bytes=len(data),
            footer_crc32c=footer_crc32c(data),
        )

    def _check(self, written: pa.Buffer) -> None:
        found = RecordDigest()
        for rows in record_batches(pq.ParquetFile(pa.BufferReader(written)), self._partition):
            found.add(rows)
        if found.value != self._added.value:
            raise FileDiffers(
                f"partition {self._partition}, offsets {self._first_offset} to {self._last_offset}: the file has "
                f"{found.value}, its records have {self._added.value}"
            )

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = sum(batch.num_rows for batch in self._pending)
        per_group = max(1, min(rows, rows * self._row_group_bytes // max(1, self._pending_bytes)))
        self._writer.write_table(_table(self._partition, self._pending), row_group_size=per_group)
        self._pending = []
        self._pending_bytes = 0


def record_batches(file: pq.ParquetFile, partition: Partition) -> Iterator[pa.RecordBatch]:
    """The file's rows as RECORD_SCHEMA has them, a row group at a time. Raises FileDiffers for a row of another
    partition.
    """
    for position in range(file.num_row_groups):
        rows = file.read_row_group(position)
        if pc.unique(rows.column("partition")).to_pylist() != [partition]:
            raise FileDiffers(f"row group {position} has rows of other partitions than {partition}")
        yield from rows.drop_columns(["partition"]).cast(RECORD_SCHEMA).combine_chunks().to_batches()


def footer_crc32c(tail: bytes | memoryview) -> int:
    """Returns the checksum of a Parquet file's footer, given the file or its end. It proves that the
    published file is the one that was written.
    """
    view = memoryview(tail)
    length = int.from_bytes(view[-_FOOTER_TAIL_BYTES:-4], "little") + _FOOTER_TAIL_BYTES
    return int(crc32c(view[-length:]))


def _table(partition: Partition, batches: list[pa.RecordBatch]) -> pa.Table:
    records = pa.Table.from_batches(batches)
    partitions = pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows)
    with_partition = records.add_column(0, PARQUET_SCHEMA.field("partition"), partitions)
    return with_partition.cast(PARQUET_SCHEMA)


def _field(field_id: int, name: str, kind: pa.DataType, *, nullable: bool) -> "pa.Field[Any]":
    return pa.field(name, kind, nullable=nullable, metadata={"PARQUET:field_id": str(field_id)})


PARQUET_SCHEMA = pa.schema(
    [
        _field(1, "partition", pa.int32(), nullable=False),
        _field(2, "offset", pa.int64(), nullable=False),
        _field(3, "timestamp", pa.timestamp("us", tz="UTC"), nullable=True),
        _field(4, "timestamp_type", pa.int32(), nullable=False),
        _field(5, "key", pa.binary(), nullable=True),
        _field(6, "value", pa.binary(), nullable=True),
        _field(
            7,
            "headers",
            pa.list_(
                _field(
                    8,
                    "element",
                    pa.struct(
                        [_field(9, "key", pa.string(), nullable=False), _field(10, "value", pa.binary(), nullable=True)]
                    ),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
    ]
)
