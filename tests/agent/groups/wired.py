"""Coordinators wired as in an agent, each with its own place in the ring, over one real Postgres, and their
members.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agent.groups.coordinator.coordinator import Coordinator
from agent.groups.coordinator.running_group import RunningGroup
from agent.groups.events import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupFault,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    OfferedProtocol,
    StreamsHeartbeatAnswer,
    Sync,
    SyncAnswer,
)
from agent.groups.group import Group
from agent.groups.offsets.group_offsets import Committing, Fetching, GroupOffsets
from agent.groups.offsets.offset_batches import OffsetBatches
from agent.groups.settings import GroupSettings
from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.topic_directory import TopicDirectory
from cache_ring.ring.membership import Membership
from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import NOT_COMMITTED, CommittedOffset
from storage.identifiers import Offset, Partition, TopicId
from tests.agent.groups.streams.streams_world import a_heartbeat
from tests.cache_ring.builders import an_address
from tests.support.waiting import until

QUICK_RING = CacheRingSettings(membership_lease_s=60.0, membership_renew_s=0.05, membership_margin_s=0.5)
QUICK: Mapping[str, Any] = {
    "group_initial_rebalance_delay_ms": 0,
    "group_streams_initial_rebalance_delay_ms": 0,
    "group_lease_s": 30.0,
    "group_lease_renew_s": 0.05,
    "group_topics_s": 0.1,
}
_ports = itertools.count(10_000)


@dataclass(frozen=True, kw_only=True)
class Coordinating:
    """A coordinator and its parts. `blind` it to freeze its view of the ring."""

    coordinator: Coordinator
    offsets: GroupOffsets
    membership: Membership
    metrics: Metrics
    watching: asyncio.Task[None]

    async def blind(self) -> None:
        self.watching.cancel()
        await asyncio.gather(self.watching, return_exceptions=True)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def loaded(self, group_id: str, *, create: bool = False) -> RunningGroup:
        running = await self.coordinator.group(group_id, create=create)
        assert isinstance(running, RunningGroup), running
        return running

    # --- members of the classic protocol

    async def join(self, group_id: str, member_id: str = "", **values: Any) -> JoinAnswer | GroupFault:
        given = {
            "instance_id": None,
            "client_id": "test",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": (OfferedProtocol(name="range", metadata=b""),),
            "requires_known_member_id": False,
            "can_skip_assignment": False,
            **values,
        }
        event = Join(token=self.coordinator.next_token(), member_id=member_id, **given)
        return await self.coordinator.ask(group_id, event, JoinAnswer, create=not member_id)

    async def sync(self, group_id: str, joined: JoinAnswer, assignment: bytes) -> SyncAnswer | GroupFault:
        event = Sync(
            token=self.coordinator.next_token(),
            member_id=joined.member_id,
            instance_id=None,
            generation=joined.generation,
            protocol_type=None,
            protocol_name=None,
            assignments={joined.member_id: assignment},
        )
        return await self.coordinator.ask(group_id, event, SyncAnswer)

    async def member(self, group_id: str) -> JoinAnswer:
        """The only member of a stable group."""
        joined = await self.join(group_id)
        assert isinstance(joined, JoinAnswer)
        assert joined.fault is None
        assert await self.sync(group_id, joined, b"its part") == SyncAnswer(
            protocol_type="consumer", protocol_name="range", assignment=b"its part"
        )
        return joined

    async def beat(self, group_id: str, joined: JoinAnswer) -> GroupFault | None:
        event = Heartbeat(
            token=self.coordinator.next_token(),
            member_id=joined.member_id,
            instance_id=None,
            generation=joined.generation,
        )
        answer = await self.coordinator.ask(group_id, event, HeartbeatAnswer)
        return answer if isinstance(answer, GroupFault) else answer.fault

    # --- members of the new protocol

    async def consume(self, group_id: str, epoch: int, **values: Any) -> ConsumerHeartbeatAnswer | GroupFault:
        joins = epoch == 0
        given = {
            "member_id": "ann",
            "instance_id": None,
            "rack_id": None,
            "client_id": "test",
            "client_host": "/127.0.0.1",
            "rebalance_timeout_ms": 30_000 if joins else -1,
            "subscribed_topics": ("orders",) if joins else None,
            "subscribed_regex": None,
            "assignor": None,
            "owned": {} if joins else None,
            **values,
        }
        event = ConsumerHeartbeat(token=self.coordinator.next_token(), member_epoch=epoch, **given)
        return await self.coordinator.ask(group_id, event, ConsumerHeartbeatAnswer, create=joins)

    # --- members of the streams protocol

    async def stream(self, group_id: str, epoch: int, **values: Any) -> StreamsHeartbeatAnswer | GroupFault:
        event = a_heartbeat("ann", epoch, token=self.coordinator.next_token(), **values)
        return await self.coordinator.ask(group_id, event, StreamsHeartbeatAnswer, create=epoch == 0)

    # --- offsets

    async def commit(
        self, group_id: str, topic_id: TopicId, offset: int, member_id: str = "", generation: int = -1
    ) -> GroupFault | None:
        running = await self.loaded(group_id, create=generation < 0)
        committing = Committing(member_id=member_id, instance_id=None, generation_or_epoch=generation)
        taken = self.offsets.commit(
            running, committing, [((topic_id, Partition(0)), CommittedOffset(offset=Offset(offset)))]
        )
        return await self.offsets.outcome(taken, running, committing)

    async def committed(self, group_id: str, topic_id: TopicId) -> int | GroupFault:
        asked = Fetching(
            group_id=group_id, member_id=None, member_epoch=-1, partitions=[(topic_id, Partition(0))]
        )
        [answer] = await self.offsets.fetch([asked])
        return (
            answer
            if isinstance(answer, GroupFault)
            else answer.get((topic_id, Partition(0)), NOT_COMMITTED).offset
        )


@asynccontextmanager
async def coordinating(
    sequencer: Sequencer, acls: Callable[[], object] | None = None, **settings: Any
) -> AsyncIterator[Coordinating]:
    group_settings = GroupSettings(**{**QUICK, **settings})
    metrics = Metrics()
    membership = Membership(sequencer.agents, an_address("a", 1, next(_ports)), QUICK_RING)
    watching = asyncio.create_task(membership.run())
    await membership.wait_joined(60.0)
    self_ = membership.self_
    assert self_ is not None
    await until(lambda: membership.ring.agent(self_.node_id) is not None)
    coordinator = Coordinator(
        groups=sequencer.groups,
        topics=TopicDirectory(sequencer.topics, AgentSettings(topic_cache_s=0.1), time.monotonic),
        membership=membership,
        settings=group_settings,
        metrics=metrics,
        make_machine=lambda stored, now_ms: Group(group_settings, lambda: str(uuid4()), stored, now_ms),
        clock=time.monotonic,
        acls=acls,
    )
    sequencer.database.on_change(coordinator.forget_all)
    batches = OffsetBatches(
        sequencer.committed_offsets, group_settings, metrics, coordinator.lost, time.monotonic
    )
    tasks = [asyncio.create_task(coordinator.run()), asyncio.create_task(batches.run()), watching]
    await asyncio.sleep(0)  # they have begun
    try:
        yield Coordinating(
            coordinator=coordinator,
            offsets=GroupOffsets(coordinator, batches, sequencer.committed_offsets),
            membership=membership,
            metrics=metrics,
            watching=watching,
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await membership.leave()
