"""Fields of keys and values become columns of the topic's table, through the real compaction."""

import asyncio
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.table.metadata import TableMetadata

from sequencer.history.history_values import Publication
from spark_compaction.compact import TopicCompactor
from spark_compaction.iceberg_table import HistoryTableFiles, SchemaChange, _with_schema
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from spark_compaction.typed.columns import Record
from spark_compaction.typed.topic_typing import _iceberg_schema, table_columns
from tests.spark_compaction.log import Log, Sent, one
from tests.spark_compaction.reading import (
    compact,
    compact_one,
    iceberg_table,
    spark_rows,
    written_rows,
)
from tests.spark_compaction.typed.registry_server import Registry
from tests.spark_compaction.typed.test_decoding import avro, framed, record

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
RECORD = ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]


def sent(*values: Any) -> list[Sent]:
    """Values as JSON; bytes as they are."""
    return [
        Sent(value=value if isinstance(value, (bytes, type(None))) else json.dumps(value).encode())
        for value in values
    ]


async def typed(settings: CompactionSettings, topic: str) -> list[dict[str, Any]]:
    """The columns beyond the record's, in the order of offsets, by PyIceberg."""
    table = await iceberg_table(settings, topic)
    rows = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return rows.drop_columns(RECORD).to_pylist()


async def test_json_fields_become_columns_beside_the_raw_bytes(
    log: Log, settings: CompactionSettings
) -> None:
    await log.topic("orders", tidelog_value_format="json", tidelog_key_format="string")
    await log.write(
        "orders",
        one(
            0,
            *sent(
                {"id": 1, "price": 2.5, "who": {"name": "Ada", "tags": ["a", "b"]}, "timestamp": "noon"},
                {"id": 2, "price": None, "who": None, "extra": True},
                b"not json",
                None,
                [1, 2],
            ),
        ),
        one(0, Sent(key=b"k", value=b'{"id": 3}'), Sent(key=b"\xff", value=b'{"id": "three"}')),
    )

    assert (await compact_one(settings, "orders")).rows == 7

    rows = await typed(settings, "orders")
    assert rows[0] == {
        "_error": None, "key_decoded": None, "id": "1", "price": 2.5,
        "who": {"name": "Ada", "tags": ["a", "b"]}, "value_timestamp": "noon", "extra": None,
    }  # fmt: skip
    assert rows[1]["extra"] is True
    assert rows[2]["_error"] == "value: is not JSON: Expecting value: line 1 column 1 (char 0)"
    assert rows[3]["_error"] is None
    assert rows[4]["_error"] == "value: is JSON, but not an object"
    assert (rows[5]["key_decoded"], rows[5]["id"]) == ("k", "3")
    assert rows[6]["_error"] == "key: is not UTF-8"
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")


async def test_a_table_evolves_and_its_files_are_merged(log: Log, settings: CompactionSettings) -> None:
    """Files of four schemas, one of them without columns, become one; nothing that was written is lost."""
    four = settings.model_copy(update={"parquet_merge_files": 4})
    config = {"tidelog.value.format": "json"}
    await log.topic("orders")
    await log.write("orders", one(0, *sent({"a": 0})))
    await compact_one(four, "orders")
    topic = await log.sequencer.topics.alter_config("orders", config)
    assert topic is not None
    merged = 0
    for value in ({"a": 1}, {"a": 2, "b": {"c": [1.5]}}, {"b": {"d": "x"}, "e": True}):
        await log.write("orders", one(0, *sent(value)))
        merged += (await compact_one(four, "orders")).merged_files

    rows = await typed(settings, "orders")

    assert merged == 4
    assert [row["a"] for row in rows] == [None, 1, 2, None]
    assert rows[2]["b"] == {"c": [1.5], "d": None}
    assert rows[3] == {"_error": None, "a": None, "b": {"c": None, "d": "x"}, "e": True}
    found = await asyncio.to_thread(
        query, settings, "SELECT a, b.c, b.d, e FROM topics.orders ORDER BY `offset`"
    )
    assert [tuple(row) for row in found.rows] == [
        (None, None, None, None), (1, None, None, None), (2, [1.5], None, None), (None, None, "x", True),
    ]  # fmt: skip
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")


async def test_avro_with_a_registry_is_read_by_spark(
    log: Log, settings: CompactionSettings, registry: Registry
) -> None:
    schema = record(
        "r", n="long", price={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        id={"type": "string", "logicalType": "uuid"}, day={"type": "int", "logicalType": "date"},
        tags={"type": "map", "values": "int"}, at={"type": "long", "logicalType": "timestamp-micros"},
    )  # fmt: skip
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    value = {
        "n": 1,
        "price": Decimal("1.25"),
        "id": UUID(int=7),
        "day": at.date(),
        "tags": {"a": 1},
        "at": at,
    }
    registry.schemas[5] = {"schema": json.dumps(schema)}
    with_registry = settings.model_copy(update={"schema_registry_url": registry.url})
    await log.topic("orders", tidelog_value_format="avro")
    await log.write("orders", one(0, *sent(framed(5, avro(schema, value)), b"no")))

    await compact_one(with_registry, "orders")

    found = await asyncio.to_thread(
        query, settings, "SELECT n, price, id, day, tags, at, _error FROM topics.orders ORDER BY `offset`"
    )
    assert tuple(found.rows[0]) == (1, Decimal("1.25"), str(UUID(int=7)), at.date(), [("a", 1)], at, None)
    assert found.rows[1][-1] == "value: does not begin with a zero and a schema's id"


async def test_a_topic_waits_for_the_registry_and_the_others_do_not(
    log: Log, settings: CompactionSettings, registry: Registry
) -> None:
    schema = record("r", n="long")
    registry.schemas[5] = {"schema": json.dumps(schema)}
    registry.behaviour = "fails"
    with_registry = settings.model_copy(
        update={"schema_registry_url": registry.url, "schema_registry_attempts": 2}
    )
    await log.topic("waits", tidelog_value_format="avro")
    await log.topic("goes-on", tidelog_value_format="json")
    await log.write("waits", one(0, *sent(framed(5, avro(schema, {"n": 3})))))
    await log.write("goes-on", one(0, *sent({"n": 1})))

    report = await compact(with_registry)

    done = {topic.topic: topic for topic in report.topics}
    assert (done["waits"].rows, done["goes-on"].rows) == (0, 1)
    assert "answered 503" in done["waits"].waits
    [shown] = await log.sequencer.history.shown("waits")
    assert shown.waits == done["waits"].waits
    registry.behaviour = "answers"
    assert (await compact_one(with_registry, "waits")).waits == ""
    assert [row["n"] for row in await typed(settings, "waits")] == [3]
    [shown] = await log.sequencer.history.shown("waits")
    assert shown.waits is None


async def test_columns_that_another_job_added_first_make_the_publish_plan_again(
    log: Log, settings: CompactionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job reaches its publish after its lease has ended, and another one has published."""
    await log.topic("orders", tidelog_value_format="json")
    await log.write("orders", one(0, *sent({"first": 1})))
    await compact_one(settings, "orders")
    await log.write("orders", one(0, *sent({"second": 2})))
    stage = TopicCompactor._stage

    def stage_late(self: TopicCompactor, *given: Any) -> Publication:
        job, on = given[0], given[-1]
        metadata = HistoryTableFiles(self._address, self._address.open(), job, on).metadata
        changed = _with_schema(metadata, _other(metadata))
        monkeypatch.setattr(HistoryTableFiles, "_load", lambda _: changed)
        return stage(self, *given)

    monkeypatch.setattr(TopicCompactor, "_stage", stage_late)
    late = await compact_one(settings, "orders")
    monkeypatch.undo()

    assert late.busy
    assert late.rows == 0
    assert (await compact_one(settings, "orders")).rows == 1
    assert [row["second"] for row in await typed(settings, "orders")] == [None, 2]
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")


def _other(metadata: TableMetadata) -> SchemaChange:
    """What another job did: it gave the id of `second` to a column of its own."""
    columns = table_columns(metadata, 1000).with_fields("value", Record({"other": "string"}))
    return SchemaChange(base=metadata.schema(), schema=_iceberg_schema(columns), properties={})


async def test_two_compactions_at_once_write_each_record_and_each_column_once(
    log: Log, settings: CompactionSettings
) -> None:
    await log.topic("orders", partitions=2, tidelog_value_format="json")
    for number in range(3):
        await log.write("orders", one(0, *sent({f"a{number}": number})), one(1, *sent({"b": number})))
        reports = await asyncio.gather(*(compact_one(settings, "orders") for _ in range(2)))
        assert sum(report.rows for report in reports) == 2 or any(report.busy for report in reports)
    await compact_one(settings, "orders")

    rows = await typed(settings, "orders")

    assert list(rows[0]) == ["_error", "a0", "b", "a1", "a2"]
    assert [(row["a0"], row["a1"], row["a2"], row["b"]) for row in rows] == [
        (0, None, None, None), (None, 1, None, None), (None, None, 2, None),
        (None, None, None, 0), (None, None, None, 1), (None, None, None, 2),
    ]  # fmt: skip
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")
