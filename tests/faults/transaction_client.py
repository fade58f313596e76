"""A transactional producer of librdkafka that begins and ends although agents and Postgres are away."""

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.faults.transaction_history import End

TIMEOUT_S: Final = 30.0


def new_producer(servers: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 20_000,
            "linger.ms": 2,
            "log_level": 0,
        }
    )
    until = time.monotonic() + 120
    while True:
        try:
            producer.init_transactions(TIMEOUT_S)
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > until:
                raise
        else:
            return producer


def end_transaction(producer: Producer, *, aborts: bool) -> End:
    """Commits or aborts until the client says how the transaction ended, or that it cannot know."""
    until = time.monotonic() + 60
    while True:
        try:
            if aborts:
                producer.abort_transaction(TIMEOUT_S)
                return End.ABORTED
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException as failed:
            error: KafkaError = failed.args[0]
            if error.txn_requires_abort():
                aborts = True
            elif not error.retriable() or time.monotonic() > until:
                return End.UNKNOWN
        else:
            return End.COMMITTED
