"""Hand-written Produce requests and responses equal those of kio's reader and writer, in every version."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from agent.error_codes import ProduceResult
from agent.kafka.apis.produce.produce_bytes import (
    ProducedTopic,
    ProduceResponse,
    ProduceResults,
    WrittenBatch,
    encode,
    first_topic,
    read_request,
)
from agent.kafka.routing.current_leaders import NodeEndpoint
from storage.batches.batch_validation import InvalidRecord
from storage.identifiers import NodeId, Offset
from tests.agent.read_path.wire import request

VERSIONS = range(3, 14)
INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=200)

partitions = st.lists(st.tuples(INT32, st.none() | st.binary(max_size=200)), max_size=5)
topics = st.lists(st.tuples(NAMES, st.uuids(), partitions), max_size=5)


def encoded(payload: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(payload))(buffer, payload)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
@given(
    asked=topics,
    transactional_id=st.none() | NAMES,
    acks=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=INT32,
    before=st.binary(max_size=9),
    after=st.binary(max_size=9),
)
def test_a_request_is_read_as_it_was_written(
    version: int,
    asked: list[tuple[str, UUID, list[tuple[int, bytes | None]]]],
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    before: bytes,
    after: bytes,
) -> None:
    topic_data = [
        {
            "name": name,
            "topic_id": topic_id,
            "partition_data": [{"index": i, "records": data} for i, data in within],
        }
        for name, topic_id, within in asked
    ]
    written = request(
        0,
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(milliseconds=timeout_ms),
        topic_data=topic_data,
    )

    read = read_request(before + encoded(written) + after, len(before), version, 100)

    by_id = version >= 13
    assert (read.transactional_id, read.acks, read.timeout_s) == (transactional_id, acks, timeout_ms / 1000)
    assert [(topic.name, topic.topic_id, topic.partitions) for topic in read.topics] == [
        ("" if by_id else name, topic_id if by_id else None, tuple(index for index, _ in within))
        for name, topic_id, within in asked
    ]
    frame = read.take_frame()
    assert [bytes(frame[start:end]) for start, end in read.records] == [
        data or b"" for _, _, within in asked for _, data in within
    ]
    assert len(read.take_frame()) == 0


@given(body=st.binary(max_size=200), version=st.sampled_from(VERSIONS))
def test_garbage_is_an_error_or_a_request_of_its_size(body: bytes, version: int) -> None:
    try:
        read = read_request(body, 0, version, 10)
    except ValueError:
        return
    assert all(0 <= start <= end <= len(body) for start, end in read.records)
    assert len(read.records) <= 10


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_request_cut_short_is_an_error(version: int, data: st.DataObject) -> None:
    one = {"name": "orders", "topic_id": UUID(int=7), "partition_data": [{"index": 0, "records": b"records"}]}
    written = encoded(
        request(
            0, version, transactional_id=None, acks=-1, timeout=timedelta(seconds=1), topic_data=[one] * 2
        )
    )

    with pytest.raises(ValueError, match=r"early|beyond"):
        read_request(written[: data.draw(st.integers(0, len(written) - 1))], 0, version, 10)


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("at", ["partition", "topic", "request"])
def test_tagged_fields_are_skipped_and_bounded(version: int, at: str) -> None:
    """Each costs time on the event loop, whatever it is."""

    def written(count: int) -> bytes:
        tags = varint(count) + b"\x07\x01x" * count
        none = b"\x00"
        named = bytes(15) + b"\x07" if version >= 13 else b"\x02t"
        partition = bytes(4) + b"\x02r" + (tags if at == "partition" else none)
        topic = named + b"\x02" + partition + (tags if at == "topic" else none)
        return b"\x00" + bytes(6) + b"\x02" + topic + (tags if at == "request" else none)

    assert read_request(written(20), 0, version, 20).topics[0].partitions == (0,)
    with pytest.raises(ValueError, match="too many tagged fields"):
        read_request(written(21), 0, version, 20)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


TIMES = st.none() | st.integers(0, 4_000_000_000_000)
plain_results = st.builds(
    ProduceResult,
    code=st.just(ErrorCode.none),
    base_offset=st.integers(0, 2**63 - 1).map(Offset),
    log_append_time_ms=TIMES,
)
results = plain_results | st.builds(
    ProduceResult,
    code=st.sampled_from([ErrorCode.none, ErrorCode.invalid_record, ErrorCode.not_leader_or_follower]),
    base_offset=st.integers(-1, 2**63 - 1).map(Offset),
    log_start_offset=st.integers(-1, 2**63 - 1).map(Offset),
    log_append_time_ms=TIMES,
    message=st.none() | NAMES,
    records=st.lists(
        st.builds(InvalidRecord, index=st.integers(0, 2**31 - 1), message=NAMES), max_size=3
    ).map(tuple),
    leader=st.none() | st.integers(0, 2**31 - 1).map(NodeId),
)
endpoints = st.builds(
    NodeEndpoint,
    node_id=st.integers(0, 2**31 - 1).map(NodeId),
    host=NAMES,
    port=st.integers(1, 65_535),
    rack=st.none() | NAMES,
)


def sorted_out(each: list[ProduceResult]) -> ProduceResults:
    """Returns the request as a value if it has nothing but what was written."""
    written: dict[int, WrittenBatch] = {}
    others: dict[int, ProduceResult] = {}
    for number, result in enumerate(each):
        if result == ProduceResult(
            code=ErrorCode.none, base_offset=result.base_offset, log_append_time_ms=result.log_append_time_ms
        ):
            time_ms = -1 if result.log_append_time_ms is None else result.log_append_time_ms
            written[number] = (result.base_offset, time_ms, None)
        else:
            others[number] = result
    return ProduceResults(written=written, others=others)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    answered=st.lists(
        st.tuples(NAMES, st.uuids(), st.lists(st.tuples(INT32, results), max_size=4)), max_size=4
    ),
    throttle_ms=st.integers(0, 2**31 - 1),
    leaders=st.lists(endpoints, max_size=3).map(tuple),
)
def test_an_answer_is_read_as_it_was_written(
    version: int,
    answered: list[tuple[str, UUID, list[tuple[int, ProduceResult]]]],
    throttle_ms: int,
    leaders: tuple[NodeEndpoint, ...],
) -> None:
    answer = ProduceResponse(
        topics=[
            ProducedTopic(name=name, topic_id=topic_id, partitions=tuple(index for index, _ in within))
            for name, topic_id, within in answered
        ],
        results=sorted_out([result for _, _, within in answered for _, result in within]),
        throttle_ms=throttle_ms,
        leaders=leaders,
    )

    body = encode(answer, version)
    schema: Any = load_response_schema(0, version)
    read, size_bytes = entity_reader(schema)(body, 0)

    assert size_bytes == len(body)
    assert read.throttle_time == timedelta(milliseconds=throttle_ms)
    assert [topic.topic_id if version >= 13 else topic.name for topic in read.responses] == [
        topic_id if version >= 13 else name for name, topic_id, _ in answered
    ]
    told = [part for topic in read.responses for part in topic.partition_responses]
    for part, (index, result) in zip(told, [one for *_, within in answered for one in within], strict=True):
        check_result(part, index, result, version)
    if version >= 10:
        assert [(one.node_id, one.host, one.port, one.rack) for one in read.node_endpoints] == [
            (one.node_id, one.host, one.port, one.rack) for one in leaders
        ]


def check_result(part: Any, index: int, result: ProduceResult, version: int) -> None:
    time_ms = result.log_append_time_ms
    at = None if time_ms is None else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    assert (part.index, part.error_code, part.base_offset) == (index, result.code, result.base_offset)
    assert part.log_append_time == at
    if version >= 5:
        assert part.log_start_offset == result.log_start_offset
    if result.code is ErrorCode.none:
        return
    if version >= 8:
        errors = [(error.batch_index, error.batch_index_error_message) for error in part.record_errors]
        assert errors == [(record.index, record.message) for record in result.records]
        assert part.error_message == result.message
    if version >= 10:
        assert part.current_leader.leader_id == (-1 if result.leader is None else result.leader)


@pytest.mark.parametrize("version", VERSIONS)
@given(asked=topics, client_id=st.none() | NAMES, transactional_id=st.none() | NAMES, data=st.data())
def test_the_first_topic_is_known_from_the_first_bytes(
    version: int,
    asked: list[tuple[str, UUID, list[tuple[int, bytes | None]]]],
    client_id: str | None,
    transactional_id: str | None,
    data: st.DataObject,
) -> None:
    payload = request(
        0,
        version,
        transactional_id=transactional_id,
        acks=-1,
        timeout=timedelta(seconds=1),
        topic_data=[
            {
                "name": name,
                "topic_id": topic_id,
                "partition_data": [{"index": index, "records": records} for index, records in of_topic],
            }
            for name, topic_id, of_topic in asked
        ],
    )
    header_class = HeaderV2 if payload.__flexible__ else HeaderV1
    header = io.BytesIO()
    entity_writer(header_class)(
        header,
        header_class(
            request_api_key=payload.__api_key__,
            request_api_version=payload.__version__,
            correlation_id=i32(7),
            client_id=client_id,
        ),
    )
    frame = header.getvalue() + encoded(payload)
    expected = None if not asked else asked[0][1] if version >= 13 else asked[0][0]

    assert first_topic(frame) == expected
    assert first_topic(frame[: data.draw(st.integers(0, len(frame)))]) in (None, expected)
    assert first_topic(b"\0\1" + frame[2:]) is None, "it is no Produce"
    first_topic(data.draw(st.binary(max_size=60)))
