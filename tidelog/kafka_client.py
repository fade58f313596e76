"""confluent-kafka for the command line: configuration, partitions, and errors that a person can act on."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tidelog.agents_client import complaints_of_cluster
from tidelog.errors import UserError
from tidelog.find_cluster import require
from tidelog.process.settings import ClientSettings

_NOT_ANSWERED = frozenset(
    {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}
)
_LOOK_S = 3.0


def file_options(settings: ClientSettings) -> dict[str, str]:
    """The options of `client_config_file`. Raises UserError."""
    if settings.client_config_file is None:
        return {}
    try:
        lines = Path(settings.client_config_file).read_text().splitlines()
    except OSError as error:
        raise UserError(f"TIDELOG_CLIENT_CONFIG_FILE: {error}.") from None
    options = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        name, equals, value = line.partition("=")
        if line and not line.startswith("#"):
            if not equals:
                # The line may be a password's.
                raise UserError(
                    f"{settings.client_config_file}: line {number} has no value. Write name=value."
                )
            options[name.strip()] = value.strip()
    return options


def client_config(
    bootstrap: str, zone: str | None, options: Mapping[str, str] = MappingProxyType({}), **more: Any
) -> dict[str, Any]:
    """`zone` goes into client.id, so that agents name leaders of that zone
    (docs/design/zones.md#the-choice-of-an-agent). `options`: `file_options`."""
    client_id = "tidelog-cli" if zone is None else f"tidelog-cli,tidelog_zone={zone}"
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "error_cb": lambda _: None,  # the caller reports errors; librdkafka retries by itself meanwhile
        "log_level": 0,
        **options,
        **more,
    }


def assigned_partitions(
    client: Consumer | Producer, bootstrap: str, topic: str, timeout_s: float
) -> list[int]:
    """The topic's partitions. Raises `UserError` if there is no such topic or no agent answers."""
    try:
        found = client.list_topics(topic, timeout=timeout_s).topics[topic]
    except KafkaException as failed:
        raise as_user_error(failed.args[0], bootstrap) from None
    if found.error is not None:
        raise as_user_error(found.error, bootstrap, topic)
    return sorted(found.partitions)


def from_offsets(
    consumer: Consumer, bootstrap: str, topic: str, from_beginning: bool, timeout_s: float
) -> list[TopicPartition]:
    """The offsets to start from. They are read now, so records that are produced after this call are not
    missed.
    """
    places = []
    try:
        for partition in assigned_partitions(consumer, bootstrap, topic, timeout_s):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
            places.append(TopicPartition(topic, partition, low if from_beginning else high))
    except KafkaException as failed:
        raise as_user_error(failed.args[0], bootstrap) from None
    return places


def not_acknowledged(
    producer: Producer, settings: ClientSettings, topic: str, error: KafkaError
) -> UserError:
    """Why a record was not acknowledged: no agent answers, agents cannot write, or the reason is unknown."""
    bootstrap, waited_s = require(settings, "bootstrap"), settings.client_timeout_s
    if error.code() == KafkaError._MSG_TIMED_OUT:
        try:
            assigned_partitions(producer, bootstrap, topic, _LOOK_S)
        except UserError as nobody:
            return nobody
        complaints = complaints_of_cluster(settings)
        if complaints:
            return UserError(f"Nothing was acknowledged within {waited_s:g} s. {' '.join(complaints)}")
        return UserError(
            f"An agent answers at {bootstrap}, but has not acknowledged within {waited_s:g} s.",
            (
                "Its /ready says what it waits for; if for nothing, its advertised host may be out of reach "
                "from here."
            ),
        )
    return as_user_error(error, bootstrap, topic)


def as_user_error(error: KafkaError, bootstrap: str, topic: str = "") -> UserError:
    """The error of a failed call, with what to do about it."""
    code = error.code()
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return UserError(
            f"There is no topic {topic or error.str()}.",
            "`tidelog topics list` shows those there are; `tidelog topics create` makes one.",
        )
    if code in _NOT_ANSWERED:
        return UserError(
            f"No agent answers at {bootstrap} ({error.str()}).",
            (
                "Does one run there? If not, correct TIDELOG_BOOTSTRAP; if so, its /ready says what it waits "
                "for."
            ),
        )
    return UserError(f"Kafka error {error.name()}: {error.str()}")
