"""`tidelog consume TOPIC`: print records, from the beginning or from now on.

Without `--group` it reads every partition and belongs to no group. With `--group` it is a member of that
group: it continues where the group stopped, shares the partitions with the other members, and commits what it
has printed.
"""

import base64
import json
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from rich.console import Console
from rich.text import Text

from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.kafka_client import (
    as_user_error,
    assigned_partitions,
    client_config,
    file_options,
    from_offsets,
)
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_FINAL = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.INVALID_GROUP_ID, KafkaError.INCONSISTENT_GROUP_PROTOCOL}
)


class GroupProtocol(StrEnum):
    """Kafka's two."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class RecordFormat(StrEnum):
    """`value`: the bytes and a line break. `full`: partition, offset, time, key and value. `json`: an object
    per line.
    """

    VALUE = "value"
    FULL = "full"
    JSON = "json"


@app.command()
@with_settings(ClientSettings, only=("bootstrap", "client_config_file", "data_dir", "client_timeout_s"))
def consume(
    environment: Environment,
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record.")
    ] = False,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="End after this many records.", show_default=False)
    ] = None,
    idle_s: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="End when no record has come for this long. It counts once partitions are assigned.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        RecordFormat,
        typer.Option(
            "--format",
            help="value: bytes; full: partition, offset, time, key, value; json: an object per line.",
        ),
    ] = RecordFormat.VALUE,
    group: Annotated[
        str | None,
        typer.Option(
            help="Join this group: continue where it stopped, and commit what is printed.", show_default=False
        ),
    ] = None,
    group_protocol: Annotated[
        GroupProtocol, typer.Option(help="The group's protocol; consumer is the new one (KIP-848).")
    ] = GroupProtocol.CLASSIC,
    zone: Annotated[
        str | None, typer.Option(help="The zone to consume from. By default any zone.", show_default=False)
    ] = None,
) -> None:
    """Print the records of a topic. With --group, --from-beginning is for a group that has no offsets yet."""
    settings = find_cluster(environment).read(ClientSettings)
    more: dict[str, Any] = {
        "group.id": "unused",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
    }
    if group is not None:
        more |= _membership(group, group_protocol, from_beginning)
    bootstrap = require(settings, "bootstrap")
    consumer = Consumer(client_config(bootstrap, zone, file_options(settings), **more))
    idle = _Idle(idle_s, settings.client_timeout_s)
    try:
        if group is None:
            consumer.assign(
                from_offsets(consumer, bootstrap, topic, from_beginning, settings.client_timeout_s)
            )
            idle.assigned()
        else:
            # Report a missing topic at once.
            assigned_partitions(consumer, bootstrap, topic, settings.client_timeout_s)
            consumer.subscribe([topic], on_assign=lambda *_: idle.assigned())
        _print_records(
            consumer, bootstrap, topic, _printer(output), max_messages, idle, commits=group is not None
        )
    finally:
        consumer.close()


def _membership(group: str, protocol: GroupProtocol, from_beginning: bool) -> dict[str, Any]:
    """Stores the offsets of printed records. They are committed every few seconds and at the end."""
    return {
        "group.id": group,
        "group.protocol": protocol.value,
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
    }


class _Idle:
    """The time without a record. It counts once partitions are assigned, which may take a group a while."""

    def __init__(self, idle_s: float | None, assign_s: float) -> None:
        self._idle_s = idle_s
        self._assign_s = assign_s
        self._since_s = time.monotonic()
        self._is_assigned = False

    def assigned(self) -> None:
        self._is_assigned = True
        self._since_s = time.monotonic()

    def heard(self) -> None:
        self._since_s = time.monotonic()

    def is_over(self) -> bool:
        if self._idle_s is None:
            return False
        longest_s = self._idle_s if self._is_assigned else max(self._idle_s, self._assign_s)
        return time.monotonic() - self._since_s > longest_s

    def require_assigned(self) -> None:
        """Raises `UserError`."""
        if not self._is_assigned:
            raise UserError(
                f"The group assigned no partitions within {self._assign_s:g} s.",
                "`tidelog groups describe` shows its members; wait longer with --client-timeout-s.",
            )


def _print_records(
    consumer: Consumer,
    bootstrap: str,
    topic: str,
    show: Any,
    max_messages: int | None,
    idle: _Idle,
    *,
    commits: bool,
) -> None:
    left = max_messages
    is_empty = True
    failure: KafkaError | None = None
    while left is None or left > 0:
        messages = consumer.consume(num_messages=min(left or 1_000, 1_000), timeout=0.2)
        for message in messages:
            error = message.error()
            if error is None:
                is_empty = False
                show(message)
                if commits:
                    _store(consumer, bootstrap, message)
            elif error.fatal() or error.code() in _FINAL:
                raise as_user_error(error, bootstrap, topic)
            else:
                failure = error
        records = sum(1 for message in messages if message.error() is None)
        if records:
            idle.heard()
            sys.stdout.flush()
        elif idle.is_over():
            if is_empty and failure is not None:
                raise as_user_error(failure, bootstrap, topic)
            idle.require_assigned()
            return
        if left is not None:
            left -= records


def _store(consumer: Consumer, bootstrap: str, message: Message) -> None:
    try:
        consumer.store_offsets(message)
    except KafkaException as failed:
        if (
            failed.args[0].code() != KafkaError._STATE
        ):  # another member owns the partition now, and prints the record again
            raise as_user_error(failed.args[0], bootstrap) from None


def _printer(output: RecordFormat) -> Any:
    if output is RecordFormat.VALUE:
        return lambda message: sys.stdout.buffer.write((message.value() or b"") + b"\n")
    if output is RecordFormat.JSON:
        return lambda message: sys.stdout.write(json.dumps(_as_json(message)) + "\n")
    console = Console(soft_wrap=True, highlight=False)
    return lambda message: console.print(_as_text(message))


def _as_json(message: Message) -> dict[str, Any]:
    """Bytes that are not UTF-8 are `{"base64": ...}`."""
    kind, timestamp = message.timestamp()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        "key": _readable(message.key()),
        "value": _readable(message.value()),
        "headers": [[name, _readable(value)] for name, value in _headers(message)],
    }


def _headers(message: Message) -> list[tuple[str, bytes | str | None]]:
    return list(message.headers() or ())  # type: ignore[arg-type]  # producers may pass a dict


def _readable(data: bytes | str | None) -> str | dict[str, str] | None:
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _as_text(message: Message) -> Text:
    kind, timestamp = message.timestamp()
    when = "-"
    if kind != TIMESTAMP_NOT_AVAILABLE:
        when = datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:23]
    key, value = message.key(), message.value()
    return Text.assemble(
        (f"{message.partition()}:{message.offset()}", "cyan"),
        f" {when} ",
        ("null", "dim") if key is None else (_shown(key), "green"),
        " ",
        ("null", "dim") if value is None else _shown(value),
    )


def _shown(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode(errors="backslashreplace")
