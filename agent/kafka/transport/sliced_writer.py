"""Writes responses of many entries in slices, between which the event loop serves others.

kio's writers take 10 to 30 µs of an entry, and some answers have one for each partition of the cluster. Promises the
bytes that kio writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from kio.serial import entity_writer
from kio.serial._introspect import get_field_tag
from kio.serial._serialize import get_field_writer
from kio.serial.writers import Writer, write_unsigned_varint
from kio.static.primitive import uvarint

from agent.kafka.transport.vectored import ResponseBuffer
from agent.slices import Slices

_FEW: Final = 200
"""Entries that are written in one go."""
_NO_TAGS: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    write: Writer[Any]
    entries: Any
    """The class of its entries, if it is an array of entities."""


@lru_cache(maxsize=1024)
def _fields_of(entity: Any) -> Sequence[_Field] | None:
    """None: it has tagged fields, which are left to kio."""
    if any(get_field_tag(field) is not None for field in fields(entity)):
        return None
    hints = get_type_hints(entity)
    return [
        _Field(
            field.name,
            get_field_writer(field, flexible=entity.__flexible__, is_request_header=False, is_tag=False),
            _entries_of(hints[field.name]),
        )
        for field in fields(entity)
    ]


def _entries_of(hint: Any) -> Any:
    found = next((one for one in (hint, *get_args(hint)) if get_origin(one) is tuple), None)
    return get_args(found)[0] if found is not None and is_dataclass(get_args(found)[0]) else None


def is_long(entity: Any, value: object) -> bool:
    """Whether the response, of this class of kio's, has more entries than are written in one go."""
    return _left_of(_FEW, entity, value) < 0


def _left_of(most: int, entity: Any, value: object) -> int:
    """What is left of `most` when all entries are counted; the counting ends below 0."""
    for field in _fields_of(entity) or ():
        if field.entries is None:
            continue
        entries = getattr(value, field.name) or ()
        most -= len(entries)
        for entry in entries:
            if most < 0:
                return most
            most = _left_of(most, field.entries, entry)
    return most


async def write_in_slices(buffer: ResponseBuffer, entity: Any, value: object, slices: Slices | None = None) -> None:
    """`value` has the fields of `entity`, a class of kio's."""
    slices = slices or Slices()
    layout = _fields_of(entity)
    if layout is None or all(field.entries is None for field in layout):
        entity_writer(entity)(buffer, value)  # type: ignore[arg-type]  # kio calls write alone
        await slices.look()
        return
    for field in layout:
        found = getattr(value, field.name)
        if field.entries is None or not found:
            field.write(buffer, found)  # type: ignore[arg-type]
            continue
        if entity.__flexible__:
            write_unsigned_varint(buffer, uvarint(len(found) + 1))  # type: ignore[arg-type]
        else:
            buffer.write(len(found).to_bytes(4, "big"))
        for entry in found:
            await write_in_slices(buffer, field.entries, entry, slices)
    if entity.__flexible__:
        buffer.write(_NO_TAGS)
