"""Each format's values as columns, without Spark: what fits, what does not, and what is hostile."""

import base64
import io
import json
import struct
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_compaction.history_file import PARQUET_SCHEMA
from spark_compaction.iceberg_table import new_history_table
from spark_compaction.settings import CompactionSettings
from spark_compaction.typed.decoding import RecordDecoder
from spark_compaction.typed.json_values import JsonDecoder
from spark_compaction.typed.topic_typing import TopicTyping, TopicWaits, TypedPlanner
from storage.arrow.arrow_schema import RECORD_SCHEMA
from tests.spark_compaction.typed.registry_server import Registry

Row = dict[str, Any]


def rows_of(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    count = len(values)
    columns: dict[str, Any] = {
        "offset": range(count),
        "timestamp": [None] * count,
        "timestamp_type": [0] * count,
        "key": [None] * count if keys is None else keys,
        "value": values,
        "headers": [[]] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)


class Topic:
    """Plans and decodes as a job does, without the bucket."""

    def __init__(self, config: dict[str, str], **given: Any) -> None:
        self._config = config
        self._planner = TypedPlanner(CompactionSettings(**given))
        self.typing: TopicTyping = self._planner.plan(config, new_history_table("file:///somewhere"))

    def decode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for attempt in range(3):
            decoder = RecordDecoder(self.typing.plan)
            decoded = decoder.decode(rows)
            if decoded is not None:
                assert decoded.select(RECORD_SCHEMA.names).equals(rows)
                decoded.validate(full=True)
                return decoded
            assert decoder.unplanned is not None
            self.typing = self._planner.evolved(self.typing, decoder.unplanned, is_last=attempt == 1)
        raise AssertionError("it does not settle")

    def rows(self, *values: bytes | None) -> list[Row]:
        decoded = self.decode(rows_of(values)).to_pylist()
        return [
            {name: each for name, each in row.items() if name not in RECORD_SCHEMA.names} for row in decoded
        ]


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + struct.pack(">i", schema_id) + data


def avro(schema: Any, value: Any) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), value)
    return into.getvalue()


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record", "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
    }  # fmt: skip


JSON = {"tidelog.value.format": "json"}


def test_values_that_are_hostile_cost_bounded_time_and_say_why() -> None:
    topic = Topic(JSON, history_columns=50, history_value_bytes=4 << 20)
    hostile = [
        b'{"a":' * (800 << 10),
        b"{" * (4 << 20),
        b'{"a":' + b"[" * 100_000,
        b'{"big":' + b"9" * 1_000_000 + b"}",
        b"{" * (64 << 20),
        b'{"x":"\xff"}',
        b'{"x":"\\ud800"}',
        b"",
        b"{}{}",
        b'{"a":1}\n{"a":2}',
    ]
    began_s = time.monotonic()

    rows = topic.rows(b'{"a":1}', *hostile, b'{"a":2}')

    assert time.monotonic() - began_s < 60
    assert [row["a"] for row in rows] == [1, *[None] * len(hostile), 2]
    assert [row["_error"] is None for row in rows] == [True, *[False] * len(hostile), True]
    assert rows[5]["_error"] == "value: has 67108864 bytes, and at most 4194304 are parsed"


def test_a_billion_columns_become_fifty_and_reasons() -> None:
    topic = Topic(JSON, history_columns=50, history_value_bytes=4 << 20)
    wide = json.dumps({f"k{number}": number for number in range(200_000)}).encode()

    first, second = topic.rows(b'{"k7": 8}', wide)

    assert first["k7"] == 8
    assert first["_error"] is None
    assert topic.typing.columns.leaves == 50
    assert second["_error"].startswith("value: k49: has no column")
    assert topic.rows(b'{"k7": 9, "new": 1}')[0]["_error"] == "value: new: has no column"


def test_a_flood_of_names_costs_bounded_time_and_settles() -> None:
    topic = Topic(JSON, history_columns=100)
    values = [b'{"n%d":%d}' % (number, number) for number in range(30_000)]
    began_s = time.monotonic()

    decoded = topic.decode(rows_of(values))

    assert time.monotonic() - began_s < 60
    assert topic.typing.columns.leaves == 100
    assert decoded.column("_error").null_count == 99


def test_many_small_records_of_a_wide_table_come_in_pieces() -> None:
    topic = Topic(JSON)
    topic.rows(json.dumps({f"k{number}": number for number in range(999)}).encode())

    pieces = list(RecordDecoder(topic.typing.plan).pieces(rows_of([b"{}"] * 20_000)))

    assert sum(piece.num_rows for piece in pieces) == 20_000
    assert max(piece.num_rows for piece in pieces) <= 4000
    assert max(piece.nbytes for piece in pieces) < 64 << 20


def test_fields_that_are_always_null_are_no_columns_and_cost_no_second_run() -> None:
    topic = Topic(JSON)
    values = [b'{"a":1,"no":null,"e":{},"l":[],"d":{"n":null}}'] * 2000

    decoded = topic.decode(rows_of(values))

    assert decoded.schema.names[-2:] == ["_error", "a"]
    assert set(decoded.column("a").to_pylist()) == {1}


def test_types_that_are_first_seen_together_get_a_type_for_all() -> None:
    rows = Topic(JSON).rows(
        b'{"n":1,"t":1,"d":{"n":1}}', b'{"n":2.5,"t":"x","d":{"n":0.5}}', b'{"n":3,"t":null}'
    )

    assert [row["n"] for row in rows] == [1.0, 2.5, 3.0]
    assert [row["t"] for row in rows] == ["1", "x", None]
    assert [row["d"] for row in rows] == [{"n": 1.0}, {"n": 0.5}, None]
    assert all(row["_error"] is None for row in rows)


def test_a_later_value_that_does_not_fit_its_column_is_null_there_alone() -> None:
    topic = Topic(JSON)
    topic.rows(b'{"a":1,"b":"x"}')

    [row] = topic.rows(b'{"a":"one","b":"y"}')

    assert (row["a"], row["b"]) == (None, "y")
    assert row["_error"] == "value: a: is the text 'one', and the column has whole numbers of 64 bits"
    assert topic.rows(b'{"a":2.0,"b":{"deep":[1]}}')[0] == {"a": 2, "b": '{"deep":[1]}', "_error": None}


def _refuses(values: Any) -> Any:
    """In place of Arrow's parser."""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abAB."), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "A", "offset"]), json_values, max_size=4)
lines = objects.map(lambda value: json.dumps(value).encode()) | st.sampled_from(
    [b"{}", b"[]", b'{"a":', b"}{", b'{"a":1}{"a":2}', b' {"a":1} ', b'{"a":"\n"}', b"{'a':1}", b'{"a":01}']
)


@given(st.lists(lines, max_size=12), st.lists(lines, max_size=12))
@settings(deadline=None, max_examples=150)
def test_both_parsers_of_json_agree(before: list[bytes], after: list[bytes]) -> None:
    topic = Topic(JSON)
    topic.decode(rows_of(before))

    decoded = topic.decode(rows_of(after))

    fields = list(topic.typing.plan.schema)[len(PARQUET_SCHEMA) + 1 :]
    exact = JsonDecoder(fields, unknown="refuse", most_columns=1000)
    exact._fast = _refuses  # type: ignore[method-assign]
    for row, value in enumerate(after):
        alone = exact.decode(pa.array([value], pa.binary()))
        assert [str(column[0].as_py()) for column in alone.columns] == [
            str(decoded.column(field.name)[row].as_py()) for field in fields
        ]
        assert decoded.column("_error")[row].is_valid == bool(alone.problems)


def test_a_json_schema_says_types_and_what_it_does_not_name_is_left_out() -> None:
    node = {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}
    schema = {
        "type": "object",
        "$defs": {"node": {"type": "object", "properties": node}},
        "properties": {
            "day": {"type": "string", "format": "date"},
            "at": {"type": ["string", "null"], "format": "date-time"},
            "id": {"type": "string", "format": "uuid"},
            "amount": {"type": "number"},
            "rates": {"type": "object", "additionalProperties": {"type": "number"}},
            "node": {"$ref": "#/$defs/node"},
            "any": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        },
    }  # fmt: skip
    topic = Topic({**JSON, "tidelog.value.schema": json.dumps(schema)})
    good = {
        "day": "2026-05-01", "at": "2026-05-01T12:00:00+02:00", "id": str(UUID(int=5)), "amount": 1,
        "rates": {"eur": 1.5}, "node": {"n": 1, "next": {"n": 2}}, "any": 4, "more": 1,
    }  # fmt: skip

    row, bad = topic.rows(json.dumps(good).encode(), b'{"day":"soon","at":"2026-05-01T12:00:00","amount":2}')

    assert row == {
        "_error": None, "day": date(2026, 5, 1), "at": datetime(2026, 5, 1, 10, tzinfo=UTC),
        "id": UUID(int=5), "amount": 1.0, "rates": [("eur", 1.5)], "node": {"next": '{"n":2}', "n": 1},
        "any": 4,
    }  # fmt: skip
    assert bad["amount"] == 2.0
    assert bad["_error"].startswith("value: day: is the text 'soon', and the column has dates; at: ")


@pytest.mark.parametrize(
    ("form", "schema"),
    [("json", '{"type": "array"}'), ("json", '{"$ref": "#/no"}'), ("avro", '{"type": "what"}'),
     ("avro", "17"), ("protobuf", "AAAA"), ("avro", '{"type":"array","items":"null"}')],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_makes_the_topic_wait(form: str, schema: str) -> None:
    with pytest.raises(TopicWaits, match=r"tidelog\.value\.schema"):
        Topic({"tidelog.value.format": form, "tidelog.value.schema": schema})


def test_avro_of_every_type(registry: Registry) -> None:
    schema = record(
        "all", i="int", l="long", f="float", d="double", b="boolean", s="string", y="bytes",
        opt=["null", "string"], either=["int", "string"],
        e={"type": "enum", "name": "E", "symbols": ["A", "B"]},
        day={"type": "int", "logicalType": "date"}, at={"type": "long", "logicalType": "timestamp-millis"},
        local={"type": "long", "logicalType": "local-timestamp-micros"},
        price={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        id={"type": "string", "logicalType": "uuid"}, items={"type": "array", "items": "long"},
        tags={"type": "map", "values": "string"}, inner=record("inner", x="int"),
        time={"type": "int", "logicalType": "time-millis"},
    )  # fmt: skip
    registry.schemas[3] = {"schema": json.dumps(schema)}
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    value = {
        "i": 1, "l": 2, "f": 0.5, "d": 1.5, "b": True, "s": "x", "y": b"\xff", "opt": None, "either": 5,
        "e": "B", "day": date(2026, 5, 1), "at": at, "local": at.replace(tzinfo=None),
        "price": Decimal("12.34"), "id": UUID(int=9), "items": [1, 2], "tags": {"a": "b"}, "inner": {"x": 1},
        "time": at.time(),
    }  # fmt: skip
    topic = Topic({"tidelog.value.format": "avro"}, schema_registry_url=registry.url)

    row, *bad = topic.rows(
        framed(3, avro(schema, value)), b"\1\0\0\0\3", b"\0\0", framed(4, b""), framed(3, b"\2"),
        framed(3, avro(schema, value) + b"!"),
    )  # fmt: skip

    assert row.pop("_error") is None
    assert row == {
        **value, "either": "5", "tags": [("a", "b")], "time": '"12:00:00"'
    } | {"time": row["time"]}  # fmt: skip
    assert "12:00:00" in row["time"]
    reasons = [each["_error"] for each in bad]
    assert reasons[:2] == ["value: does not begin with a zero and a schema's id"] * 2
    assert reasons[2] == "value: does not decode: ValueError: schema 4 is not in the registry"
    assert all("does not decode" in reason for reason in reasons[3:])


def test_avro_schemas_evolve_and_what_does_not_fit_has_a_reason(registry: Registry) -> None:
    first, second = record("r", a="int", b="string"), record("r", a="long", b="int", c="double")
    registry.schemas = {1: {"schema": json.dumps(first)}, 2: {"schema": json.dumps(second)}}
    topic = Topic({"tidelog.value.format": "avro"}, schema_registry_url=registry.url)
    topic.rows(framed(1, avro(first, {"a": 1, "b": "x"})))

    old, new = topic.rows(
        framed(1, avro(first, {"a": 1, "b": "x"})), framed(2, avro(second, {"a": 1 << 40, "b": 7, "c": 0.5}))
    )

    assert old == {"_error": None, "a": 1, "b": "x", "c": None}
    assert new == {"_error": None, "a": 1 << 40, "b": "7", "c": 0.5}
    third = record("r", a="string")
    registry.schemas[3] = {"schema": json.dumps(third)}
    [conflict] = topic.rows(framed(3, avro(third, {"a": "x"})))
    assert conflict["_error"] == "value: a: is the text 'x', and the column has whole numbers of 64 bits"


def test_hostile_avro_costs_bounded_time(registry: Registry) -> None:
    node = record("node", next=["null", "node"])
    nothing = record("bomb", items={"type": "array", "items": "null"})
    registry.schemas = {1: {"schema": json.dumps(node)}, 2: {"schema": json.dumps(nothing)}}
    topic = Topic({"tidelog.value.format": "avro"}, schema_registry_url=registry.url)

    deep, bomb, fine = topic.rows(
        framed(1, b"\2" * 1_000_000),
        framed(2, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        framed(1, b"\2\0"),
    )

    assert deep["_error"] == "value: is nested too deep"
    assert "takes no bytes" in bomb["_error"] or "take no bytes" in bomb["_error"]
    assert fine["next"] == '{"next":null}'


def test_types_that_name_each_other_do_not_make_billions(registry: Registry) -> None:
    levels = 40
    types: dict[str, Any] = {f"t{n}": {f: {"$ref": f"#/$defs/t{n + 1}"} for f in "ab"} for n in range(levels)}
    defs: dict[str, Any] = {name: {"type": "object", "properties": each} for name, each in types.items()}
    defs[f"t{levels}"] = {"type": "integer"}
    bomb = {"$ref": "#/$defs/t0", "$defs": defs}
    schema: Any = "long"
    for n in reversed(range(levels)):
        schema = record(f"r{n}", a=schema, b=f"r{n + 1}" if n + 1 < levels else "long")
    file = descriptor_pb2.FileDescriptorProto(name="bomb.proto", syntax="proto3")
    for n in range(levels):
        message = file.message_type.add(name=f"T{n}")
        for number in range(1, 11):
            kind = {"type": 11, "type_name": f".T{n + 1}"} if n + 1 < levels else {"type": 5}
            message.field.add(name=f"f{number}", number=number, label=1, **kind)
    registry.schemas = {
        1: {"schema": json.dumps(bomb), "schemaType": "JSON"},
        2: {"schema": json.dumps(schema)},
        3: {"schema": base64.b64encode(file.SerializeToString()).decode(), "schemaType": "PROTOBUF"},
    }
    began_s = time.monotonic()

    for form, value in (
        ("json-schema", framed(1, b"{}")),
        ("avro", framed(2, b"")),
        ("protobuf", framed(3, b"\0")),
    ):
        topic = Topic({"tidelog.value.format": form}, schema_registry_url=registry.url)
        [row] = topic.rows(value)
        assert topic.typing.columns.leaves <= 1000
        assert (row["_error"] is None) == (form != "avro")

    assert time.monotonic() - began_s < 30


def test_values_that_name_endless_schemas_are_bounded(registry: Registry) -> None:
    topic = Topic({"tidelog.value.format": "avro"}, schema_registry_url=registry.url)

    rows = topic.rows(*(framed(number, b"x") for number in range(1000)))

    assert all(row["_error"] for row in rows)
    assert len(registry.asked) == 200


def test_keys_that_are_no_records_have_one_column(registry: Registry) -> None:
    registry.schemas[1] = {"schema": '"string"'}
    topic = Topic({"tidelog.key.format": "avro"}, schema_registry_url=registry.url)

    decoded = topic.decode(rows_of([b"v"], [framed(1, avro("string", "hello"))]))

    assert decoded.column("key_decoded").to_pylist() == ["hello"]


def proto() -> tuple[descriptor_pb2.FileDescriptorProto, Any]:
    """A file with two messages, and their classes."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    line.field.add(name="count", number=2, type=13, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=4, label=1)
    order.field.add(name="lines", number=2, type=11, label=3, type_name=".shop.Line")
    order.field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    order.field.add(name="parent", number=4, type=11, label=1, type_name=".shop.Order")
    order.field.add(name="raw", number=5, type=12, label=1)
    entry = order.nested_type.add(name="TagsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="tags", number=6, type=11, label=3, type_name=".shop.Order.TagsEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return file, message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.mark.parametrize("where", ["registry", "config"])
def test_protobuf_messages_become_columns(registry: Registry, where: str) -> None:
    file, order = proto()
    text = base64.b64encode(file.SerializeToString()).decode()
    registry.schemas[8] = {"schema": text, "schemaType": "PROTOBUF"}
    config = {"tidelog.value.format": "protobuf"}
    if where == "config":
        both = descriptor_pb2.FileDescriptorSet(file=[file])
        config["tidelog.value.schema"] = base64.b64encode(both.SerializeToString()).decode()
    topic = Topic(config, schema_registry_url=registry.url)
    message = order(id=(1 << 64) - 1, raw=b"\xff", tags={"a": 3}, parent=order(id=5))
    message.lines.add(sku="x", count=4)
    message.at.FromDatetime(datetime(2026, 5, 1))
    data = message.SerializeToString()

    row, empty, *bad = topic.rows(
        framed(8, b"\2\2" + data), framed(8, b"\2\2"), framed(8, b"\2\2\xff\xff"),
        framed(8, b"\2\x20" + data), framed(8, b""), framed(8, b"\2\2" + b"\x22\xff\xff\xff\x7f" * 1000),
    )  # fmt: skip

    assert row == {
        "_error": None, "id": Decimal((1 << 64) - 1), "lines": [{"sku": "x", "count": 4}],
        "at": datetime(2026, 5, 1, tzinfo=UTC), "parent": row["parent"], "raw": b"\xff", "tags": [("a", 3)],
    } | {name: None for name in ("sku", "count") if name in row}  # fmt: skip
    assert json.loads(row["parent"])["id"] == "5"
    assert (empty["id"], empty["lines"], empty["at"], empty["_error"]) == (Decimal(0), [], None, None)
    assert all(each["_error"] for each in bad)


def test_framed_json_takes_the_columns_of_its_schemas(registry: Registry) -> None:
    registry.schemas = {
        1: {"schemaType": "JSON", "schema": '{"properties": {"a": {"type": "integer"}}}'},
        2: {"schemaType": "JSON", "schema": '{"properties": {"b": {"type": "string"}}}'},
        3: {"schemaType": "JSON", "schema": '{"type": "integer"}'},
    }
    topic = Topic({"tidelog.value.format": "json-schema"}, schema_registry_url=registry.url)

    rows = topic.rows(framed(1, b'{"a":1}'), framed(2, b'{"b":"x","c":1}'), framed(3, b"1"), b"{}", None)

    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (None, "x"), *[(None, None)] * 3]
    assert [row["_error"] is None for row in rows] == [True, True, False, False, True]


def test_without_the_registry_the_topic_waits() -> None:
    topic = Topic(
        {"tidelog.value.format": "avro"}, schema_registry_url="http://127.0.0.1:1", schema_registry_attempts=1
    )

    with pytest.raises(TopicWaits, match=r"127\.0\.0\.1:1"):
        topic.rows(framed(1, b""))
