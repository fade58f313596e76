"""A member by kafka-python."""

import kafka
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.clients.members.program import Teller, arguments, end, orders

_ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative": CooperativeStickyAssignor,
}


class _Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, told: Teller) -> None:
        self._told = told

    def on_partitions_assigned(self, assigned: set[kafka.TopicPartition]) -> None:
        self._told.assigned((each.topic, each.partition) for each in assigned)

    def on_partitions_revoked(self, revoked: set[kafka.TopicPartition]) -> None:
        self._told.revoked((each.topic, each.partition) for each in revoked)

    def on_partitions_lost(self, lost: set[kafka.TopicPartition]) -> None:
        self._told.revoked(((each.topic, each.partition) for each in lost), "lost")


def main() -> None:
    asked, told, waiting = arguments(), Teller(), orders()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=asked.servers,
        group_id=asked.group,
        client_id=asked.client_id,
        auto_offset_reset=asked.reset,
        enable_auto_commit=False,
        partition_assignment_strategy=[_ASSIGNORS[asked.strategy]],
        session_timeout_ms=asked.session_timeout_ms,
        heartbeat_interval_ms=asked.heartbeat_ms,
        max_poll_interval_ms=asked.max_poll_ms,
        group_instance_id=asked.instance,
        metadata_max_age_ms=2_000,
        fetch_max_wait_ms=100,
    )
    if asked.assign:
        places = [(asked.topics[0], partition) for partition in range(asked.assign)]
        consumer.assign([kafka.TopicPartition(*place) for place in places])
        told.assigned(places)
    elif asked.topics[0].startswith("^"):
        consumer.subscribe(pattern=asked.topics[0], listener=_Listener(told))
    else:
        consumer.subscribe(asked.topics, listener=_Listener(told))
    while True:
        for records in consumer.poll(timeout_ms=50).values():
            for record in records:
                told.record(record.topic, record.partition, record.offset, record.value)
        while not waiting.empty():
            _obey(waiting.get(), consumer, told)


def _obey(order: list[str], consumer: kafka.KafkaConsumer, told: Teller) -> None:
    match order:
        case ["commit"]:
            positions = [(each, consumer.position(each)) for each in consumer.assignment()]
            try:
                consumer.commit()
                told.committed((each.topic, each.partition, offset) for each, offset in positions if offset)
            except kafka.errors.KafkaError as error:
                told.error(error)
        case ["seek", topic, partition, offset]:
            consumer.seek(kafka.TopicPartition(topic, int(partition)), int(offset))
        case ["leave"]:
            consumer.close(autocommit=False)
            end()


if __name__ == "__main__":
    main()
