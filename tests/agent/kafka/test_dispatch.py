"""Requests in, responses out, in every version served. Other bytes are a BadRequest and nothing worse."""

import io
import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from agent.error_codes import ProduceResult
from agent.kafka.api import Api
from agent.kafka.apis.produce.produce_bytes import ProduceResponse, ProduceResults, encode
from agent.kafka.dispatch import BadRequest, Dispatch
from agent.kafka.served import APIS
from agent.kafka.transport.vectored import Encoded
from agent.settings import AgentSettings
from storage.identifiers import Offset
from tests.agent.read_path.wire import request

DISPATCH = Dispatch(APIS, AgentSettings())
BY_KEY = {api.key: api for api in DISPATCH.apis}
EVERY_VERSION = [(api, version) for api in DISPATCH.apis for version in api.versions if api.serves(version)]


def a_frame(
    api_key: int, version: int, body: bytes = b"", flexible: bool = True, client_id: bytes = b"me"
) -> bytes:
    header = struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id
    return header + (b"\x00" if flexible else b"") + body


def encoded(payload: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(payload))(buffer, payload)
    return buffer.getvalue()


def a_produce(version: int, partitions: int, topics: int = 1) -> bytes:
    one = {"index": 0, "records": b"r"}
    asked = [{"name": "t", "topic_id": UUID(int=1), "partition_data": [one] * partitions}] * topics
    payload = request(
        0, version, acks=-1, timeout=timedelta(seconds=1), topic_data=asked, transactional_id=None
    )
    return a_frame(0, version, encoded(payload), payload.__flexible__)


KAFKA_4_1 = {
    "SaslHandshake": (0, 1),
    "SaslAuthenticate": (0, 2),
    "DescribeClientQuotas": (0, 1),
    "AlterClientQuotas": (0, 1),
    "DescribeUserScramCredentials": (0, 0),
    "AlterUserScramCredentials": (0, 0),
    "Produce": (0, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 10),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 9),
    "OffsetFetch": (1, 9),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "DescribeAcls": (1, 3),
    "CreateAcls": (1, 3),
    "DeleteAcls": (1, 3),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "DescribeLogDirs": (1, 4),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "ElectLeaders": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "OffsetDelete": (0, 0),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "ListConfigResources": (0, 1),
    "DescribeTopicPartitions": (0, 0),
}
"""What a broker of 4.1.0 answered to ApiVersions; Produce from 0 on for librdkafka (KAFKA-18659)."""
BEYOND = {
    "ListOffsets": (1, 11),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "GetTelemetrySubscriptions": (0, 0),
    "PushTelemetry": (0, 0),
    "StreamsGroupHeartbeat": (0, 0),
    "StreamsGroupDescribe": (0, 0),
}
"""Versions and APIs that 4.1 has and does not call stable, and telemetry, which it offers once it has a
receiver.
"""


def test_the_ranges_are_those_of_kafka_4() -> None:
    advertised = {api.name: (api.versions.start, api.versions.stop - 1) for api in DISPATCH.apis}

    assert advertised == KAFKA_4_1 | BEYOND


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_every_version_that_is_served_can_be_read_and_written(api: Api, version: int) -> None:
    assert load_request_schema(api.key, version).__version__ == version
    assert load_response_schema(api.key, version).__version__ == version


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_versions_that_are_only_advertised_are_refused(version: int) -> None:
    with pytest.raises(BadRequest, match="not served client_id='me'"):
        DISPATCH.decode(a_frame(0, version))


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    decoded = DISPATCH.decode(a_frame(18, 99, b"whatever"))

    assert (decoded.version, decoded.payload, decoded.correlation_id) == (0, None, 7)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_response_has_every_versions_fields_and_no_others(version: int) -> None:
    asked = DISPATCH.decode(a_produce(version, partitions=2))
    results = ProduceResults(
        written={0: (Offset(5), 1_700_000_000_123, None)},
        others={1: ProduceResult(code=ErrorCode.corrupt_message, message="it is broken")},
    )

    body = encode(ProduceResponse(topics=asked.payload.topics, results=results, throttle_ms=0), version)
    wire = b"".join(DISPATCH.encode(asked, Encoded(buffers=[body], size_bytes=len(body))))

    schema: Any = load_response_schema(0, version)
    header_bytes = 9 if schema.__header_schema__.__flexible__ else 8
    read, size = entity_reader(schema)(wire, header_bytes)
    good, bad = read.responses[0].partition_responses
    assert header_bytes + size == len(wire)
    assert (good.error_code, good.base_offset, good.log_append_time.timestamp()) == (0, 5, 1_700_000_000.123)
    assert (bad.error_code, bad.base_offset) == (ErrorCode.corrupt_message, -1)
    assert getattr(bad, "error_message", "it is broken") == "it is broken"
    # An explicit leader of -1 would be news to a client. A field left out is not.
    assert encoded(read) == wire[header_bytes:]
    assert len(wire) < 150


@given(key=st.sampled_from(sorted(BY_KEY)), data=st.data())
def test_garbage_is_a_bad_request_and_nothing_worse(key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([*BY_KEY[key].versions, -1, 32767]))
    frame = struct.pack(">hhi", key, version, 1) + data.draw(st.binary(max_size=80))

    try:
        decoded = DISPATCH.decode(frame)
    except BadRequest:
        return
    assert decoded.size_bytes == len(frame)


def test_a_request_for_an_unknown_api_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="api key 9999"):
        DISPATCH.decode(a_frame(9999, 0))


@pytest.mark.parametrize("count", [b"\x21", b"\xff\xff\x7f"])
def test_a_header_full_of_tagged_fields_is_a_bad_request(count: bytes) -> None:
    header = struct.pack(">hhih", 0, 9, 7, 2) + b"me" + count

    with pytest.raises(BadRequest, match="too many tagged fields"):
        DISPATCH.decode(header + b"\x01\x00" * 2_097_151)


def test_a_client_id_that_is_not_utf8_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="ApiVersions"):
        DISPATCH.decode(a_frame(18, 0, flexible=False, client_id=b"\xff\xfe"))


def test_a_large_request_that_is_no_produce_is_refused_before_it_is_decoded() -> None:
    dispatch = Dispatch(APIS, AgentSettings(max_control_request_bytes=1024))

    with pytest.raises(BadRequest, match="max_control_request_bytes"):
        dispatch.decode(a_frame(3, 9, b"\x00" * 1024))


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 51), (51, 1), (51, 0), (10, 6)])
def test_a_produce_naming_too_many_partitions_is_refused_before_it_is_decoded(
    version: int, topics: int, partitions: int
) -> None:
    dispatch = Dispatch(APIS, AgentSettings(max_partitions_per_request=50))

    with pytest.raises(BadRequest, match="more than 50 partitions"):
        dispatch.decode(a_produce(version, partitions, topics))
    assert dispatch.decode(a_produce(version, 10, 5)).payload.topics
