"""Checks, before a request is decoded, that the arrays that it announces fit its bytes.

kio allocates as many entries as an array's length says before it reads the first one. If the machine does not
have that much memory, the process is aborted: a frame of thirty bytes would end the agent. So this module
checks all lengths of arrays along kio's own schema. Pure.

Promises of a request that passes:
- It announces no more entries than there are bytes for.
- It announces no more entries in all than allowed, because each takes 20 to 50 µs of the event loop when it
  is answered.
- No array is null that must not be (kio accepts that).

The decoder finds all other faults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum, auto
from functools import lru_cache
from types import NoneType
from typing import Any, Final, TypeAlias, get_args, get_origin

_FIXED_BYTES: Final[Mapping[str, int]] = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16,
    "timedelta_i32": 4, "timedelta_i64": 8,
}  # fmt: skip
_LENGTH_BYTES: Final[Mapping[str, int]] = {"string": 2, "bytes": 4, "records": 4}


class ImpossibleShape(Exception):
    """The request announces more than its bytes can hold."""


class _Kind(IntEnum):
    FIXED = auto()
    SIZED = auto()
    ARRAY = auto()
    NULLABLE = auto()
    """A structure behind a byte that says whether it is present."""
    TAGS = auto()


@dataclass(frozen=True, slots=True)
class _Step:
    kind: _Kind
    count: int = 0
    """FIXED: the number of bytes. SIZED, ARRAY: the bytes of the length, 0 for a varint."""
    inner: "_Shape" = ()
    tagged: "Mapping[int, _Shape] | None" = None
    may_be_null: bool = False
    """An ARRAY."""

    @property
    def fewest_bytes(self) -> int:
        return self.count if self.kind is _Kind.FIXED else max(1, self.count)


_Shape: TypeAlias = tuple[_Step, ...]


def check_shape(data: bytes | memoryview, start: int, schema: Any, most_entries: int | None = None) -> None:
    """`schema` is kio's class of a request, or of bytes within one. `most_entries` bounds all its arrays
    together. Raises ImpossibleShape.
    """
    shape = _shape_of(schema)
    if shape:
        _Walk(memoryview(data), len(data) if most_entries is None else most_entries).along(start, shape)


# --- along the bytes


class _Walk:
    """One pass over `data`."""

    def __init__(self, data: memoryview, most_entries: int) -> None:
        self._data = data
        self._most_entries = most_entries
        self._entries = 0

    def along(self, at: int, shape: _Shape) -> int:
        """Returns the end of what has this shape."""
        data = self._data
        for step in shape:
            if step.kind is _Kind.FIXED:
                at += step.count
            elif step.kind is _Kind.SIZED:
                length, at = _length(data, at, step.count)
                at += max(0, length)
            elif step.kind is _Kind.ARRAY:
                at = self._array(at, step)
            elif step.kind is _Kind.NULLABLE:
                at = self.along(at + 1, step.inner) if _number(data, at, 1) >= 0 else at + 1
            else:
                at = self._tags(at, step.tagged or {})
        return at

    def _array(self, at: int, step: _Step) -> int:
        count, at = _length(self._data, at, step.count)
        fewest_bytes = max(1, sum(inner.fewest_bytes for inner in step.inner))
        if count < 0 and not step.may_be_null:
            raise ImpossibleShape("null where an array must be")
        if count * fewest_bytes > len(self._data) - at:
            raise ImpossibleShape(f"an array of {count} entries in {max(0, len(self._data) - at)} bytes")
        self._entries += max(0, count)
        if self._entries > self._most_entries:
            raise ImpossibleShape(f"more than {self._most_entries} entries (TIDELOG_MAX_ENTRIES_PER_REQUEST)")
        if all(inner.kind is _Kind.FIXED for inner in step.inner):
            return at + max(0, count) * fewest_bytes
        for _ in range(count):
            at = self.along(at, step.inner)
        return at

    def _tags(self, at: int, tagged: Mapping[int, _Shape]) -> int:
        count, at = _varint(self._data, at)
        for _ in range(count):
            tag, at = _varint(self._data, at)
            length, at = _varint(self._data, at)
            self.along(at, tagged.get(tag, ()))
            at += length
        return at


def _length(data: memoryview, at: int, length_bytes: int) -> tuple[int, int]:
    """Negative: null."""
    if length_bytes:
        return _number(data, at, length_bytes), at + length_bytes
    value, at = _varint(data, at)
    return value - 1, at


def _number(data: memoryview, at: int, size: int) -> int:
    if at + size > len(data):
        raise ImpossibleShape("it ends early")
    return int.from_bytes(data[at : at + size], "big", signed=True)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise ImpossibleShape("it ends early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ImpossibleShape("a varint is too long")


# --- along the schema


@lru_cache(maxsize=512)
def _shape_of(schema: Any) -> _Shape:
    """The shape up to the last array. Empty if there is none."""
    shape = _shape_of_class(schema)
    while shape and not _has_array(shape[-1]):
        shape = shape[:-1]
    return shape


def _has_array(step: _Step) -> bool:
    inner = (*step.inner, *(one for shape in (step.tagged or {}).values() for one in shape))
    return step.kind is _Kind.ARRAY or any(map(_has_array, inner))


def _shape_of_class(schema: Any) -> _Shape:
    steps: list[_Step] = []
    tagged: dict[int, _Shape] = {}
    for field in fields(schema):
        shape = _shape_of_field(field.type, field.metadata, flexible=schema.__flexible__)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = shape
        else:
            steps += shape
    if schema.__flexible__:
        steps.append(_Step(_Kind.TAGS, tagged=tagged))
    return _joined(steps)


def _joined(steps: Sequence[_Step]) -> _Shape:
    """Joins fields of fixed sizes that follow one another into one step."""
    joined: list[_Step] = []
    for step in steps:
        if joined and joined[-1].kind is step.kind is _Kind.FIXED:
            step = _Step(_Kind.FIXED, joined.pop().count + step.count)
        joined.append(step)
    return tuple(joined)


def _shape_of_field(annotation: Any, metadata: Mapping[str, Any], *, flexible: bool) -> _Shape:
    given = get_args(annotation) if get_origin(annotation) is not tuple else ()
    is_nullable = NoneType in given
    plain = next((one for one in given if one is not NoneType), annotation) if is_nullable else annotation
    if get_origin(plain) is tuple:
        entry = _shape_of_field(get_args(plain)[0], metadata, flexible=flexible)
        return (_Step(_Kind.ARRAY, 0 if flexible else 4, inner=entry, may_be_null=is_nullable),)
    if is_dataclass(plain):
        shape = _shape_of_class(plain)
        return (_Step(_Kind.NULLABLE, inner=shape),) if is_nullable and "tag" not in metadata else shape
    kafka_type: str = metadata["kafka_type"]
    if kafka_type in _FIXED_BYTES:
        return (_Step(_Kind.FIXED, _FIXED_BYTES[kafka_type]),)
    return (_Step(_Kind.SIZED, 0 if flexible else _LENGTH_BYTES[kafka_type]),)
