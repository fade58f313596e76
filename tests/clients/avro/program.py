"""Writes or reads a topic of Avro with confluent-kafka's serializers, as an application does.

`python program.py write SERVERS REGISTRY TOPIC SCHEMA FIRST COUNT` writes records `{"number": ...}`; the
schema's further fields take their defaults. `read SERVERS REGISTRY TOPIC COUNT` prints each record as JSON.
"""

import faulthandler
import json
import sys
import uuid
from collections.abc import Sequence

import confluent_kafka
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

TIMEOUT_S = 120.0
_SHOW_STACKS_AFTER_S = 60.0
_REQUEST_TIMEOUT_S = 20
"""Then the client asks again. Without it, it waits for ever where the registry's answer is lost."""


def _registry(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url, "timeout": _REQUEST_TIMEOUT_S})


def write(servers: str, registry: str, topic: str, schema: str, first: int, count: int) -> None:
    """Registers the schema with the first record."""
    serialize = AvroSerializer(_registry(registry), schema)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    context = SerializationContext(topic, MessageField.VALUE)
    for number in range(first, first + count):
        producer.produce(topic, value=serialize({"number": number}, context))
    left = producer.flush(TIMEOUT_S)
    if left:
        raise SystemExit(f"{left} records were not acknowledged")


def read(servers: str, registry: str, topic: str, count: int) -> None:
    """Reads from the beginning, with the schemas that the records name."""
    deserialize = AvroDeserializer(_registry(registry))
    context = SerializationContext(topic, MessageField.VALUE)
    group = f"avro-{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    try:
        for _ in range(count):
            message = consumer.poll(TIMEOUT_S)
            if message is None:
                raise SystemExit("no further record came")
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            print(json.dumps(deserialize(message.value(), context)))
    finally:
        consumer.close()


def main(arguments: Sequence[str]) -> None:
    faulthandler.dump_traceback_later(_SHOW_STACKS_AFTER_S, repeat=True)
    what, servers, registry, topic, *rest = arguments
    if what == "write":
        schema, first, count = rest
        write(servers, registry, topic, schema, int(first), int(count))
    else:
        read(servers, registry, topic, int(rest[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
