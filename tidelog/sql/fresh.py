"""The tail of a topic: the records above the end of its table, up to the last stable offset.

Read as Spark's data source reads them (`spark_source/`), without Spark, and written as one Parquet file in a
temporary directory. For DuckDB it is one more data file of the table: any statement may scan it as often as
it needs, in bounded memory.

Promises:
- A record is in the table's snapshot or in the tail, never in both: the tail of a partition starts at the
  offset after the last one of the snapshot, wherever the record lies when it is read.
- All records that were stable before the tail was planned are there, but for those of aborted transactions,
  and unless retention or DeleteRecords took them, or they do not decode. Then a line of the log says so.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from spark_compaction.history_file import PARQUET_SCHEMA, parquet_columns
from spark_source.agents import Agents, AgentsUnavailable, Piece, RequestRefused, TopicEnds
from spark_source.planning import PartitionOf, ReadContext, plan_reads
from spark_source.reading import read_task
from spark_source.settings import SourceSettings
from spark_source.topic_keys import SourceKeys
from spark_source.window import Window
from storage.arrow.arrow_schema import HISTORY_SCHEMA
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.parquet_keys import key_metadata, to_encrypt
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import TopicId
from storage.stores.object_store import ObjectNotFound, StoreUnavailable
from tidelog.sql.catalog import Table
from tidelog.sql.engine import NotInDuckDB, StatementFailed

_ROW_GROUP_BYTES: Final = 8 << 20


def write_tail(
    table: Table,
    settings: SourceSettings,
    most_bytes: int,
    path: Path,
    stop: threading.Event,
    key: TopicKey | None = None,
) -> int:
    """Writes the tail to `path`, encrypted with `key` if there is one, and returns how many records it has.
    Raises NotInDuckDB if more than `most_bytes` would be read, and StatementFailed, also once `stop` is set.
    """
    try:
        agents = Agents(settings)
        ends = agents.topic(table.topic)
        pieces = _pieces(table, agents, ends)
        size = sum(piece.length for own in pieces.values() for piece in own)
        if size > most_bytes:
            raise NotInDuckDB(
                f"--fresh reads {size:,} bytes of {table.topic}, more than TIDELOG_SQL_FRESH_BYTES"
            )
        context = ReadContext(
            settings=settings, columns=tuple(HISTORY_SCHEMA.names), window=Window(), fail_on_data_loss=False
        )
        keyrings = {}
        if ends.may_be_encrypted:
            objects = (piece.object_key for own in pieces.values() for piece in own)
            found = SourceKeys(settings).of_topic(table.topic, TopicId(UUID(ends.topic_id)), objects)
            keyrings = {table.topic: found}
        tasks = plan_reads(pieces, task_bytes=settings.source_task_bytes, min_partitions=1, keyrings=keyrings)
        rows = _until(stop, (rows for task in tasks for rows in read_task(context, task)))
        return _write(rows, path, key)
    except KeyUnavailable as failed:
        raise StatementFailed(f"The {failed}.", "Or leave out --fresh.") from None
    except (AgentsUnavailable, RequestRefused, StoreUnavailable, ObjectNotFound) as failed:
        raise StatementFailed(f"The newest records of '{table.topic}' could not be read: {failed}") from None


def _pieces(table: Table, agents: Agents, topic: TopicEnds) -> dict[PartitionOf, list[Piece]]:
    ends = table.ends()
    return {
        (table.topic, partition): list(
            agents.pieces(table.topic, partition, ends.get(partition, own.first_offset), own.end_offset)
        )
        for partition, own in topic.partitions.items()
    }


def _until(stop: threading.Event, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        if stop.is_set():
            raise StatementFailed("The statement was cancelled.")
        yield rows


def _write(batches: Iterable[pa.RecordBatch], path: Path, key: TopicKey | None) -> int:
    count = 0
    with pq.ParquetWriter(
        path,
        PARQUET_SCHEMA,
        compression="lz4",
        encryption_properties=None if key is None else to_encrypt(key, parquet_columns(PARQUET_SCHEMA)),
    ) as writer:
        if key is not None:
            writer.add_key_value_metadata(key_metadata(key))
        for group in _groups(batches):
            writer.write_table(pa.Table.from_batches(group).cast(PARQUET_SCHEMA))
            count += sum(rows.num_rows for rows in group)
    return count


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for rows in batches:
        group.append(rows)
        size += rows.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
