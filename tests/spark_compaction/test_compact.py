"""What goes into the log comes out of its history, once."""

import asyncio
from typing import Any

import pytest

from spark_compaction.compact import CompactionReport, compact_topics
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from storage.record_batch import Compression
from tests.spark_compaction.log import COLUMNS, Log, Sent, one, records

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


async def compact(settings: CompactionSettings, *topics: str) -> CompactionReport:
    return await asyncio.to_thread(compact_topics, settings, topics or None)


async def history(settings: CompactionSettings, topic: str) -> list[tuple[Any, ...]]:
    found = await asyncio.to_thread(query, settings, f"SELECT {COLUMNS} FROM topics.`{topic}`")
    return sorted(found.rows, key=lambda row: row[:2])


def expected(log: Log, topic: str) -> list[tuple[Any, ...]]:
    return sorted(log.expected[topic], key=lambda row: row[:2])


async def test_every_field_of_every_record_is_read_back(log: Log, settings: CompactionSettings) -> None:
    await log.topic("orders.by-day_1", partitions=3)
    await log.write(
        "orders.by-day_1",
        one(0, Sent(key=None, value=None), Sent(key=b"", value=b""), Sent(value=b"\x00\xff" * 300)),
        one(2, Sent(headers=(("a", b"1"), ("a", None), ("b", b""), ("a", b"1"))), compression=Compression.NONE),
        one(2, Sent(timestamp_ms=-1), Sent(timestamp_ms=0), Sent(timestamp_ms=253402300799999)),
    )
    await log.write("orders.by-day_1", one(0, *records(5), append_time_ms=1_700_000_123_456))
    for codec in Compression:
        await log.write("orders.by-day_1", one(1, *records(200, start=codec * 1000), compression=codec))

    report = await compact(settings, "orders.by-day_1")

    assert report.rows == 1012
    assert await history(settings, "orders.by-day_1") == expected(log, "orders.by-day_1")
