"""Metadata and the administrative APIs by hand, in every version served, and what each refuses."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMEOUT = timedelta(seconds=5)


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


async def create(wire: Wire, name: str, *, version: int = 7, validate_only: bool = False, **values: Any) -> Any:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 3,
        "assignments": (),
        "configs": [],
        **values,
    }
    answer = await wire.ask(request(19, version, topics=[topic], timeout=TIMEOUT, validate_only=validate_only))
    return answer.topics[0]


async def delete(wire: Wire, version: int, **topic: Any) -> Any:
    if version >= 6:
        asked = request(20, version, topics=[{"name": None, "topic_id": None, **topic}], timeout=TIMEOUT)
    else:
        asked = request(20, version, topic_names=(topic["name"],), timeout=TIMEOUT)
    return (await wire.ask(asked)).responses[0]


async def alter(wire: Wire, name: str, *configs: tuple[str, int, str | None], version: int = 1, **values: Any) -> Any:
    changes = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs]
    resource = {"resource_type": 2, "resource_name": name, "configs": changes, **values.pop("resource", {})}
    asked = request(44, version, resources=[resource], **{"validate_only": False, **values})
    return (await wire.ask(asked)).responses[0]


async def describe(wire: Wire, name: str, *, version: int = 4, kind: int = 2, keys: Any = None) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    asked = request(32, version, resources=[resource], include_synonyms=True, include_documentation=True)
    return (await wire.ask(asked)).results[0]


async def grow(wire: Wire, name: str, count: int, *, version: int = 3, **values: Any) -> Any:
    topic = {"name": name, "count": count, "assignments": None, **values.pop("topic", {})}
    asked = request(37, version, topics=[topic], timeout=TIMEOUT, **{"validate_only": False, **values})
    return (await wire.ask(asked)).results[0]


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_names_every_api(wire: Wire, version: int) -> None:
    asked = request(18, version, client_software_name="test", client_software_version="1", cluster_id=None, node_id=-1)

    answer = await wire.ask(asked)

    assert answer.error_code is ErrorCode.none
    assert {0, 1, 2, 3, 18} <= {api.api_key for api in answer.api_keys}


async def test_api_versions_in_an_unknown_version_is_answered_in_version_0(wire: Wire) -> None:
    wire.writer.write((14).to_bytes(4, "big") + b"\x00\x12\x00\x63\x00\x00\x00\x05\x00\x00" + b"\x00\x01\x02\x03")

    frame = await wire.receive_frame()

    assert frame[:6] == b"\x00\x00\x00\x05" + ErrorCode.unsupported_version.to_bytes(2, "big")


@pytest.mark.parametrize("version", range(14))
async def test_metadata_names_the_agent_as_leader_of_every_partition(agent: Running, wire: Wire, version: int) -> None:
    topic = await create(wire, f"metadata-{version}", num_partitions=3)

    answer = await wire.ask(a_metadata(topic.name, version=version))

    [broker] = answer.brokers
    assert (broker.host, broker.port) == ("127.0.0.1", agent.app.kafka_port)
    assert getattr(broker, "rack", "a") == "a"
    assert len(getattr(answer, "cluster_id", "x" * 22)) == 22
    [found] = answer.topics
    assert (found.error_code, found.name) == (ErrorCode.none, topic.name)
    assert [
        (part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes, getattr(part, "leader_epoch", 0))
        for part in found.partitions
    ] == [(number, broker.node_id, (broker.node_id,), (broker.node_id,), 0) for number in range(3)]


@pytest.mark.parametrize("version", [10, 12, 13])
async def test_metadata_by_topic_id(wire: Wire, version: int) -> None:
    topic = await create(wire, f"by-id-{version}")
    asked = [{"name": None, "topic_id": topic.topic_id}, {"name": None, "topic_id": UUID(int=5)}]

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

    codes = [answer.topics[0].error_code for answer in (refused, created, illegal, forbidden)]
    assert codes == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
        ErrorCode.unknown_topic_or_partition,
    ]


async def test_a_topic_wanted_by_many_at_once_is_created_once(agent: Running) -> None:
    wires = [await Wire.connect(agent.app.kafka_port) for _ in range(8)]

    answers = await asyncio.gather(*(wire.ask(a_metadata("wanted", version=12)) for wire in wires))

    assert {answer.topics[0].error_code for answer in answers} == {ErrorCode.none}
    assert len({answer.topics[0].topic_id for answer in answers}) == 1
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(wire: Wire, version: int) -> None:
    configs = [{"name": "retention.ms", "value": "1000"}]

    created = await create(wire, f"created-{version}", version=version, num_partitions=4, configs=configs)
    again = await create(wire, f"created-{version}", version=version)

    assert created.error_code is ErrorCode.none
    assert again.error_code is ErrorCode.topic_already_exists
    found = await wire.ask(a_metadata(f"created-{version}"))
    assert len(found.topics[0].partitions) == 4
    if version >= 5:
        assert {config.name: config.value for config in created.configs}["retention.ms"] == "1000"
        assert created.num_partitions == 4


@pytest.mark.parametrize(
    ("values", "code", "reason"),
    [
        ({"name": "no/good"}, ErrorCode.invalid_topic_exception, "illegal"),
        ({"num_partitions": 0}, ErrorCode.invalid_partitions, "partition"),
        ({"num_partitions": 10_001}, ErrorCode.invalid_partitions, "10000"),
        ({"configs": [{"name": "cleanup.policy", "value": "compact"}]}, ErrorCode.invalid_config, "compact"),
        ({"configs": [{"name": "no.such", "value": "1"}]}, ErrorCode.invalid_config, "no.such"),
        (
            {"assignments": [{"partition_index": 0, "broker_ids": (1,)}]},
            ErrorCode.invalid_replica_assignment,
            "assigned",
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_create_topics_refuses_with_a_reason(
    wire: Wire, values: dict[str, Any], code: ErrorCode, reason: str, validate_only: bool
) -> None:
    answer = await create(wire, **{"name": "refused", **values}, validate_only=validate_only)

    assert answer.error_code is code
    assert reason in answer.error_message


async def test_a_topic_named_twice_in_a_request_is_refused(wire: Wire) -> None:
    topic = {"name": "twice", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}

    answer = await wire.ask(request(19, 7, topics=[topic, topic], timeout=TIMEOUT, validate_only=False))

    assert {found.error_code for found in answer.topics} == {ErrorCode.invalid_request}


async def test_validate_only_creates_nothing(wire: Wire) -> None:
    answer = await create(wire, "not-really", validate_only=True)

    assert answer.error_code is ErrorCode.none
    found = await wire.ask(a_metadata("not-really", create=False))
    assert found.topics[0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics(wire: Wire, version: int) -> None:
    await create(wire, f"doomed-{version}")

    gone = await delete(wire, version, name=f"doomed-{version}")
    again = await delete(wire, version, name=f"doomed-{version}")

    assert [gone.error_code, again.error_code] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


async def test_delete_topics_by_id(wire: Wire) -> None:
    topic = await create(wire, "doomed-by-id")

    gone = await delete(wire, 6, topic_id=topic.topic_id)
    unknown = await delete(wire, 6, topic_id=uuid4())

    assert (gone.error_code, gone.name) == (ErrorCode.none, "doomed-by-id")
    assert unknown.error_code is ErrorCode.unknown_topic_id


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(wire: Wire, version: int) -> None:
    name = f"grown-{version}"
    await create(wire, name, num_partitions=2)

    answers = [
        await grow(wire, name, 3, version=version, validate_only=True),
        await grow(wire, name, 4, version=version),
        await grow(wire, name, 4, version=version),
        await grow(wire, "nowhere", 4, version=version),
        await grow(wire, name, 20_000, version=version),
        await grow(wire, name, 5, version=version, topic={"assignments": [{"broker_ids": (1,)}]}),
    ]

    assert [answer.error_code for answer in answers] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.invalid_partitions,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_replica_assignment,
    ]
    assert len((await wire.ask(a_metadata(name))).topics[0].partitions) == 4


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_configs_says_what_was_set_and_what_is_default(wire: Wire, version: int) -> None:
    name = f"described-{version}"
    await create(wire, name, configs=[{"name": "retention.ms", "value": "5"}])

    configs = {config.name: config for config in (await describe(wire, name, version=version)).configs}

    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", 5)
    assert [step.source for step in configs["retention.ms"].synonyms] == [1, 5]


async def test_describe_configs_of_one_key_of_a_broker_and_of_nothing(wire: Wire) -> None:
    await create(wire, "described")

    one = await describe(wire, "described", keys=("retention.bytes",))
    broker = await describe(wire, "1", kind=4)
    missing = await describe(wire, "nowhere")
    strange = await describe(wire, "x", kind=16)

    assert [config.name for config in one.configs] == ["retention.bytes"]
    assert (broker.error_code, broker.configs) == (ErrorCode.none, ())
    assert missing.error_code is ErrorCode.unknown_topic_or_partition
    assert strange.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(2))
async def test_incremental_alter_configs(wire: Wire, version: int) -> None:
    name = f"altered-{version}"
    await create(wire, name, configs=[{"name": "retention.bytes", "value": "7"}])

    answers = [
        await alter(wire, name, ("retention.ms", 0, "9"), ("retention.bytes", 1, None), version=version),
        await alter(wire, name, ("retention.ms", 0, "10"), version=version, validate_only=True),
        await alter(wire, name, ("retention.ms", 2, "1"), version=version),
        await alter(wire, name, ("cleanup.policy", 0, "compact"), version=version),
        await alter(wire, "nowhere", ("retention.ms", 0, "9"), version=version),
        await alter(wire, "nowhere", version=version, validate_only=True),
        await alter(wire, "1", version=version, resource={"resource_type": 4}),
    ]

    assert [answer.error_code for answer in answers] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.invalid_config,
        ErrorCode.invalid_config,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
    ]
    configs = {config.name: config.value for config in (await describe(wire, name)).configs}
    assert (configs["retention.ms"], configs["retention.bytes"]) == ("9", "-1")


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(agent: Running, wire: Wire, version: int) -> None:
    flags = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}

    answer = await wire.ask(request(60, version, **flags))

    assert answer.error_code is ErrorCode.none
    assert [(broker.port, broker.rack) for broker in answer.brokers] == [(agent.app.kafka_port, "a")]
    if version >= 1:
        controllers = await wire.ask(request(60, version, endpoint_type=2, **flags))
        assert controllers.error_code is ErrorCode.unsupported_endpoint_type


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_the_agent_for_groups_and_refuses_transactions(
    agent: Running, wire: Wire, version: int
) -> None:
    async def find(key_type: int) -> Any:
        answer = await wire.ask(request(10, version, key="k", coordinator_keys=("k",), key_type=key_type))
        return answer.coordinators[0] if version >= 4 else answer

    group = await find(0)
    assert (group.error_code, group.port) == (ErrorCode.none, agent.app.kafka_port)
    if version >= 1:
        refused = await find(1)
        assert refused.error_code is ErrorCode.transactional_id_authorization_failed
        assert "transaction" in refused.error_message
        assert (await find(2)).error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(wire: Wire, version: int) -> None:
    async def init(**values: Any) -> Any:
        given = {"transactional_id": None, "transaction_timeout": TIMEOUT, **values}
        return await wire.ask(request(22, version, **given))

    first, second = await init(), await init()
    refused = await init(transactional_id="tx")

    assert first.producer_id != second.producer_id
    assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
    assert (refused.error_code, refused.producer_id) == (ErrorCode.transactional_id_authorization_failed, -1)
    if version >= 3:
        bumped = await init(producer_id=first.producer_id, producer_epoch=0)
        assert (bumped.producer_id, bumped.producer_epoch) == (first.producer_id, 1)
        assert (await init(producer_id=5, producer_epoch=-1)).error_code is ErrorCode.invalid_request
