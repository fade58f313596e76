"""Values in Avro: what fields a schema gives, and a reader of its values.

Promises:
- A recursive schema is read by fastavro's Python reader, which Python's own limit of recursion stops. The C
  reader would run over its stack.
- A schema with lists of values that take no bytes is refused: few bytes of data could say that there are
  billions of them.
"""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro
import fastavro._read_py
from fastavro.schema import SchemaParseException, UnknownType

from spark_compaction.typed.columns import MOST_SHAPES, WHOLE, Entries, Items, Record, Shape

Reader = Callable[[bytes], Any]
"""The fields of one value by name. Raises an exception of any kind for bytes that are not of the schema."""

_SCALARS: Final[Mapping[str, str]] = {
    "boolean": "boolean", "int": "int", "long": "long", "float": "float", "double": "double",
    "bytes": "binary", "string": "string", "fixed": "binary", "enum": "string",
}  # fmt: skip
_LOGICAL: Final[Mapping[tuple[str, str], str]] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamptz",
    ("long", "timestamp-micros"): "timestamptz",
    ("long", "local-timestamp-millis"): "timestamp",
    ("long", "local-timestamp-micros"): "timestamp",
    ("string", "uuid"): "uuid",
    ("fixed", "uuid"): "uuid",
}
_MOST_DIGITS: Final = 38


class AvroSchema:
    """A parsed schema. Raises ValueError for one that is not Avro, or that is refused."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        named: dict[str, Any] = {}
        try:
            for each in references.values():
                fastavro.parse_schema(json.loads(each), named_schemas=named)
            self._schema: Any = fastavro.parse_schema(json.loads(text), named_schemas=named)
        except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"is no Avro schema: {type(error).__name__}: {error}"[:300]) from None
        self._named = named
        self._is_recursive = False
        self._left = MOST_SHAPES
        try:
            shape = self._shape(self._schema, ())
        except RecursionError:
            raise ValueError("is nested too deep") from None
        if self._left < 0:
            raise ValueError(f"has more than {MOST_SHAPES} fields, those within each other counted")
        whole = Record({WHOLE: shape})
        is_record = isinstance(shape, Record) and not isinstance(self._schema, list)
        self.shape = shape if isinstance(shape, Record) and is_record else whole
        self._is_record = is_record

    def reader(self) -> Reader:
        schema, is_record = self._schema, self._is_record
        read: Any = fastavro._read_py.schemaless_reader if self._is_recursive else fastavro.schemaless_reader

        def value_of(data: bytes) -> Any:
            source = io.BytesIO(data)
            value = read(source, schema)
            if source.tell() != len(data):
                raise ValueError(f"{len(data) - source.tell()} bytes are left behind the value")
            return value if is_record else {WHOLE: value}

        return value_of

    def _shape(self, schema: Any, within: tuple[str, ...]) -> Shape:
        self._left -= 1
        if self._left < 0:
            return "string"
        if isinstance(schema, str) and schema not in _SCALARS and schema != "null":
            schema = self._named[schema]
        if isinstance(schema, list):
            some = [each for each in schema if each != "null" and each != {"type": "null"}]
            return self._shape(some[0], within) if len(some) == 1 else self._text(some, within)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, (dict, list)):
            return self._shape(kind, within)
        if kind in ("record", "error"):
            if schema["name"] in within:
                self._is_recursive = True
                return "string"
            inner = (*within, schema["name"])
            return Record({each["name"]: self._shape(each["type"], inner) for each in schema["fields"]})
        if kind == "array":
            if self._is_empty(schema["items"], ()):
                raise ValueError("has a list of values that take no bytes")
            return Items(self._shape(schema["items"], within))
        if kind == "map":
            return Entries(self._shape(schema["values"], within))
        if kind == "null":
            return "string"
        return _scalar(kind, schema)

    def _text(self, some: list[Any], within: tuple[str, ...]) -> Shape:
        """Of a union of several types. Looks into them all the same."""
        for each in some:
            self._shape(each, within)
        return "string"

    def _is_empty(self, schema: Any, within: tuple[str, ...]) -> bool:
        """Whether a value of the schema may take no bytes."""
        if isinstance(schema, str) and schema not in _SCALARS and schema != "null":
            schema = self._named[schema]
        kind = schema if isinstance(schema, (str, list)) else schema["type"]
        if isinstance(kind, dict):
            return self._is_empty(kind, within)
        if kind in ("record", "error"):
            if schema["name"] in within:
                return True
            inner = (*within, schema["name"])
            return all(self._is_empty(each["type"], inner) for each in schema["fields"])
        return kind == "null" or (kind == "fixed" and schema["size"] == 0)


def _scalar(kind: str, schema: Any) -> str:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        return (
            f"decimal({precision},{scale})"
            if 0 < precision <= _MOST_DIGITS and scale <= precision
            else "string"
        )
    if isinstance(logical, str) and logical.startswith("time-"):
        return "string"  # engines do not agree on a type for the time of day
    return _LOGICAL.get((kind, str(logical)), _SCALARS[kind])
