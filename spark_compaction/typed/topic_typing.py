"""In the driver: what to decode of a topic's records, and into which columns of its table.

The table is what remembers: its schema has the columns, their comments the fields they are of, and two of its
properties the schemas that keys and values named so far. The topic's configs say the formats.

Promises:
- The table's schema changes in the publish that adds files with the new columns, or not at all. If another
  job changed it in the meantime, the publish is refused, and the topic is planned again.
- Without an answer of the registry nothing is published for the topic: `TopicWaits`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from sequencer.topics.topic_config import TopicConfig
from spark_compaction.iceberg_table import ICEBERG_SCHEMA, SchemaChange
from spark_compaction.settings import CompactionSettings
from spark_compaction.typed.columns import (
    WHOLE,
    Column,
    Kind,
    Leaf,
    ListOf,
    MapOf,
    Record,
    Side,
    Struct,
    TableColumns,
    comment,
    read_comment,
)
from spark_compaction.typed.decoding import (
    FRAMED,
    MOST_SCHEMAS,
    Format,
    SidePlan,
    TypedPlan,
    Unplanned,
    joined_shape,
    parsed,
)
from spark_compaction.typed.json_values import shape_of_schema
from spark_compaction.typed.protobuf_values import files_of_set
from spark_compaction.typed.registry import RegisteredSchema, RegistryAway, SchemaRegistry

_LAST_RECORD_ID: Final = ICEBERG_SCHEMA.highest_field_id
_TYPES: Final[Mapping[str, IcebergType]] = {
    "boolean": BooleanType(), "int": IntegerType(), "long": LongType(), "float": FloatType(),
    "double": DoubleType(), "date": DateType(), "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(), "uuid": UUIDType(), "string": StringType(), "binary": BinaryType(),
}  # fmt: skip


class TopicWaits(Exception):
    """The topic's records cannot be decoded now. Nothing is lost: they stay in the log. The message says
    why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTyping:
    """How a topic's records become columns in one job."""

    plan: TypedPlan
    columns: TableColumns
    base: Schema
    """The table's schema when the job began."""

    def change(self) -> SchemaChange:
        """What the table's metadata needs for the files of this job."""
        return SchemaChange(
            base=self.base,
            schema=_iceberg_schema(self.columns),
            properties={
                _property(side): ",".join(sorted(names))
                for side, plan in self.plan.sides.items()
                if (names := frozenset(filter(_has_schema(plan), plan.names)))
            },
        )


def _has_schema(plan: SidePlan) -> Any:
    return lambda name: plan.inline is None and plan.schemas.get(_id_of(name)) is not None


class TypedPlanner:
    """Plans for topics, one at a time."""

    def __init__(self, settings: CompactionSettings) -> None:
        user = settings.schema_registry_user
        self._registry = SchemaRegistry(
            settings.schema_registry_url,
            user=user.get_secret_value() if user else "",
            timeout_s=settings.schema_registry_timeout_s,
            attempts=settings.schema_registry_attempts,
            job_s=settings.schema_registry_job_s,
        )
        self._settings = settings

    def plan(self, config: Mapping[str, str], table: TableMetadata) -> TopicTyping:
        """For a topic that has a format (`has_format`). Raises TopicWaits."""
        columns = table_columns(table, self._settings.history_columns).with_error()
        topic = TopicConfig.of(config)
        sides: dict[Side, SidePlan] = {}
        wanted: dict[Side, tuple[str, str]] = {
            "key": (topic.key_format, topic.key_schema),
            "value": (topic.value_format, topic.value_schema),
        }
        for side, (name, schema) in wanted.items():
            if name:
                remembered = frozenset(filter(None, table.properties.get(_property(side), "").split(",")))
                sides[side] = self._side(side, name, schema, remembered)  # type: ignore[arg-type]
                columns = columns.with_fields(side, _shape(sides[side]))
        return self._typing(sides, columns, table.schema(), is_last=False)

    def evolved(self, typing: TopicTyping, found: Unplanned, *, is_last: bool) -> TopicTyping:
        """With what the data was found to need. With `is_last` the next tasks find no more fields of JSON.
        Raises TopicWaits.
        """
        columns = typing.columns
        sides = dict(typing.plan.sides)
        for side, plan in sides.items():
            if found.schemas.get(side):
                room = MOST_SCHEMAS - len(plan.names)
                names = plan.names | frozenset(sorted(found.schemas[side] - plan.names)[:room])
                sides[side] = replace(plan, names=names, schemas=self._schemas(plan, names))
                columns = columns.with_fields(side, _shape(sides[side]))
            shape = found.shapes.get(side)
            if isinstance(shape, Record):
                columns = columns.with_fields(side, shape)
        return self._typing(sides, columns, typing.base, is_last=is_last)

    def _typing(
        self, sides: Mapping[Side, SidePlan], columns: TableColumns, base: Schema, *, is_last: bool
    ) -> TopicTyping:
        is_closed = is_last or columns.is_full or columns.leaves >= columns.most_leaves
        plan = TypedPlan(
            sides=sides,
            schema=columns.file_schema(),
            unknown="refuse" if is_closed else "find",
            most_columns=columns.most_leaves,
            value_bytes=self._settings.history_value_bytes,
        )
        return TopicTyping(plan=plan, columns=columns, base=base)

    def _side(self, side: Side, name: Format, schema: str, remembered: frozenset[str]) -> SidePlan:
        if name == "string":
            return SidePlan(format=name)
        if schema:
            try:
                inline = _inline(name, schema)
                parsed(inline, inline.kind)
            except ValueError as error:
                raise TopicWaits(f"tidelog.{side}.schema {error}") from error
            first = "0/0" if name == "protobuf" else "0"
            return SidePlan(format=name, inline=inline, names=frozenset({first}))
        if name not in FRAMED:
            return SidePlan(format=name)
        plan = SidePlan(format=name, names=remembered)
        return replace(plan, schemas=self._schemas(plan, remembered))

    def _schemas(self, plan: SidePlan, names: frozenset[str]) -> Mapping[int, RegisteredSchema | None]:
        if plan.inline is not None:
            return {}
        try:
            return self._registry.schemas(sorted({_id_of(name) for name in names}))
        except RegistryAway as away:
            raise TopicWaits(str(away)) from away


def has_format(config: Mapping[str, str]) -> bool:
    """Whether the topic's configs ask for columns."""
    topic = TopicConfig.of(config)
    return bool(topic.key_format or topic.value_format)


def _inline(name: Format, text: str) -> RegisteredSchema:
    if name == "protobuf":
        own, others = files_of_set(text)
        return RegisteredSchema(kind="protobuf", text=own, references=others)
    return RegisteredSchema(kind="avro" if name == "avro" else "json-schema", text=text)


def _shape(plan: SidePlan) -> Record:
    if plan.format == "string":
        return Record({WHOLE: "string"})
    if plan.format == "json":
        return shape_of_schema(json.loads(plan.inline.text)) if plan.inline else Record({})
    return joined_shape(plan)


def _property(side: Side) -> str:
    return f"tidelog.{side}.schemas"


def _id_of(name: str) -> int:
    return int(name.partition("/")[0])


def table_columns(table: TableMetadata, most_leaves: int) -> TableColumns:
    """The columns behind the record's of a table, as `_iceberg_schema` made them."""
    fields = [each for each in table.schema().fields if each.field_id > _LAST_RECORD_ID]
    return TableColumns(
        columns=tuple(_column(each, top=True) for each in fields),
        last_id=max(table.last_column_id, _LAST_RECORD_ID),
        most_leaves=most_leaves,
    )


def _column(field: NestedField, *, top: bool) -> Column:
    side, source = read_comment(field.doc or "", top=top)
    return Column(
        field_id=field.field_id, name=field.name, source=source, kind=_kind(field.field_type), side=side
    )


def _kind(kind: IcebergType) -> Kind:
    match kind:
        case StructType():
            return Struct(columns=tuple(_column(each, top=False) for each in kind.fields))
        case ListType():
            return ListOf(element_id=kind.element_id, element=_kind(kind.element_type))
        case MapType():
            return MapOf(key_id=kind.key_id, value_id=kind.value_id, value=_kind(kind.value_type))
        case DecimalType():
            return Leaf(type=f"decimal({kind.precision},{kind.scale})")
    return Leaf(type=next(name for name, known in _TYPES.items() if known == kind))


def _iceberg_schema(columns: TableColumns) -> Schema:
    return Schema(*ICEBERG_SCHEMA.fields, *map(_iceberg_field, columns.columns))


def _iceberg_field(column: Column) -> NestedField:
    return NestedField(
        column.field_id, column.name, _iceberg_type(column.kind), required=False, doc=comment(column)
    )


def _iceberg_type(kind: Kind) -> IcebergType:
    match kind:
        case Struct(columns=columns):
            return StructType(*map(_iceberg_field, columns))
        case ListOf(element_id=element_id, element=element):
            return ListType(element_id, _iceberg_type(element), element_required=False)
        case MapOf(key_id=key_id, value_id=value_id, value=value):
            return MapType(key_id, StringType(), value_id, _iceberg_type(value), value_required=False)
        case Leaf(type=name) if name.startswith("decimal("):
            precision, scale = name[8:-1].split(",")
            return DecimalType(int(precision), int(scale))
        case Leaf(type=name):
            return _TYPES[name]
    raise AssertionError(kind)
