"""A Metadata response that is put together from pieces equals kio's, and is made in slices."""

import asyncio
from datetime import timedelta
from io import BytesIO
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import i32, i32Timedelta

from agent.kafka.apis.metadata import MetadataEncoder
from agent.kafka.routing.routing import NO_NODE, Route
from storage.identifiers import NodeId, TopicId
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.read_path.wire import request
from tests.agent.running import Wire, running
from tests.support.waiting import until

VERSIONS = range(14)
nodes = st.integers(1, 5).map(NodeId)
routes = st.builds(
    Route, leader=st.sampled_from([NO_NODE]) | nodes, replicas=st.lists(nodes, max_size=3).map(tuple)
)


@st.composite
def a_topic(draw: st.DrawFn) -> tuple[str, UUID, list[Route]]:
    partitions = draw(st.sampled_from([0, 1, 126, 127, 2_500]))
    some = draw(st.lists(routes, min_size=1, max_size=4))
    return (
        draw(st.text(min_size=1, max_size=200)),
        draw(st.uuids()),
        [some[n % len(some)] for n in range(partitions)],
    )


topics = st.lists(a_topic(), max_size=3, unique_by=lambda topic: topic[1])


def whole(version: int, topics: list[tuple[str, UUID, list[Route]]], response: MetadataResponse) -> bytes:
    """Returns the bytes that kio writes."""
    found = tuple(
        MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=TopicName(name),
            topic_id=topic_id,
            partitions=tuple(partition(number, route) for number, route in enumerate(of_topic)),
        )
        for name, topic_id, of_topic in topics
    )
    buffer = BytesIO()
    schema: Any = load_response_schema(3, version)
    entity_writer(schema)(buffer, Answer(response, found))
    return buffer.getvalue()


def partition(number: int, route: Route) -> MetadataResponsePartition:
    replicas = tuple(map(BrokerId, route.replicas))
    return MetadataResponsePartition(
        error_code=ErrorCode.leader_not_available if route.leader == NO_NODE else ErrorCode.none,
        partition_index=i32(number),
        leader_id=BrokerId(route.leader),
        leader_epoch=i32(0),
        replica_nodes=replicas,
        isr_nodes=replicas,
        offline_replicas=(),
    )


class Answer:
    """The fields that the writers of all versions read."""

    cluster_authorized_operations = i32(7)

    def __init__(self, response: MetadataResponse, topics: tuple[MetadataResponseTopic, ...]) -> None:
        self._response = response
        self.topics = topics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=15)
@given(topics=topics, throttle_ms=st.integers(0, 1000))
def test_the_bytes_are_kios(
    version: int, topics: list[tuple[str, UUID, list[Route]]], throttle_ms: int
) -> None:
    response = MetadataResponse(
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=throttle_ms)),
        brokers=(MetadataResponseBroker(node_id=BrokerId(1), host="a", port=i32(9092), rack="z"),),
        cluster_id="c",
        controller_id=BrokerId(1),
        topics=(),
        error_code=ErrorCode.none,
    )
    of_topics = {TopicId(topic_id): of_topic for _, topic_id, of_topic in topics}

    async def encoded() -> bytes:
        encoder = MetadataEncoder(version, lambda topic_id, number: of_topics[topic_id][number])
        for name, topic_id, of_topic in topics:
            said = MetadataResponseTopic(
                error_code=ErrorCode.none, name=TopicName(name), topic_id=topic_id, partitions=()
            )
            await encoder.add(said, len(of_topic))
        answer = encoder.response(Answer(response, ()))
        body = b"".join(answer.buffers)
        assert len(body) == answer.size_bytes
        return body

    assert asyncio.run(encoded()) == whole(version, topics, response)


@pytest.mark.parametrize(("topics", "partitions"), [(20, 10_000), (20_000, 0)])
async def test_others_are_answered_while_a_long_answer_is_made(topics: int, partitions: int) -> None:
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    route = Route(leader=NodeId(1), replicas=(NodeId(1),))
    encoder = MetadataEncoder(12, lambda *_: route)
    said = MetadataResponseTopic(
        error_code=ErrorCode.none, name=TopicName("t"), topic_id=UUID(int=1), partitions=()
    )
    task = asyncio.create_task(another())
    for _ in range(topics):
        await encoder.add(said, partitions)
    task.cancel()

    assert turns > 20


async def test_large_answers_wait_for_memory_until_those_before_them_are_sent(database_url: str) -> None:
    everything = request(
        3, 12, topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    async with running(database_url, large_answer_bytes=1024, topic_mutations_per_s=0) as agent:
        slow, quick = await Wire.connect(agent.app.kafka_port), await Wire.connect(agent.app.kafka_port)
        assert agent.app._reached.assembly is not None
        memory = agent.app._reached.assembly.parts.response_memory
        for number in range(3):
            await create(quick, f"orders-{number}", num_partitions=1_000)
        await memory.take("elsewhere", 0, 1024)
        sent = [await wire.send(everything) for wire in (slow, quick)]
        await until(lambda: memory.waiting == 2)
        memory.give_back("elsewhere", 1024)

        answers = [await wire.receive(one) for wire, one in zip((slow, quick), sent, strict=True)]
        await until(lambda: memory.taken_bytes == 0)
        for wire in (slow, quick):
            wire.close()

    for answer in answers:
        assert sorted(len(topic.partitions) for topic in answer.topics) == [1_000] * 3
        assert {one.leader_id for topic in answer.topics for one in topic.partitions} == {
            answer.brokers[0].node_id
        }
