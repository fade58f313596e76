"""Which fields keys and values have, and which columns of the topic's table they become. Pure.

A shape says what a format, a schema or the data itself knows of a value. `TableColumns` adds the fields of a
shape to a table's schema by Iceberg's rules: a new field gets a new id, int becomes long, float becomes
double, a decimal gets more digits. Nothing else changes, and nothing is taken away.

Promises:
- A column belongs to one field for ever. The column's comment in the table names the key or the value and
  the field, so that any later job finds it.
- Names of columns differ in more than case, and none is that of a column of the record.
- The leaves of a table's schema are bounded, and so is the depth of its types. What is deeper becomes text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_compaction.history_file import PARQUET_SCHEMA

Side = Literal["key", "value"]
SIDES: Final[tuple[Side, ...]] = ("key", "value")
ERROR_COLUMN: Final = "_error"
WHOLE: Final = "\0"
"""The field of a value that is no record: `value_decoded`. No other field may have this name."""
MOST_DEPTH: Final = 16
"""Structs and lists within each other."""
MOST_SHAPES: Final = 20_000
"""Of one schema. A few types that name each other could make billions."""
MOST_NAME: Final = 256
"""Characters of a field's name. A longer one gets no column."""
_MOST_COLUMN_NAME = 120
_OWN_NAMES = frozenset({*PARQUET_SCHEMA.names, ERROR_COLUMN})
_FIELD_ID, _SIDE, _SOURCE = b"PARQUET:field_id", b"tidelog.side", b"tidelog.source"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True, slots=True)
class Record:
    """Fields by their names. A field of which nothing is known yet (always null so far) has None."""

    fields: "Mapping[str, Shape | None]"


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    element: "Shape | None"


@dataclass(frozen=True, slots=True)
class Entries:
    """A map from text."""

    value: "Shape | None"


Shape: TypeAlias = str | Record | Items | Entries
"""Or the name of a type: boolean, int, long, float, double, decimal(P,S), date, timestamp, timestamptz, uuid,
string, binary.
"""


def as_json(shape: Shape | None) -> Any:
    match shape:
        case Record(fields):
            return {"record": {name: as_json(each) for name, each in fields.items()}}
        case Items(element):
            return {"list": as_json(element)}
        case Entries(value):
            return {"map": as_json(value)}
    return shape


def of_json(value: Any) -> Shape | None:
    """The inverse of `as_json`."""
    if not isinstance(value, dict):
        return cast("str | None", value)
    [(kind, content)] = value.items()
    if kind == "record":
        return Record({name: of_json(each) for name, each in content.items()})
    return Items(of_json(content)) if kind == "list" else Entries(of_json(content))


def joined(one: Shape | None, other: Shape | None) -> Shape | None:
    """A shape for values of both, of which no column exists yet. What does not fit together is text."""
    if one is None or other is None or one == other:
        return other if one is None else one
    match one, other:
        case Record(some), Record(others):
            names = [*some, *(name for name in others if name not in some)]
            return Record({name: joined(some.get(name), others.get(name)) for name in names})
        case Items(element), Items(another):
            return Items(joined(element, another))
        case Entries(value), Entries(another):
            return Entries(joined(value, another))
        case str(), str():
            return _wider(one, other) or _wider(other, one) or _as_double(one, other) or "string"
    if not is_known(one) or not is_known(other):
        return other if is_known(other) else one
    return "string"


def _as_double(one: str, other: str) -> str | None:
    numbers = {"int", "long", "float", "double"}
    return "double" if {one, other} <= numbers and {one, other} & {"float", "double"} else None


def _wider(old: str, new: str) -> str | None:
    """`new` if Iceberg lets a column of type `old` become one of `new`."""
    if (old, new) in (("int", "long"), ("float", "double")):
        return new
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after and before[2] == after[2] and int(before[1]) <= int(after[1]):
        return new
    return None


def is_known(shape: Shape | None) -> bool:
    """False where the data has shown no value: null, {} and []. There is no column of nothing."""
    match shape:
        case Record(fields):
            return any(is_known(each) for each in fields.values())
        case Items(inner) | Entries(inner):
            return is_known(inner)
    return shape is not None


def additions(shape: Shape | None, planned: Shape | None) -> Shape | None:
    """The part of `shape` for which `planned` has no column; None if there is none. Another type of the same
    field is no addition.
    """
    match shape, planned:
        case Record(fields), Record(known):
            new = {name: additions(each, known.get(name)) for name, each in fields.items()}
            kept = {name: each for name, each in new.items() if each is not None and is_a_name(name)}
            return Record(kept) if kept else None
        case Items(element), Items(known_element):
            found = additions(element, known_element)
            return None if found is None else Items(found)
        case Entries(value), Entries(known_value):
            found = additions(value, known_value)
            return None if found is None else Entries(found)
    return shape if is_known(shape) and not is_known(planned) else None


def is_a_name(name: str) -> bool:
    """Whether a field of this name can have a column."""
    return name != WHOLE and len(name) <= MOST_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    columns: "tuple[Column, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    element_id: int
    element: "Kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf:
    key_id: int
    value_id: int
    value: "Kind"


Kind: TypeAlias = Leaf | Struct | ListOf | MapOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table, or a field of a struct in it. `source` is the field's own name. `side` is set at
    the top, where columns of keys and values lie side by side; `_error` belongs to neither.
    """

    field_id: int
    name: str
    source: str
    kind: Kind
    side: Side | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns of a table behind those of the record."""

    columns: tuple[Column, ...] = ()
    last_id: int
    """The highest field id that was ever given in this table."""
    most_leaves: int
    is_full: bool = field(default=False, compare=False)
    """True if there was no room for a field."""

    def with_fields(self, side: Side, shape: Record) -> "TableColumns":
        """With columns for the fields of `shape`, as far as there is room."""
        adding = _Adding(self)
        before = [column for column in self.columns if column.side == side]
        after = adding.fields(before, shape, side, depth=1)
        by_id = {column.field_id: column for column in after}
        kept = [by_id.pop(column.field_id, column) for column in self.columns]
        return replace(
            self,
            columns=(*kept, *by_id.values()),
            last_id=adding.last_id,
            is_full=self.is_full or adding.is_full,
        )

    def with_error(self) -> "TableColumns":
        """With the column for reasons."""
        if any(column.name == ERROR_COLUMN for column in self.columns):
            return self
        error = Column(field_id=self.last_id + 1, name=ERROR_COLUMN, source="", kind=Leaf(type="string"))
        return replace(self, columns=(error, *self.columns), last_id=self.last_id + 1)

    @property
    def leaves(self) -> int:
        return sum(_leaves(column.kind) for column in self.columns)

    def file_schema(self) -> pa.Schema:
        """What the topic's Parquet files have."""
        return pa.schema([*PARQUET_SCHEMA, *map(_arrow_field, self.columns)])


class _Adding:
    """One addition of fields."""

    def __init__(self, table: TableColumns) -> None:
        self.last_id = table.last_id
        self.is_full = False
        self._room = table.most_leaves - table.leaves
        self._names = {column.name.lower() for column in table.columns} | _OWN_NAMES

    def fields(
        self, columns: Sequence[Column], shape: Record, side: Side | None, *, depth: int
    ) -> tuple[Column, ...]:
        by_source = {column.source: column for column in columns}
        names = self._names if side is not None else {column.name.lower() for column in columns}
        for source, each in shape.fields.items():
            old = by_source.get(source)
            if old is not None:
                by_source[source] = replace(old, kind=self._changed(old.kind, each, depth))
                continue
            if not is_known(each) or len(source) > MOST_NAME:
                continue
            field_id = self._next_id()
            kind = self._new(each, depth)
            if kind is None:
                continue
            name = column_name(source, names, side)
            names.add(name.lower())
            by_source[source] = Column(field_id=field_id, name=name, source=source, kind=kind, side=side)
        return tuple(by_source.values())

    def _changed(self, old: Kind, shape: Shape | None, depth: int) -> Kind:
        """A conflict changes nothing: its values get a reason in `_error`."""
        match old, shape:
            case Struct(columns=columns), Record():
                return Struct(columns=self.fields(columns, shape, None, depth=depth + 1))
            case ListOf(), Items(element):
                return replace(old, element=self._changed(old.element, element, depth + 1))
            case MapOf(), Entries(value):
                return replace(old, value=self._changed(old.value, value, depth + 1))
            case Leaf(type=kind), str():
                return Leaf(type=_wider(kind, shape) or kind)
        return old

    def _new(self, shape: Shape | None, depth: int) -> Kind | None:
        """None if there is no room, or nothing is known."""
        if not is_known(shape):
            return None
        if self._room <= 0:
            self.is_full = True
            return None
        match shape:
            case str():
                self._room -= 1
                return Leaf(type=shape)
            case _ if depth >= MOST_DEPTH:
                self._room -= 1
                return Leaf(type="string")
            case Record():
                columns = self.fields((), shape, None, depth=depth + 1)
                return Struct(columns=columns) if columns else None
            case Items(element):
                element_id = self._next_id()
                kind = self._new(element, depth + 1)
                return None if kind is None else ListOf(element_id=element_id, element=kind)
            case Entries(value):
                self._room -= 1
                key_id, value_id = self._next_id(), self._next_id()
                kind = self._new(value, depth + 1)
                return None if kind is None else MapOf(key_id=key_id, value_id=value_id, value=kind)
        raise AssertionError(shape)

    def _next_id(self) -> int:
        self.last_id += 1
        return self.last_id


def column_name(source: str, taken: set[str], side: Side | None) -> str:
    """The name of a new column. `taken` are the names that there are, in lower case.

    A field of the value has its own name, a field of the key has `key_` before it. Whatever is not a letter,
    a digit or `_` becomes `_`. If that name is taken, `value_` comes before it, and then numbers behind it.
    """
    name = re.sub(r"\W", "_", "decoded" if source == WHOLE else source)[:_MOST_COLUMN_NAME] or "_"
    if side == "key" or source == WHOLE:
        name = f"{side}_{name}"
    elif side == "value" and name.lower() in taken:
        name = f"value_{name}"
    number, candidate = 2, name
    while candidate.lower() in taken:
        candidate = f"{name}_{number}"
        number += 1
    return candidate


def _leaves(kind: Kind) -> int:
    match kind:
        case Struct(columns=columns):
            return sum(_leaves(column.kind) for column in columns)
        case ListOf(element=element):
            return _leaves(element)
        case MapOf(value=value):
            return 1 + _leaves(value)
    return 1


_ARROW: Final[Mapping[str, Any]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "uuid": pa.uuid(),
    "string": pa.string(),
    "binary": pa.binary(),
}


def leaf_type(name: str) -> Any:
    """The Arrow type of a type's name."""
    decimal = _DECIMAL.fullmatch(name)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _ARROW[name]


def _arrow_field(column: Column) -> Any:
    metadata = {_FIELD_ID: str(column.field_id).encode(), _SOURCE: column.source.encode()}
    if column.side is not None:
        metadata[_SIDE] = column.side.encode()
    return pa.field(column.name, _arrow(column.kind), metadata=metadata)


def _arrow(kind: Kind) -> Any:
    match kind:
        case Struct(columns=columns):
            return pa.struct([_arrow_field(column) for column in columns])
        case ListOf(element_id=element_id, element=element):
            return pa.list_(_with_id("element", _arrow(element), element_id))
        case MapOf(key_id=key_id, value_id=value_id, value=value):
            key = _with_id("key", pa.string(), key_id, nullable=False)
            return pa.map_(key, _with_id("value", _arrow(value), value_id))
        case Leaf(type=name):
            return leaf_type(name)
    raise AssertionError(kind)


def _with_id(name: str, kind: Any, field_id: int, *, nullable: bool = True) -> Any:
    return pa.field(name, kind, nullable=nullable, metadata={_FIELD_ID: str(field_id).encode()})


def side_fields(schema: pa.Schema, side: Side) -> "list[pa.Field[Any]]":
    """The columns of a file's schema that belong to the key or to the value."""
    return [each for each in schema if (each.metadata or {}).get(_SIDE) == side.encode()]


def source_name(each: "pa.Field[Any]") -> str:
    """The field's own name."""
    return (each.metadata or {})[_SOURCE].decode()


def shape_of(kind: Any) -> Shape:
    """The shape of an Arrow type of a file's schema."""
    if pa.types.is_struct(kind):
        return Record({source_name(each): shape_of(each.type) for each in struct_fields(kind)})
    if pa.types.is_map(kind):
        return Entries(shape_of(kind.item_type))
    if pa.types.is_list(kind):
        return Items(shape_of(kind.value_type))
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next(name for name, known in _ARROW.items() if known == kind)


def struct_fields(kind: Any) -> Iterator[Any]:
    for number in range(kind.num_fields):
        yield kind.field(number)


def source_type(kind: Any) -> Any:
    """The Arrow type with the fields' own names, in which decoders build values."""
    if pa.types.is_struct(kind):
        return pa.struct([(source_name(each), source_type(each.type)) for each in struct_fields(kind)])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), source_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(source_type(kind.value_type))
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def fitted(column: Any, kind: Any) -> Any:
    """The column, which has fields of their own names, as the type of a file's schema. Text may become a date
    or a time. Raises ArrowException where it cannot.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(kind):
        position = {each.name: number for number, each in enumerate(struct_fields(column.type))}
        fields = list(struct_fields(kind))
        arrays = [
            fitted(column.field(position[source_name(each)]), each.type)
            if source_name(each) in position
            else pa.nulls(len(column), each.type)
            for each in fields
        ]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())
    if pa.types.is_map(kind):
        maps: Any = pa.MapArray
        return maps.from_arrays(
            _offsets(column), column.keys, fitted(column.items, kind.item_type), type=kind
        )
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(column), fitted(column.values, kind.value_type), type=kind)
    if isinstance(kind, pa.BaseExtensionType):
        return cast("Any", pa.ExtensionArray).from_storage(kind, column.cast(kind.storage_type))
    return pc.cast(column, kind)


def _offsets(column: Any) -> Any:
    """Where each list begins, null where it is."""
    if not column.null_count:
        return column.offsets
    missing = pa.concat_arrays([column.is_null(), pa.array([False])])
    return pc.if_else(missing, pa.scalar(None, pa.int32()), column.offsets)


def comment(column: Column) -> str:
    """What the table says about a column, from which `read_comment` finds its field."""
    source = "" if column.source == WHOLE else f" {json.dumps(column.source)}"
    if column.side is not None:
        return f"{column.side}{source}"
    return (
        "why a key or a value is not, or not wholly, in the columns"
        if not column.source and (column.name == ERROR_COLUMN)
        else json.dumps(column.source)
    )


def read_comment(text: str, *, top: bool) -> tuple[Side | None, str]:
    """The side and the field that a comment names."""
    if not top:
        return None, str(json.loads(text))
    side, _, source = text.partition(" ")
    if side not in SIDES:
        return None, ""
    return side, str(json.loads(source)) if source else WHOLE
