"""Members of consumer groups that only keep membership: no records, little CPU, so that hundreds fit one
process.

Each speaks one of the two protocols like a client. A classic member joins, syncs (the leader assigns the
partitions) and sends heartbeats. A member of the new protocol (KIP-848) sends heartbeats, revokes partitions
on request and confirms. `owned` has the partitions that a member may read now.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_group_heartbeat.v1.request import TopicPartitions as Owned
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta

from tests.support.kafka_wire import Connection, coordinator_of

_ASSIGNOR = "range"
_RETRY_S = 0.1
_JOIN_PATIENCE_S = 300.0
_MOVED = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.request_timed_out,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The group to join, and how a member keeps alive. `changed` is called whenever `owned` has changed."""

    host: str
    port: int
    group_id: str
    topic: str
    topic_id: UUID
    partitions: int
    session_timeout_s: float
    heartbeat_s: float
    changed: Callable[[], None]


class Member(Protocol):
    owned: frozenset[int]

    async def run(self) -> None: ...
    def kill(self) -> None: ...


class _Base:
    """What both kinds of members have in common: they find the coordinator and stay until killed."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._connection: Connection | None = None
        self._running: asyncio.Task[Any] | None = None
        self.owned: frozenset[int] = frozenset()

    async def run(self) -> None:
        """Runs until cancelled or killed."""
        self._running = asyncio.current_task()
        membership = self._membership
        while True:
            with contextlib.suppress(ConnectionError, TimeoutError):
                self._connection = await coordinator_of(membership.host, membership.port, membership.group_id)
                await self._stay(self._connection)
            if self._connection is not None:
                self._connection.kill()
            await asyncio.sleep(_RETRY_S)

    def kill(self) -> None:
        """Die without leaving the group."""
        self.owned = frozenset()
        if self._running is not None:
            self._running.cancel()
        if self._connection is not None:
            self._connection.kill()

    async def _stay(self, connection: Connection) -> None:
        raise NotImplementedError

    def _own(self, partitions: frozenset[int]) -> None:
        if partitions != self.owned:
            self.owned = partitions
            self._membership.changed()


class ClassicMember(_Base):
    """JoinGroup, SyncGroup, Heartbeat. Eager: it gives up all its partitions when it rejoins."""

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership)
        self._member_id = ""
        topic = membership.topic.encode()
        self._subscription = struct.pack(">hih", 0, 1, len(topic)) + topic + struct.pack(">i", -1)

    async def _stay(self, connection: Connection) -> None:
        while True:
            joined = await connection.ask(self._join_request(), timeout_s=_JOIN_PATIENCE_S)
            if joined.error_code is ErrorCode.member_id_required:
                self._member_id = joined.member_id
                continue
            if joined.error_code in _MOVED:
                return
            if joined.error_code is not ErrorCode.none:
                self._forget(joined.error_code)
                continue
            self._member_id = joined.member_id
            if await self._sync(connection, joined):
                await self._heartbeats(connection, joined.generation_id)
                self._own(frozenset())

    def _join_request(self) -> JoinGroupRequest:
        membership = self._membership
        return JoinGroupRequest(
            group_id=GroupId(membership.group_id),
            session_timeout=_timeout(membership.session_timeout_s),
            rebalance_timeout=_timeout(60.0),
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name=_ASSIGNOR, metadata=self._subscription),),
        )

    async def _sync(self, connection: Connection, joined: Any) -> bool:
        leads = joined.leader == self._member_id
        dealt = self._deal([member.member_id for member in joined.members]) if leads else ()
        asked = SyncGroupRequest(
            group_id=GroupId(self._membership.group_id),
            generation_id=joined.generation_id,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name=_ASSIGNOR,
            assignments=dealt,
        )
        synced = await connection.ask(asked, timeout_s=_JOIN_PATIENCE_S)
        if synced.error_code is ErrorCode.none:
            self._own(_partitions_of(synced.assignment))
            return True
        self._forget(synced.error_code)
        return False

    def _deal(self, members: Sequence[str]) -> tuple[SyncGroupRequestAssignment, ...]:
        topic = self._membership.topic.encode()
        dealt = []
        for index, member in enumerate(sorted(members)):
            mine = range(index, self._membership.partitions, len(members))
            assigned = (
                struct.pack(">hih", 0, 1, len(topic))
                + topic
                + struct.pack(f">i{len(mine)}i", len(mine), *mine)
            )
            dealt.append(
                SyncGroupRequestAssignment(member_id=member, assignment=assigned + struct.pack(">i", -1))
            )
        return tuple(dealt)

    async def _heartbeats(self, connection: Connection, generation: i32) -> None:
        asked = HeartbeatRequest(
            group_id=GroupId(self._membership.group_id), generation_id=generation, member_id=self._member_id
        )
        while True:
            await asyncio.sleep(self._membership.heartbeat_s)
            answer = await connection.ask(asked)
            if answer.error_code in _MOVED:
                raise ConnectionError("the coordinator moved")
            if answer.error_code is not ErrorCode.none:
                return self._forget(answer.error_code)

    def _forget(self, code: ErrorCode) -> None:
        if code is ErrorCode.unknown_member_id:
            self._member_id = ""


def _partitions_of(assignment: bytes) -> frozenset[int]:
    if not assignment:
        return frozenset()
    (name_bytes,) = struct.unpack_from(">h", assignment, 6)
    (count,) = struct.unpack_from(">i", assignment, 8 + name_bytes)
    return frozenset(struct.unpack_from(f">{count}i", assignment, 12 + name_bytes))


class ConsumerMember(_Base):
    """ConsumerGroupHeartbeat. Revokes partitions at once on request."""

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership)
        self._member_id = str(uuid4())
        self._epoch = 0

    async def _stay(self, connection: Connection) -> None:
        full = True
        while True:
            answer = await connection.ask(self._request(full=full))
            if answer.error_code in _MOVED:
                return
            if answer.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
                self._epoch, full = 0, True
                self._own(frozenset())
                continue
            if answer.error_code is not ErrorCode.none:
                raise RuntimeError(f"{answer.error_code.name}: {answer.error_message}")
            self._epoch = answer.member_epoch
            full = False
            if answer.assignment is not None and self._take(answer.assignment):
                full = True  # confirms revoked partitions at once
                continue
            await asyncio.sleep(answer.heartbeat_interval.total_seconds())

    def _take(self, assignment: Any) -> bool:
        """True if it revoked or took partitions. The coordinator must know of this."""
        told = frozenset(int(number) for topic in assignment.topic_partitions for number in topic.partitions)
        changed = told != self.owned
        self._own(told)
        return changed

    def _request(self, *, full: bool) -> ConsumerGroupHeartbeatRequest:
        membership = self._membership
        owned = (
            Owned(
                topic_id=membership.topic_id, partitions=tuple(i32(number) for number in sorted(self.owned))
            ),
        )
        return ConsumerGroupHeartbeatRequest(
            group_id=GroupId(membership.group_id),
            member_id=self._member_id,
            member_epoch=i32(self._epoch),
            rebalance_timeout=_timeout(60.0 if full else -0.001),
            subscribed_topic_names=(TopicName(membership.topic),) if full else None,
            server_assignor="uniform" if full else None,
            topic_partitions=(owned if self.owned and self._epoch else ()) if full else None,
        )


def _timeout(seconds: float) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=seconds))
