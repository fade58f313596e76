"""What columns cost a compaction: `python -m benchmarks.typed_columns`.

One core decodes the same records of 12 fields in each format into columns, in groups as a task does, and
writes them to a Parquet file in memory. The ratio is to the file without columns: what a task does for every
topic besides reading and decoding its batches. JSON is shown with one record in a thousand that is no JSON,
too, and with one in a thousand that has a field of another type.
"""

import base64
import io
import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rich.console import Console
from rich.table import Table

from spark_compaction.history_file import HistoryFile
from spark_compaction.iceberg_table import new_history_table
from spark_compaction.settings import CompactionSettings
from spark_compaction.typed.decoding import RecordDecoder, TypedPlan
from spark_compaction.typed.topic_typing import TypedPlanner
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.identifiers import ObjectKey, Partition, TopicId

_RECORDS: Final = 100_000
_BATCH: Final = 5_000
_ROUNDS: Final = 3
_FAULTY: Final = 1_000
_NAMES: Final = ("carrier", "origin", "dest", "tail")
_NUMBERS: Final = ("year", "month", "day", "flight", "distance", "minute")
_FRAME: Final = b"\0\0\0\0\1"


class _Nowhere:
    """A bucket that keeps nothing."""

    def put(self, key: ObjectKey, data: memoryview) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    config: dict[str, str]
    values: list[bytes]


def flights() -> list[dict[str, Any]]:
    return [
        {
            **{name: f"{name[:2].upper()}{number % 97}" for name in _NAMES},
            **dict.fromkeys(_NUMBERS, number % (1 << 11)),
            "delay": number / 7,
            "on_time": number % 3 == 0,
        }
        for number in range(_RECORDS)
    ]


def cases() -> list[Case]:
    rows = flights()
    plain = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    broken, other = list(plain), list(plain)
    for number in range(_FAULTY, _RECORDS, _FAULTY):
        broken[number] = b"not json"
        other[number] = json.dumps({**rows[number], "year": "x"}).encode()
    form = "tidelog.value.format"
    return [
        Case(name="no format", config={}, values=plain),
        Case(name="string", config={form: "string"}, values=plain),
        Case(name="json", config={form: "json"}, values=plain),
        Case(name="json, 1 in 1,000 broken", config={form: "json"}, values=broken),
        Case(name="json, 1 in 1,000 of another type", config={form: "json"}, values=other),
        _avro(rows),
        _protobuf(rows),
    ]


def _avro(rows: list[dict[str, Any]]) -> Case:
    kinds = {
        **dict.fromkeys(_NAMES, "string"), **dict.fromkeys(_NUMBERS, "long"), "delay": "double",
        "on_time": "boolean",
    }  # fmt: skip
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema: Any = {"type": "record", "name": "flight", "fields": fields}
    parsed = fastavro.parse_schema(schema)
    values = []
    for row in rows:
        into = io.BytesIO(_FRAME)
        into.seek(len(_FRAME))
        fastavro.schemaless_writer(into, parsed, row)
        values.append(into.getvalue())
    config = {"tidelog.value.format": "avro", "tidelog.value.schema": json.dumps(schema)}
    return Case(name="avro", config=config, values=values)


def _protobuf(rows: list[dict[str, Any]]) -> Case:
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", syntax="proto3")
    message = file.message_type.add(name="Flight")
    kinds = {**dict.fromkeys(_NAMES, 9), **dict.fromkeys(_NUMBERS, 3), "delay": 1, "on_time": 8}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    flight: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("Flight"))
    schema = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    values = [_FRAME + struct.pack("B", 0) + flight(**row).SerializeToString() for row in rows]
    return Case(
        name="protobuf",
        config={"tidelog.value.format": "protobuf", "tidelog.value.schema": schema},
        values=values,
    )


def batches(values: list[bytes]) -> list[pa.RecordBatch]:
    made = []
    for start in range(0, len(values), _BATCH):
        some = values[start : start + _BATCH]
        columns: dict[str, Any] = {
            "offset": range(start, start + len(some)),
            "timestamp": [datetime(2026, 5, 1, tzinfo=UTC)] * len(some),
            "timestamp_type": [0] * len(some),
            "key": [None] * len(some),
            "value": some,
            "headers": [[]] * len(some),
        }
        made.append(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA))
    return made


def planned(case: Case, rows: list[pa.RecordBatch]) -> TypedPlan | None:
    """The plan after the data was seen: what all jobs but a topic's first begin with."""
    if not case.config:
        return None
    planner = TypedPlanner(CompactionSettings())
    typing = planner.plan(case.config, new_history_table("file:///nowhere"))
    decoder = RecordDecoder(typing.plan)
    decoder.decode(rows[0].slice(0, _FAULTY))
    if decoder.unplanned is not None:
        typing = planner.evolved(typing, decoder.unplanned, is_last=True)
    return typing.plan


def seconds(work: Callable[[], object]) -> float:
    """The shortest of some rounds."""
    took = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def decode(plan: TypedPlan | None, rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if plan is None:
        return rows
    decoder = RecordDecoder(plan)
    decoded = [decoder.decode(some) for some in rows]
    return [some for some in decoded if some is not None]


def write(plan: TypedPlan | None, rows: list[pa.RecordBatch]) -> int:
    bucket: Any = _Nowhere()
    file = HistoryFile(
        bucket, "p/", TopicId(uuid4()), Partition(0), row_group_bytes=8 << 20,
        schema=None if plan is None else plan.schema,
    )  # fmt: skip
    for some in rows:
        file.add(some)
    return file.close().size_bytes


def main() -> None:
    table = Table(
        "format", "decode, records/s", "write, records/s", "both, to no format", "bytes, to no format"
    )
    base_s = base_bytes = 0.0
    for case in cases():
        rows = batches(case.values)
        plan = planned(case, rows)
        decode_s = seconds(partial(decode, plan, rows)) if plan is not None else 0.0
        typed = decode(plan, rows)
        assert sum(some.num_rows for some in typed) == _RECORDS
        size = write(plan, typed)
        write_s = seconds(partial(write, plan, typed))
        base_s, base_bytes = base_s or write_s, base_bytes or size
        table.add_row(
            case.name,
            f"{_RECORDS / decode_s:,.0f}" if decode_s else "-",
            f"{_RECORDS / write_s:,.0f}",
            f"{(decode_s + write_s) / base_s:.2f}",
            f"{size / base_bytes:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
