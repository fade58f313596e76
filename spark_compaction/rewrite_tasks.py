"""Runs in Spark's executors for TTL, merging, erasure and tables of compacted topics: reads Parquet files,
and writes files without the rows that have expired, were deleted, are to be erased or are replaced.

The source stays. The publish replaces it with the new file, and the garbage collector deletes it once no
reader can need it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sequencer.history.history_values import TableFile
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.footers import ExpectedFile, is_full
from spark_compaction.history_file import HistoryFile, WrittenFile, decryption_of, record_batches
from spark_compaction.manifest import ManifestRefused
from spark_compaction.state.key_files import KeyFiles, LastRecords
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.erased_batches import ErasedKeys
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import ObjectKey, Offset, Partition, TopicId

_SOURCE_FIELDS: list["pa.Field[Any]"] = [
    pa.field("object_key", pa.string()),
    pa.field("keep_untimed", pa.bool_()),
    pa.field("from_offset", pa.int64()),
    pa.field("to_offset", pa.int64()),
]
_SOURCE: Any = pa.struct(_SOURCE_FIELDS)
_TASK_FIELDS: list["pa.Field[Any]"] = [
    pa.field("task_id", pa.int32()),
    pa.field("partition", pa.int32()),
    pa.field("sources", pa.list_(_SOURCE)),
]
REWRITTEN_COLUMNS = (
    "task_id int, object_key string, kept_rows long, expired_rows long, first_offset long, last_offset long, "
    "size_bytes long, footer_crc32c long, unreadable string"
)
_FIELDS: list["pa.Field[Any]"] = [
    pa.field("task_id", pa.int32()),
    pa.field("object_key", pa.string()),
    pa.field("kept_rows", pa.int64()),
    pa.field("expired_rows", pa.int64()),
    pa.field("first_offset", pa.int64()),
    pa.field("last_offset", pa.int64()),
    pa.field("size_bytes", pa.int64()),
    pa.field("footer_crc32c", pa.int64()),
    pa.field("unreadable", pa.string()),
]
_REWRITTEN_SCHEMA = pa.schema(_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteContext:
    address: BucketAddress
    prefix: str
    topic_id: TopicId
    cutoff: datetime | None
    """Older rows are left out."""
    row_group_bytes: int
    file_bytes: int
    keyring: TopicKeyring | None
    """None: the topic is not encrypted."""
    schema: pa.Schema
    """Of the new files. Columns beyond the record's are taken over by their field ids."""
    erased_keys: tuple[bytes | None, ...] = ()
    """Rows with these keys are left out, below each source's `to_offset`. A task that finds none writes
    nothing."""
    keys: Mapping[Partition, KeyFiles] = field(default_factory=dict)
    """Rows that a later record of their key replaces are left out. A task that finds none writes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One task: files of one partition in offset order, with nothing of the table between them."""

    sources: tuple[TableFile, ...]

    @property
    def partition(self) -> Partition:
        return self.sources[0].partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFile:
    """`object_key` is empty if nothing was left to keep, or if nothing was to be erased or is replaced: then
    `kept_rows` are those of the source, which stays. `unreadable` says why the task has no key for a source.
    """

    task_id: int
    object_key: str = ""
    kept_rows: int = 0
    expired_rows: int = 0
    first_offset: int = -1
    last_offset: int = -1
    size_bytes: int = 0
    footer_crc32c: int = 0
    unreadable: str = ""


def rewrite_table(
    rewrites: Sequence[Rewrite],
    cutoff: datetime | None,
    deleted_to: Mapping[Partition, Offset] = MappingProxyType({}),
    erased_to: Mapping[Partition, Offset] = MappingProxyType({}),
) -> pa.Table:
    """The tasks as a table, one row each. Records below `deleted_to` are left out, and those of erased keys
    below `erased_to`."""
    rows = [
        {
            "task_id": task_id,
            "partition": rewrite.partition,
            "sources": [
                {
                    "object_key": file.object_key,
                    "keep_untimed": _keeps_untimed(file, cutoff),
                    "from_offset": deleted_to.get(file.partition, 0),
                    "to_offset": erased_to.get(file.partition, 0),
                }
                for file in rewrite.sources
            ],
        }
        for task_id, rewrite in enumerate(rewrites)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(_TASK_FIELDS))


def _keeps_untimed(file: TableFile, cutoff: datetime | None) -> bool:
    """Rows without a timestamp expire by when they came into history."""
    return cutoff is None or file.written_at is None or file.written_at >= cutoff


def expected_files(
    rewrites: Sequence[Rewrite], rows: Iterable[RewrittenFile], *, file_bytes: int
) -> list[ExpectedFile]:
    """What the bucket must hold of what the tasks wrote. Raises ManifestRefused unless every row of every
    source is in a new file or was left out, and the new files of a task lie within its sources' offsets, one
    behind the other.
    """
    by_task = {
        task_id: list(own)
        for task_id, own in groupby(sorted(rows, key=_in_order), key=lambda row: row.task_id)
    }
    expected: list[ExpectedFile] = []
    for task_id, rewrite in enumerate(rewrites):
        own = by_task.pop(task_id, [])
        counted = sum(row.kept_rows + row.expired_rows for row in own)
        if counted != sum(file.row_count for file in rewrite.sources):
            raise ManifestRefused(f"rewrite {task_id} accounts for {counted} of its sources' rows")
        reached = int(rewrite.sources[0].first_offset)
        for row in own:
            if not row.object_key:
                continue
            if (
                row.first_offset < reached
                or not row.first_offset <= row.last_offset <= rewrite.sources[-1].last_offset
            ):
                raise ManifestRefused(
                    f"{row.object_key} has offsets from {row.first_offset}, after {reached}"
                )
            reached = row.last_offset + 1
            expected.append(_expected(row, rewrite, file_bytes))
    if by_task:
        raise ManifestRefused(f"tasks that were not planned reported: {sorted(by_task)}")
    return expected


def _in_order(row: RewrittenFile) -> tuple[int, int]:
    return row.task_id, row.first_offset


def _expected(row: RewrittenFile, rewrite: Rewrite, file_bytes: int) -> ExpectedFile:
    return ExpectedFile(
        object_key=ObjectKey(row.object_key),
        partition=rewrite.partition,
        row_count=row.kept_rows,
        size_bytes=row.size_bytes,
        footer_crc32c=row.footer_crc32c,
        first_offset=row.first_offset,
        is_full=is_full(row.size_bytes, file_bytes),
        contiguous=False,
        # The latest: a record without a timestamp is never taken for older than it is.
        written_at=max(file.written_at for file in rewrite.sources if file.written_at is not None),
    )


def run_rewrites(context: RewriteContext, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function given to `mapInArrow`."""
    bucket = context.address.open()
    for batch in batches:
        for task in batch.to_pylist():
            rows = [
                asdict(row)
                for row in _Rewriting(context, bucket, task["task_id"], task["partition"]).run(task)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=_REWRITTEN_SCHEMA)


def _is_erased(rows: pa.RecordBatch, erased: ErasedKeys, to_offset: int) -> NDArray[np.bool_]:
    offsets = rows.column("offset").to_numpy()
    is_erased: NDArray[np.bool_] = erased.among(rows.column("key")) & (offsets < to_offset)
    return is_erased


class _Rewriting:
    """One attempt at one task."""

    def __init__(self, context: RewriteContext, bucket: Bucket, task_id: int, partition: int) -> None:
        self._context = context
        self._bucket = bucket
        self._task_id = task_id
        self._partition = Partition(partition)
        self._target: HistoryFile | None = None
        self._expired_rows = 0
        self._erased = ErasedKeys(context.erased_keys) if context.erased_keys else None
        keys = context.keys.get(self._partition)
        self._last = None if keys is None else LastRecords(bucket, keys)

    def run(self, task: dict[str, Any]) -> Iterator[RewrittenFile]:
        try:
            yield from self._run(task)
        except KeyUnavailable as error:  # another attempt would not have the key either
            yield RewrittenFile(task_id=self._task_id, unreadable=str(error))

    def _run(self, task: dict[str, Any]) -> Iterator[RewrittenFile]:
        for source in task["sources"]:
            file = self._opened(ObjectKey(source["object_key"]))
            if self._stays(file, source["to_offset"]):
                yield RewrittenFile(task_id=self._task_id, kept_rows=file.metadata.num_rows)
                continue
            for rows in record_batches(file, self._partition, self._context.schema):
                self._add(self._kept(rows, source))
                if self._target is not None and self._target.is_complete(self._context.file_bytes):
                    yield self._closed(self._target)
        if self._target is not None:
            yield self._closed(self._target)
        yield RewrittenFile(task_id=self._task_id, expired_rows=self._expired_rows)

    def _opened(self, key: ObjectKey) -> pq.ParquetFile:
        """Raises KeyUnavailable or SealBroken."""
        data = self._bucket.get(key)
        decryption = decryption_of(self._context.keyring, pq.read_metadata(pa.BufferReader(data)), key)
        # The new file has the only copy of these records, and other checksums.
        return pq.ParquetFile(
            pa.BufferReader(data), page_checksum_verification=True, decryption_properties=decryption
        )

    def _stays(self, file: pq.ParquetFile, to_offset: int) -> bool:
        """True if the file has none of the rows that were looked for."""
        if self._erased is not None:
            return not self._holds_erased(file, self._erased, to_offset)
        return self._last is not None and not self._holds_replaced(file, self._last)

    def _holds_replaced(self, file: pq.ParquetFile, last: LastRecords) -> bool:
        return any(last.replaced(rows).any() for rows in file.iter_batches(columns=["offset", "key"]))

    def _holds_erased(self, file: pq.ParquetFile, erased: ErasedKeys, to_offset: int) -> bool:
        return any(
            _is_erased(rows, erased, to_offset).any() for rows in file.iter_batches(columns=["offset", "key"])
        )

    def _kept(self, rows: pa.RecordBatch, source: dict[str, Any]) -> pa.RecordBatch:
        first = pa.scalar(source["from_offset"], pa.int64())
        kept = rows.filter(pc.greater_equal(rows.column("offset"), first))
        if self._context.cutoff is not None:
            cutoff = pa.scalar(self._context.cutoff, RECORD_SCHEMA.field("timestamp").type)
            is_kept: Any = pc.greater_equal(kept.column("timestamp"), cutoff)
            kept = kept.filter(pc.fill_null(is_kept, source["keep_untimed"]))
        if self._erased is not None:
            kept = kept.filter(pa.array(~_is_erased(kept, self._erased, source["to_offset"])))
        if self._last is not None:
            kept = kept.filter(pa.array(~self._last.replaced(kept)))
        self._expired_rows += rows.num_rows - kept.num_rows
        return kept

    def _add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        if self._target is None:
            self._target = HistoryFile(
                self._bucket,
                self._context.prefix,
                self._context.topic_id,
                self._partition,
                row_group_bytes=self._context.row_group_bytes,
                schema=self._context.schema,
                topic_key=None if self._context.keyring is None else self._context.keyring.newest,
            )
        self._target.add(rows)

    def _closed(self, target: HistoryFile) -> RewrittenFile:
        written: WrittenFile = target.close()
        self._target = None
        return RewrittenFile(
            task_id=self._task_id,
            object_key=written.object_key,
            kept_rows=written.row_count,
            first_offset=written.first_offset,
            last_offset=written.last_offset,
            size_bytes=written.size_bytes,
            footer_crc32c=written.footer_crc32c,
        )
