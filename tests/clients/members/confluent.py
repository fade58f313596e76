"""A member by confluent-kafka (librdkafka), of both protocols."""

import confluent_kafka

from tests.clients.members.program import Teller, arguments, end, orders
from tests.support.messages import place_of, topic_of


def main() -> None:
    asked, told, waiting = arguments(), Teller(), orders()
    settings = {
        "bootstrap.servers": asked.servers,
        "group.id": asked.group,
        "client.id": asked.client_id,
        "auto.offset.reset": asked.reset,
        "enable.auto.commit": False,
        "group.protocol": asked.protocol,
        "max.poll.interval.ms": asked.max_poll_ms,
        "topic.metadata.refresh.interval.ms": 2_000,
        "fetch.wait.max.ms": 100,
    }
    if asked.protocol == "classic":
        strategy = "cooperative-sticky" if asked.strategy == "cooperative" else asked.strategy
        settings |= {
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": asked.session_timeout_ms,
            "heartbeat.interval.ms": asked.heartbeat_ms,
        }
    if asked.instance:
        settings["group.instance.id"] = asked.instance
    consumer = confluent_kafka.Consumer(settings)
    if asked.assign:
        places = [(asked.topics[0], partition) for partition in range(asked.assign)]
        consumer.assign([confluent_kafka.TopicPartition(*place) for place in places])
        told.assigned(places)
    else:
        consumer.subscribe(
            asked.topics,
            on_assign=lambda _, found: told.assigned((each.topic, each.partition) for each in found),
            on_revoke=lambda _, found: told.revoked((each.topic, each.partition) for each in found),
            on_lost=lambda _, found: told.revoked(((each.topic, each.partition) for each in found), "lost"),
        )
    while True:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            told.record(topic_of(message), *place_of(message), message.value())
        elif message is not None:
            told.error(message.error())
        while not waiting.empty():
            _obey(waiting.get(), consumer, told)


def _obey(order: list[str], consumer: confluent_kafka.Consumer, told: Teller) -> None:
    match order:
        case ["commit"]:
            try:
                done = consumer.commit(asynchronous=False) or []
                told.committed((each.topic, each.partition, each.offset) for each in done if each.offset >= 0)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() == confluent_kafka.KafkaError._NO_OFFSET:
                    told.committed([])  # it has read nothing since it was assigned its partitions
                else:
                    told.error(error)
        case ["seek", topic, partition, offset]:
            consumer.seek(confluent_kafka.TopicPartition(topic, int(partition), int(offset)))
        case ["leave"]:
            consumer.close()
            end()


if __name__ == "__main__":
    main()
