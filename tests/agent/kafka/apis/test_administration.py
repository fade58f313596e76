"""The requests that a client sends first, in every version served: ApiVersions, Metadata, DescribeCluster,
FindCoordinator and InitProducerId.
"""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.agent.kafka.apis.administrative_requests import TIMEOUT, create
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, running, until_answered

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_names_every_api(wire: Wire, version: int) -> None:
    asked = request(
        18, version, client_software_name="test", client_software_version="1", cluster_id=None, node_id=-1
    )

    answer = await wire.ask(asked)

    assert answer.error_code is ErrorCode.none
    assert {0, 1, 2, 3, 18} <= {api.api_key for api in answer.api_keys}


async def test_api_versions_in_an_unknown_version_is_answered_in_version_0(wire: Wire) -> None:
    wire.writer.write(
        (14).to_bytes(4, "big") + b"\x00\x12\x00\x63\x00\x00\x00\x05\x00\x00" + b"\x00\x01\x02\x03"
    )

    frame = await wire.receive_frame()

    assert frame[:6] == b"\x00\x00\x00\x05" + ErrorCode.unsupported_version.to_bytes(2, "big")


@pytest.mark.parametrize("version", range(14))
async def test_metadata_names_the_agent_as_leader_of_every_partition(
    agent: Running, wire: Wire, version: int
) -> None:
    topic = await create(wire, f"metadata-{version}", num_partitions=3)

    answer = await wire.ask(a_metadata(topic.name, version=version))

    [broker] = answer.brokers
    assert (broker.host, broker.port) == ("127.0.0.1", agent.app.kafka_port)
    assert getattr(broker, "rack", "a") == "a"
    assert len(getattr(answer, "cluster_id", "x" * 22)) == 22
    [found] = answer.topics
    assert (found.error_code, found.name) == (ErrorCode.none, topic.name)
    assert [
        (
            part.partition_index,
            part.leader_id,
            part.replica_nodes,
            part.isr_nodes,
            getattr(part, "leader_epoch", 0),
        )
        for part in found.partitions
    ] == [(number, broker.node_id, (broker.node_id,), (broker.node_id,), 0) for number in range(3)]


@pytest.mark.parametrize("version", [10, 12, 13])
async def test_metadata_by_topic_id(wire: Wire, version: int) -> None:
    topic = await create(wire, f"by-id-{version}")
    asked = [
        {"name": "", "topic_id": topic.topic_id},
        {"name": None, "topic_id": UUID(int=5)},
    ]  # "": as Java sends it

    answer = await wire.ask(request(3, 12, topics=asked, include_topic_authorized_operations=False))

    assert {(found.topic_id, found.error_code) for found in answer.topics} == {
        (topic.topic_id, ErrorCode.none),
        (UUID(int=5), ErrorCode.unknown_topic_id),
    }


@pytest.mark.parametrize(("version", "topics"), [(0, ()), (1, None), (9, None), (13, None)])
async def test_metadata_of_all_topics(wire: Wire, version: int, topics: Any) -> None:
    await create(wire, "one-of-all")
    flags = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}

    answer = await wire.ask(request(3, version, topics=topics, **flags))

    assert "one-of-all" in {topic.name for topic in answer.topics}


async def test_metadata_of_no_topics_names_the_agents_alone(wire: Wire) -> None:
    answer = await wire.ask(a_metadata(version=9))

    assert (len(answer.brokers), answer.topics) == (1, ())


async def test_a_topic_is_created_on_demand_where_client_and_agent_allow_it(
    module_database_url: str, wire: Wire
) -> None:
    refused = await wire.ask(a_metadata("on-demand", create=False))
    created = await wire.ask(a_metadata("on-demand"))
    illegal = await wire.ask(a_metadata("not a name!"))
    async with running(module_database_url, auto_create_topics=False, zone="b") as strict:
        other = await Wire.connect(strict.app.kafka_port)
        forbidden = await other.ask(a_metadata("on-demand-2"))
        other.close()
    await until_answered(lambda: _is_alone(wire))  # as the tests that follow expect

    codes = [answer.topics[0].error_code for answer in (refused, created, illegal, forbidden)]
    assert codes == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
        ErrorCode.unknown_topic_or_partition,
    ]


async def _is_alone(wire: Wire) -> bool:
    return len((await wire.ask(a_metadata("on-demand"))).brokers) == 1


async def test_a_topic_wanted_by_many_at_once_is_created_once(agent: Running) -> None:
    wires = [await Wire.connect(agent.app.kafka_port) for _ in range(8)]

    answers = await asyncio.gather(*(wire.ask(a_metadata("wanted", version=12)) for wire in wires))

    assert {answer.topics[0].error_code for answer in answers} == {ErrorCode.none}
    assert len({answer.topics[0].topic_id for answer in answers}) == 1
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(agent: Running, wire: Wire, version: int) -> None:
    flags = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}

    answer = await wire.ask(request(60, version, **flags))

    assert answer.error_code is ErrorCode.none
    assert [(broker.port, broker.rack) for broker in answer.brokers] == [(agent.app.kafka_port, "a")]
    if version >= 1:
        controllers = await wire.ask(request(60, version, endpoint_type=2, **flags))
        assert controllers.error_code is ErrorCode.mismatched_endpoint_type
        strange = await wire.ask(request(60, version, endpoint_type=7, **flags))
        assert strange.error_code is ErrorCode.unsupported_endpoint_type


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_the_agent_for_groups_and_transactions(
    agent: Running, wire: Wire, version: int
) -> None:
    async def find(key_type: int) -> Any:
        answer = await wire.ask(request(10, version, key="k", coordinator_keys=("k",), key_type=key_type))
        return answer.coordinators[0] if version >= 4 else answer

    group = await find(0)
    assert (group.error_code, group.port) == (ErrorCode.none, agent.app.kafka_port)
    if version >= 1:
        transaction = await find(1)
        assert (transaction.error_code, transaction.port) == (ErrorCode.none, agent.app.kafka_port)
        assert (await find(2)).error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(wire: Wire, version: int) -> None:
    async def init(**values: Any) -> Any:
        given = {"transactional_id": None, "transaction_timeout": TIMEOUT, **values}
        return await wire.ask(request(22, version, **given))

    first, second = await init(), await init()
    name = f"tx-{version}"
    transactional = await init(transactional_id=name, transaction_timeout=timedelta(minutes=1))
    too_long = await init(transactional_id=name, transaction_timeout=timedelta(minutes=16))

    assert first.producer_id != second.producer_id
    assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
    assert (transactional.error_code, transactional.producer_epoch) == (ErrorCode.none, 0)
    assert (too_long.error_code, too_long.producer_id) == (ErrorCode.invalid_transaction_timeout, -1)
    if version >= 3:
        bumped = await init(producer_id=first.producer_id, producer_epoch=0)
        assert (bumped.producer_id, bumped.producer_epoch) == (first.producer_id, 1)
        assert (await init(producer_id=5, producer_epoch=-1)).error_code is ErrorCode.invalid_request
