"""Python values to Arrow, by the type of a column; and which of them do not fit.

JSON's exact path, Avro and Protobuf come through here. A value that does not fit its column is null, and a
problem names its field. Text takes everything: what is no text becomes its JSON.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from spark_compaction.typed.columns import MOST_NAME, fitted, source_name, source_type, struct_fields

_MOST_PROBLEMS: Final = 3
_MOST_PROBLEM: Final = 200

Converter = Callable[[Any, str, list[str]], Any]
"""The value, the field's path, and where problems go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A batch of keys or values: the topic's columns for them, and by row why one is not wholly there."""

    columns: Sequence["pa.Array[Any]"]
    problems: dict[int, str]


def note(problems: list[str], path: str, reason: str) -> None:
    if len(problems) < _MOST_PROBLEMS:
        problems.append(f"{path[:MOST_NAME]}: {reason}"[:_MOST_PROBLEM] if path else reason[:_MOST_PROBLEM])


def as_text(value: Any) -> str:
    """A value of no text as JSON."""
    return json.dumps(value, ensure_ascii=False, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)


def columns_of(
    values: Iterable[Any], kind: Any, convert: Converter
) -> tuple["list[pa.Array[Any]]", dict[int, str]]:
    """Dictionaries by field name, or None, as the columns of a struct type; and the problems by row."""
    problems: dict[int, str] = {}
    converted = []
    for row, value in enumerate(values):
        own: list[str] = []
        converted.append(None if value is None else convert(value, "", own))
        if own:
            problems[row] = "; ".join(own)
    array = fitted(pa.array(converted, source_type(kind)), kind)
    return flattened(array), problems


def flattened(array: Any) -> "list[pa.Array[Any]]":
    """The fields of structs, null where the struct is."""
    return list(array.flatten())


def struct_converter(kind: Any, *, refuse_unknown: bool) -> Converter:
    """For dictionaries by field name. Fields that are not in the struct type are left out, and a problem if
    `refuse_unknown`.
    """
    return _struct(kind, refuse_unknown=refuse_unknown)


def _converter(kind: Any, *, refuse_unknown: bool) -> Converter:
    if pa.types.is_struct(kind):
        return _struct(kind, refuse_unknown=refuse_unknown)
    if pa.types.is_map(kind):
        return _map(_converter(kind.item_type, refuse_unknown=refuse_unknown))
    if pa.types.is_list(kind):
        return _list(_converter(kind.value_type, refuse_unknown=refuse_unknown))
    return _leaf(kind)


def _struct(kind: Any, *, refuse_unknown: bool) -> Converter:
    children = {
        source_name(each): _converter(each.type, refuse_unknown=refuse_unknown)
        for each in struct_fields(kind)
    }

    def convert(value: Any, path: str, problems: list[str]) -> Any:
        if not isinstance(value, dict):
            return _conflict(value, "a record", path, problems)
        found = {}
        for name, each in value.items():
            if each is None:
                continue
            child = children.get(name)
            inner = f"{path}.{name}" if path else name
            if child is not None:
                found[name] = child(each, inner, problems)
            elif refuse_unknown and _says_something(each):
                note(problems, inner, "has no column")
        return found

    return convert


def _says_something(value: Any) -> bool:
    """False for what makes no column: null, and empty records and lists."""
    if isinstance(value, dict):
        return any(map(_says_something, value.values()))
    if isinstance(value, list):
        return any(map(_says_something, value))
    return value is not None


def _list(child: Converter) -> Converter:
    def convert(value: Any, path: str, problems: list[str]) -> Any:
        if not isinstance(value, (list, tuple)):
            return _conflict(value, "a list", path, problems)
        return [None if each is None else child(each, path, problems) for each in value]

    return convert


def _map(child: Converter) -> Converter:
    def convert(value: Any, path: str, problems: list[str]) -> Any:
        if not isinstance(value, dict):
            return _conflict(value, "a map", path, problems)
        return [
            (_text(key, path, problems) or "", None if each is None else child(each, path, problems))
            for key, each in value.items()
        ]

    return convert


def _leaf(kind: Any) -> Converter:
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_boolean(kind):
        return _only(bool, "a boolean")
    if pa.types.is_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_timestamp(kind):
        return _timestamp(has_zone=kind.tz is not None)
    return _uuid if isinstance(kind, pa.BaseExtensionType) else _only(bytes, "bytes")


def _conflict(value: Any, wanted: str, path: str, problems: list[str]) -> None:
    note(problems, path, f"is {_name_of(value)}, and the column has {wanted}")


def _name_of(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float() | Decimal():
            return f"the number {str(value)[:40]}"
        case str():
            return f"the text {value[:40]!r}"
        case dict():
            return "a record"
        case list() | tuple():
            return "a list"
    return type(value).__name__


def _text(value: Any, path: str, problems: list[str]) -> str | None:
    try:
        text = value if isinstance(value, str) else as_text(value)
        if not text.isascii():
            text.encode()
    except (UnicodeEncodeError, RecursionError, ValueError):
        note(problems, path, "is text that UTF-8 cannot say")
        return None
    return text


def _only(kind: type, wanted: str) -> Converter:
    def convert(value: Any, path: str, problems: list[str]) -> Any:
        return value if isinstance(value, kind) else _conflict(value, wanted, path, problems)

    return convert


def _integer(bits: int) -> Converter:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any, path: str, problems: list[str]) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        return _conflict(value, f"whole numbers of {bits} bits", path, problems)

    return convert


def _float(value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    return _conflict(value, "numbers of 64 bits", path, problems)


def _decimal(precision: int, scale: int) -> Converter:
    exponent = Decimal(1).scaleb(-scale)

    def convert(value: Any, path: str, problems: list[str]) -> Any:
        wanted = f"decimals of {precision} digits, {scale} of them behind the point"
        if isinstance(value, (Decimal, int)) and not isinstance(value, bool):
            number = Decimal(value)
            if number.is_finite() and abs(number) < Decimal(1).scaleb(precision - scale):
                try:
                    if number == number.quantize(exponent):
                        return number.quantize(exponent)
                except InvalidOperation:
                    pass
        return _conflict(value, wanted, path, problems)

    return convert


def _date(value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    return _conflict(value, "dates", path, problems)


def _timestamp(*, has_zone: bool) -> Converter:
    def convert(value: Any, path: str, problems: list[str]) -> Any:
        found = value
        if isinstance(value, str):
            try:
                found = datetime.fromisoformat(value)
            except ValueError:
                found = None
        if isinstance(found, datetime) and (found.tzinfo is not None) == has_zone:
            try:
                return found.astimezone(UTC) if has_zone else found
            except OverflowError:
                pass
        return _conflict(value, "times with a zone" if has_zone else "times without a zone", path, problems)

    return convert


def _uuid(value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(value, str):
        try:
            return UUID(value).bytes
        except ValueError:
            pass
    if isinstance(value, UUID):
        return value.bytes
    return _conflict(value, "UUIDs", path, problems)
