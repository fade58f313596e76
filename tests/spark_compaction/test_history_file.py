"""A Parquet file that is not what was added is never put."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_compaction import history_file
from spark_compaction.history_file import FileDiffers, HistoryFile, record_batches
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.identifiers import ObjectKey, Partition, TopicId


class Puts:
    """Stands for the bucket, which is not what is tried here."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, bytes] = {}

    def put(self, key: ObjectKey, data: memoryview) -> None:
        self.objects[key] = bytes(data)


def rows(count: int = 10) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "offset": list(range(count)),
        "timestamp": [None] * count,
        "timestamp_type": [0] * count,
        "key": [f"key-{n}".encode() for n in range(count)],
        "value": [None if n % 3 == 0 else f"value-{n}".encode() for n in range(count)],
        "headers": [[{"key": "h", "value": b""}] * (n % 2) for n in range(count)],
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)


def a_file(bucket: Any, row_group_bytes: int = 100) -> HistoryFile:
    return HistoryFile(bucket, "prefix/", TopicId(uuid4()), Partition(3), row_group_bytes=row_group_bytes)


def test_what_is_put_reads_back_as_what_was_added() -> None:
    bucket = Puts()
    file = a_file(bucket)
    file.add(rows(20).slice(0, 7))
    file.add(rows(20).slice(7, 13))

    written = file.close()

    read = pq.ParquetFile(pa.BufferReader(bucket.objects[written.object_key]))
    assert read.num_row_groups > 1
    found = pa.Table.from_batches(list(record_batches(read, Partition(3))))
    assert found.equals(pa.Table.from_batches([rows(20)]))


def test_an_engine_may_skip_pages_by_offset_and_row_groups_by_key(tmp_path: Path) -> None:
    bucket = Puts()
    file = a_file(bucket)
    file.add(rows(20))

    stored = tmp_path / "file.parquet"
    stored.write_bytes(bucket.objects[file.close().object_key])
    read = pq.ParquetFile(stored).metadata.row_group(0)
    groups = pq.ParquetFile(stored).num_row_groups

    assert read.column(1).has_offset_index
    assert read.column(1).has_column_index
    assert _skipped(stored, b"absent") == groups
    assert _skipped(stored, b"key-1") < groups


def test_a_file_without_keys_has_no_filter() -> None:
    bucket = Puts()
    file = a_file(bucket)
    without = rows().set_column(3, RECORD_SCHEMA.field("key"), pa.nulls(10, pa.binary()))
    file.add(without)

    read = pq.ParquetFile(pa.BufferReader(bucket.objects[file.close().object_key]))

    keys: Any = read.metadata.row_group(0).column(4)  # pyarrow's stubs do not know bloom filters yet
    assert keys.bloom_filter_offset is None


@pytest.mark.parametrize(("distinct", "has_dictionary"), [(1, True), (7, True), (8, False), (10, False)])
def test_keys_have_a_dictionary_if_enough_of_them_repeat(distinct: int, has_dictionary: bool) -> None:
    bucket = Puts()
    file = a_file(bucket, row_group_bytes=1 << 20)
    keys = pa.array([b"key-%d" % (number % distinct) for number in range(10)], pa.binary())
    file.add(rows().set_column(3, RECORD_SCHEMA.field("key"), keys))

    read = pq.ParquetFile(pa.BufferReader(bucket.objects[file.close().object_key]))

    assert read.metadata.row_group(0).column(4).has_dictionary_page == has_dictionary
    assert read.read().column("key").to_pylist() == keys.to_pylist()


def _skipped(file: Path, key: bytes) -> int:
    """The number of row groups that cannot hold the key."""
    found = duckdb.execute("SELECT * FROM parquet_bloom_probe($1, 'key', $2)", [str(file), key]).fetchall()
    return sum(excludes for _, _, excludes in found)


@pytest.mark.parametrize(
    "damage",
    [
        lambda table: table.slice(1),
        lambda table: table.slice(0, 9),
        lambda table: _with(table, "offset", lambda column: pa.array([value + 1 for value in column])),
        lambda table: _with(table, "partition", lambda column: pa.array([4] * len(column), pa.int32())),
        lambda table: _with(table, "value", lambda column: column[::-1]),
        lambda table: _with(table, "value", lambda column: [value or b"" for value in column]),
        lambda table: _with(table, "key", lambda column: [None, *column[1:]]),
    ],
    ids=[
        "first row gone",
        "last row gone",
        "shifted",
        "another partition",
        "swapped",
        "null as empty",
        "key gone",
    ],
)
def test_a_file_that_differs_is_not_put(
    monkeypatch: pytest.MonkeyPatch, damage: Callable[[pa.Table], pa.Table]
) -> None:
    made = history_file._table
    monkeypatch.setattr(history_file, "_table", lambda *given: damage(made(*given)))
    bucket = Puts()
    file = a_file(bucket)
    file.add(rows())

    with pytest.raises(FileDiffers):
        file.close()

    assert bucket.objects == {}


def _with(table: pa.Table, name: str, change: Callable[[Any], Any]) -> pa.Table:
    position = table.schema.get_field_index(name)
    field = table.schema.field(name)
    changed = pa.array(change(table.column(name).to_pylist()), field.type)
    return table.set_column(position, field, changed)
