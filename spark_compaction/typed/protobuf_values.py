"""Values in Protobuf: what fields a message has, and a reader of its values.

Confluent's wire format has the indexes of the message within its file before the message. Known types become
what they mean: a Timestamp is a time, a wrapper its value; Struct, Any and messages within themselves are
text in JSON. A field without presence has its default, as in any Protobuf client.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError

from spark_compaction.typed.columns import MOST_SHAPES, Entries, Items, Record, Shape

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GIVEN: Final = (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
_TEXT: Final = frozenset({
    "google.protobuf.Any", "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue",
    "google.protobuf.Duration", "google.protobuf.FieldMask", "google.protobuf.Empty",
})  # fmt: skip
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_MOST_INDEXES: Final = 16
_MOST_MESSAGE_DEPTH: Final = 16
_D = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final[Mapping[int, str]] = {
    _D.TYPE_DOUBLE: "double", _D.TYPE_FLOAT: "float", _D.TYPE_INT64: "long", _D.TYPE_INT32: "int",
    _D.TYPE_SINT64: "long", _D.TYPE_SINT32: "int", _D.TYPE_SFIXED64: "long", _D.TYPE_SFIXED32: "int",
    _D.TYPE_UINT32: "long", _D.TYPE_FIXED32: "long", _D.TYPE_UINT64: "decimal(20,0)",
    _D.TYPE_FIXED64: "decimal(20,0)", _D.TYPE_BOOL: "boolean", _D.TYPE_STRING: "string",
    _D.TYPE_BYTES: "binary", _D.TYPE_ENUM: "string",
}  # fmt: skip

Read = Callable[[Any], Any]


class ProtobufSchema:
    """The file that a schema id names, and those it imports, by the names under which it does. Each is a
    FileDescriptorProto in base64. Raises ValueError.
    """

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        try:
            files = {name: _file(each, name) for name, each in references.items()}
            own = _file(text)
            own.name = own.name or "value.proto"
            pool = descriptor_pool.DescriptorPool()
            given = {each.DESCRIPTOR.name: each.DESCRIPTOR.serialized_pb for each in _GIVEN}
            _add(pool, own, {**files, **{name: _of_bytes(each) for name, each in given.items()}}, set())
            self._file: Any = pool.FindFileByName(own.name)
        except (TypeError, KeyError, DecodeError, ValueError, RecursionError) as error:
            raise ValueError(f"is no Protobuf descriptor: {type(error).__name__}: {error}"[:300]) from None
        if not self._file.message_types_by_name:
            raise ValueError("has no message")
        self._messages = _messages(self._file)
        self._readers: dict[str, tuple[Any, Mapping[str, Read]]] = {}

    @property
    def shape(self) -> Record:
        """Of the file's first message, which nearly all values are."""
        return self.shape_of((0,))

    def shape_of(self, indexes: Sequence[int]) -> Record:
        return _MessageReader(self._message(indexes)).shape

    def value_of(self, data: bytes) -> Any:
        """The fields of a value, message indexes first. Raises ValueError or DecodeError."""
        indexes, at = read_indexes(data)
        descriptor = self._message(indexes)
        found = self._readers.get(descriptor.full_name)
        if found is None:
            made = message_factory.GetMessageClass(descriptor)
            found = self._readers[descriptor.full_name] = (made, _MessageReader(descriptor).reads)
        kind, reads = found
        message = kind.FromString(data[at:])
        return {name: read(message) for name, read in reads.items()}

    def _message(self, indexes: Sequence[int]) -> Any:
        found = self._messages.get(tuple(indexes))
        if found is None:
            raise ValueError(f"the schema has no message {list(indexes)}")
        return found


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """The message indexes at the start of a value, and where they end. Raises ValueError."""
    count, at = _zigzag(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError(f"has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(5):
        if at >= len(data):
            raise ValueError("ends within its message indexes")
        value |= (data[at] & 0x7F) << (7 * number)
        at += 1
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("has message indexes that are too large")


def files_of_set(text: str) -> tuple[str, dict[str, str]]:
    """The last file of a FileDescriptorSet in base64, which counts, and the others. `protoc --include_imports
    --descriptor_set_out` writes such a set. Raises ValueError.
    """
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text, validate=True)).file
        texts = {each.name: base64.b64encode(each.SerializeToString()).decode() for each in files}
    except (DecodeError, TypeError, ValueError) as error:
        raise ValueError(f"is no FileDescriptorSet in base64: {error}"[:300]) from None
    if not texts:
        raise ValueError("is a FileDescriptorSet without a file")
    return texts.pop(files[-1].name), texts


def _file(text: str, name: str | None = None) -> Any:
    file = _of_bytes(base64.b64decode(text, validate=True))
    if name is not None:
        file.name = name
    return file


def _of_bytes(data: bytes) -> Any:
    return descriptor_pb2.FileDescriptorProto.FromString(data)


def _add(pool: Any, file: Any, files: Mapping[str, Any], added: set[str]) -> None:
    """Adds a file behind those that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for name in file.dependency:
        if name not in files:
            raise ValueError(f"the import {name} is not given")
        _add(pool, files[name], files, added)
    pool.AddSerializedFile(file.SerializeToString())


def _messages(file: Any) -> dict[tuple[int, ...], Any]:
    found: dict[tuple[int, ...], Any] = {}
    waiting: list[tuple[tuple[int, ...], Any]] = [
        ((index,), each) for index, each in enumerate(file.message_types_by_name.values())
    ]
    while waiting:
        path, message = waiting.pop()
        found[path] = message
        if len(path) < _MOST_INDEXES:
            waiting += [((*path, index), each) for index, each in enumerate(message.nested_types)]
    return found


class _MessageReader:
    """Reads messages of one type: their shape, and how to get a field's value. One walk finds both."""

    def __init__(self, message: Any) -> None:
        self._left = MOST_SHAPES
        self.shape, self.reads = self._message(message, ())

    def _message(self, message: Any, within: tuple[str, ...]) -> tuple[Record, dict[str, Read]]:
        inner = (*within, message.full_name)
        fields = {each.name: self._field(each, inner) for each in message.fields}
        shape = Record({name: shape for name, (shape, _) in fields.items()})
        return shape, {name: read for name, (_, read) in fields.items()}

    def _field(self, field: Any, within: tuple[str, ...]) -> tuple[Shape, Read]:
        name, message = field.name, field.message_type
        if message is not None and message.GetOptions().map_entry:
            shape, convert = self._single(message.fields_by_name["value"], within)
            return Entries(shape), lambda message: {
                _key(key): convert(each) for key, each in getattr(message, name).items()
            }
        shape, convert = self._single(field, within)
        if field.is_repeated:
            return Items(shape), lambda message: [convert(each) for each in getattr(message, name)]
        if field.has_presence:
            return shape, lambda message: convert(getattr(message, name)) if message.HasField(name) else None
        if convert is _same:
            return shape, lambda message: getattr(message, name)
        return shape, lambda message: convert(getattr(message, name))

    def _single(self, field: Any, within: tuple[str, ...]) -> tuple[Shape, Read]:
        """Of a value of the field, if it is repeated, too."""
        self._left -= 1
        message = field.message_type
        if field.type == _D.TYPE_ENUM:
            names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
            return "string", lambda number: names.get(number, str(number))
        if message is None:
            return _SCALARS[field.type], _same
        if message.full_name == _TIMESTAMP:
            return (
                "timestamptz",
                lambda value: _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000),
            )
        if message.file.name == "google/protobuf/wrappers.proto":
            return _SCALARS[message.fields_by_name["value"].type], lambda value: value.value
        is_deep = message.full_name in within or len(within) >= _MOST_MESSAGE_DEPTH or self._left < 0
        if message.full_name in _TEXT or is_deep:
            return "string", lambda value: json_format.MessageToJson(
                value, indent=None, preserving_proto_field_name=True
            )
        shape, reads = self._message(message, within)
        return shape, lambda value: {name: read(value) for name, read in reads.items()}


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _same(value: Any) -> Any:
    return value
