"""`tidelog consume TOPIC`: print records, from the beginning or from now on. Assigns every partition; belongs to no
group.
"""

import base64
import json
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message
from rich.console import Console
from rich.text import Text

from tidelog.find_cluster import find_cluster, require
from tidelog.kafka_client import as_user_error, client_config, from_offsets
from tidelog.setting_options import with_settings
from tidelog.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Format(StrEnum):
    """`value`: the bytes and a line break; `full`: where, when, key and value; `json`: one object per line."""

    VALUE = "value"
    FULL = "full"
    JSON = "json"


@app.command()
@with_settings(ClientSettings, only=("bootstrap", "data_dir", "client_timeout_s"))
def consume(
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    *,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the oldest record.")] = False,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="End after so many records.", show_default=False)
    ] = None,
    idle_s: Annotated[
        float | None,
        typer.Option(min=0.0, help="End when no record has come for so long; else Ctrl-C ends.", show_default=False),
    ] = None,
    output: Annotated[
        Format, typer.Option("--format", help="value: bytes; full: where, when, key, value; json: an object per line.")
    ] = Format.VALUE,
    zone: Annotated[
        str | None, typer.Option(help="The zone to consume from; by default any agent's.", show_default=False)
    ] = None,
) -> None:
    """Print the records of a topic."""
    settings = find_cluster()
    more = {"group.id": "unused", "enable.auto.commit": False, "allow.auto.create.topics": False}
    consumer = Consumer(client_config(require(settings, "bootstrap"), zone, **more))
    try:
        consumer.assign(from_offsets(consumer, topic, from_beginning, settings.client_timeout_s))
        _print_records(consumer, topic, _printer(output), max_messages, idle_s)
    finally:
        consumer.close()


def _print_records(consumer: Consumer, topic: str, show: Any, max_messages: int | None, idle_s: float | None) -> None:
    left = max_messages
    last = time.monotonic()
    while left is None or left > 0:
        messages = consumer.consume(num_messages=min(left or 1_000, 1_000), timeout=0.2)
        for message in messages:
            error = message.error()
            if error is None:
                show(message)
            elif error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise as_user_error(error, topic)
        if messages:
            last = time.monotonic()
            sys.stdout.flush()
        elif idle_s is not None and time.monotonic() - last > idle_s:
            return
        if left is not None:
            left -= sum(1 for message in messages if message.error() is None)


def _printer(output: Format) -> Any:
    if output is Format.VALUE:
        return lambda message: sys.stdout.buffer.write((message.value() or b"") + b"\n")
    if output is Format.JSON:
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
    return list(message.headers() or ())  # type: ignore[arg-type]  # its stub also allows a dict, which only producers pass


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
