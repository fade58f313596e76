"""Members of consumer groups that only keep membership: no records, little CPU, so that hundreds fit one process.

Each speaks one of the two protocols as a client does. The classic one joins, syncs (its leader deals the partitions)
and sends heartbeats; the new one (KIP-848) sends heartbeats, gives back what it is told to and confirms. `owned` is
what a member may read now.
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
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta

from benchmarks.kafka_wire import Connection

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
    """What a member is to join, and how it keeps alive. `changed` is called whenever what it owns has changed."""

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


async def coordinator_of(host: str, port: int, group_id: str) -> Connection:
    """A connection to the group's coordinator, however long it takes to have one."""
    while True:
        with contextlib.suppress(ConnectionError, TimeoutError):
            first = await Connection.open(host, port)
            try:
                asked = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group_id,))
                (found,) = (await first.ask(asked)).coordinators
            finally:
                first.kill()
            if found.error_code is ErrorCode.none:
                return await Connection.open(found.host, found.port)
        await asyncio.sleep(_RETRY_S)


class _Base:
    """What both kinds of members do alike: find the coordinator, stay until killed."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._connection: Connection | None = None
        self._running: asyncio.Task[Any] | None = None
        self.owned: frozenset[int] = frozenset()

    async def run(self) -> None:
        """Until cancelled or killed."""
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
        """Die without a word."""
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
    """JoinGroup, SyncGroup, Heartbeat; eager: what it owned is given up when it rejoins."""

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
            assigned = struct.pack(">hih", 0, 1, len(topic)) + topic + struct.pack(f">i{len(mine)}i", len(mine), *mine)
            dealt.append(SyncGroupRequestAssignment(member_id=member, assignment=assigned + struct.pack(">i", -1)))
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
    """ConsumerGroupHeartbeat; gives back at once what it is told to."""

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
                full = True  # confirms at once what was given back
                continue
            await asyncio.sleep(answer.heartbeat_interval.total_seconds())

    def _take(self, assignment: Any) -> bool:
        """Whether something was given back or taken, which the coordinator is to know."""
        told = frozenset(int(number) for topic in assignment.topic_partitions for number in topic.partitions)
        changed = told != self.owned
        self._own(told)
        return changed

    def _request(self, *, full: bool) -> ConsumerGroupHeartbeatRequest:
        membership = self._membership
        owned = (Owned(topic_id=membership.topic_id, partitions=tuple(i32(number) for number in sorted(self.owned))),)
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
