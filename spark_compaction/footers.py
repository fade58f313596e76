"""Reads a Parquet file's footer back from the bucket, and checks it against what the task said.

A publish does not trust the executors: the object at that key must be the file that the attempt wrote, and
its row groups must hold the offsets that the manifest names.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sequencer.history.history_values import RowGroup
from spark_compaction.bucket import Bucket
from spark_compaction.history_file import decryption_of, footer_crc32c, most_chunks
from spark_compaction.manifest import ManifestRefused
from storage.arrow.row_groups import row_group_range
from storage.encryption.parquet_keys import key_id_of
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import BytePosition, ObjectKey, Offset

_TAIL_BYTES = 64 << 10
_PARTITION, _OFFSET, _TIMESTAMP = 0, 1, 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFile:
    object_key: ObjectKey
    partition: int
    row_count: int
    size_bytes: int
    footer_crc32c: int
    first_offset: int
    is_full: bool
    """As `TableFile.is_full`."""
    contiguous: bool
    """Every offset from `first_offset` on has a row; not so once TTL or an erasure has taken some
    out."""
    written_at: datetime | None = None
    """When the records came into history; None if they come with this file."""


def is_full(size_bytes: int, file_bytes: int) -> bool:
    """Whether merging leaves a file alone where files are closed at `file_bytes`."""
    return size_bytes * 2 >= file_bytes


def has_full_footer(metadata: pq.FileMetaData) -> bool:
    """Whether merging leaves a file alone because its footer is large."""
    is_encrypted = key_id_of(metadata) is not None
    return metadata.num_row_groups * metadata.num_columns * 2 >= most_chunks(is_encrypted=is_encrypted)


def read_footer(
    bucket: Bucket, expected: ExpectedFile, keyring: TopicKeyring | None = None
) -> pq.FileMetaData:
    """Returns the file's metadata. Raises ManifestRefused if it is not the expected file, or is not encrypted
    with the newest key of a topic's `keyring`.
    """
    key, size = expected.object_key, expected.size_bytes
    tail = bucket.get(key, max(0, size - _TAIL_BYTES), size + 1)
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) != min(size, _TAIL_BYTES) or footer_bytes > size:
        raise ManifestRefused(f"{key} is not the file of {size} bytes that was written")
    if footer_bytes > len(tail):
        tail = bucket.get(key, size - footer_bytes, size)
    if footer_crc32c(tail) != expected.footer_crc32c:
        raise ManifestRefused(f"the footer of {key} is not the one that was written")
    footer = pa.BufferReader(tail[-footer_bytes:])
    metadata = pq.read_metadata(footer)
    if key_id_of(metadata) != (None if keyring is None else keyring.newest.key_id):
        raise ManifestRefused(f"{key} is not encrypted as its topic is")
    if keyring is not None:  # without the key, pyarrow ends the process at what it asks of a column
        metadata = pq.read_metadata(footer, decryption_properties=decryption_of(keyring, metadata, key))
    _check_rows(metadata, expected)
    return metadata


def last_offset(metadata: pq.FileMetaData) -> int:
    """Of a file that `read_footer` has checked."""
    return int(_bounds(metadata.row_group(metadata.num_row_groups - 1), _OFFSET)[1])


def row_groups(metadata: pq.FileMetaData) -> tuple[RowGroup, ...]:
    """Of a file that `read_footer` has checked."""
    return tuple(_row_group(metadata.row_group(number)) for number in range(metadata.num_row_groups))


def _row_group(group: pq.RowGroupMetaData) -> RowGroup:
    position, length = row_group_range(group)
    times = group.column(_TIMESTAMP).statistics
    newest = times.max if times is not None and times.has_min_max else None
    return RowGroup(
        first_offset=Offset(_bounds(group, _OFFSET)[0]),
        position=BytePosition(position),
        length=length,
        max_timestamp_ms=-1 if newest is None else _milliseconds(newest),
    )


def _milliseconds(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _check_rows(metadata: pq.FileMetaData, expected: ExpectedFile) -> None:
    if metadata.num_rows != expected.row_count:
        raise ManifestRefused(f"{expected.object_key} has {metadata.num_rows} rows, not {expected.row_count}")
    reached = expected.first_offset
    for position in range(metadata.num_row_groups):
        group = metadata.row_group(position)
        partitions, offsets = _bounds(group, _PARTITION), _bounds(group, _OFFSET)
        if partitions != (expected.partition, expected.partition):
            raise ManifestRefused(
                f"row group {position} of {expected.object_key} is of partitions {partitions}"
            )
        first, last = offsets
        dense = first == reached and last - first + 1 == group.num_rows
        if first < reached or (expected.contiguous and not dense):
            raise ManifestRefused(
                f"row group {position} of {expected.object_key} has {group.num_rows} rows of offsets "
                f"{first} to {last}, after {reached}"
            )
        reached = last + 1


def _bounds(group: pq.RowGroupMetaData, column: int) -> tuple[Any, Any]:
    statistics = group.column(column).statistics
    if statistics is None or not statistics.has_min_max:
        raise ManifestRefused("a row group has no bounds for its partition or offsets")
    return statistics.min, statistics.max
