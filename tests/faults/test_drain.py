"""SIGTERM under load: every request that an agent has taken is answered, and no acknowledged record is lost."""

import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.conftest import LEASES, create_topic
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.faults.wire import Batch, ConnectionEnded, Wire, fetch, produce, record
from tests.seeds import seeds
from tidelog.stack import Stack

PARTITIONS = 4
IN_FLIGHT = 50

pytestmark = pytest.mark.faults


def test_drains_under_load_lose_nothing_and_refuse_nothing(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(agents=2, agent_environment=LEASES)
    (seed,) = seeds(1)
    chance = random.Random(seed)
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    ledger = Ledger(Contents(seed, PARTITIONS))
    with Load(LoadSettings(servers=stack.addresses.bootstrap, topic=topic), ledger) as load:
        for victim in (0, 1, 0):
            load.wait_for_acknowledgements(100, 60.0)
            time.sleep(chance.uniform(0.0, 0.3))
            stack.agents[victim].signal(signal.SIGTERM)
            assert stack.agents[victim].join(30.0), "the agent did not end"
            assert stack.agents[victim].exit_status == 0
            stack.restart(victim)
        load.finish(90.0)


def test_every_request_taken_before_the_drain_is_answered(new_stack: Callable[..., Stack]) -> None:
    """A long linger keeps all of them waiting when the signal comes; a fetch that waits for records is among them."""
    stack = new_stack(
        agents=1, zones=("a",), agent_environment={"TIDELOG_LINGER_MS": "5000", "TIDELOG_PUT_BUDGET_BURST": "1"}
    )
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    kafka = stack.agents[0].address
    with Wire((kafka.host, kafka.kafka_port)) as producer, Wire((kafka.host, kafka.kafka_port)) as consumer:
        for _ in range(3):  # spends what the PUT budget has saved
            producer.ask(*produce(topic, [(0, Batch().encoded())]))
        for number in range(IN_FLIGHT):
            request, response = produce(topic, [(1, Batch(records=record(b"%d" % number)).encoded())])
            producer.send_request(request)
        asked, fetched = fetch(topic, 3, 0, max_wait_ms=60_000)
        consumer.send_request(asked)
        time.sleep(1.0)

        stack.agents[0].signal(signal.SIGTERM)

        offsets = [producer.answer(response).responses[0].partition_responses[0] for _ in range(IN_FLIGHT)]
        assert [(answer.error_code, answer.base_offset) for answer in offsets] == [(0, n) for n in range(IN_FLIGHT)]
        assert consumer.answer(fetched).responses[0].partitions[0].error_code == 0
        with pytest.raises(ConnectionEnded):
            producer.receive()
    assert stack.agents[0].join(30.0), "the agent did not end"
    assert stack.agents[0].exit_status == 0

    stack.restart(0)
    with Wire((kafka.host, kafka.kafka_port)) as reader:
        (answered,) = reader.ask(*fetch(topic, 1, 0)).responses
        assert answered.partitions[0].high_watermark == IN_FLIGHT
