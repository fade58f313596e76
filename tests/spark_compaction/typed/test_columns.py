"""Which columns a table gets for fields, and how their names and types hold."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from spark_compaction.history_file import PARQUET_SCHEMA
from spark_compaction.iceberg_table import ICEBERG_SCHEMA, SchemaChange, _with_schema, new_history_table
from spark_compaction.typed.columns import (
    MOST_DEPTH,
    Entries,
    Items,
    Record,
    Shape,
    TableColumns,
    additions,
    as_json,
    is_known,
    joined,
    of_json,
)
from spark_compaction.typed.topic_typing import _iceberg_schema, table_columns

SCALARS = ["boolean", "int", "long", "float", "double", "decimal(10,2)", "decimal(12,2)", "date",
           "timestamp", "timestamptz", "uuid", "string", "binary"]  # fmt: skip
names = st.text(max_size=5) | st.sampled_from(
    ["offset", "Offset", "value", "key", "_error", "a.b", "a b", "", "id", "ID", "value_offset", "key_id"]
)
shapes: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([*SCALARS, None]),
    lambda inner: st.one_of(
        st.dictionaries(names, inner, max_size=4).map(Record),
        st.builds(Items, inner),
        st.builds(Entries, inner),
    ),
    max_leaves=12,
)
records = st.dictionaries(names, shapes, max_size=6).map(Record)


def empty(most_leaves: int = 1000) -> TableColumns:
    return TableColumns(last_id=10, most_leaves=most_leaves).with_error()


def columns_of(*shapes: Record, most_leaves: int = 1000) -> dict[str, Any]:
    table = empty(most_leaves)
    for shape in shapes:
        table = table.with_fields("value", shape)
    return {field.name: field.type for field in list(table.file_schema())[len(PARQUET_SCHEMA) + 1 :]}


def test_a_name_that_is_taken_gets_a_rule() -> None:
    shape = Record(dict.fromkeys(["Id", "id", "ID", "offset", "a.b", "a b", "", "_error", "é"], "int"))

    names = list(columns_of(shape))

    assert names == [
        "Id",
        "value_id",
        "value_ID_2",
        "value_offset",
        "a_b",
        "value_a_b",
        "_",
        "value__error",
        "é",
    ]
    keyed = empty().with_fields("key", Record({"id": "int"})).with_fields("value", Record({"key_id": "int"}))
    assert [column.name for column in keyed.columns] == ["_error", "key_id", "value_key_id"]


@pytest.mark.parametrize(
    ("before", "after", "becomes"),
    [
        ("int", "long", "int64"),
        ("float", "double", "double"),
        ("decimal(10,2)", "decimal(12,2)", "decimal128(12, 2)"),
        ("long", "int", "int64"),
        ("long", "double", "int64"),
        ("long", "string", "int64"),
        ("decimal(10,2)", "decimal(12,3)", "decimal128(10, 2)"),
        ("string", "long", "string"),
    ],
)
def test_a_column_is_widened_by_icebergs_rules_and_by_no_other(before: str, after: str, becomes: str) -> None:
    assert str(columns_of(Record({"x": before}), Record({"x": after}))["x"]) == becomes


def test_fields_seen_together_that_do_not_fit_become_text() -> None:
    assert joined("long", "string") == "string"
    assert joined("long", "double") == "double"
    assert joined(Record({"a": "long"}), "long") == "string"
    assert joined(Items(None), Items("long")) == Items("long")


@given(st.lists(st.tuples(st.sampled_from(["key", "value"]), records), max_size=4))
def test_a_table_only_grows_and_is_what_iceberg_reads(changes: list[tuple[Any, Record]]) -> None:
    metadata: TableMetadata = new_history_table("file:///somewhere")
    ids: dict[int, str] = {}
    for side, shape in changes:
        before = table_columns(metadata, 1000).with_error()
        after = before.with_fields(side, shape)
        schema = _iceberg_schema(after)
        metadata = _with_schema(metadata, SchemaChange(base=metadata.schema(), schema=schema, properties={}))

        assert table_columns(metadata, 1000).columns == after.columns
        assert after.with_fields(side, shape).columns == after.columns
        own = {field_id: schema.find_column_name(field_id) for field_id in schema.field_ids}
        assert all(own[field_id] == name for field_id, name in ids.items())
        assert len({field.name.lower() for field in schema.fields}) == len(schema.fields)
        ids = {field_id: name or "" for field_id, name in own.items()}
        arrow = schema_to_pyarrow(Schema(*schema.fields[len(ICEBERG_SCHEMA.fields) :]))
        mine = list(after.file_schema())[len(PARQUET_SCHEMA) :]
        assert [field.name for field in arrow] == [field.name for field in mine]


@given(records)
def test_what_was_added_is_no_addition(shape: Record) -> None:
    known = shape if is_known(shape) else None
    assert additions(shape, joined(known, None)) is None


@given(shapes)
def test_a_shape_travels(shape: Shape | None) -> None:
    assert of_json(as_json(shape)) == shape


def test_columns_are_bounded_and_say_so() -> None:
    wide = Record({f"{letter}{number}": "long" for letter in string.ascii_letters for number in range(40)})

    table = empty(100).with_fields("value", wide)

    assert table.leaves == 100
    assert table.is_full
    assert not empty(100).with_fields("value", Record({"a": "long"})).is_full


def test_what_is_too_deep_is_text() -> None:
    shape: Shape = "long"
    for _ in range(3 * MOST_DEPTH):
        shape = Record({"a": shape})
    assert isinstance(shape, Record)

    kind: Any = columns_of(shape)["a"]
    depth = 1
    while str(kind).startswith("struct"):
        kind, depth = kind.field(0).type, depth + 1

    assert (str(kind), depth) == ("string", MOST_DEPTH)
