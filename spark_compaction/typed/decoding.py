"""In the executors: records to the columns of their topic's format, and what the data needs that was not
planned.

A plan says which columns there are. A task that meets a field or a schema id which the plan does not have
writes nothing: it reads on to the end, and reports all that it met (`Unplanned`). The driver adds that to
the plan, asks the registry for the schemas, and runs the task again. So executors need only the bucket, and a
task costs twice only when a topic's fields change.

Promises:
- The record's own columns pass through untouched.
- A value that does not parse, or does not fit its column, is null there, and `_error` says why.
- A value larger than `value_bytes` is not parsed. Groups of values are bounded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from spark_compaction.typed.avro_values import AvroSchema
from spark_compaction.typed.columns import (
    ERROR_COLUMN,
    SIDES,
    WHOLE,
    Record,
    Shape,
    Side,
    as_json,
    fitted,
    joined,
    of_json,
    side_fields,
    source_name,
)
from spark_compaction.typed.json_values import JsonDecoder, Unknown, shape_of_schema
from spark_compaction.typed.protobuf_values import ProtobufSchema, read_indexes
from spark_compaction.typed.registry import RegisteredSchema
from spark_compaction.typed.values import Decoded, columns_of, struct_converter
from storage.arrow.arrow_schema import RECORD_SCHEMA

Format = Literal["string", "json", "avro", "protobuf", "json-schema"]
FRAMED: Final = frozenset({"avro", "protobuf", "json-schema"})
"""In Confluent's wire format: a zero, the schema's id in four bytes, then the value."""
_FRAME_BYTES: Final = 5
_GROUP_BYTES: Final = 1 << 20
_GROUP_ROWS: Final = 16_384
_PIECE_CELLS: Final = 4_000_000
_MOST_REASON: Final = 500
MOST_SCHEMAS: Final = 200
"""Of the keys of a topic, or of its values."""
_TOO_MANY: Final = f"names one schema more than the {MOST_SCHEMAS} that a topic may have"
_MOST_INDEX_BYTES: Final = 100
SchemaOf = AvroSchema | ProtobufSchema | Record
"""Of JSON Schema, what matters is the shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePlan:
    """How keys or values are decoded."""

    format: Format
    inline: RegisteredSchema | None = None
    """The schema of the topic's config, whatever id a value names."""
    schemas: Mapping[int, RegisteredSchema | None] = field(default_factory=dict)
    """What the registry has under the ids met so far; None: nothing."""
    names: frozenset[str] = frozenset()
    """What was met: `ID`, or of Protobuf `ID/INDEXES`; a schema of the config has id 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedPlan:
    """How a topic's records become columns. It travels to the executors."""

    sides: Mapping[Side, SidePlan]
    schema: pa.Schema
    """Of the files."""
    unknown: Unknown
    """What to do with a JSON field that has no column."""
    most_columns: int
    value_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplanned:
    """What a task met, by side."""

    shapes: Mapping[Side, Shape]
    schemas: Mapping[Side, frozenset[str]]
    """As `SidePlan.names`."""

    def to_text(self) -> str:
        """For the manifest."""
        shapes = {side: as_json(shape) for side, shape in self.shapes.items()}
        schemas = {side: sorted(names) for side, names in self.schemas.items()}
        return json.dumps({"shapes": shapes, "schemas": schemas})

    @classmethod
    def of_text(cls, text: str) -> "Unplanned":
        found = json.loads(text)
        return cls(
            shapes={side: cast("Shape", of_json(shape)) for side, shape in found["shapes"].items()},
            schemas={side: frozenset(names) for side, names in found["schemas"].items()},
        )

    def with_those_of(self, other: "Unplanned") -> "Unplanned":
        shapes = dict(self.shapes)
        for side, shape in other.shapes.items():
            both = joined(shapes.get(side), shape)
            assert both is not None
            shapes[side] = both
        schemas = {
            side: self.schemas.get(side, frozenset()) | other.schemas.get(side, frozenset()) for side in SIDES
        }
        return Unplanned(shapes=shapes, schemas=schemas)


class _ValueDecoder(Protocol):
    """`survey` says whether only what is unplanned counts; then the result is not used."""

    def decode(self, values: "pa.Array[Any]", *, survey: bool) -> Decoded:
        """Of values that are not null."""

    @property
    def found(self) -> Shape | None:
        """Fields that have no column."""

    @property
    def schemas(self) -> frozenset[str]:
        """Schemas that the plan does not have."""


class RecordDecoder:
    """Decodes the records of one task."""

    def __init__(self, plan: TypedPlan) -> None:
        self.schema = plan.schema
        self._value_bytes = plan.value_bytes
        self._typed = list(plan.schema)[1 + len(RECORD_SCHEMA) :]
        self._sides: dict[Side, _ValueDecoder] = {
            side: _decoder(side, side_plan, plan) for side, side_plan in plan.sides.items()
        }
        self._rows_schema = pa.schema([*RECORD_SCHEMA, *self._typed])

    @property
    def unplanned(self) -> Unplanned | None:
        """What the plan lacks for the records so far."""
        shapes = {side: each.found for side, each in self._sides.items() if each.found is not None}
        schemas = {side: each.schemas for side, each in self._sides.items() if each.schemas}
        return Unplanned(shapes=shapes, schemas=schemas) if shapes or schemas else None

    def pieces(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with their columns, some at a time; none once something is unplanned. Many small records
        would make gigabytes of nulls in a wide table.
        """
        step = max(1, _PIECE_CELLS // max(1, len(self._typed)))
        for start in range(0, rows.num_rows, step):
            piece = self.decode(rows.slice(start, step))
            if piece is not None:
                yield piece

    def decode(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows with their columns; None once something is unplanned."""
        columns: dict[str, Any] = {}
        reasons: dict[int, str] = {}
        for side in self._sides:
            decoded = self._decode_side(rows.column(side), side)
            if self.unplanned is None:
                fields = side_fields(self.schema, side)
                columns |= {each.name: column for each, column in zip(fields, decoded.columns, strict=True)}
                for row, problem in decoded.problems.items():
                    before = f"{reasons[row]}; " if row in reasons else ""
                    reasons[row] = f"{before}{side}: {problem}"[:_MOST_REASON]
        if self.unplanned is not None:
            return None
        columns[ERROR_COLUMN] = _sparse(reasons, rows.num_rows)
        arrays = [
            columns[each.name] if each.name in columns else pa.nulls(rows.num_rows, each.type)
            for each in self._typed
        ]
        return pa.RecordBatch.from_arrays([*rows.columns, *arrays], schema=self._rows_schema)

    def _decode_group(self, side: Side, values: Any) -> Decoded:
        try:
            return self._sides[side].decode(values, survey=self.unplanned is not None)
        except Exception as error:  # noqa: BLE001 - whatever a value does, history goes on without its columns
            reason = f"could not be decoded: {type(error).__name__}: {error}"[:_MOST_REASON]
            return Decoded(
                columns=[pa.nulls(len(values), each.type) for each in side_fields(self.schema, side)],
                problems=dict.fromkeys(range(len(values)), reason),
            )

    def _decode_side(self, column: Any, side: Side) -> Decoded:
        sizes: Any = pc.binary_length(column)
        is_parsed = pc.fill_null(pc.less_equal(sizes, pa.scalar(self._value_bytes)), False).to_numpy(
            zero_copy_only=False
        )
        rows = np.flatnonzero(is_parsed)
        problems = {
            int(row): f"has {sizes[int(row)].as_py()} bytes, and at most {self._value_bytes} are parsed"
            for row in np.flatnonzero(~is_parsed & column.is_valid().to_numpy(zero_copy_only=False))
        }
        values = column if len(rows) == len(column) else column.take(rows)
        parts: list[Decoded] = []
        at = 0
        for start, end in _groups(values):
            part = self._decode_group(side, values[start:end])
            problems |= {int(rows[at + row]): problem for row, problem in part.problems.items()}
            at += end - start
            parts.append(part)
        if self.unplanned is not None:
            return Decoded(columns=(), problems={})
        return Decoded(columns=_whole(parts, rows, len(column)), problems=problems)


def _bytes(values: "pa.Array[Any]") -> list[bytes]:
    return cast("list[bytes]", values.to_pylist())


def _groups(values: Any) -> "list[tuple[int, int]]":
    """Cuts so that a group has about `_GROUP_BYTES`."""
    if not len(values):
        return [(0, 0)]
    ends = np.cumsum(pc.binary_length(values).to_numpy(zero_copy_only=False))
    cuts, start = [], 0
    while start < len(values):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + _GROUP_BYTES)) + 1
        end = min(end, start + _GROUP_ROWS, len(values))
        cuts.append((start, end))
        start = end
    return cuts


def _whole(parts: Sequence[Decoded], rows: Any, count: int) -> "list[pa.Array[Any]]":
    """The parts one behind the other, at their rows; null elsewhere."""
    columns = [
        pa.concat_arrays([part.columns[number] for part in parts]) for number in range(len(parts[0].columns))
    ]
    if len(rows) == count:
        return columns
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    taken: Any = pa.array(places, mask=places < 0)
    return [column.take(taken) for column in columns]


def _sparse(reasons: Mapping[int, str], count: int) -> Any:
    if not reasons:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = [None] * count
    for row, reason in reasons.items():
        texts[row] = reason.encode(errors="replace").decode()
    return pa.array(texts, pa.string())


def _decoder(side: Side, plan: SidePlan, whole: TypedPlan) -> _ValueDecoder:
    fields = side_fields(whole.schema, side)
    if plan.format == "string":
        return _Strings(fields)
    if plan.format == "json":
        return _Json(fields, "ignore" if plan.inline else whole.unknown, whole.most_columns)
    if plan.format == "json-schema":
        return _FramedJson(plan, fields, _Json(fields, "ignore", whole.most_columns))
    return _Framed(plan, fields)


class _Strings:
    """UTF-8 text in one column."""

    found: Shape | None = None
    schemas: frozenset[str] = frozenset()

    def __init__(self, fields: "Sequence[pa.Field[Any]]") -> None:
        self._fields = fields
        self._struct: Any = pa.struct(fields)
        self._convert = struct_converter(self._struct, refuse_unknown=False)

    def decode(self, values: "pa.Array[Any]", *, survey: bool) -> Decoded:
        if survey:
            return Decoded(columns=(), problems={})
        try:
            texts: Any = values.cast(pa.string())
            columns = [
                fitted(texts, each.type) if source_name(each) == WHOLE else pa.nulls(len(values), each.type)
                for each in self._fields
            ]
            return Decoded(columns=columns, problems={})
        except pa.ArrowException:
            pass
        found: list[Any] = []
        problems = {}
        for row, value in enumerate(_bytes(values)):
            try:
                found.append({WHOLE: value.decode()})
            except UnicodeDecodeError:
                found.append(None)
                problems[row] = "is not UTF-8"
        columns, own = columns_of(found, self._struct, self._convert)
        return Decoded(columns=columns, problems=problems | own)


class _Json:
    schemas: frozenset[str] = frozenset()

    def __init__(self, fields: "Sequence[pa.Field[Any]]", unknown: Unknown, most_columns: int) -> None:
        self._decoder = JsonDecoder(fields, unknown=unknown, most_columns=most_columns)

    @property
    def found(self) -> Shape | None:
        return self._decoder.found

    def decode(self, values: "pa.Array[Any]", *, survey: bool) -> Decoded:
        if survey:
            self._decoder.survey(values)
            return Decoded(columns=(), problems={})
        return self._decoder.decode(values)


class _Frames:
    """Which schema each framed value names, and of Protobuf which of its messages."""

    def __init__(self, plan: SidePlan) -> None:
        self._plan = plan
        self.found: frozenset[str] = frozenset()

    def read(self, values: Any) -> tuple[Any, dict[int, str]]:
        """The schema id of each value, -1 where there is none; and why. With a schema of the config it is
        0.
        """
        lengths = pc.binary_length(values).to_numpy(zero_copy_only=False)
        ids = np.full(len(values), -1, np.int64)
        framed = np.flatnonzero(lengths >= _FRAME_BYTES)
        packed = b"".join([value[:_FRAME_BYTES] for value in _bytes(values.take(framed))])
        head = np.frombuffer(packed, np.uint8).reshape(-1, _FRAME_BYTES)
        numbers = np.ascontiguousarray(head[:, 1:]).view(">i4")[:, 0]
        is_framed = (head[:, 0] == 0) & (numbers >= 0)
        ids[framed[is_framed]] = 0 if self._plan.inline is not None else numbers[is_framed]
        problems = {
            int(row): "does not begin with a zero and a schema's id" for row in np.flatnonzero(ids < 0)
        }
        if self._plan.format == "protobuf":
            self._heed_messages(ids, values, problems)
        else:
            for schema_id in np.unique(ids[ids >= 0]).tolist():
                if not self._is_taken(str(schema_id)):
                    for row in np.flatnonzero(ids == schema_id).tolist():
                        problems[row] = _TOO_MANY
                        ids[row] = -1
        return ids, problems

    def _heed_messages(self, ids: Any, values: Any, problems: dict[int, str]) -> None:
        for row, (schema_id, data) in enumerate(zip(ids.tolist(), _bytes(values), strict=True)):
            if schema_id < 0:
                continue
            try:
                indexes, _ = read_indexes(data[_FRAME_BYTES : _FRAME_BYTES + _MOST_INDEX_BYTES])
            except ValueError as error:
                problems[row] = str(error)
                ids[row] = -1
                continue
            if not self._is_taken(f"{schema_id}/{'.'.join(map(str, indexes))}"):
                problems[row] = _TOO_MANY
                ids[row] = -1

    def _is_taken(self, name: str) -> bool:
        """Whether the plan has it, or the next will."""
        if name in self._plan.names or name in self.found:
            return True
        if len(self._plan.names) + len(self.found) >= MOST_SCHEMAS:
            return False
        self.found |= {name}
        return True

    def schema_of(self, schema_id: int) -> RegisteredSchema | None:
        return self._plan.inline or self._plan.schemas.get(schema_id)


class _Framed:
    """Avro and Protobuf, value by value."""

    found: Shape | None = None

    def __init__(self, plan: SidePlan, fields: "Sequence[pa.Field[Any]]") -> None:
        self._frames = _Frames(plan)
        self._format = plan.format
        self._struct: Any = pa.struct(fields)
        self._convert = struct_converter(self._struct, refuse_unknown=True)
        self._readers: dict[int, Any] = {}

    @property
    def schemas(self) -> frozenset[str]:
        return self._frames.found

    def decode(self, values: "pa.Array[Any]", *, survey: bool) -> Decoded:
        ids, problems = self._frames.read(values)
        if survey or self._frames.found:
            return Decoded(columns=(), problems={})
        loaded: list[Any] = []
        for row, (schema_id, data) in enumerate(zip(ids.tolist(), _bytes(values), strict=True)):
            value = None
            if schema_id >= 0:
                try:
                    value = self._reader(schema_id)(data[_FRAME_BYTES:])
                except RecursionError:
                    problems[row] = "is nested too deep"
                except (DecodeError, ArithmeticError, LookupError, EOFError, TypeError, ValueError) as error:
                    problems[row] = f"does not decode: {type(error).__name__}: {error}"[:_MOST_REASON]
            loaded.append(value)
        columns, own = columns_of(loaded, self._struct, self._convert)
        return Decoded(columns=columns, problems=problems | own)

    def _reader(self, schema_id: int) -> Any:
        found = self._readers.get(schema_id)
        if found is None:
            found = self._readers[schema_id] = self._made(schema_id)
        return found

    def _made(self, schema_id: int) -> Any:
        try:
            schema = parsed(self._frames.schema_of(schema_id), self._format)
        except ValueError as error:
            return _refusing(f"schema {schema_id} {error}")
        return schema.reader() if isinstance(schema, AvroSchema) else getattr(schema, "value_of", None)


def _refusing(reason: str) -> Any:
    def refuse(_: bytes) -> Any:
        raise ValueError(reason)

    return refuse


def parsed(schema: RegisteredSchema | None, wanted: Format) -> SchemaOf:
    """Raises ValueError with what is wrong."""
    if schema is None:
        raise ValueError("is not in the registry")
    if schema.kind != wanted:
        raise ValueError(f"is of {schema.kind}, and the topic has {wanted}")
    if wanted == "avro":
        return AvroSchema(schema.text, schema.references)
    if wanted == "protobuf":
        return ProtobufSchema(schema.text, schema.references)
    try:
        return shape_of_schema(json.loads(schema.text))
    except RecursionError:
        raise ValueError("is nested too deep") from None


class _FramedJson:
    """JSON behind a schema's id."""

    found: Shape | None = None

    def __init__(self, plan: SidePlan, fields: "Sequence[pa.Field[Any]]", json_values: _Json) -> None:
        self._frames = _Frames(plan)
        self._fields = fields
        self._json = json_values

    @property
    def schemas(self) -> frozenset[str]:
        return self._frames.found

    def decode(self, values: "pa.Array[Any]", *, survey: bool) -> Decoded:
        ids, problems = self._frames.read(values)
        if survey or self._frames.found:
            return Decoded(columns=(), problems={})
        for schema_id in np.unique(ids[ids >= 0]).tolist():
            try:
                parsed(self._frames.schema_of(schema_id), "json-schema")
            except ValueError as error:
                for row in np.flatnonzero(ids == schema_id):
                    problems[int(row)] = f"schema {schema_id} {error}"[:_MOST_REASON]
                    ids[row] = -1
        rows = np.flatnonzero(ids >= 0)
        framed: Any = values.take(rows)
        # Not Arrow's binary_slice, which fails where the bytes cut off are most of a group's.
        inner = pa.array([value[_FRAME_BYTES:] for value in _bytes(framed)], pa.binary())
        part = self._json.decode(inner, survey=False)
        problems |= {int(rows[row]): problem for row, problem in part.problems.items()}
        return Decoded(columns=_whole([part], rows, len(values)), problems=problems)


def joined_shape(plan: SidePlan) -> Record:
    """Of all schemas of a plan that can be had, in the order of their ids: the older ones decide types."""
    shape: Shape | None = None
    schemas: dict[int, SchemaOf] = {}
    for name in sorted(plan.names, key=_in_order):
        schema_id, indexes = _in_order(name)
        try:
            if schema_id not in schemas:
                schemas[schema_id] = parsed(plan.inline or plan.schemas.get(schema_id), plan.format)
            found = schemas[schema_id]
            own = found.shape_of(indexes) if isinstance(found, ProtobufSchema) else found
        except ValueError:
            continue  # its values get this as their reason
        shape = joined(shape, own if isinstance(own, Record) else own.shape)
    return shape if isinstance(shape, Record) else Record({})


def _in_order(name: str) -> tuple[int, tuple[int, ...]]:
    """The schema's id, and the indexes of the message."""
    schema_id, _, indexes = name.partition("/")
    return int(schema_id), tuple(map(int, indexes.split("."))) if indexes else ()
