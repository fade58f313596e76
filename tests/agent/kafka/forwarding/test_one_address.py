"""Behind one address: the agents that clients see. No client is redirected
(docs/design/zones.md#one-address-mode).
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from agent.settings import AgentSettings, split_address
from tests.agent.read_path.wire import a_fetch, request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, running
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADDRESS = "balancer.example:9092"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents(module_database_url: str) -> AsyncIterator[tuple[Running, Running]]:
    """One in zone a, one in zone b, that know each other."""
    async with (
        running(module_database_url, one_address=ADDRESS, zone="a") as first,
        running(module_database_url, one_address=ADDRESS, zone="b") as second,
    ):
        await until(lambda: first.agents_seen == second.agents_seen == 2)
        yield first, second


async def test_every_agent_names_the_one_address_as_the_one_node(agents: tuple[Running, Running]) -> None:
    for agent in agents:
        wire = await Wire.connect(agent.app.kafka_port)
        metadata = await wire.ask(a_metadata("named"), "x,tidelog_zone=b")
        cluster = await wire.ask(
            request(
                60,
                2,
                include_cluster_authorized_operations=False,
                endpoint_type=1,
                include_fenced_brokers=False,
            )
        )
        coordinator = await wire.ask(request(10, 4, key_type=0, coordinator_keys=("a-group", "another")))
        wire.close()

        assert [(b.node_id, f"{b.host}:{b.port}", b.rack) for b in metadata.brokers] == [(0, ADDRESS, None)]
        assert metadata.controller_id == cluster.controller_id == 0
        [partition] = metadata.topics[0].partitions
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, (0,), (0,))
        assert [(b.broker_id, f"{b.host}:{b.port}", b.rack) for b in cluster.brokers] == [(0, ADDRESS, None)]
        assert [(c.node_id, f"{c.host}:{c.port}") for c in coordinator.coordinators] == [(0, ADDRESS)] * 2


async def test_any_agent_takes_any_produce_and_any_fetch_at_once(agents: tuple[Running, Running]) -> None:
    first = await Wire.connect(agents[0].app.kafka_port)
    topic = (await first.ask(a_metadata("anywhere", version=12))).topics[0]
    first.close()
    for number, agent in enumerate(agents):
        wire = await Wire.connect(agent.app.kafka_port)
        produced = partitions_of(await wire.ask(a_produce("anywhere", {0: a_batch(b"x")})))[0]
        fetched = await wire.ask(a_fetch(12, topic, number, rack_id="b", max_wait=timedelta(seconds=5)))
        wire.close()

        assert (produced.error_code, produced.base_offset) == (ErrorCode.none, number)
        [found] = fetched.responses[0].partitions
        assert (found.error_code, found.preferred_read_replica) == (ErrorCode.none, -1)
        assert found.records


@pytest.mark.parametrize("wrong", ["host", "host:", ":9092", "host:0", "host:65536", "host:x", "[]:1"])
async def test_an_invalid_address_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="is not host:port"):
        AgentSettings(one_address=wrong)


async def test_an_address_may_be_a_name_or_of_either_family() -> None:
    assert split_address("log.example:1") == ("log.example", 1)
    assert split_address("10.0.0.1:65535") == ("10.0.0.1", 65535)
    assert split_address("[fd00::1]:9092") == ("fd00::1", 9092)
