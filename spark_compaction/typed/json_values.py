"""Values in JSON: as columns, and what fields they have.

Values that fit the columns go through Arrow's parser, many at a time. A group that it refuses is cut, until
few values are left with the faulty ones, and those go through Python's parser. Both give the same columns.

Promises:
- A value's columns are its own. The parser gets many values as one text, so each must begin with `{` and end
  with `}`: then the text holds as many objects as values only if each value is one object. Between a `}` and
  a `{` there is no way to go on inside an object, a list or a string.
- Only planned fields make columns, so hostile data cannot make many: the memory for a group is bounded by
  its rows times the columns of the table, and rows are cut accordingly.
- Deep values cost a bounded depth: Arrow's parser refuses what the columns do not have, Python's has a limit.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spark_compaction.typed.columns import (
    MOST_DEPTH,
    MOST_SHAPES,
    Entries,
    Items,
    Record,
    Shape,
    additions,
    fitted,
    is_a_name,
    is_known,
    joined,
    shape_of,
    source_name,
)
from spark_compaction.typed.values import Decoded, columns_of, flattened, struct_converter

Unknown = Literal["find", "ignore", "refuse"]
"""What to do with fields that have no column: remember them, for there will be one; nothing; or say so."""

_EXACT_ROWS: Final = 512
_PARTS: Final = 8
_GROUP_CELLS: Final = 4_000_000
_LOOKED_AT: Final = 256
"""Elements of a list whose fields are looked for. The others are decoded as well."""
_LARGEST_LONG: Final = 1 << 63
_SEEN: Final = 1000


class JsonDecoder:
    """Decodes into columns. Fields without a column are in `found`."""

    def __init__(self, fields: "Sequence[pa.Field[Any]]", *, unknown: Unknown, most_columns: int) -> None:
        self._fields = fields
        self._kind: Any = pa.struct(fields)
        self._convert = struct_converter(self._kind, refuse_unknown=unknown == "refuse")
        self._unknown = unknown
        self._most_columns = most_columns
        self._planned = Record({source_name(each): shape_of(each.type) for each in fields})
        self._planned_width = _width(self._planned)
        self._known: Record = self._planned
        """And fields that are always null, or empty."""
        self._seen: set[Any] = set()
        """Signatures of values that were looked at."""
        self.found: Shape | None = None

    def decode(self, values: "pa.Array[Any]") -> Decoded:
        """Of values that are not null."""
        columns, problems, at = [], dict[int, str](), 0
        for count, arrays, own in self._parsed(values):
            columns.append(arrays)
            problems |= {at + row: problem for row, problem in own.items()}
            at += count
        return Decoded(
            columns=[
                pa.concat_arrays([part[number] for part in columns]) for number in range(len(self._fields))
            ]
            if columns
            else [pa.array([], each.type) for each in self._fields],
            problems=problems,
        )

    def survey(self, values: "pa.Array[Any]") -> None:
        """Looks for fields without a column only."""
        for _ in self._parsed(values):
            pass

    def _parsed(self, values: "pa.Array[Any]") -> Iterator[tuple[int, "list[pa.Array[Any]]", dict[int, str]]]:
        """How many values, their columns, and the problems by row."""
        rows = max(_EXACT_ROWS, _GROUP_CELLS // _width(self._known))
        waiting = [values[start : start + rows] for start in range(0, len(values), rows)][::-1]
        while waiting:
            some: Any = waiting.pop()
            array = self._fast(some)
            if array is not None:
                yield len(some), flattened(array), {}
            elif len(some) <= _EXACT_ROWS:
                yield len(some), *self._exact(some)
            else:
                part = -(-len(some) // _PARTS)
                waiting += [some[start : start + part] for start in range(0, len(some), part)][::-1]

    def _fast(self, values: Any) -> Any:
        """The values as structs of the columns; None if one of them needs a closer look."""
        try:
            texts = values.cast(pa.string())  # checks that it is UTF-8
            if not (pc.all(pc.starts_with(texts, "{")).as_py() and pc.all(pc.ends_with(texts, "}")).as_py()):
                return None
            joined_values: Any = pc.binary_join(pa.array([values], pa.list_(pa.binary())), b"\n")
            whole = joined_values[0].as_buffer()
            parsed = pj.read_json(
                cast("Any", pa.BufferReader(whole)),
                read_options=pj.ReadOptions(use_threads=False, block_size=whole.size + 64),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema(list(_arrow(self._known))),
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore" if self._unknown == "ignore" else "error",
                ),
            )
            if parsed.num_rows != len(values):
                return None
            [rows] = parsed.combine_chunks().to_batches()
            return fitted(rows.to_struct_array(), self._kind)
        except (pa.ArrowException, ValueError, UnicodeDecodeError):
            return None

    def _exact(self, values: Any) -> tuple["list[pa.Array[Any]]", dict[int, str]]:
        loaded: list[Any] = []
        problems: dict[int, str] = {}
        for row, data in enumerate(values.to_pylist()):
            value, problem = _loaded(data)
            loaded.append(value)
            if problem:
                problems[row] = problem
            elif self._unknown != "ignore":
                self._look(value)
        columns, own = columns_of(loaded, self._kind, self._convert)
        return columns, problems | own

    def _look(self, value: dict[str, Any]) -> None:
        signature = _signature(value)
        if signature in self._seen:
            return
        if len(self._seen) < _SEEN and len(value) < _SEEN:
            self._seen.add(signature)
        if _width(self._known) - self._planned_width > 2 * self._most_columns:
            return  # what was found fills the table
        shape = shape_of_value(value, self._most_columns)
        new = additions(shape, self._planned) if self._unknown == "find" else None
        if new is not None:
            self.found = joined(self.found, new)
            self._known = _record(joined(self._known, new))
        empty = _record(_nothings(shape, self._known))
        if empty.fields:  # what is always null must not come here every time
            self._known = _record(joined(self._known, empty))


def _loaded(data: bytes) -> tuple[Any, str]:
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError:
        return None, "is not UTF-8"
    except (ValueError, RecursionError) as error:
        return None, f"is not JSON: {error}"[:200]
    return (value, "") if isinstance(value, dict) else (None, "is JSON, but not an object")


def shape_of_value(value: Any, most_names: int, depth: int = 1) -> Shape | None:
    """The shape of one value. Of a record it has so many names."""
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "long" if -_LARGEST_LONG <= value < _LARGEST_LONG else "string"
        case float():
            return "double"
        case str():
            return "string"
        case _ if depth > MOST_DEPTH:
            return "string"
        case dict():
            names = list(value)[: most_names + 1]
            return Record({name: shape_of_value(value[name], most_names, depth + 1) for name in names})
    element: Shape | None = None
    for each in value[:_LOOKED_AT]:
        element = joined(element, shape_of_value(each, most_names, depth + 1))
    return Items(element)


def _signature(value: Any, depth: int = 1) -> Any:
    """Equal only for values whose fields have the same names and types."""
    if isinstance(value, dict):
        if depth > MOST_DEPTH:
            return dict
        return tuple([(name, _signature(each, depth + 1)) for name, each in value.items()])
    if isinstance(value, list):
        return (list, *{_signature(each, depth + 1) for each in value[:_LOOKED_AT]})
    if isinstance(value, int) and not -_LARGEST_LONG <= value < _LARGEST_LONG:
        return str
    return type(value)


def _nothings(shape: Shape | None, known: Shape | None) -> Shape | None:
    """The part of `shape` of which nothing is known, where `known` does not have it."""
    match shape, known:
        case Record(fields), Record(others):
            kept: dict[str, Shape | None] = {}
            for name, each in fields.items():
                if name in others:
                    inner = _nothings(each, others[name])
                    if inner is not None:
                        kept[name] = inner
                elif is_a_name(name) and not is_known(each):
                    kept[name] = each
            return Record(kept) if kept else None
        case Items(element), Items(other):
            inner = _nothings(element, other)
            return None if inner is None else Items(inner)
    return None


def _record(shape: Shape | None) -> Record:
    return shape if isinstance(shape, Record) else Record({})


def _width(shape: Shape | None) -> int:
    match shape:
        case Record(fields):
            return 1 + sum(_width(each) for each in fields.values())
        case Items(inner) | Entries(inner):
            return 1 + _width(inner)
    return 1


def _arrow(record: Record) -> Iterator[Any]:
    for name, shape in record.fields.items():
        yield pa.field(name, _arrow_type(shape))


def _arrow_type(shape: Shape | None) -> Any:
    """What the parser is asked for: dates, times and ids are text at first."""
    match shape:
        case None:
            return pa.null()
        case Entries():
            return pa.null()  # to the parser, a map is a list of pairs: a value that has one is looked at
        case Record():
            return pa.struct(list(_arrow(shape)))
        case Items(element):
            return pa.list_(_arrow_type(element))
    return {"boolean": pa.bool_(), "long": pa.int64(), "int": pa.int32(), "double": pa.float64(),
            "float": pa.float32()}.get(shape, pa.string())  # fmt: skip


def shape_of_schema(schema: Any) -> Record:
    """The shape that a JSON Schema gives. Raises ValueError with what is wrong."""
    if not isinstance(schema, dict):
        raise ValueError("a JSON Schema is a JSON object")
    try:
        shape = _SchemaReader(schema).read(schema, ())
    except RecursionError:
        raise ValueError("the JSON Schema is nested too deep") from None
    if not isinstance(shape, Record):
        raise ValueError("the JSON Schema must have type object, and properties")
    return shape


class _SchemaReader:
    """Reads one JSON Schema. What lies beyond `MOST_SHAPES` is text: a few references could make billions."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = MOST_SHAPES

    def read(self, schema: Any, within: tuple[str, ...]) -> Shape:
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0:
            return "string"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in within:
                return "string"  # a type within itself has no end
            return self.read(_referred(reference, self._root), (*within, reference))
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(alternatives, list):
            some = [
                each for each in alternatives if not (isinstance(each, dict) and each.get("type") == "null")
            ]
            return self.read(some[0], within) if len(some) == 1 else "string"
        kind = _type_of(schema)
        if kind == "object":
            return self._object(schema, within)
        if kind == "array":
            return Items(self.read(schema.get("items"), within))
        if kind == "string":
            formats = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}
            return formats.get(str(schema.get("format")), "string")
        return {"integer": "long", "number": "double", "boolean": "boolean"}.get(str(kind), "string")

    def _object(self, schema: dict[str, Any], within: tuple[str, ...]) -> Shape:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            return Record({str(name): self.read(each, within) for name, each in properties.items()})
        values = schema.get("additionalProperties")
        return Entries(self.read(values, within)) if isinstance(values, dict) else "string"


def _type_of(schema: dict[str, Any]) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        return kinds[0] if len(kinds) == 1 else "number" if set(kinds) == {"integer", "number"} else None
    return "object" if kind is None and "properties" in schema else kind


def _referred(reference: str, root: dict[str, Any]) -> Any:
    found: Any = root
    if not reference.startswith("#"):
        raise ValueError(f"$ref {reference[:100]!r} is not within the schema")
    for step in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise ValueError(f"$ref {reference[:100]!r} leads nowhere")
        found = found[name]
    return found
