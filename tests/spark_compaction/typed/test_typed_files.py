"""Files with columns beyond the record's: rewritten by field ids, and read by agents as if they had none."""

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark_compaction.footers import has_full_footer
from spark_compaction.history_file import PARQUET_SCHEMA, HistoryFile, record_batches
from spark_compaction.typed.columns import Entries, Items, Record, TableColumns, fitted, source_type
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.row_groups import footer_bytes, read_row_group, row_group_range
from storage.identifiers import ObjectKey, Partition, TopicId

BEFORE = Record({"a": "int", "s": Record({"x": "float", "u": "uuid"}), "l": Items(Record({"n": "int"})),
                 "m": Entries("int")})  # fmt: skip
AFTER = Record({"b": "string", "a": "long", "s": Record({"y": "date", "x": "double"}),
                "l": Items(Record({"n": "long", "o": "string"})), "m": Entries("long")})  # fmt: skip
VALUES: list[Any] = [
    {
        "a": 1,
        "s": {"x": 0.5, "u": b"\1" * 16},
        "l": [{"n": 1}, None, {"n": None}],
        "m": [("k", 5), ("j", None)],
    },
    None,
    {"a": None, "s": None, "l": [], "m": []},
    {"a": 4, "s": {"x": None, "u": None}, "l": None, "m": None},
]


class Puts:
    """Stands for the bucket, which is not what is tried here."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, bytes] = {}

    def put(self, key: ObjectKey, data: memoryview) -> None:
        self.objects[key] = bytes(data)


def written(
    rows: list[pa.RecordBatch], schema: pa.Schema, row_group_bytes: int = 1 << 20
) -> tuple[HistoryFile, bytes]:
    bucket: Any = Puts()
    file = HistoryFile(
        bucket, "p/", TopicId(uuid4()), Partition(3), row_group_bytes=row_group_bytes, schema=schema
    )
    for some in rows:
        file.add(some)
    return file, bucket.objects[file.close().object_key]


def records(count: int) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "offset": range(count),
        "timestamp": [None] * count,
        "timestamp_type": [0] * count,
        "key": [b"k"] * count,
        "value": [f"value-{number}".encode() for number in range(count)],
        "headers": [[{"key": "h", "value": None}]] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)


def typed_rows(schema: pa.Schema, values: list[Any]) -> pa.RecordBatch:
    fields = list(schema)[len(PARQUET_SCHEMA) :]
    kind: Any = pa.struct(fields)
    columns: Any = fitted(pa.array(values, source_type(kind)), kind)
    return pa.RecordBatch.from_arrays(
        [*records(len(values)).columns, *columns.flatten()], schema=pa.schema([*RECORD_SCHEMA, *fields])
    )


def test_columns_are_taken_over_by_their_ids_as_iceberg_reads_them() -> None:
    table = TableColumns(last_id=10, most_leaves=100).with_fields("value", BEFORE)
    rows = typed_rows(table.file_schema(), VALUES * 50)
    _, data = written([rows.slice(0, 70), rows.slice(70)], table.file_schema(), row_group_bytes=2000)
    later = table.with_fields("value", AFTER).file_schema()

    file = pq.ParquetFile(pa.BufferReader(data))
    found = pa.Table.from_batches(list(record_batches(file, Partition(3), later)))
    _, again = written(found.to_batches(), later)
    reread = pa.Table.from_batches(
        list(record_batches(pq.ParquetFile(pa.BufferReader(again)), Partition(3), later))
    )

    assert file.num_row_groups > 1
    assert reread.equals(found)
    assert found.select(RECORD_SCHEMA.names).to_batches()[0].schema == RECORD_SCHEMA
    assert [str(kind) for kind in found.schema.types[6:8]] == ["int64", str(later.field("s").type)]
    first, missing, empty, half = found.drop_columns(RECORD_SCHEMA.names).slice(0, 4).to_pylist()
    assert first == {
        "a": 1, "s": {"x": 0.5, "u": first["s"]["u"], "y": None}, "m": [("k", 5), ("j", None)], "b": None,
        "l": [{"n": 1, "o": None}, None, {"n": None, "o": None}],
    }  # fmt: skip
    assert first["s"]["u"].bytes == b"\1" * 16
    assert missing == dict.fromkeys(missing)
    assert (empty["s"], empty["l"], empty["m"]) == (None, [], [])
    assert (half["a"], half["s"], half["l"]) == (4, {"x": None, "u": None, "y": None}, None)


def test_an_agent_reads_the_record_columns_and_no_byte_of_the_others() -> None:
    schema = TableColumns(last_id=10, most_leaves=100).with_fields("value", BEFORE).file_schema()
    _, data = written([typed_rows(schema, VALUES * 20)], schema)
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    position, length = row_group_range(group)
    footer = data[-footer_bytes(data[-8:]) :]

    found = read_row_group(footer, position, [memoryview(data)[position : position + length]], 3)

    assert found.equals(records(80))
    assert position + length <= (group.column(8).dictionary_page_offset or 0)


def test_a_table_of_a_thousand_columns_has_files_with_bounded_footers() -> None:
    wide = Record({f"field_{number}": "string" for number in range(1000)})
    schema = TableColumns(last_id=10, most_leaves=1000).with_fields("value", wide).file_schema()
    bucket: Any = Puts()
    file = HistoryFile(bucket, "p/", TopicId(uuid4()), Partition(3), row_group_bytes=1000, schema=schema)
    added = 0
    rows = typed_rows(schema, [{"field_3": "x"}] * 40)
    while not file.is_complete(1 << 40):
        offsets: Any = pc.add(rows.column("offset"), added * rows.num_rows)
        file.add(rows.set_column(rows.schema.get_field_index("offset"), "offset", offsets))
        added += 1
        assert added < 100

    data = bucket.objects[file.close().object_key]

    assert footer_bytes(data[-8:]) < 3 << 19
    assert has_full_footer(pq.read_metadata(pa.BufferReader(data)))


def test_a_row_that_was_changed_among_the_record_columns_is_found_with_typed_columns_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spark_compaction import history_file

    schema = TableColumns(last_id=10, most_leaves=100).with_fields("value", BEFORE).file_schema()
    made = history_file._table
    monkeypatch.setattr(history_file, "_table", lambda *given: made(*given).slice(1))

    with pytest.raises(history_file.FileDiffers):
        written([typed_rows(schema, VALUES)], schema)
