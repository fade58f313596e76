"""A member by aiokafka."""

import asyncio

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.clients.members.program import Teller, arguments, end, orders

_ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class _Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # the package carries no types
    def __init__(self, told: Teller) -> None:
        self._told = told

    def on_partitions_assigned(self, assigned: set[aiokafka.TopicPartition]) -> None:
        self._told.assigned((each.topic, each.partition) for each in assigned)

    def on_partitions_revoked(self, revoked: set[aiokafka.TopicPartition]) -> None:
        self._told.revoked((each.topic, each.partition) for each in revoked)


async def main() -> None:
    asked, told, waiting = arguments(), Teller(), orders()
    consumer = aiokafka.AIOKafkaConsumer(
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
        consumer.assign([aiokafka.TopicPartition(*place) for place in places])
        told.assigned(places)
    elif asked.topics[0].startswith("^"):
        consumer.subscribe(pattern=asked.topics[0], listener=_Listener(told))
    else:
        consumer.subscribe(asked.topics, listener=_Listener(told))
    await consumer.start()
    while True:
        for records in (await consumer.getmany(timeout_ms=50)).values():
            for record in records:
                told.record(record.topic, record.partition, record.offset, record.value)
        while not waiting.empty():
            await _obey(waiting.get(), consumer, told)


async def _obey(order: list[str], consumer: aiokafka.AIOKafkaConsumer, told: Teller) -> None:
    match order:
        case ["commit"]:
            try:
                positions = {each: await consumer.position(each) for each in consumer.assignment()}
                await consumer.commit(positions)
                told.committed(
                    (each.topic, each.partition, offset) for each, offset in positions.items() if offset
                )
            except aiokafka.errors.KafkaError as error:
                told.error(error)
        case ["seek", topic, partition, offset]:
            consumer.seek(aiokafka.TopicPartition(topic, int(partition)), int(offset))
        case ["leave"]:
            await consumer.stop()
            end()


if __name__ == "__main__":
    asyncio.run(main())
