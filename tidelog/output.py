"""What commands print: counts and durations for people, and JSON for programs."""

import json
import re
from datetime import timedelta
from typing import Any, Final

import typer


def counted(number: int, thing: str) -> str:
    """`1 record`, `1,000 records`. The plural of `thing` ends with s."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_ISO: Final = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SHORT: Final = re.compile(
    r"(?:(?P<weeks>\d+)w)?\s*(?:(?P<days>\d+)d)?\s*(?:(?P<hours>\d+)h)?\s*(?:(?P<minutes>\d+)(?:min|m))?\s*"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)s)?"
)


def as_text(seconds: float) -> str:
    """The two largest units: `0.3 s`, `42 s`, `3 min 5 s`, `2 d 4 h`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def parse_duration(text: str) -> timedelta:
    """ISO 8601 (`P7D`, `PT1H30M`) or short (`7d`, `1h30m`, `90s`). Raises ValueError."""
    found = _ISO.fullmatch(text.strip().upper()) or _SHORT.fullmatch(text.strip().lower())
    given = (
        {} if found is None else {unit: float(count) for unit, count in found.groupdict().items() if count}
    )
    if not given:
        raise ValueError(f"'{text}' is no duration such as 1h30m, 7d or PT1H30M")
    return timedelta(**given)


def print_json(value: Any) -> None:
    """Indented, one value."""
    typer.echo(json.dumps(value, indent=2))
