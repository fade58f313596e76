"""Runs in Spark's executors for TTL: reads a partly expired Parquet file, writes one without the expired
rows.

The source stays. The publish replaces it with the new file, and the garbage collector deletes it once no
reader can need it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.expiry import HistoryFileAge
from spark_compaction.history_file import HistoryFile
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.identifiers import ObjectKey, Partition, TopicId

_SOURCE_FIELDS: list["pa.Field[Any]"] = [
    pa.field("source_key", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("keep_untimed", pa.bool_()),
]
REWRITTEN_COLUMNS = (
    "source_key string, object_key string, kept_rows long, expired_rows long, first_offset long, size_bytes long, "
    "footer_crc32c long"
)
_FIELDS: list["pa.Field[Any]"] = [
    pa.field("source_key", pa.string()),
    pa.field("object_key", pa.string()),
    pa.field("kept_rows", pa.int64()),
    pa.field("expired_rows", pa.int64()),
    pa.field("first_offset", pa.int64()),
    pa.field("size_bytes", pa.int64()),
    pa.field("footer_crc32c", pa.int64()),
]
_REWRITTEN_SCHEMA = pa.schema(_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteContext:
    address: BucketAddress
    prefix: str
    topic_id: TopicId
    cutoff: datetime
    row_group_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFile:
    """`object_key` is empty if nothing was left to keep."""

    source_key: str
    object_key: str = ""
    kept_rows: int = 0
    expired_rows: int = 0
    first_offset: int = -1
    size_bytes: int = 0
    footer_crc32c: int = 0


def rewrite_table(files: Sequence[HistoryFileAge], cutoff: datetime) -> pa.Table:
    """Returns the files to rewrite as a table, one row each."""
    rows = [
        {"source_key": file.object_key, "partition": file.partition, "keep_untimed": file.written_at >= cutoff}
        for file in files
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(_SOURCE_FIELDS))


def run_rewrites(context: RewriteContext, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function given to `mapInArrow`."""
    bucket = context.address.open()
    for batch in batches:
        for row in batch.to_pylist():
            rewritten = _rewrite(context, bucket, **row)
            yield pa.RecordBatch.from_pylist([asdict(rewritten)], schema=_REWRITTEN_SCHEMA)


def _rewrite(
    context: RewriteContext, bucket: Bucket, source_key: str, partition: int, keep_untimed: bool
) -> RewrittenFile:
    source = pq.ParquetFile(pa.BufferReader(bucket.get(ObjectKey(source_key))))
    target = HistoryFile(
        bucket, context.prefix, context.topic_id, Partition(partition), row_group_bytes=context.row_group_bytes
    )
    cutoff = pa.scalar(context.cutoff, RECORD_SCHEMA.field("timestamp").type)
    seen = 0
    for position in range(source.num_row_groups):
        rows = source.read_row_group(position)
        seen += rows.num_rows
        is_kept: Any = pc.greater_equal(rows.column("timestamp"), cutoff)
        kept = rows.filter(pc.fill_null(is_kept, keep_untimed))
        for batch in kept.drop_columns(["partition"]).to_batches():
            target.add(batch)
    kept_rows = target.row_count
    if kept_rows == 0:
        return RewrittenFile(source_key=source_key, expired_rows=seen)
    written = target.close()
    return RewrittenFile(
        source_key=source_key,
        object_key=written.object_key,
        kept_rows=kept_rows,
        expired_rows=seen - kept_rows,
        first_offset=written.first_offset,
        size_bytes=written.size_bytes,
        footer_crc32c=written.footer_crc32c,
    )
