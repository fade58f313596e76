"""A producer in zone a and a consumer in zone b. Each talks only to agents of its own zone. The zones share
only the bucket. So no record crosses zones from machine to machine, which clouds charge for.
"""

import os

from confluent_kafka import Consumer, Producer

BOOTSTRAP = os.environ.get("TIDELOG_BOOTSTRAP", "localhost:9092,localhost:9093")
TOPIC = "example-zones"


def main() -> None:
    # A client names its zone in its client id. The agents answer with the addresses of that zone.
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "client.id": "checkout,tidelog_zone=a"})
    producer.produce(TOPIC, value="from zone a")
    producer.flush(30)

    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "client.id": "billing,tidelog_zone=b",
            "group.id": "example-billing",
            "auto.offset.reset": "earliest",
        }
    )
    for client, zone in ((producer, "a"), (consumer, "b")):
        leaders = {part.leader for part in client.list_topics(TOPIC, 10).topics[TOPIC].partitions.values()}
        brokers = client.list_topics(TOPIC, 10).brokers
        print(
            f"a client of zone {zone} is sent to",
            ", ".join(f"{brokers[n].host}:{brokers[n].port}" for n in leaders),
        )
    consumer.subscribe([TOPIC])
    message = consumer.poll(30)
    if message is None or message.error():
        raise SystemExit("nothing came")
    print("zone b read:", message.value().decode())
    consumer.close()


if __name__ == "__main__":
    main()
