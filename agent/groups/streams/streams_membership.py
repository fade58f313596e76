"""The rules of a streams group for its members, its topology and its topics (KIP-1071).

A member joined, changed or left, or the topology's tasks changed: the group's epoch rises. Targets are made
at that epoch when the next member is heard of, so several changes cost one target. Each heartbeat then brings
its member one step nearer to its own target.

- While the topology's topics are missing or do not fit, no member has tasks. Each answer says why.
- An empty group waits for more members before its first targets (`group_streams_initial_rebalance_delay_ms`).
- A member with an older topology than the group's gets no tasks.
- A member is fenced (removed, and its tasks are free) when its session is over, or when it takes longer than
  its rebalance timeout to give tasks up.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from hashlib import blake2b
from typing import TypeAlias

from agent.groups.consumer.known_topics import KnownTopics
from agent.groups.coordinator.deadlines import Deadlines
from agent.groups.events import GroupFault, Status, StatusCode, Tasks, TopicsSeen, TopicsWanted
from agent.groups.roster import MemberRefused
from agent.groups.settings import GroupSettings
from agent.groups.streams.streams_members import NO_TASKS, StreamsMember, existing, reconciled
from agent.groups.streams.streams_roster import StreamsRoster
from agent.groups.streams.task_assignor import Worker, assign_tasks
from agent.groups.streams.topic_creations import TopicCreations
from agent.groups.streams.topic_plan import TopicPlan, listed, plan_topics
from agent.groups.streams.topology import InternalTopic, Topology


class Timer(Enum):
    SESSION = auto()
    REVOKE = auto()
    """A member gives tasks up."""
    FIRST_TARGETS = auto()
    """The group waits for its first members."""
    CREATE = auto()
    """Internal topics are missing. The group tries again to create them."""


TimerKey: TypeAlias = tuple[Timer, str]
_FIRST_TARGETS: TimerKey = (Timer.FIRST_TARGETS, "")
_CREATE: TimerKey = (Timer.CREATE, "")


class StreamsMembership:
    def __init__(self, settings: GroupSettings, roster: StreamsRoster, now_ms: int) -> None:
        self.settings = settings
        self.roster = roster
        self.topics = KnownTopics()
        self.deadlines: Deadlines[TimerKey] = Deadlines()
        self.plan = TopicPlan()
        self._wanted = TopicsWanted()
        self._creations = TopicCreations()
        self._want_topics()
        for member in roster.members.values():
            self._restart_session(member, now_ms)
            self._time_revocation(member, now_ms)
        if roster.is_delayed:
            self.deadlines.set(_FIRST_TARGETS, now_ms + settings.group_streams_initial_rebalance_delay_ms)

    def configure(self, settings: GroupSettings) -> None:
        """Uses these settings from now on. A session that has begun keeps its length."""
        self.settings = settings
        self._raise_epoch_if_due()

    # --- topology and topics

    def wanted(self) -> TopicsWanted:
        """Returns what the topology needs to know of topics."""
        return self._wanted

    def adopt(self, topology: Topology, now_ms: int) -> None:
        """Makes it the group's topology. Its topics must be known."""
        self.roster.set_topology(topology)
        self._want_topics()
        self._make_plan(now_ms)

    def see(self, seen: TopicsSeen, now_ms: int) -> None:
        self.topics.see(seen)
        if self.topics.cover(self._wanted):
            self._make_plan(now_ms)

    def topics_to_create(self) -> tuple[InternalTopic, ...]:
        """Returns the topics of the next attempt, if it is due."""
        return self._creations.due(self.settings) if self.roster.members else ()

    def note_created(self, refused: Mapping[str, str], now_ms: int) -> None:
        """The topics to create were created, except those that were `refused`. Those that are still missing
        are tried again later.
        """
        self._creations.note(refused, self.settings, now_ms)
        self._time_creation()

    def statuses(self, member: StreamsMember) -> tuple[Status, ...]:
        found = []
        topology, asked_by = self.roster.topology, self.roster.shutdown_asked_by
        if topology is not None and member.topology_epoch < topology.epoch:
            detail = f"The member's topology has epoch {member.topology_epoch}, the group's {topology.epoch}."
            found.append(Status(code=StatusCode.STALE_TOPOLOGY, detail=detail))
        if self.plan.problem is not None:
            found.append(self._with_refusals(self.plan.problem))
        if asked_by is not None:
            detail = f"Member {asked_by} met a fatal error and asked all instances to stop."
            found.append(Status(code=StatusCode.SHUTDOWN_APPLICATION, detail=detail))
        if self.roster.is_delayed:
            detail = "The group waits for more members before it assigns tasks."
            found.append(Status(code=StatusCode.ASSIGNMENT_DELAYED, detail=detail))
        return tuple(found)

    # --- members

    def admit(self, member_id: str) -> None:
        """Raises `MemberRefused` if the group is full and this member is not in it."""
        members = self.roster.members
        if len(members) >= self.settings.group_max_size and member_id not in members:
            raise MemberRefused(
                GroupFault.GROUP_FULL, f"The group has its maximum of {self.settings.group_max_size} members."
            )

    def step_to_target(
        self, before: StreamsMember | None, now: StreamsMember, owned: Tasks | None, now_ms: int
    ) -> StreamsMember:
        """Handles a sign of life of a member. `before` is the member as it was, `now` as it describes itself,
        and `owned` are the tasks that it says it still has. Returns the member as the answer should show it.
        All topics must be known.
        """
        if not self.roster.members:
            self._delay_first_targets(now_ms)
        self.roster.put(now)
        if before is None or _is_placed_by(before) != _is_placed_by(now):
            self.roster.raise_epoch(self._fingerprint())
        if self.roster.epoch > self.roster.assignment_epoch:
            self._make_targets()
        nearer = reconciled(
            now, self.roster.target(now.member_id), self.roster.assignment_epoch, owned, self.roster.is_free
        )
        self.roster.put(nearer)
        if before is None or nearer.revoking != before.revoking:
            self._time_revocation(nearer, now_ms)
        self._restart_session(nearer, now_ms)
        return nearer

    def fence(self, member_ids: Iterable[str]) -> None:
        """Removes these members. Their tasks are free."""
        fenced = [member_id for member_id in dict.fromkeys(member_ids) if member_id in self.roster.members]
        for member_id in fenced:
            self.roster.remove(member_id)
            self.deadlines.clear((Timer.SESSION, member_id))
            self.deadlines.clear((Timer.REVOKE, member_id))
        if fenced:
            self.roster.raise_epoch(self._fingerprint())
        if fenced and not self.roster.members:
            self.roster.ask_for_shutdown(None)
            self._end_delay()

    def tick(self, now_ms: int) -> None:
        due = self.deadlines.take_due(now_ms)
        if _FIRST_TARGETS in due:
            self._end_delay()
            self.roster.raise_epoch(self._fingerprint())
        if _CREATE in due:
            self._creations.begin()
        self.fence(member_id for timer, member_id in due if timer in (Timer.SESSION, Timer.REVOKE))

    # --- within

    def _want_topics(self) -> None:
        topology = self.roster.topology
        names = frozenset[str]() if topology is None else topology.topics
        if names != self._wanted.names:
            self._wanted = TopicsWanted(names=names)

    def _make_plan(self, now_ms: int) -> None:
        """Plans the topology's topics as they are now."""
        if self.roster.topology is None:
            return
        self.plan = plan_topics(
            self.roster.topology, self.topics.shapes, most_tasks=self.settings.group_streams_max_tasks
        )
        self.roster.note_ready(is_ready=self.plan.problem is None)
        self._creations.miss(self.plan.missing, self.settings, now_ms)
        self._time_creation()
        self._raise_epoch_if_due()

    def _raise_epoch_if_due(self) -> None:
        fingerprint = self._fingerprint()
        if self.roster.members and fingerprint != self.roster.fingerprint:
            self.roster.raise_epoch(fingerprint)

    def _fingerprint(self) -> str:
        """Returns a digest of everything that the targets depend on, except the members. It is that of the
        group's epoch while the topics are not known.
        """
        if not self.topics.cover(self._wanted):
            return self.roster.fingerprint
        tasks = sorted(self.plan.task_counts.items())
        described = f"{tasks} {sorted(self._stateful())} {self.settings.group_streams_num_standby_replicas}"
        return blake2b(described.encode(), digest_size=16).hexdigest()

    def _stateful(self) -> frozenset[str]:
        topology = self.roster.topology
        parts = () if topology is None else topology.subtopologies
        return frozenset(part.subtopology_id for part in parts if part.changelogs)

    def _make_targets(self) -> None:
        topology, counts = self.roster.topology, self.plan.task_counts
        targets: Mapping[str, Tasks] = {}
        if topology is not None and not self.roster.is_delayed:
            workers = [
                Worker(
                    member_id=member.member_id,
                    process_id=member.process_id,
                    target=existing(self.roster.target(member.member_id), counts),
                )
                for member in self.roster.members.values()
                if member.topology_epoch == topology.epoch
            ]
            standbys = self.settings.group_streams_num_standby_replicas
            targets = assign_tasks(workers, counts, self._stateful(), standbys)
        for member_id in self.roster.members:
            self.roster.set_target(member_id, targets.get(member_id, NO_TASKS))
        self.roster.assigned_all()

    def _delay_first_targets(self, now_ms: int) -> None:
        delay_ms = self.settings.group_streams_initial_rebalance_delay_ms
        if delay_ms:
            self.roster.delay(is_delayed=True)
            self.deadlines.set(_FIRST_TARGETS, now_ms + delay_ms)

    def _end_delay(self) -> None:
        self.roster.delay(is_delayed=False)
        self.deadlines.clear(_FIRST_TARGETS)

    def _time_creation(self) -> None:
        due_ms = self._creations.due_ms
        if due_ms is None:
            self.deadlines.clear(_CREATE)
        else:
            self.deadlines.set(_CREATE, due_ms)

    def _with_refusals(self, problem: Status) -> Status:
        refused = self._creations.refused
        refusals = [
            f"{topic.name} cannot be created: {refused[topic.name]}"
            for topic in self.plan.missing
            if topic.name in refused
        ]
        if not refusals:
            return problem
        return Status(code=problem.code, detail=f"{problem.detail} {listed(refusals, ' ')}")

    def _restart_session(self, member: StreamsMember, now_ms: int) -> None:
        session_ms = self.settings.group_streams_session_timeout_ms
        self.deadlines.set((Timer.SESSION, member.member_id), now_ms + session_ms)

    def _time_revocation(self, member: StreamsMember, now_ms: int) -> None:
        if member.revoking:
            self.deadlines.set((Timer.REVOKE, member.member_id), now_ms + member.rebalance_timeout_ms)
        else:
            self.deadlines.clear((Timer.REVOKE, member.member_id))


def _is_placed_by(member: StreamsMember) -> tuple[object, ...]:
    """Returns what of a member may change who gets which tasks (KIP-1071)."""
    return (
        member.topology_epoch,
        member.process_id,
        member.rack_id,
        tuple(sorted(member.client_tags.items())),
    )
