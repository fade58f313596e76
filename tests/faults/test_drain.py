"""SIGTERM under load: every request that an agent has taken is answered, and no acknowledged record is
lost.
"""

import random
import signal
import time
from collections.abc import Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.conftest import LEASES, create_topic
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.faults.wire import Batch, ConnectionEnded, Wire, fetch, produce, record
from tests.support.seeds import seeds
from tests.support.waiting import wait_until
from tidelog.devstack.stack import AgentProcess, Stack

PARTITIONS = 4
IN_FLIGHT = 50
PATIENT = {"TIDELOG_DRAIN_TIMEOUT_S": "50"}

pytestmark = pytest.mark.faults


def test_drains_under_load_lose_nothing_and_refuse_nothing(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(agents=2, agent_environment={**LEASES, **PATIENT})
    (seed,) = seeds(1)
    chance = random.Random(seed)
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    ledger = Ledger(Contents(seed, PARTITIONS))
    with Load(LoadSettings(servers=stack.addresses.bootstrap, topic=topic), ledger) as load:
        for victim in (0, 1, 0):
            load.wait_for_acknowledgements(100, 60.0)
            time.sleep(chance.uniform(0.0, 0.3))
            stack.agents[victim].signal(signal.SIGTERM)
            assert stack.agents[victim].join(60.0), "the agent did not end"
            assert stack.agents[victim].exit_status == 0
            stack.restart(victim)
        load.finish(90.0)


def test_every_request_taken_before_the_drain_is_answered(new_stack: Callable[..., Stack]) -> None:
    """A long linger keeps all of them waiting when the signal comes; a fetch that waits for records is among
    them.
    """
    slow = {
        "TIDELOG_LINGER_MS": "100000",
        "TIDELOG_INTERACTIVE_WAIT_S": "101",
        "TIDELOG_PUT_BUDGET_BURST": "1",
        "TIDELOG_PUT_BUDGET_PER_S": "0.001",
    }
    stack = new_stack(agents=1, zones=("a",), agent_environment={**PATIENT, **slow})
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    kafka = stack.agents[0].address
    with Wire((kafka.host, kafka.kafka_port)) as producer, Wire((kafka.host, kafka.kafka_port)) as consumer:
        producer.ask(*produce(topic, [(0, Batch().encoded())]))  # takes the only token of the PUT budget
        for number in range(IN_FLIGHT):
            request, response = produce(topic, [(1, Batch(records=record(b"%d" % number)).encoded())])
            producer.send_request(request)
        asked, fetched = fetch(topic, 3, 0, max_wait_ms=60_000)
        consumer.send_request(asked)
        wait_until(lambda: _taken(stack.agents[0]) == {"Produce": 1 + IN_FLIGHT, "Fetch": 1}, timeout_s=60.0)

        stack.agents[0].signal(signal.SIGTERM)

        offsets = [producer.answer(response).responses[0].partition_responses[0] for _ in range(IN_FLIGHT)]
        assert [(answer.error_code, answer.base_offset) for answer in offsets] == [
            (0, n) for n in range(IN_FLIGHT)
        ]
        assert consumer.answer(fetched).responses[0].partitions[0].error_code == 0
        with pytest.raises(ConnectionEnded):
            producer.receive()
    assert stack.agents[0].join(60.0), "the agent did not end"
    assert stack.agents[0].exit_status == 0

    stack.restart(0)
    with Wire((kafka.host, kafka.kafka_port)) as reader:
        (answered,) = reader.ask(*fetch(topic, 1, 0)).responses
        assert answered.partitions[0].high_watermark == IN_FLIGHT


def _taken(agent: AgentProcess) -> dict[str, float]:
    """How many requests to write and to read the agent has begun."""
    said = httpx.get(f"{agent.address.http_url}/metrics", timeout=30.0).text
    families = {family.name: family for family in text_string_to_metric_families(said)}
    counts = {sample.labels["api"]: sample.value for sample in families["tidelog_requests"].samples}
    return {api: counts.get(api, 0.0) for api in ("Produce", "Fetch")}
