"""Writes one history file: Parquet, zstd, field ids of the Iceberg schema, row groups of bounded size.

Promises:
- A row group holds offsets of one partition, in order. Its statistics have the first and the last one. The
  offsets are contiguous until TTL removes some.
- Engines skip what they need not read: pages by an index, and row groups without a key by a bloom filter.
- The footer's key-value metadata names the topic id, the partition, and the first and last offset
  (`METADATA_KEYS`). So the file alone says which part of the log it holds.
- The object appears in the bucket whole, under a name that no other attempt of any task uses.
- The columns of a record are the file's first. Behind them are the fields of keys and values, if the topic
  has a format (`spark_compaction.typed`). The checksum is of the record's columns.
- With a topic's key, all but partition, offset and timestamp is encrypted before it leaves the process
  (`storage/encryption/parquet_keys.py`). Such a file has no bloom filter.

A checksum of records that does not depend on how they are cut into batches, row groups or files.

It is computed from the rows as they were decoded, and again from the Parquet file that was written of them.
Each column is a stream of bytes: whether each row has a value, how long each value is, and the values one
behind the other. The checksum is the CRC-32C of each stream. So a row that is missing, moved or changed makes
another checksum, and so does a null that became empty.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from spark_compaction.bucket import Bucket
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.row_groups import OffsetCheck
from storage.encryption.parquet_keys import (
    NAME_METADATA,
    check_name,
    file_name,
    key_id_of,
    key_metadata,
    to_decrypt,
    to_encrypt,
)
from storage.encryption.sealed_batches import TopicKey
from storage.encryption.topic_keyring import ReadKeyring, key_of_id
from storage.identifiers import ObjectKey, Partition, TopicId


class RecordDigest:
    """Of rows of RECORD_SCHEMA, added in order."""

    def __init__(self) -> None:
        self._crcs: dict[str, int] = {}
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._rows += rows.num_rows
        for field, column in zip(rows.schema, rows.columns, strict=True):
            for name, content in _streams(field.name, column):
                self._crcs[name] = crc32c(content, self._crcs.get(name, 0))

    @property
    def value(self) -> str:
        """Equal for equal rows."""
        return " ".join([str(self._rows), *(f"{self._crcs[name]:08x}" for name in sorted(self._crcs))])


def _streams(name: str, column: "pa.Array[Any]") -> Iterator[tuple[str, Any]]:
    """The column's streams of bytes, each under a name."""
    kind = column.type
    yield f"{name}?", np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
    if pa.types.is_list(kind):
        lengths = np.diff(_offsets(column))
        yield f"{name}#", np.ascontiguousarray(lengths)
        yield from _streams(f"{name}.", column.flatten())  # type: ignore[attr-defined]
    elif pa.types.is_struct(kind):
        for index, child in enumerate(column.flatten()):  # type: ignore[attr-defined]
            yield from _streams(f"{name}{index}", child)
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        filled = column.fill_null(b"" if pa.types.is_binary(kind) else "")
        offsets = _offsets(filled)
        yield f"{name}#", np.ascontiguousarray(np.diff(offsets))
        content = filled.buffers()[2]
        if content is not None and len(offsets):
            yield name, memoryview(content)[int(offsets[0]) : int(offsets[-1])]
    else:
        numbers = column.cast(pa.int64()).fill_null(0)
        yield name, np.ascontiguousarray(numbers.to_numpy(zero_copy_only=False))


def _offsets(column: "pa.Array[Any]") -> Any:
    """Where each value begins, and the last one ends; of the rows of this array alone."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column) + 1, np.int32)
    return np.frombuffer(memoryview(buffer), np.int32)[column.offset : column.offset + len(column) + 1]


METADATA_KEYS: Final = ("tidelog.topic_id", "tidelog.partition", "tidelog.base_offset", "tidelog.last_offset")
"""Keys in the footer. The values are text; numbers are decimal with leading zeros."""
FRESH_ZSTD_LEVEL: Final = 1
"""Of what compaction writes, where CPU decides how fresh history is. Small files are rewritten later."""
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
_DISTINCT_KEYS = 0.75
"""A larger share of distinct keys makes a dictionary of them cost more time than it saves bytes."""
_ENCODINGS = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
_FALSE_POSITIVES = 0.05
"""Of the bloom filter on keys: 6 bits per key."""
_MOST_CHUNKS = 8_000
"""Each takes about 100 bytes of the footer."""
_MOST_ENCRYPTED_CHUNKS = 2_000
"""Each takes about 400 bytes: it has its data key, and what readers without keys may know of it."""
_TYPED_ROW_GROUP_BYTES = 8
"""A row group may have so many times its bytes if columns beyond the record's are counted, too."""


def most_chunks(*, is_encrypted: bool) -> int:
    """A file ends once its footer describes so many column chunks."""
    return _MOST_ENCRYPTED_CHUNKS if is_encrypted else _MOST_CHUNKS


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
        self,
        bucket: Bucket,
        prefix: str,
        topic_id: TopicId,
        partition: Partition,
        *,
        row_group_bytes: int,
        schema: pa.Schema | None = None,
        zstd_level: int = _ZSTD_LEVEL,
        topic_key: TopicKey | None = None,
    ) -> None:
        """`schema` begins with the fields of PARQUET_SCHEMA, which is the default. `topic_key` encrypts the
        file.
        """
        self._bucket = bucket
        self._prefix = prefix
        self._topic_id = topic_id
        self._partition = partition
        self._row_group_bytes = row_group_bytes
        self._schema = PARQUET_SCHEMA if schema is None else schema
        self._zstd_level = zstd_level
        self._topic_key = topic_key
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_typed_bytes = 0
        self._chunks = 0
        self._chunks_per_group = sum(1 for field in self._schema for _ in _leaves(field.name, field.type))
        self._most_chunks = most_chunks(is_encrypted=topic_key is not None)
        self._first_offset = self._last_offset = -1
        self._row_count = 0
        self._added = RecordDigest()

    @property
    def row_count(self) -> int:
        return self._row_count

    def is_complete(self, file_bytes: int) -> bool:
        """Whether the row groups written so far are enough for a file of `file_bytes`."""
        return int(self._sink.tell()) >= file_bytes or self._chunks >= self._most_chunks

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows that have the columns of the schema but `partition`. Their offsets follow the earlier
        ones.
        """
        if rows.num_rows == 0:
            return
        if self._row_count == 0:
            self._first_offset = rows.column("offset")[0].as_py()
        self._last_offset = rows.column("offset")[-1].as_py()
        self._pending.append(rows)
        self._pending_bytes += rows.select(RECORD_SCHEMA.names).nbytes
        self._pending_typed_bytes += rows.nbytes
        self._row_count += rows.num_rows
        if (
            self._pending_bytes >= self._row_group_bytes
            or self._pending_typed_bytes >= self._row_group_bytes * _TYPED_ROW_GROUP_BYTES
        ):
            self._flush()

    def close(self) -> WrittenFile:
        """Puts the object. It needs at least one row."""
        self._flush()
        assert self._writer is not None
        values = (
            str(self._topic_id),
            f"{self._partition:05d}",
            f"{self._first_offset:020d}",
            f"{self._last_offset:020d}",
        )
        stem = f"{self._partition:05d}-{self._first_offset:020d}-{uuid4().hex}"
        name = file_name(stem, self._topic_key)
        self._writer.add_key_value_metadata(dict(zip(METADATA_KEYS, values, strict=True)))
        self._writer.add_key_value_metadata({NAME_METADATA: name})
        if self._topic_key is not None:
            self._writer.add_key_value_metadata(key_metadata(self._topic_key))
        self._writer.close()
        written = self._sink.getvalue()
        self._check(written)
        data = memoryview(written)
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
        key = self._topic_key
        decryption = None if key is None else to_decrypt({key.key_id: key})
        file = pq.ParquetFile(pa.BufferReader(written), decryption_properties=decryption)
        for rows in record_batches(file, self._partition):
            found.add(rows)
        if found.value != self._added.value:
            raise FileDiffers(
                f"partition {self._partition}, offsets {self._first_offset} to {self._last_offset}: the "
                "file has "
                f"{found.value}, its records have {self._added.value}"
            )

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = sum(batch.num_rows for batch in self._pending)
        per_group = max(1, min(rows, rows * self._row_group_bytes // max(1, self._pending_bytes)))
        pending = pa.Table.from_batches(self._pending).combine_chunks()
        for records in pending.select(RECORD_SCHEMA.names).to_batches():
            self._added.add(records)
        table = _table(self._partition, pending, self._schema)
        if self._writer is None:
            keys = table.slice(0, per_group).column("key")
            self._writer = _writer(self._sink, self._schema, keys, self._zstd_level, self._topic_key)
        self._writer.write_table(table, row_group_size=per_group)
        self._chunks += -(-rows // per_group) * self._chunks_per_group
        self._pending = []
        self._pending_bytes = self._pending_typed_bytes = 0


def _writer(
    sink: pa.BufferOutputStream,
    schema: pa.Schema,
    keys: "pa.ChunkedArray[Any]",
    zstd_level: int,
    topic_key: TopicKey | None,
) -> pq.ParquetWriter:
    """`keys` are those of the first row group. How many are distinct decides how large the bloom filters are,
    and whether keys have a dictionary.
    """
    typed = list(schema)[len(PARQUET_SCHEMA) :]
    distinct = pc.count_distinct(keys).as_py()
    repeat = distinct <= _DISTINCT_KEYS * (len(keys) - keys.null_count)
    has_filter = distinct and topic_key is None  # Arrow cannot encrypt a bloom filter
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=zstd_level,
        use_dictionary=[  # type: ignore[arg-type]
            *(name for name in _COLUMNS_WITH_DICTIONARY if name != "key" or repeat),
            *(path for field in typed for path, _ in _leaves(field.name, field.type)),
        ],
        column_encoding=_ENCODINGS,
        write_statistics=[
            *_COLUMNS_WITH_BOUNDS,
            *(field.name for field in typed if _is_number(field.type)),
        ],
        write_page_index=True,
        bloom_filter_options={"key": {"ndv": distinct, "fpp": _FALSE_POSITIVES}} if has_filter else None,
        store_schema=False,
        write_page_checksum=True,  # agents serve these bytes, which pass through caches of others
        sorting_columns=[pq.SortingColumn(0), pq.SortingColumn(1)],
        encryption_properties=None if topic_key is None else to_encrypt(topic_key, parquet_columns(schema)),
    )


def decryption_of(keyring: ReadKeyring | None, metadata: pq.FileMetaData, object_key: str) -> Any:
    """Returns the `decryption_properties` of a file, given its metadata read without keys. None: the file is
    in the clear. Raises KeyUnavailable, or SealBroken if it is not the file that its key names.
    """
    check_name(metadata, object_key)
    key_id = key_id_of(metadata)
    return None if key_id is None else to_decrypt({key_id: key_of_id(keyring, key_id)})


def parquet_columns(schema: pa.Schema) -> list[str]:
    """The paths of all columns of such a file. Parquet says them itself, so that none stays in the clear."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, store_schema=False).close()
    found = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [found.column(number).path for number in range(len(found))]


def _table(partition: Partition, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    partitions = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    return rows.add_column(0, schema.field("partition"), partitions).cast(schema)


def record_batches(
    file: pq.ParquetFile, partition: Partition, schema: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """The file's rows as RECORD_SCHEMA has them, a row group at a time. Raises FileDiffers for a row of
    another partition, or offsets that the footer does not have.

    With `schema`, the columns that it has beyond PARQUET_SCHEMA follow. They are found by their field ids and
    get the types of `schema`. What the file does not have is null.
    """
    typed = [] if schema is None else list(schema)[len(PARQUET_SCHEMA) :]
    check = OffsetCheck(file.metadata, range(file.num_row_groups))
    for position in range(file.num_row_groups):
        rows = file.read_row_group(position, columns=None if typed else PARQUET_SCHEMA.names)
        if pc.unique(rows.column("partition")).to_pylist() != [partition]:
            raise FileDiffers(f"row group {position} has rows of other partitions than {partition}")
        try:
            check.take(rows.column("offset").to_numpy())
        except ValueError as error:
            raise FileDiffers(f"row group {position}: {error}") from error
        records = rows.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA).combine_chunks()
        if not typed:
            yield from records.to_batches()
            continue
        chunks: list[Any] = [column.chunk(0) for column in rows.combine_chunks().columns]
        columns = typed_columns(rows.schema, chunks, typed)
        [batch] = records.to_batches()
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, *columns], schema=pa.schema([*RECORD_SCHEMA, *typed])
        )


def typed_columns(
    schema: "Iterable[pa.Field[Any]]",
    columns: "Sequence[pa.Array[Any]]",
    wanted: "Sequence[pa.Field[Any]]",
) -> "list[pa.Array[Any]]":
    """The wanted columns, found by their field ids, also within structs."""
    found = {_field_id(field): column for field, column in zip(schema, columns, strict=True)}
    rows = len(columns[0]) if columns else 0
    return [
        pa.nulls(rows, field.type)
        if _field_id(field) not in found
        else _as(found[_field_id(field)], field.type)
        for field in wanted
    ]


def _as(column: "pa.Array[Any]", kind: "pa.DataType") -> "pa.Array[Any]":
    """The column as the type `kind`, which Iceberg's rules made of its own."""
    source: Any = column
    target: Any = kind
    if source.type.equals(target, check_metadata=True):
        return column
    if pa.types.is_struct(target) and pa.types.is_struct(source.type):
        own = [source.type.field(number) for number in range(source.type.num_fields)]
        children = [source.field(number) for number in range(source.type.num_fields)]
        wanted = [target.field(number) for number in range(target.num_fields)]
        arrays = typed_columns(own, children, wanted)
        return pa.StructArray.from_arrays(arrays, fields=wanted, mask=source.is_null())
    maps: Any = pa.MapArray
    lists: Any = pa.ListArray
    if pa.types.is_map(target):
        items = _as(source.items, target.item_type)
        return cast("pa.Array[Any]", maps.from_arrays(list_offsets(source), source.keys, items, type=target))
    if pa.types.is_list(target):
        values = _as(source.values, target.value_type)
        return cast("pa.Array[Any]", lists.from_arrays(list_offsets(source), values, type=target))
    if isinstance(target, pa.BaseExtensionType) and not isinstance(source.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, source)
    return cast("pa.Array[Any]", source.cast(target))


def list_offsets(column: Any) -> "pa.Array[Any]":
    """The offsets, null where the list is."""
    starts = column.offsets
    if not column.null_count:
        return cast("pa.Array[Any]", starts)
    missing = np.append(column.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(starts.to_numpy(), pa.int32(), mask=missing)


def _field_id(field: "pa.Field[Any]") -> bytes:
    return (field.metadata or {}).get(b"PARQUET:field_id", b"")


def _leaves(path: str, kind: Any) -> "Iterator[tuple[str, pa.DataType]]":
    """The Parquet columns of a column, by their paths."""
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _leaves(f"{path}.{kind.field(number).name}", kind.field(number).type)
    elif pa.types.is_map(kind):
        yield f"{path}.key_value.key", kind.key_type
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.{kind.value_field.name}", kind.value_type)
    else:
        yield path, kind


def _is_number(kind: "pa.DataType") -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)


def footer_crc32c(tail: bytes | memoryview) -> int:
    """Returns the checksum of a Parquet file's footer, given the file or its end. It proves that the
    published file is the one that was written.
    """
    view = memoryview(tail)
    length = int.from_bytes(view[-_FOOTER_TAIL_BYTES:-4], "little") + _FOOTER_TAIL_BYTES
    return int(crc32c(view[-length:]))


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
                        [
                            _field(9, "key", pa.string(), nullable=False),
                            _field(10, "value", pa.binary(), nullable=True),
                        ]
                    ),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
    ]
)
