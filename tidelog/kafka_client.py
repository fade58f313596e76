"""confluent-kafka as the command line uses it: configuration, partitions, and its errors as ones a person can act
on.
"""

from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tidelog.errors import UserError
from tidelog.process.settings import ClientSettings
from tidelog.readiness import complaints_of_cluster

_NOT_ANSWERED = frozenset(
    {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}
)
_LOOK_S = 3.0


def client_config(bootstrap: str, zone: str | None, **more: Any) -> dict[str, Any]:
    """`zone` goes into client.id, by which an agent knows whom to name as leader
    (docs/design/zones.md#the-choice-of-an-agent)."""
    client_id = "tidelog-cli" if zone is None else f"tidelog-cli,tidelog_zone={zone}"
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "error_cb": lambda _: None,  # errors are told where they are met; librdkafka goes on by itself meanwhile
        "log_level": 0,
        **more,
    }


def assigned_partitions(client: Consumer | Producer, topic: str, timeout_s: float) -> list[int]:
    """The topic's partitions; raises `UserError` if there is no such topic or nobody answers."""
    try:
        found = client.list_topics(topic, timeout=timeout_s).topics[topic]
    except KafkaException as failed:
        raise as_user_error(failed.args[0]) from None
    if found.error is not None:
        raise as_user_error(found.error, topic)
    return sorted(found.partitions)


def from_offsets(consumer: Consumer, topic: str, from_beginning: bool, timeout_s: float) -> list[TopicPartition]:
    """Where to start, as offsets that were asked for, so that what is produced after this call is not missed."""
    places = []
    try:
        for partition in assigned_partitions(consumer, topic, timeout_s):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
            places.append(TopicPartition(topic, partition, low if from_beginning else high))
    except KafkaException as failed:
        raise as_user_error(failed.args[0]) from None
    return places


def not_acknowledged(producer: Producer, topic: str, error: KafkaError, waited_s: float) -> UserError:
    """Why a record was not acknowledged: no agent answers, or agents cannot write, or there is no reason known."""
    if error.code() == KafkaError._MSG_TIMED_OUT:
        try:
            assigned_partitions(producer, topic, _LOOK_S)
        except UserError as nobody:
            return nobody
        complaints = complaints_of_cluster(ClientSettings())
        if complaints:
            return UserError(f"Nothing was acknowledged within {waited_s:g} s. {' '.join(complaints)}")
        return UserError(
            f"An agent answers at {ClientSettings().bootstrap}, but has not acknowledged within {waited_s:g} s.",
            "Its /ready says what it waits for; if for nothing, its advertised host may be out of reach from here.",
        )
    return as_user_error(error, topic)


def as_user_error(error: KafkaError, topic: str = "") -> UserError:
    """What to tell, and what to do about it."""
    code = error.code()
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return UserError(
            f"There is no topic {topic or error.str()}.",
            "`tidelog topics list` shows those there are; `tidelog topics create` makes one.",
        )
    if code in _NOT_ANSWERED:
        return UserError(
            f"No agent answers at {ClientSettings().bootstrap} ({error.str()}).",
            "Does one run there? If not, correct TIDELOG_BOOTSTRAP; if so, its /ready says what it waits for.",
        )
    return UserError(f"Kafka error {error.name()}: {error.str()}")
