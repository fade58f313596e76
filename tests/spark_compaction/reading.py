"""Compacts, and reads history back by Spark SQL and, with no Spark, by PyIceberg."""

import asyncio
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from sequencer.client import Sequencer
from sequencer.history.history_values import HistoryTable
from spark_compaction.compact import CompactionReport, TopicCompaction, compact_topics
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from tests.spark_compaction.log import COLUMNS, Log

Rows = list[tuple[Any, ...]]


async def compact(settings: CompactionSettings, *topics: str) -> CompactionReport:
    return await asyncio.to_thread(compact_topics, settings, topics or None)


async def compact_one(settings: CompactionSettings, topic: str) -> TopicCompaction:
    [report] = (await compact(settings, topic)).topics
    return report


async def spark_rows(settings: CompactionSettings, topic: str) -> Rows:
    """The whole history by Spark SQL, in (partition, offset) order."""
    found = await asyncio.to_thread(query, settings, f"SELECT {COLUMNS} FROM topics.`{topic}`")
    return _in_order(list(found.rows))


async def iceberg_table(settings: CompactionSettings, topic: str) -> pa.Table:
    """The whole history by PyIceberg, through the REST catalog and nothing of Tidelog."""
    return await asyncio.to_thread(_scan, settings, topic)


async def iceberg_rows(settings: CompactionSettings, topic: str) -> Rows:
    table = await iceberg_table(settings, topic)
    return _in_order(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


async def the_table(sequencer: Sequencer, topic: str) -> HistoryTable:
    table = await sequencer.history.table(topic)
    assert table is not None
    return table


def written_rows(log: Log, topic: str) -> Rows:
    """What the history must hold."""
    return _in_order(log.expected[topic])


def _scan(settings: CompactionSettings, topic: str) -> pa.Table:
    keys = {}
    if settings.s3_access_key is not None and settings.s3_secret_key is not None:
        keys = {
            "s3.access-key-id": settings.s3_access_key,
            "s3.secret-access-key": settings.s3_secret_key.get_secret_value(),
        }
    catalog = RestCatalog("tidelog", uri=f"{settings.http_url}/iceberg", **keys)
    table: pa.Table = catalog.load_table(("topics", topic)).scan().to_arrow()
    return table


def _in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row[:2])
