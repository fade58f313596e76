"""Records in, records out."""

import os

from confluent_kafka import Consumer, Producer

BOOTSTRAP = os.environ.get("TIDELOG_BOOTSTRAP", "localhost:9092")
TOPIC = "example-greetings"


def main() -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP})
    for name in ("ann", "bob", "cay"):
        producer.produce(TOPIC, key=name, value=f"hello {name}")
    unsent = producer.flush(30)  # returns when all records are in the object store and have their offsets
    if unsent:
        raise SystemExit(f"{unsent} records were not acknowledged")

    consumer = Consumer(
        {"bootstrap.servers": BOOTSTRAP, "group.id": "example-readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    seen = 0
    while seen < 3:
        message = consumer.poll(10)
        if message is None:
            raise SystemExit("no record within ten seconds")
        if message.error():
            raise SystemExit(message.error())
        print(f"partition {message.partition()}, offset {message.offset()}: {message.value().decode()}")
        seen += 1
    consumer.close()


if __name__ == "__main__":
    main()
