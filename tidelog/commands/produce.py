"""`tidelog produce TOPIC`: one record per line of standard input."""

import sys
from enum import StrEnum
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from rich.console import Console

from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.kafka_client import as_user_error, client_config, file_options, not_acknowledged
from tidelog.output import counted
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

_REPORT_S = 5.0

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class CompressionOption(StrEnum):
    """Kafka's."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class _Deliveries:
    """Counts acknowledgements and keeps the first failure."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failure: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:  # noqa: ARG002
        if error is None:
            self.acknowledged += 1
        elif self.failure is None:
            self.failure = error


@app.command()
@with_settings(ClientSettings, only=("bootstrap", "client_config_file", "data_dir", "client_timeout_s"))
def produce(
    environment: Environment,
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    *,
    key_separator: Annotated[
        str | None,
        typer.Option(
            help="Splits a line into key and value. A line without it has no key.", show_default=False
        ),
    ] = None,
    compression: Annotated[
        CompressionOption, typer.Option(help="How batches are compressed.")
    ] = CompressionOption.ZSTD,
    zone: Annotated[
        str | None, typer.Option(help="The zone to produce from. By default any zone.", show_default=False)
    ] = None,
) -> None:
    """Produce lines from standard input, each exactly once, even over retries (idempotence is on)."""
    settings = find_cluster(environment).read(ClientSettings)
    bootstrap = require(settings, "bootstrap")
    more = {
        "enable.idempotence": True,
        "compression.type": compression.value,
        "linger.ms": 5,
        "message.timeout.ms": int(1000 * settings.client_timeout_s),
    }
    try:
        producer = Producer(client_config(bootstrap, zone, file_options(settings), **more))
    except KafkaException as refused:
        raise UserError(f"{refused.args[0].str()}.") from None
    deliveries = _Deliveries()
    separator = key_separator.encode() if key_separator else None
    if sys.stdin.isatty():
        Console(stderr=True).print("One record per line. Ctrl-D ends.", style="dim")
    for line in sys.stdin.buffer:
        _send(producer, bootstrap, topic, line.rstrip(b"\r\n"), separator, deliveries)
        if deliveries.failure is not None:
            break
    # librdkafka checks once a second for records whose time is over, and then reports the reason.
    unsent = producer.flush(settings.client_timeout_s + _REPORT_S)
    if deliveries.failure is not None:
        raise not_acknowledged(producer, settings, topic, deliveries.failure)
    if unsent:
        waited = (
            f"{counted(unsent, 'record')} not acknowledged within "
            f"{settings.client_timeout_s + _REPORT_S:g} s."
        )
        raise UserError(waited, "Does an agent run at TIDELOG_BOOTSTRAP?")
    Console(stderr=True).print(f"[green]{counted(deliveries.acknowledged, 'record')} acknowledged[/]")


def _send(
    producer: Producer,
    bootstrap: str,
    topic: str,
    line: bytes,
    separator: bytes | None,
    deliveries: _Deliveries,
) -> None:
    key: bytes | None = None
    value = line
    if separator is not None and separator in line:
        key, _, value = line.partition(separator)
    while True:
        try:
            producer.produce(topic, value=value, key=key, on_delivery=deliveries)
        except BufferError:  # the client's queue is full: wait for acknowledgements
            producer.poll(0.5)
        except KafkaException as failed:
            raise as_user_error(failed.args[0], bootstrap, topic) from None
        else:
            producer.poll(0)
            return
