"""One loaded group: its requests go through its state machine, changes go to Postgres, then the answers go
out.

Promises:
- Events are handled in the order in which they came.
- All queued events are handled before one write. Earlier offset commits are in Postgres by then. No answer
  leaves before the write that it depends on.
- After the group's lease is over, the agent lost its place in the ring, or another coordinator fenced the
  group, nothing is answered from it.
- However the group ends, each waiting request gets an answer.
- With an authorizer, the group sees and creates topics with the rights of a member whose heartbeat it
  accepted. Until then it creates nothing, and its regular expressions match what they are assigned already.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from agent.groups.consumer.known_topics import look_at
from agent.groups.events import (
    Answer,
    Answered,
    CommitFence,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupDescription,
    GroupEvent,
    GroupFault,
    GroupState,
    Request,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
    Token,
    TopicsCreated,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.group_configs import settings_of_group
from agent.groups.settings import GroupSettings
from agent.groups.streams.create_topics import create_topics
from agent.groups.streams.topology import InternalTopic
from agent.metrics import Metrics
from agent.slices import Slices
from agent.tenants.local_topics import GroupTopics, topics_of_tenant
from agent.topic_directory import TopicDirectory
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.groups.groups import Groups
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup
from sequencer.tenants.tenant_names import tenant_of


class GroupMachine(Protocol):
    """What every group's state machine offers, whichever protocol it speaks. The coordinator knows no more of
    it. Pure: time comes in with every call, as monotonic milliseconds; answers and changes go out.
    """

    @property
    def state(self) -> GroupState: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def generation(self) -> int: ...

    def handle(self, event: GroupEvent, now_ms: int) -> list[Answered]: ...

    def tick(self, now_ms: int) -> list[Answered]: ...

    def next_deadline_ms(self) -> int | None: ...

    def take_changes(self) -> GroupChange | None: ...

    def forget(self, token: Token) -> None: ...

    def topics_wanted(self) -> TopicsWanted: ...

    def topics_to_create(self) -> Sequence[InternalTopic]: ...

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> CommitFence | GroupFault: ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None: ...

    def check_delete(self) -> GroupFault | None: ...

    def check_offset_delete(self) -> GroupFault | None: ...

    def subscribed(self, topic: str) -> bool: ...

    def subscribes_by_regex(self, member_id: str) -> bool: ...

    def describe(self) -> GroupDescription: ...

    def configure(self, settings: GroupSettings) -> None: ...


MachineMaker: TypeAlias = Callable[[StoredGroup | None, int], GroupMachine]
"""Makes a machine from what Postgres has of a group, and the time."""


log = logging.getLogger("tidelog")

_NOTHING = TopicsWanted()


def _unknown(name: str) -> bool:  # noqa: ARG001
    """The right to see or to create a topic, of a group that no member has brought its rights to."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedByGroups:
    """What all loaded groups of an agent share. `may_serve` returns why the agent may not answer for groups,
    or None if it may. `is_tenant`: whether the agent knows a tenant of this name.
    """

    groups: Groups
    topics: TopicDirectory
    settings: GroupSettings
    metrics: Metrics
    clock: Callable[[], float]
    may_serve: Callable[[], GroupFault | None]
    has_authorizer: bool
    is_tenant: Callable[[str], bool]
    created_for: Callable[[str, InternalTopic], None]
    """Hears of each topic that a group, named first, has created."""


class RunningGroup:
    """Made with its claim. `run` is its one task, `end` ends it. A group that ended is loaded again at its
    next request.
    """

    def __init__(
        self,
        group_id: str,
        coordinator_epoch: int,
        machine: GroupMachine,
        held_until_s: float,
        shared: SharedByGroups,
    ) -> None:
        self.group_id = group_id
        self.coordinator_epoch = coordinator_epoch
        self.machine = machine
        self.held_until_s = held_until_s
        """Until this time, on the monotonic clock, Postgres names this coordinator's epoch for certain."""
        self.touched_s = shared.clock()
        self.seen: TopicsSeen | None = None
        first = _unknown if shared.has_authorizer else None
        self._may_see: Callable[[str], bool] | None = first
        self._may_create: Callable[[str], bool] | None = first
        self._has_new_rights = False
        """True: the topics must be looked at again with the rights of another member."""
        self._heartbeats: dict[Token, ConsumerHeartbeat | StreamsHeartbeat] = {}
        """Handled but not yet answered. They bring rights if they are accepted."""
        self._config: Mapping[str, str] = {}
        self._shared = shared
        self._events: deque[Request | TopicsSeen] = deque()
        self._waiting: dict[Token, asyncio.Future[Answer | GroupFault]] = {}
        self._commits: set[asyncio.Future[GroupFault | None]] = set()
        self._due = asyncio.Event()
        self._writing = False
        self._ended: GroupFault | None = None

    # --- for the coordinator

    def configure(self, config: Mapping[str, str]) -> None:
        """Takes the group's configs as they were last read."""
        if config != self._config:
            self._config = config
            self.machine.configure(settings_of_group(config, self._shared.settings))

    @property
    def tenant(self) -> str | None:
        """The tenant that the group belongs to. Without such a tenant, its id is a name like others."""
        named = tenant_of(self.group_id)
        return named if named is not None and self._shared.is_tenant(named) else None

    def _topics(self) -> GroupTopics:
        """Returns the topics that its members may name, with the names that they use."""
        return topics_of_tenant(self._shared.topics, self.tenant)

    @property
    def ended(self) -> bool:
        return self._ended is not None

    @property
    def is_idle(self) -> bool:
        """True if the group may leave memory: Postgres has all of it."""
        return self.machine.is_empty and not self._waiting and not self._events and not self._writing

    def refusal_now(self) -> GroupFault | None:
        """Returns why the group may not be answered for now, or None if it may. Check it after the last await
        before an answer.
        """
        if self._ended is not None:
            return self._ended
        fault = self._shared.may_serve()
        if fault is not None:
            return fault
        return None if self._shared.clock() < self.held_until_s else GroupFault.NOT_COORDINATOR

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> CommitFence | GroupFault:
        """Returns what an offset commit must find in Postgres, or why it is refused."""
        return self.refusal_now() or self.machine.check_commit(
            member_id, instance_id, generation, self._now_ms()
        )

    def note_commit(self, commit: asyncio.Future[GroupFault | None]) -> None:
        """Notes an offset commit that the machine accepted and that is on its way. The group's next write
        waits for it.
        """
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)

    def submit(self, event: Request) -> asyncio.Future[Answer | GroupFault] | GroupFault:
        """Queues a request. Returns a fault if it cannot."""
        if self._ended is not None:
            return self._ended
        if len(self._waiting) >= self._shared.settings.group_queue_events:
            return GroupFault.OVERLOADED
        future: asyncio.Future[Answer | GroupFault] = asyncio.get_running_loop().create_future()
        self._waiting[event.token] = future
        self._events.append(event)
        self._due.set()
        return future

    def show(self, seen: TopicsSeen) -> None:
        """Shows topics that were looked up again."""
        self._events.append(seen)
        self._due.set()

    def forget(self, token: Token) -> None:
        """Drops the request, because its client hung up."""
        self._waiting.pop(token, None)
        self._heartbeats.pop(token, None)
        waiting = deque(
            event for event in self._events if isinstance(event, TopicsSeen) or event.token != token
        )
        if len(waiting) < len(self._events):
            self._events = waiting
        elif self._ended is None:
            self.machine.forget(token)
            self._due.set()  # the group may now wait for fewer topics

    def end(self, fault: GroupFault) -> None:
        """Ends the group and gives this answer to every waiting request. A write in flight may still reach
        Postgres: the next claim fences it or finds it.
        """
        if self._ended is not None:
            return
        self._ended = fault
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(fault)
        self._due.set()

    # --- its task

    async def run(self) -> None:
        """Runs until the group ends. Raises nothing but cancellation."""
        try:
            while self._ended is None:
                await self._step()
                await self._until_due()
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            log.warning(
                "group is unloaded: Postgres is away", extra={"group": self.group_id, "error": str(error)}
            )
            self.end(GroupFault.COORDINATOR_UNAVAILABLE)
        except Exception:
            log.exception("group broke", extra={"group": self.group_id})
            self.end(GroupFault.COORDINATOR_UNAVAILABLE)
        finally:
            self.end(GroupFault.NOT_COORDINATOR)

    async def _until_due(self) -> None:
        if self._events or self._ended is not None:
            return
        self._due.clear()
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is None:
            await self._due.wait()
            return
        pause_s = max(0.0, (deadline_ms - self._now_ms()) / 1000)
        timer = asyncio.get_running_loop().call_later(pause_s, self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()

    async def _step(self) -> None:
        """Handles everything that is due, in one write. The lease must hold before time passes for members:
        after a pause of this process, their silence means nothing.
        """
        fault = self.refusal_now()
        if fault is not None:
            self.end(fault)
            return
        generation = self.machine.generation
        answered: list[Answered] = []
        now_ms = self._now_ms()
        for _ in range(len(self._events)):
            if not self._events:
                break  # the rest was forgotten while topics were judged
            answered += await self._handle(self._events.popleft(), now_ms)
        answered += self.machine.tick(now_ms)
        answered += await self._shown_wanted_topics()
        change = self.machine.take_changes()
        if change is not None and not await self._written(change):
            log.info("group is coordinated elsewhere: fenced", extra={"group": self.group_id})
            self.end(GroupFault.NOT_COORDINATOR)
            return
        self._note_generation(generation)
        self._release(answered)

    async def _written(self, change: GroupChange) -> bool:
        """Earlier offset commits go first, as in Kafka's one log: the change may end what fences them."""
        self._writing = True
        if self._commits:
            await asyncio.wait(set(self._commits), timeout=self._shared.settings.group_lease_s)
        held = await self._shared.groups.write(self.group_id, self.coordinator_epoch, change)
        self._writing = False
        return held

    async def _handle(self, event: GroupEvent, now_ms: int) -> list[Answered]:
        if isinstance(event, TopicsSeen):
            event = await self._visible(event)
            self.seen = event
        elif isinstance(event, ConsumerHeartbeat | StreamsHeartbeat) and self._shared.has_authorizer:
            self._heartbeats[event.token] = event
        answered = self.machine.handle(event, now_ms)
        for one in answered:
            self._take_rights(one)
        return answered

    async def _visible(self, seen: TopicsSeen) -> TopicsSeen:
        """A regular expression matches what the member may describe whose rights the group has."""
        may_see = self._may_see
        if may_see is None or not seen.asked.everything:
            return seen
        if may_see is _unknown:
            return replace(seen, hidden=frozenset(seen.topics), keeps_assigned=True)
        hidden, slices = [], Slices()
        for name in seen.topics:
            if not may_see(name):
                hidden.append(name)
            await slices.look()
        return replace(seen, hidden=frozenset(hidden))

    def _take_rights(self, answered: Answered) -> None:
        """Takes the rights of a member whose heartbeat was accepted. Only a member with a regular expression
        decides what regular expressions match.
        """
        event = self._heartbeats.pop(answered.token, None)
        answer = answered.answer
        if event is None or not isinstance(answer, ConsumerHeartbeatAnswer | StreamsHeartbeatAnswer):
            return
        if answer.fault is not None:
            return
        if isinstance(event, StreamsHeartbeat):
            if event.member_epoch >= 0:
                self._may_create = event.may_create
        elif event.member_epoch >= 0 and self.machine.subscribes_by_regex(
            answer.member_id or event.member_id
        ):
            self._has_new_rights |= bool(event.subscribed_regex) or self._may_see is _unknown
            self._may_see = event.may_see

    async def _shown_wanted_topics(self) -> list[Answered]:
        """Shows topics that no request needed before, if some are wanted now. Creates topics that the group
        misses, and shows them.
        """
        answered: list[Answered] = []
        while True:
            created = await self._created_topics(answered)
            wanted = self.machine.topics_wanted()
            if self._shared.has_authorizer and not wanted.everything:
                self._may_see = _unknown  # those who had a regular expression are gone
            is_known = wanted is self._asked or wanted == self._asked
            if is_known and not created and not self._has_new_rights:
                return answered
            self._has_new_rights = False
            seen = (await look_at(self._topics(), [wanted]))[wanted]
            answered += await self._handle(seen, self._now_ms())

    async def _created_topics(self, answered: list[Answered]) -> bool:
        """Returns whether there were topics to create."""
        missing = self.machine.topics_to_create()
        may_create = self._may_create
        if not missing or may_create is _unknown:
            return False
        forbidden = {
            topic.name: "the client is not authorized to CREATE it"
            for topic in missing
            if may_create is not None and not may_create(topic.name)
        }
        allowed = [topic for topic in missing if topic.name not in forbidden]
        refused = await create_topics(
            self._topics(),
            allowed,
            group_id=self.group_id,
            created_one=partial(self._shared.created_for, self.group_id),
        )
        refused = {**refused, **forbidden}
        answered += await self._handle(TopicsCreated(refused=refused), self._now_ms())
        return True

    @property
    def _asked(self) -> TopicsWanted:
        return _NOTHING if self.seen is None else self.seen.asked

    def _release(self, answered: list[Answered]) -> None:
        fault = self.refusal_now()
        if fault is not None:
            self.end(fault)
            return
        for one in answered:
            future = self._waiting.pop(one.token, None)
            if future is not None and not future.done():
                future.set_result(one.answer)

    def _note_generation(self, before: int) -> None:
        if self.machine.generation != before:
            self._shared.metrics.group_rebalances.labels(self.machine.kind).inc()

    def _now_ms(self) -> int:
        return int(self._shared.clock() * 1000)
