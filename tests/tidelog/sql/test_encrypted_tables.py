"""DuckDB over tables of encrypted topics: files of two keys and in the clear, with keys and without."""

import asyncio
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_compaction.bucket import LocalBucket
from spark_compaction.history_file import PARQUET_SCHEMA, HistoryFile
from spark_compaction.typed.columns import Entries, Items, Record, TableColumns, fitted, source_type
from spark_source.settings import SourceSettings
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.encryption.parquet_keys import to_decrypt
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import Partition
from tests.storage.encryption.test_bucket_keys import Bucket
from tests.storage.encryption.test_parquet_keys import TOPIC
from tidelog.sql import fresh
from tidelog.sql.bucket_files import BucketFiles
from tidelog.sql.catalog import Catalog, Column, DataFile, Table, duckdb_type
from tidelog.sql.duckdb_engine import DuckDBEngine, Plan
from tidelog.sql.engine import StatementFailed
from tidelog.sql.scan_filters import Bounds, may_pass
from tidelog.sql.settings import SqlSettings

SECRETS = bytes(32), bytes(range(32))
FIELDS = Record(
    {
        "n": "long",
        "text": "string",
        "person": Record({"name": "string", "id": "uuid"}),
        "list": Items(Record({"text": "string"})),
        "map": Entries("string"),
        "price": "decimal(9,2)",
    }
)
TYPED = TableColumns(last_id=10, most_leaves=100).with_fields("value", FIELDS).file_schema()


class Topic:
    """A topic of history files in a directory, with two keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys = Bucket(path)
        ids = [asyncio.run(self.keys.add(secret=secret)) for secret in SECRETS]
        self.old, self.new = map(partial(TopicKey, TOPIC), ids, SECRETS)
        self.files: list[DataFile] = []
        self.end = 0
        self.engines: list[tuple[DuckDBEngine, BucketFiles]] = []

    def add(self, count: int, key: TopicKey | None, *, typed: bool = False, size: int = 0) -> None:
        schema = TYPED if typed else PARQUET_SCHEMA
        file = HistoryFile(
            LocalBucket(self.path / "store"),
            f"tidelog/history/{TOPIC}/job/",
            TOPIC,
            Partition(3),
            row_group_bytes=1 << 20 if size else 200,
            schema=schema,
            topic_key=key,
        )
        offsets = range(self.end, self.end + count)
        columns: dict[str, Any] = {
            "offset": offsets,
            "timestamp": [1_000_000 * offset for offset in offsets],
            "timestamp_type": [0] * count,
            "key": [b"key-%d" % (offset % 3) for offset in offsets],
            "value": [b"value-%d" % offset + os.urandom(size) for offset in offsets],
            "headers": [[{"key": "h", "value": b"1"}]] * count,
        }
        rows = pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)
        if typed:
            fields = list(schema)[len(PARQUET_SCHEMA) :]
            kind: Any = pa.struct(fields)
            values = [
                {
                    "n": offset,
                    "text": f"text-{offset}",
                    "person": {"name": "Zoë", "id": bytes(15) + b"\1"},
                    "list": [{"text": "in a list"}],
                    "map": [("k", "v")],
                    "price": offset,
                }
                for offset in offsets
            ]
            made: Any = fitted(pa.array(values, source_type(kind)), kind)
            rows = pa.RecordBatch.from_arrays(
                [*rows.columns, *made.flatten()], schema=pa.schema([*RECORD_SCHEMA, *fields])
            )
        file.add(rows)
        written = file.close()
        self.files.append(
            DataFile(
                key=written.object_key,
                size_bytes=written.size_bytes,
                rows=count,
                bounds={"partition": Bounds(3, 3), "offset": Bounds(self.end, self.end + count - 1)},
                column_bytes={},
            )
        )
        self.end += count

    def table(self) -> Table:
        columns = [
            Column(_number(field), field.name, duckdb_type(kind), kind)
            for field in TYPED
            for kind in [_kind(field.type)]
        ]
        return Table(
            name="orders",
            topic="orders",
            columns=tuple(columns),
            snapshot_id=1,
            files=tuple(self.files),
            topic_id=TOPIC,
            may_be_encrypted=True,
        )

    def read(
        self, text: str, *filters: str, table: Table | None = None, provider: bool = True, **settings: Any
    ) -> list[dict[str, Any]]:
        where = f"file://{self.path}/store"
        sql = SqlSettings(store_url=where, http_url="http://127.0.0.1:1", **settings)
        keys = {"encryption_provider": "file", "encryption_key": str(self.keys.key_file)} if provider else {}
        files = BucketFiles(sql)
        engine = DuckDBEngine(
            sql,
            Catalog(sql, files),
            files,
            lambda: SourceSettings(store_url=where, **keys),  # type: ignore[arg-type]
        )
        own = table or self.table()
        try:
            plan = Plan(
                text=text,
                tables=(own,),
                files={own.name: own.files},
                size_bytes=0,
                fresh=False,
                may_pass={own.name: may_pass(list(filters))} if filters else {},
            )
            return [row for batch in engine.run(plan, "").batches for row in batch.to_pylist()]
        finally:
            engine.close()
            files.close()


def _number(field: Any) -> int:
    return int((field.metadata or {}).get(b"PARQUET:field_id", b"0"))


def _kind(kind: Any) -> Any:
    """The type as Iceberg's metadata has it."""
    names = {
        pa.int32(): "int",
        pa.int64(): "long",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.timestamp("us", tz="UTC"): "timestamptz",
        pa.uuid(): "uuid",
    }
    if kind in names:
        return names[kind]
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return {
            "type": "struct",
            "fields": [{"id": _number(each), "name": each.name, "type": _kind(each.type)} for each in fields],
        }
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "key-id": _number(kind.key_field),
            "key": _kind(kind.key_type),
            "value-id": _number(kind.item_field),
            "value": _kind(kind.item_type),
        }
    if pa.types.is_list(kind):
        return {
            "type": "list",
            "element-id": _number(kind.value_field),
            "element": _kind(kind.value_type),
        }
    return f"decimal({kind.precision}, {kind.scale})"


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Offsets 0 to 9 in the clear, to 19 of the old key, to 29 of the new one with the fields of values."""
    made = Topic(tmp_path)
    made.add(10, None)
    made.add(10, made.old)
    made.add(10, made.new, typed=True)
    return made


def test_files_of_two_keys_and_in_the_clear_are_one_table(topic: Topic) -> None:
    [row] = topic.read("SELECT count(*) AS c, count(DISTINCT value) AS v, max(orders.offset) m FROM orders")
    assert row == {"c": 30, "v": 30, "m": 29}

    found = topic.read('SELECT * FROM orders WHERE "offset" IN (4, 14, 24) ORDER BY "offset"')

    assert [row["value"] for row in found] == [b"value-4", b"value-14", b"value-24"]
    assert [row["key"] for row in found] == [b"key-1", b"key-2", b"key-0"]
    assert all(row["headers"] == [{"key": "h", "value": b"1"}] for row in found)
    assert [row["n"] for row in found] == [None, None, 24]
    assert found[2]["person"]["name"] == "Zoë"
    assert str(found[2]["person"]["id"]).endswith("01")
    assert found[2]["list"] == [{"text": "in a list"}]
    assert dict(found[2]["map"]) == {"k": "v"}
    assert float(found[2]["price"]) == 24.0


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("value = 'value-14'", 1),
        ("key = 'key-1' AND \"offset\" < 15", 5),
        ("n > 25", 4),
        ("n IS NULL", 20),
        ("text LIKE 'text-2%' OR partition = 9", 10),
        ("person.name = 'Zoë'", 10),
        ("person.id = '00000000-0000-0000-0000-000000000001'", 10),
        ("timestamp >= '1970-01-01 00:00:28+00'", 2),
        ("price IN (21, 22, 99)", 2),
        ("map['k'] = 'v'", 10),
        ("list[1].text <> 'x'", 10),
    ],
)
def test_filters_on_any_column_pass_the_rows_that_they_mean(topic: Topic, where: str, count: int) -> None:
    assert topic.read(f"SELECT count(*) AS c FROM orders WHERE {where}") == [{"c": count}]


def test_a_statement_may_scan_a_table_more_than_once(topic: Topic) -> None:
    text = (
        'SELECT count(*) AS c FROM orders a JOIN orders b ON a."offset" = b."offset" + 1 '
        "WHERE a.value > b.key AND EXISTS (SELECT 1 FROM orders c WHERE c.value = a.value)"
    )
    assert topic.read(text) == [{"c": 29}]


def test_without_a_provider_the_clear_is_read_and_the_rest_names_the_fix(topic: Topic) -> None:
    [row] = topic.read(
        'SELECT count(*) AS c, max("offset") AS m, count("timestamp") AS t FROM orders', provider=False
    )
    assert row == {"c": 30, "m": 29, "t": 30}
    clear = replace(topic.table(), files=tuple(topic.files[:1]))
    assert len(topic.read("SELECT value FROM orders", table=clear, provider=False)) == 10
    for text in ("SELECT value FROM orders", "SELECT count(*) FROM orders WHERE n > 1"):
        with pytest.raises(StatementFailed, match=r"^The topic 'orders' is.*TIDELOG_ENCRYPTION_PROV"):
            topic.read(text, provider=False)


def test_a_destroyed_key_fails_the_statements_that_need_it(topic: Topic) -> None:
    asyncio.run(topic.keys.objects.delete([(TOPIC, topic.old.key_id)]))

    with pytest.raises(StatementFailed, match=f"the key {topic.old.key_id:016x}: the bucket has no such key"):
        topic.read("SELECT value FROM orders")
    left = replace(topic.table(), files=(topic.files[0], topic.files[2]))
    assert len(topic.read("SELECT value FROM orders", table=left)) == 20


def test_row_groups_that_cannot_pass_are_not_read(topic: Topic) -> None:
    """What is damaged in a row group that is not needed does no harm."""
    path = topic.path / "store" / topic.files[1].key
    data = bytearray(path.read_bytes())
    decryption = to_decrypt({topic.old.key_id: topic.old})
    first = pq.read_metadata(path, decryption_properties=decryption).row_group(0)
    values = first.column(PARQUET_SCHEMA.names.index("value"))
    data[values.data_page_offset + values.total_compressed_size // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(StatementFailed, match="is damaged, or its key is another"):
        topic.read("SELECT value FROM orders")
    found = topic.read('SELECT value FROM orders WHERE "offset" >= 18', "offset >= 18")
    assert [row["value"] for row in found] == [b"value-%d" % offset for offset in range(18, 30)]


def test_records_of_an_encrypted_tail_replace_those_of_a_compacted_table(
    topic: Topic, tmp_path: Path
) -> None:
    topic.files, topic.end = [], 0
    topic.add(3, topic.new)  # one of each key
    sql = SqlSettings(store_url=f"file://{topic.path}/store", http_url="http://127.0.0.1:1")
    source = SourceSettings(
        store_url=sql.store_url, encryption_provider="file", encryption_key=str(topic.keys.key_file)
    )
    files = BucketFiles(sql)
    engine = DuckDBEngine(sql, Catalog(sql, files), files, lambda: source)
    table = replace(topic.table(), has_last_records=True)
    changed = [
        (3, b"key-1", b"an update"),
        (4, b"key-2", None),
        (5, b"key-9", b"new"),
        (6, b"key-9", b"newest"),
    ]
    tail = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([3] * 4, pa.int32()),
            "offset": [offset for offset, _, _ in changed],
            "timestamp": pa.array([0] * 4, pa.timestamp("us", tz="UTC")),
            "timestamp_type": pa.array([0] * 4, pa.int32()),
            "key": [key for _, key, _ in changed],
            "value": pa.array([value for _, _, value in changed], pa.binary()),
            "headers": pa.array([[]] * 4, PARQUET_SCHEMA.field("headers").type),
        },
        schema=PARQUET_SCHEMA,
    )
    path = tmp_path / "tail"
    assert fresh._write([tail], path, engine._tail_key) == 4
    assert b"an update" not in path.read_bytes()
    engine._tails[table.name] = path  # as `write_tail` leaves it
    text = "SELECT key, value FROM orders ORDER BY key"
    plan = Plan(
        text=text, tables=(table,), files={table.name: table.files}, size_bytes=0, fresh=True, may_pass={}
    )

    found = [tuple(row.values()) for batch in engine.run(plan, "").batches for row in batch.to_pylist()]

    engine.close()
    files.close()
    [(_, first), *others] = found
    assert first.startswith(b"value-0")
    assert others == [(b"key-1", b"an update"), (b"key-9", b"newest")]


def test_a_statement_over_an_encrypted_topic_is_not_spilled_to_disk(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.add(40_000, topic.new, size=1 << 11)
    text = "SELECT value FROM orders ORDER BY md5(value), value"
    aggregate = "SELECT count(*) AS c, sum(octet_length(value)) > 80_000_000 AS s FROM orders"

    assert topic.read(aggregate, sql_memory_bytes=64 << 20) == [{"c": 40_000, "s": True}]
    assert len(topic.read(text, sql_memory_bytes=1 << 29)) == 40_000
    with pytest.raises(StatementFailed, match="Encrypted topics are never"):
        topic.read(text, sql_memory_bytes=80 << 20)
