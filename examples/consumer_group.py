"""Two members of a group share the partitions of a topic, and commit what they have processed.

If a member dies without a commit, the other one processes its last records again. So processing a record
twice must do no harm.
"""

import os
import threading
from collections import Counter

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = os.environ.get("TIDELOG_BOOTSTRAP", "localhost:9092")
TOPIC = "example-orders"
ORDERS = 1_000


def work(name: str, done: Counter[str], enough: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": "example-workers",
            "group.protocol": "consumer",  # KIP-848; leave it out for the classic protocol
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    while not enough.is_set():
        messages = [message for message in consumer.consume(100, timeout=0.5) if not message.error()]
        if not messages:
            continue
        done[name] += len(messages)  # the work
        consumer.commit(asynchronous=False)  # after the work, and once for all records
        if done.total() >= ORDERS:
            enough.set()
    consumer.close()


def main() -> None:
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    admin.create_topics([NewTopic(TOPIC, 6)])[TOPIC].exception(30)  # an earlier run may have created it
    producer = Producer({"bootstrap.servers": BOOTSTRAP})
    for number in range(ORDERS):
        producer.produce(TOPIC, key=f"customer-{number % 50}", value=f"order {number}")
    producer.flush(30)

    done: Counter[str] = Counter()
    enough = threading.Event()
    members = [threading.Thread(target=work, args=(name, done, enough)) for name in ("first", "second")]
    for member in members:
        member.start()
    if not enough.wait(60):
        enough.set()
        raise SystemExit(f"only {done.total()} orders within a minute")
    for member in members:
        member.join()
    print(", ".join(f"the {name} worked off {count}" for name, count in sorted(done.items())))


if __name__ == "__main__":
    main()
