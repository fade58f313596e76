"""What a reader of the data source is asked for, by its options. Pure.

Names and forms are those of Spark's Kafka source where it has them. Raises InvalidOption, which names the
option and what it may be.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from spark_source.settings import SourceSettings
from spark_source.window import Window

EARLIEST: Final = -2
LATEST: Final = -1
COLUMNS: Final = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
}
"""By name, with their types as Spark's `simpleString` has them."""

_ALIASES: Final = {"servers": "http_url", "kafka.bootstrap.servers": "bootstrap"}
_OF_READERS: Final = frozenset(
    {
        *("topic", "topics", "columns", "partitions"),
        *("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp"),
        *("maxoffsetspertrigger", "minpartitions", "failondataloss", "kafka.isolation.level"),
    }
)
_COMMITTED: Final = "read_committed"
Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition. EARLIEST and LATEST stand for themselves."""


class InvalidOption(ValueError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    starting_offsets: Offsets | Literal["earliest", "latest"]
    ending_offsets: Offsets | Literal["latest"]
    window: Window
    """The partitions and times that are wanted; offsets have two options of their own."""
    max_offsets_per_trigger: int | None
    min_partitions: int
    fail_on_data_loss: bool
    given: Mapping[str, str] = field(repr=False)


def settings_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of the options that are settings, by the settings' names."""
    names = {name.replace("_", ""): name for name in SourceSettings.model_fields}
    found: dict[str, str] = {}
    for option, value in options.items():
        name = _ALIASES.get(option.lower()) or names.get(option.lower())
        if name is not None:
            found[name] = value
    return found


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """What a reader is to read. Names of options are in any case."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in _settings_names()} | _OF_READERS
    unknown = sorted(set(given) - known - {"path"})
    if unknown:
        raise InvalidOption(f"option {unknown[0]!r} is unknown; known are {', '.join(sorted(known))}")
    if given.get("kafka.isolation.level", _COMMITTED) != _COMMITTED:
        raise InvalidOption(
            f"kafka.isolation.level: {given['kafka.isolation.level']!r}; only {_COMMITTED} is possible, "
            "because history has nothing else"
        )
    topics = _topics(given)
    starting = _starting(given.get("startingoffsets"), "latest" if streaming else "earliest")
    if not streaming and (starting == "latest" or _names(starting, LATEST)):
        raise InvalidOption("startingOffsets: a batch query cannot start at the latest offset")
    if streaming:
        _refuse(given, "endingOffsets", "endingTimestamp", why="a stream has no end")
    else:
        _refuse(given, "maxOffsetsPerTrigger", why="a batch query has no triggers")
    ending = _ending(given.get("endingoffsets"))
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        if isinstance(offsets, Mapping) and set(offsets) - set(topics):
            raise InvalidOption(f"{name}: {min(set(offsets) - set(topics))!r} is not among the topics read")
    return ReadOptions(
        topics=topics,
        columns=chosen_columns(given),
        starting_offsets=starting,
        ending_offsets=ending,
        window=Window(
            partitions=_partitions(given.get("partitions")),
            from_ms=_time(given, "startingTimestamp"),
            to_ms=_time(given, "endingTimestamp"),
        ),
        max_offsets_per_trigger=_number(given, "maxOffsetsPerTrigger", None),
        min_partitions=_number(given, "minPartitions", 1) or 1,
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        given=given,
    )


def _settings_names() -> set[str]:
    return {name.replace("_", "") for name in SourceSettings.model_fields} | set(_ALIASES)


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    named = [given[name] for name in ("topic", "topics", "path") if name in given]
    if len(named) != 1:
        raise InvalidOption('name what to read: option "topic", or "topics" with commas between them')
    topics = tuple(dict.fromkeys(name.strip() for name in named[0].split(",") if name.strip()))
    if not topics or ("topics" not in given and len(topics) > 1):
        raise InvalidOption(f"topic: {named[0]!r} is no topic's name; several are the option 'topics'")
    return topics


def chosen_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """By default the columns of the history table, with the topic where several may be read."""
    given = {name.lower(): value for name, value in options.items()}
    if "columns" not in given:
        return tuple(name for name in COLUMNS if name != "topic" or "topics" in given)
    columns = tuple(name.strip().lower() for name in given["columns"].split(","))
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len(set(columns)) < len(columns):
        raise InvalidOption(f"columns: {given['columns']!r}; each is once one of {', '.join(COLUMNS)}")
    return columns


def _starting(
    text: str | None, default: Literal["earliest", "latest"]
) -> Offsets | Literal["earliest", "latest"]:
    if text is None:
        return default
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    return "latest" if word == "latest" else _offsets("startingOffsets", text)


def _ending(text: str | None) -> Offsets | Literal["latest"]:
    if text is None or text.strip().lower() == "latest":
        return "latest"
    ending = _offsets("endingOffsets", text)
    if _names(ending, EARLIEST):
        raise InvalidOption("endingOffsets: -2 (earliest) is no end")
    return ending


def _offsets(option: str, text: str) -> Offsets:
    try:
        parsed = json.loads(text)
        found = {
            str(topic): {int(partition): _offset(offset) for partition, offset in own.items()}
            for topic, own in parsed.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(
            f'{option}: {text!r}; write "earliest", "latest" or JSON as {{"orders": {{"0": 23, "1": -2}}}} '
            "(-2: earliest, -1: latest)"
        ) from None
    return found


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError(value)
    return value


def _names(offsets: Offsets | str, special: int) -> bool:
    return isinstance(offsets, Mapping) and any(special in own.values() for own in offsets.values())


def _partitions(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidOption(f"partitions: {text!r}; write numbers with commas between them") from None


def _time(given: Mapping[str, str], option: str) -> int | None:
    """Milliseconds since 1970, or an ISO time with its zone."""
    text = given.get(option.lower())
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidOption(
            f"{option}: {text!r}; write milliseconds since 1970, or a time as 2026-05-01T12:00:00Z"
        )
    return int(time.timestamp() * 1000)


def _number(given: Mapping[str, str], option: str, default: int | None) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidOption(f"{option}: {text!r} is no number above 0")
    return int(text)


def _boolean(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    word = given.get(option.lower(), str(default)).strip().lower()
    if word not in ("true", "false"):
        raise InvalidOption(f"{option}: {word!r} is neither true nor false")
    return word == "true"


def _refuse(given: Mapping[str, str], *options: str, why: str) -> None:
    for option in options:
        if option.lower() in given:
            raise InvalidOption(f"{option}: {why}")
