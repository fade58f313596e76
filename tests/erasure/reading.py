"""Reads a topic by a real consumer, over offsets without a record."""

import asyncio

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.agent.running import Running

Row = tuple[int, int, bytes | None, bytes | None]


async def consumed(
    agent: Running, topic: str, partitions: int, *, offset: int = 0, isolation: str = "read_committed"
) -> list[Row]:
    """Partition, offset, key and value of every record from an offset of each partition on."""
    return await asyncio.to_thread(_consume, agent.bootstrap, topic, partitions, offset, isolation)


def _consume(bootstrap: str, topic: str, partitions: int, offset: int, isolation: str) -> list[Row]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "check.crcs": True,
        }
    )
    rows: list[Row] = []
    for partition in range(partitions):
        consumer.assign([TopicPartition(topic, partition, offset)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"nothing of {topic}-{partition} within 30 s"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            assert error is None, error
            place = message.offset()
            assert place is not None
            rows.append((partition, place, message.key(), message.value()))
    consumer.close()
    return rows
