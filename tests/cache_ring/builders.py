"""Agents, runs, batches and peer ports for tests. Each argument has a default that the claim does not depend
on.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from cache_ring.peers.peer_connection import Arrivals, Conversation, Secrets
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import AgentAddress, LiveAgent, PeerSecret
from sequencer.commits.coordinates import PartitionCoordinates, RunCoordinate
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import BytePosition, NodeId, ObjectKey, Offset, Partition, TopicId

ORDERS = TopicId(UUID(int=0xA11CE))
SECRET = PeerSecret(value=bytes(range(32)))


def secrets() -> tuple[PeerSecret, ...]:
    """What all agents of a test know."""
    return (SECRET,)


@asynccontextmanager
async def a_peer_port(converse: Conversation, known: Secrets = secrets) -> AsyncIterator[int]:
    """A peer port that does what `converse` does once a connection is proven. Yields the port."""
    arrivals = Arrivals(known, CacheRingSettings(), converse, lambda _: None)
    server = await arrivals.listen("127.0.0.1", 0)
    try:
        port: int = server.sockets[0].getsockname()[1]
        yield port
    finally:
        server.close()
        arrivals.close()


def an_address(zone: str = "a", peer_port: int = 1, kafka_port: int = 9092) -> AgentAddress:
    return AgentAddress(
        zone=zone,
        kafka_host="127.0.0.1",
        kafka_port=kafka_port,
        peer_host="127.0.0.1",
        peer_port=peer_port,
        http_url="http://127.0.0.1:1",
    )


def an_agent(node_id: int, zone: str = "a", peer_port: int = 1, incarnation: int = 1) -> LiveAgent:
    return LiveAgent(
        node_id=NodeId(node_id), incarnation=incarnation, address=an_address(zone, peer_port, 9000 + node_id)
    )


def a_run(
    base_offset: int = 0,
    last_offset: int = 9,
    *,
    topic_id: TopicId = ORDERS,
    partition: int = 0,
    object_key: str | None = None,
    position: int = 0,
    length: int = 100,
    object_size_bytes: int | None = None,
) -> RunCoordinate:
    return RunCoordinate(
        topic_id=topic_id,
        partition=Partition(partition),
        base_offset=Offset(base_offset),
        last_offset=Offset(last_offset),
        object_key=ObjectKey(object_key or f"tidelog/segments/00/{base_offset}"),
        object_size_bytes=position + length if object_size_bytes is None else object_size_bytes,
        position=BytePosition(position),
        length=length,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


def an_answer(
    runs: tuple[RunCoordinate, ...] = (),
    *,
    high_watermark: int | None = None,
    log_start_offset: int = 0,
    last_stable_offset: int | None = None,
    coordinate_epoch: int = 0,
    aborted: tuple[AbortedTransaction, ...] = (),
) -> PartitionCoordinates:
    """What the sequencer answers. By default the high watermark is the end of the runs."""
    end = runs[-1].last_offset + 1 if high_watermark is None else high_watermark
    return PartitionCoordinates(
        topic_id=ORDERS,
        partition=Partition(0),
        log_start_offset=Offset(log_start_offset),
        local_start_offset=Offset(0),
        high_watermark=Offset(end),
        last_stable_offset=Offset(end if last_stable_offset is None else last_stable_offset),
        coordinate_epoch=coordinate_epoch,
        runs=runs,
        aborted=aborted,
    )
