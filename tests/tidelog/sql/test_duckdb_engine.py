"""DuckDB over files of different ages: columns are found by their field ids, as Iceberg has it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_source.settings import SourceSettings
from storage.identifiers import ObjectKey
from tidelog.sql.bucket_files import BucketFiles
from tidelog.sql.catalog import Catalog, Column, DataFile, Table, duckdb_type
from tidelog.sql.duckdb_engine import DuckDBEngine, Plan
from tidelog.sql.engine import NotInDuckDB
from tidelog.sql.scan_filters import Bounds
from tidelog.sql.settings import SqlSettings

Read = Callable[[Table, str], list[dict[str, Any]]]


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def read(bucket: Path) -> Iterator[Read]:
    """Runs a statement over a table, all of whose files are needed."""
    settings = SqlSettings(store_url=f"file://{bucket}", http_url="http://127.0.0.1:1")
    files = BucketFiles(settings)
    engine = DuckDBEngine(settings, Catalog(settings, files), files, SourceSettings)

    def run(table: Table, text: str) -> list[dict[str, Any]]:
        plan = Plan(text=text, tables=(table,), files={table.name: table.files}, size_bytes=0, fresh=False)
        answer = engine.run(plan, "")
        return [row for batch in answer.batches for row in batch.to_pylist()]

    yield run
    engine.close()
    files.close()


def field(number: int, name: str, kind: pa.DataType) -> "pa.Field[Any]":
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def written(bucket: Path, name: str, fields: list["pa.Field[Any]"], rows: list[dict[str, Any]]) -> DataFile:
    path = bucket / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), path)
    return DataFile(
        key=ObjectKey(name), size_bytes=path.stat().st_size, rows=len(rows), bounds={}, column_bytes={}
    )


def table_of(files: tuple[DataFile, ...], *columns: Column) -> Table:
    own = (Column(1, "partition", "INTEGER"), Column(2, "offset", "BIGINT"), *columns)
    return Table(name="orders", topic="orders", columns=own, snapshot_id=1, files=files)


def test_files_older_than_a_column_have_nulls_there(read: Read, bucket: Path) -> None:
    base = [field(1, "partition", pa.int32()), field(2, "offset", pa.int64())]
    person = pa.struct([field(12, "name", pa.string())])
    grown = pa.struct([field(12, "name", pa.string()), field(13, "age", pa.int64())])
    oldest = written(bucket, "a/1.parquet", base, [{"partition": 0, "offset": 0}])
    older = written(
        bucket,
        "a/2.parquet",
        [*base, field(11, "person", person)],
        [{"partition": 0, "offset": 1, "person": {"name": "Zoë"}}],
    )
    newest = written(
        bucket,
        "a/3.parquet",
        [*base, field(11, "person", grown), field(14, 'it\'s "odd"', pa.int32())],
        [{"partition": 0, "offset": 2, "person": {"name": "Al", "age": 7}, 'it\'s "odd"': 5}],
    )
    table = table_of(
        (oldest, older, newest),
        Column(11, "person", 'STRUCT("name" VARCHAR, "age" BIGINT)'),
        Column(14, 'it\'s "odd"', "BIGINT"),  # wider than in the file
    )

    found = read(table, "SELECT * EXCLUDE (partition) FROM topics.orders ORDER BY 1")

    assert found == [
        {"offset": 0, "person": None, 'it\'s "odd"': None},
        {"offset": 1, "person": {"name": "Zoë", "age": None}, 'it\'s "odd"': None},
        {"offset": 2, "person": {"name": "Al", "age": 7}, 'it\'s "odd"': 5},
    ]


def test_a_column_that_was_renamed_is_found(read: Read, bucket: Path) -> None:
    file = written(
        bucket,
        "b/1.parquet",
        [field(1, "partition", pa.int32()), field(2, "offset", pa.int64()), field(11, "before", pa.string())],
        [{"partition": 0, "offset": 0, "before": "x"}],
    )

    assert read(table_of((file,), Column(11, "after", "VARCHAR")), "SELECT after FROM orders") == [
        {"after": "x"}
    ]


def test_an_empty_table_has_its_columns(read: Read) -> None:
    assert read(table_of((), Column(11, "x", "DOUBLE")), "SELECT count(x) AS c FROM orders") == [{"c": 0}]


def test_each_run_sees_the_files_of_its_own_plan(read: Read, bucket: Path) -> None:
    base = [field(1, "partition", pa.int32()), field(2, "offset", pa.int64())]
    first = written(bucket, "c/1.parquet", base, [{"partition": 0, "offset": n} for n in range(3)])
    second = written(bucket, "c/2.parquet", base, [{"partition": 0, "offset": n} for n in range(3, 8)])
    count = "SELECT count(*) AS c FROM orders"

    assert [read(table_of(files), count)[0]["c"] for files in ((first,), (first, second), (second,))] == [
        3,
        8,
        5,
    ]


def test_a_thousand_files_are_read_in_moments(read: Read, bucket: Path) -> None:
    base = [field(1, "partition", pa.int32()), field(2, "offset", pa.int64())]
    files = tuple(
        written(bucket, f"d/{n}.parquet", base, [{"partition": 0, "offset": n}]) for n in range(1000)
    )
    began = time.monotonic()

    [row] = read(table_of(files), "SELECT count(*) AS c, max(orders.offset) AS last FROM orders")

    assert row == {"c": 1000, "last": 999}
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("iceberg", "duckdb"),
    [
        ("timestamptz", "TIMESTAMP WITH TIME ZONE"),
        ("decimal(12, 3)", "DECIMAL(12, 3)"),
        ("fixed[16]", "BLOB"),
        ({"type": "list", "element-id": 9, "element": "long", "element-required": False}, "BIGINT[]"),
        (
            {"type": "map", "key-id": 8, "key": "string", "value-id": 9, "value": "int"},
            "MAP(VARCHAR, INTEGER)",
        ),
        (
            {"type": "struct", "fields": [{"id": 9, "name": 'a"b', "type": "double", "required": True}]},
            'STRUCT("a""b" DOUBLE)',
        ),
    ],
)
def test_types_of_iceberg(iceberg: Any, duckdb: str) -> None:
    assert duckdb_type(iceberg) == duckdb


def test_a_type_that_duckdb_lacks_is_left_to_spark() -> None:
    with pytest.raises(NotInDuckDB, match="geometry"):
        duckdb_type("geometry")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 99)), max_size=8))
def test_a_table_ends_after_its_last_offset(pieces: list[tuple[int, int, int]]) -> None:
    files = tuple(
        DataFile(
            key=ObjectKey(str(number)),
            size_bytes=1,
            rows=1,
            bounds={"partition": Bounds(partition, partition), "offset": Bounds(min(a, b), max(a, b))},
            column_bytes={},
        )
        for number, (partition, a, b) in enumerate(pieces)
    )

    ends = table_of(files).ends()

    assert ends == {
        partition: max(max(a, b) for own, a, b in pieces if own == partition) + 1
        for partition in {own for own, _, _ in pieces}
    }
