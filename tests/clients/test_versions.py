"""Every version that an agent advertises is answered, in words that another implementation reads.

Requests and answers are kafka-python's message classes, up to the newest version that they know.
"""

from typing import Any

import pytest
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceRequest

from tests.clients.conftest import NewTopic
from tests.faults.wire import Batch, Wire, fetch, list_offsets, produce

NO_COORDINATOR_YET = 15  # COORDINATOR_NOT_AVAILABLE


@pytest.fixture(scope="module")
def advertised(zone_a: str) -> dict[int, range]:
    """Per API key the versions that the agent names."""
    with _connect(zone_a) as wire:
        answer = wire.ask(ApiVersionsRequest[0](), ApiVersionsResponse[0])
    return {key.api_key: range(key.min_version, key.max_version + 1) for key in answer.api_keys}


def _connect(servers: str) -> Wire:
    host, port = servers.split(":")
    return Wire((host, int(port)))


def _versions(advertised: dict[int, range], request: Any, first: int = 0) -> range:
    """Those that both sides know, from `first` on."""
    served = advertised[request.API_KEY]
    assert served.stop - 1 <= request.max_version, (
        f"{request.__name__}: advertised beyond what a client knows"
    )
    return range(max(served.start, first), served.stop)


def _metadata(topic: str, version: int) -> Any:
    return MetadataRequest[version](topics=[MetadataRequest.MetadataRequestTopic(name=topic)])


def test_api_versions(advertised: dict[int, range], zone_a: str) -> None:
    with _connect(zone_a) as wire:
        for version in _versions(advertised, ApiVersionsRequest):
            request = ApiVersionsRequest[version](client_software_name="old", client_software_version="1.0")
            answer = wire.ask(request, ApiVersionsResponse[version])
            assert answer.error_code == 0, version
            assert {key.api_key for key in answer.api_keys} == advertised.keys(), version


def test_metadata(advertised: dict[int, range], new_topic: NewTopic, zone_a: str) -> None:
    name = new_topic(3)
    with _connect(zone_a) as wire:
        for version in _versions(advertised, MetadataRequest):
            answer = wire.ask(_metadata(name, version), MetadataResponse[version])
            (topic,) = answer.topics
            assert (topic.error_code, topic.name, len(topic.partitions)) == (0, name, 3), version
            assert {broker.node_id for broker in answer.brokers} >= {p.leader_id for p in topic.partitions}, (
                version
            )
            everything = wire.ask(
                MetadataRequest[version](topics=None if version else []), MetadataResponse[version]
            )
            assert name in {found.name for found in everything.topics}, version


def test_produce_and_fetch(advertised: dict[int, range], new_topic: NewTopic, zone_a: str) -> None:
    name = new_topic(1)
    with _connect(zone_a) as wire:
        topic_id = wire.ask(_metadata(name, 12), MetadataResponse[12]).topics[0].topic_id
        sent = 0
        for version in _versions(advertised, ProduceRequest, first=3):
            request, response = produce(name, [(0, Batch().encoded())], version=version)
            request.topic_data[0].topic_id = topic_id
            answer = wire.ask(request, response).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, sent), version
            sent += 1
        for version in _versions(advertised, FetchRequest):
            request, response = fetch(name, 0, 0, version=version)
            request.topics[0].topic_id = topic_id
            partition = wire.ask(request, response).responses[0].partitions[0]
            assert (partition.error_code, partition.high_watermark) == (0, sent), version
            assert len(partition.records) == sent * len(Batch().encoded()), version


def test_list_offsets(advertised: dict[int, range], new_topic: NewTopic, zone_a: str) -> None:
    name = new_topic(1)
    with _connect(zone_a) as wire:
        wire.ask(*produce(name, [(0, Batch().encoded())]))
        for version in _versions(advertised, ListOffsetsRequest):
            for timestamp, offset in ((-1, 1), (-2, 0), (Batch().base_timestamp, 0)):
                partition = (
                    wire.ask(*list_offsets(name, 0, timestamp, version=version)).topics[0].partitions[0]
                )
                assert (partition.error_code, partition.offset) == (0, offset), (version, timestamp)


def test_init_producer_id(advertised: dict[int, range], zone_a: str) -> None:
    given = set()
    with _connect(zone_a) as wire:
        for version in _versions(advertised, InitProducerIdRequest):
            request = InitProducerIdRequest[version](transactional_id=None, transaction_timeout_ms=60_000)
            answer = wire.ask(request, InitProducerIdResponse[version])
            assert (answer.error_code, answer.producer_epoch) == (0, 0), version
            given.add(answer.producer_id)
    assert len(given) == len(_versions(advertised, InitProducerIdRequest)), "each has an id of its own"


def test_find_coordinator(advertised: dict[int, range], zone_a: str) -> None:
    with _connect(zone_a) as wire:
        for version in _versions(advertised, FindCoordinatorRequest):
            request = FindCoordinatorRequest[version](key="group", key_type=0, coordinator_keys=["group"])
            answer = wire.ask(request, FindCoordinatorResponse[version])
            found = answer.coordinators[0] if version >= 4 else answer
            assert found.error_code in (0, NO_COORDINATOR_YET), version


def test_topics_are_created_described_grown_and_deleted(advertised: dict[int, range], zone_a: str) -> None:
    with _connect(zone_a) as wire:
        for version in _versions(advertised, CreateTopicsRequest):
            name = f"version-{version}"
            topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            created = wire.ask(CreateTopicsRequest[version](topics=[topic]), CreateTopicsResponse[version])
            assert (created.topics[0].error_code, created.topics[0].name) == (0, name), version
        for version in _versions(advertised, CreatePartitionsRequest):
            grown = CreatePartitionsRequest.CreatePartitionsTopic(
                name=name, count=version + 2, assignments=None
            )
            request = CreatePartitionsRequest[version](topics=[grown], timeout_ms=10_000)
            assert wire.ask(request, CreatePartitionsResponse[version]).results[0].error_code == 0, version
        for version in _versions(advertised, DescribeConfigsRequest):
            asked = DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=name)
            request = DescribeConfigsRequest[version](resources=[asked])
            (described,) = wire.ask(request, DescribeConfigsResponse[version]).results
            assert described.error_code == 0, version
            assert "retention.ms" in {config.name for config in described.configs}, version
        for version in _versions(advertised, DeleteTopicsRequest):
            doomed = DeleteTopicsRequest.DeleteTopicState(name=f"version-{version + 1}", topic_id=None)
            request = DeleteTopicsRequest[version](
                topics=[doomed], topic_names=[doomed.name], timeout_ms=10_000
            )
            deleted = wire.ask(request, DeleteTopicsResponse[version])
            assert deleted.responses[0].error_code == 0, version


def test_describe_cluster(advertised: dict[int, range], zone_a: str) -> None:
    with _connect(zone_a) as wire:
        for version in _versions(advertised, DescribeClusterRequest):
            answer = wire.ask(DescribeClusterRequest[version](), DescribeClusterResponse[version])
            assert answer.error_code == 0, version
            assert {broker.rack for broker in answer.brokers} == {"a", "b"}, version
