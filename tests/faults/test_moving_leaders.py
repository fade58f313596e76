"""Idempotent producers of two libraries, five requests in flight each, while the agents that their partitions
lead to come and go: drained, added, killed, and stopped for longer than their lease.

Afterwards every acknowledged record is there once and in order, and no producer saw an error: not one that it
gives up on, not one that it takes for the end of its sequence.
"""

import signal
import time
from collections.abc import Callable

import pytest

from tests.clients.adapters import Confluent
from tests.faults.conftest import LEASES, create_topic
from tests.faults.java_producer import JavaProducer, check_log
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.support.java import Java
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

PARTITIONS = 6
STOPPED_S = 6.0
"""Twice the lease: others take its place, and clients' requests to it time out, before it goes on."""
REQUEST_TIMEOUT_MS = 4_000

pytestmark = pytest.mark.faults


def drain_and_add(stack: Stack, index: int) -> None:
    """Its partitions go to others, then to it again, from agents that live on."""
    stack.agents[index].signal(signal.SIGTERM)
    assert stack.agents[index].join(60.0), "the agent did not end"
    stack.restart(index)


def kill_and_restart(stack: Stack, index: int) -> None:
    stack.kill(index)
    time.sleep(1.0)
    stack.restart(index)


def stop_for_longer_than_its_lease(stack: Stack, index: int) -> None:
    """When it continues, it may commit what it holds, although its clients have sent all of it to others by
    then.
    """
    stack.agents[index].signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    stack.agents[index].signal(signal.SIGCONT)


@pytest.mark.timeout(600)
def test_producers_with_five_in_flight_bear_agents_that_come_and_go(
    new_stack: Callable[..., Stack], java: Java
) -> None:
    stack = new_stack(agents=3, zones=("a",), agent_environment=LEASES)
    servers = stack.addresses.bootstrap
    topic, of_java = create_topic(servers, PARTITIONS), create_topic(servers, PARTITIONS)
    ledger = Ledger(Contents(seeds(1)[0], PARTITIONS, largest_value_bytes=200))
    timeouts = {"socket.timeout.ms": REQUEST_TIMEOUT_MS, "topic.metadata.refresh.interval.ms": 500}
    settings = LoadSettings(
        servers=servers, topic=topic, zones=("a", "a"), records_per_s=200.0, burst=2, client_settings=timeouts
    )
    refresh = {"metadata_max_age_ms": "500", "request_timeout_ms": str(REQUEST_TIMEOUT_MS)}
    with (
        Load(settings, ledger) as load,
        JavaProducer(java, servers, of_java, PARTITIONS, **refresh) as producer,
    ):
        for harm, victim in (
            (drain_and_add, 0),
            (kill_and_restart, 1),
            (stop_for_longer_than_its_lease, 2),
        ):
            load.wait_for_acknowledgements(100, 60.0)
            producer.wait_for_acknowledgements(100, 60.0)
            harm(stack, victim)
        load.wait_for_acknowledgements(200, 60.0)
        producer.wait_for_acknowledgements(200, 60.0)
        load.finish(90.0)
        acknowledged = producer.finish(60.0)
    read = Confluent().consume(servers, [of_java])

    print(
        f"librdkafka {[ledger.acknowledged_count(p.name) for p in load.producers]}, Java {len(acknowledged)}"
    )
    check_log(acknowledged, {partition: records for (_, partition), records in read.items()})
