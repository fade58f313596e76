"""Many records fast, and each exactly once in the log, even if the client retries.

Tidelog uploads records of many producers together. So a producer is fast if it keeps batches in flight, and
slow if it waits for each record.
"""

import os
import time

from confluent_kafka import KafkaError, Message, Producer

BOOTSTRAP = os.environ.get("TIDELOG_BOOTSTRAP", "localhost:9092")
TOPIC = "example-measurements"
RECORDS = 100_000


def main() -> None:
    acknowledged = 0

    def tell(error: KafkaError | None, _: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            raise SystemExit(f"a record was not written: {error}")
        acknowledged += 1

    producer = Producer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "enable.idempotence": True,  # what is sent again is recognised
            "linger.ms": 50,  # larger batches: less work for everyone
            "batch.size": 1_000_000,
            "compression.type": "zstd",
        }
    )
    began_s = time.monotonic()
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(TOPIC, value=f"{number},{number % 97}", on_delivery=tell)
                break
            except BufferError:  # the client's queue is full: wait for answers
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(60)
    print(f"{acknowledged} records acknowledged in {time.monotonic() - began_s:.1f} s")
    if acknowledged != RECORDS:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
