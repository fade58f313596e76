"""The hand-written Fetch response: byte for byte what kio writes, in every version."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from agent.kafka.apis.fetch.fetch_response import (
    FetchResponse,
    TopicResults,
    write_response,
    write_tagged_response,
)
from agent.read_path.fetch_answer import PartitionResult
from agent.read_path.read_decisions import PartitionPlan, ReadFailure
from storage.identifiers import NodeId, Partition, TopicId

OFFSETS = st.integers(-1, 2**63 - 1)
RESULTS = st.builds(
    lambda number, replica, failure, offsets, sizes: PartitionResult(
        PartitionPlan(TopicId(UUID(int=1)), Partition(number), 0, 1, None, replica),
        failure,
        offsets[0],
        offsets[1],
        offsets[2],
        [memoryview(bytes([size % 256]) * size) for size in sizes],
        sum(sizes),
    ),
    st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 2**31 - 1).map(NodeId),
    st.none() | st.sampled_from(ReadFailure),
    st.tuples(OFFSETS, OFFSETS, OFFSETS),
    st.lists(st.sampled_from([1, 16, 127, 5000, 70_000]), max_size=3),
)
TOPICS = st.builds(
    lambda name, topic_id, results: TopicResults(name=name, topic_id=topic_id, results=results),
    st.text(max_size=200),
    st.none() | st.uuids().filter(lambda found: found.int).map(TopicId),
    st.lists(RESULTS, max_size=5),
)


@given(
    st.integers(4, 18),
    st.builds(
        FetchResponse,
        throttle_ms=st.integers(0, 1000),
        error_code=st.sampled_from([ErrorCode.none, ErrorCode.fetch_session_id_not_found]),
        session_id=st.integers(0, 2**31 - 1),
        topics=st.lists(TOPICS, max_size=3),
        read_committed=st.booleans(),
    ),
)
@settings(deadline=None)
def test_the_bytes_are_kios(version: int, response: FetchResponse) -> None:
    assert b"".join(write_response(response, version)) == b"".join(write_tagged_response(response, version))


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_records_are_not_copied_unless_they_are_few(version: int) -> None:
    page = memoryview(bytes(100_000))
    plan = PartitionPlan(TopicId(UUID(int=1)), Partition(0), 0, 1)
    many = PartitionResult(plan, None, 1, 1, 0, [b"p" * 16, page[16:100_000]], 100_000)
    few = PartitionResult(plan, None, 1, 1, 0, [b"p" * 16, page[16:100]], 100)

    written = write_response(
        FetchResponse(topics=[TopicResults(name="t", topic_id=plan.topic_id, results=[many, few])]), version
    )

    assert [len(buffer) for buffer in written[1:3]] == [16, 99_984]
    assert [buffer for buffer in written if isinstance(buffer, memoryview)] == [page[16:100_000]]
