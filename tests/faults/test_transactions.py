"""Transactions while agents and Postgres are killed, agents frozen and producers replaced: each is seen whole
or not at all, and what is read, processed and written in transactions is there once.
"""

import random
import time
from collections.abc import Callable

import pytest

from tests.faults.conftest import LEASES, create_topic
from tests.faults.transaction_history import End, faults, faults_of_processing
from tests.faults.transaction_load import (
    PARTITIONS,
    Habits,
    Processor,
    Reader,
    Writer,
    harm,
    read_all,
    read_processed,
)
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

PRODUCERS = 4
PROCESSORS = 2
ENVIRONMENT = {
    **LEASES,
    "TIDELOG_TRANSACTION_TIMEOUT_INTERVAL_S": "0.5",
}

pytestmark = pytest.mark.faults


@pytest.mark.timeout(600)
def test_transactions_are_whole_and_processing_is_exactly_once_under_faults(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack(agents=2, agent_environment=ENVIRONMENT)
    servers = stack.addresses.bootstrap
    topic, *sinks = (create_topic(servers, PARTITIONS) for _ in range(3))
    [seed] = seeds(1)
    chance, habits = random.Random(seed), Habits()
    writers = [Writer(servers, topic, f"p{number}", seed + number, habits) for number in range(PRODUCERS)]
    processors = [
        Processor(servers, topic, sinks, f"{number}", seed - number, habits) for number in range(PROCESSORS)
    ]
    reader = Reader(servers, topic)
    for thread in (*writers, *processors, reader):
        thread.start()

    for kind in ("kill", "freeze", "postgres", "kill"):
        time.sleep(chance.uniform(2.0, 4.0))
        harm(stack, kind, chance)
    time.sleep(2.0)
    for writer in writers:
        writer.stop()
        writer.end_what_is_open()
    final = read_all(servers, topic, "read_committed")
    written = read_processed(servers, sinks, len(final))
    reader.stop()
    for processor in processors:
        processor.stop()

    transactions = [transaction for writer in writers for transaction in writer.done]
    committed = sum(transaction.end is End.COMMITTED for transaction in transactions)
    print(
        f"{len(transactions)} transactions, {committed} committed, "
        f"{sum(writer.zombies_refused for writer in writers)} of zombies refused; "
        f"{len(reader.seen)} of {len(final)} records read along; "
        f"{sum(processor.committed for processor in processors)} transactions of processors, "
        f"{sum(processor.refused for processor in processors)} refused"
    )
    assert faults(transactions, final, [reader.seen]) == []
    assert faults_of_processing(final, written) == []
    assert committed > 50
    everything = read_all(servers, topic, "read_uncommitted")
    assert any("was aborted" in fault for fault in faults(transactions, everything)), (
        "the checker sees aborts"
    )
