"""The common rules for every request to a group of the new protocol, whichever protocol its member speaks
(KIP-848).

A member joined, changed or left. If that changes who should have what, the group's epoch rises. Targets are
made at that epoch, and the member is brought one step nearer to its own.

Targets are made when the next request comes, not when the epoch rises, so several changes cost one
computation.

A member is fenced (removed, and its partitions are free) in these cases:
- Its session is over.
- It takes longer than its rebalance timeout to give partitions up.
- It speaks the classic protocol and does not rejoin or sync within that time.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto
from typing import TypeAlias

from agent.groups.consumer.assignors import ASSIGNORS, Subscriber
from agent.groups.consumer.consumer_members import (
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    reconciled,
)
from agent.groups.consumer.consumer_roster import ConsumerRoster
from agent.groups.consumer.known_topics import KnownTopics, wanted_by
from agent.groups.coordinator.deadlines import Deadlines
from agent.groups.events import Assignment, GroupFault, TopicsSeen, TopicsWanted
from agent.groups.partition_sets import chosen, partitions_of, without
from agent.groups.roster import MemberRefused
from agent.groups.settings import GroupSettings
from storage.identifiers import TopicId


class Timer(Enum):
    SESSION = auto()
    REVOKE = auto()
    """A member of the new protocol gives partitions up."""
    JOIN = auto()
    """A classic member was told to rejoin."""
    SYNC = auto()
    """A classic member was told to sync."""


TimerKey: TypeAlias = tuple[Timer, str]


class ConsumerMembership:
    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        roster: ConsumerRoster,
        topics: KnownTopics,
        now_ms: int,
    ) -> None:
        self.settings = settings
        self.new_id = new_id
        self.roster = roster
        self.topics = topics
        self.deadlines: Deadlines[TimerKey] = Deadlines()
        self._wanted = TopicsWanted()
        self._resubscribed = True
        for member in roster.members.values():
            self.restart_session(member, now_ms)
            self._time_revocation(member, now_ms)

    # --- topics

    def wanted(self) -> TopicsWanted:
        """Returns what the members' subscriptions need to know of topics."""
        if self._resubscribed:
            wanted = wanted_by(self.roster.members.values())
            if wanted != self._wanted:
                self._wanted = wanted
            self._resubscribed = False
        return self._wanted

    def see(self, seen: TopicsSeen) -> None:
        if seen.keeps_assigned:
            seen = replace(seen, hidden=seen.hidden - self._assigned_by_regex(seen))
        self.topics.see(seen)
        if self.roster.members and self.topics.cover(self.wanted()):
            fingerprint = self._fingerprint()
            if fingerprint != self.roster.fingerprint:
                self.roster.raise_epoch(fingerprint)

    def _assigned_by_regex(self, seen: TopicsSeen) -> frozenset[str]:
        """Returns the topics that members with a regular expression are assigned."""
        assigned = {
            topic_id
            for member in self.roster.members.values()
            if member.regex is not None
            for topic_id in self.roster.target(member.member_id)
        }
        return frozenset(name for name, shape in seen.topics.items() if shape.topic_id in assigned)

    def _fingerprint(self) -> str:
        return self.topics.fingerprint(self.roster.members.values())

    # --- members

    def settle_in(self, member: ConsumerMember, target: Assignment, now_ms: int) -> None:
        """Adds a member that the group had in its other protocol."""
        self.roster.put(member)
        self.roster.set_target(member.member_id, target)
        self.restart_session(member, now_ms)
        self._resubscribed = True

    def start_at(self, generation: int, stored_member_ids: frozenset[str]) -> None:
        """Sets the generation once all members have settled in and their topics are known."""
        fingerprint = self._fingerprint()
        self.roster.start_at(generation, fingerprint, stored_member_ids)
        topics = frozenset[TopicId]().union(*map(self.topics.subscribed_ids, self.roster.members.values()))
        wanted = sum(self.topics.partition_counts(topics).values())
        if wanted != sum(
            1 for member_id in self.roster.members for _ in partitions_of(self.roster.target(member_id))
        ):
            self.roster.raise_epoch(fingerprint)

    def admit(self, member_id: str) -> None:
        """Raises `MemberRefused` if the group is full and this member is not in it."""
        full = len(self.roster.members) >= self.settings.group_max_size
        if full and member_id not in self.roster.members:
            raise MemberRefused(
                GroupFault.GROUP_FULL, f"The group has its maximum of {self.settings.group_max_size} members."
            )

    def restart_session(self, member: ConsumerMember, now_ms: int) -> None:
        """Restarts the member's session."""
        session_ms = (
            self.settings.group_consumer_session_timeout_ms
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        self.deadlines.set((Timer.SESSION, member.member_id), now_ms + session_ms)

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member returned under a new member id and without partitions. It stays the same member, at
        epoch 0 for now. It no longer owns what it was giving up.
        """
        new = replace(old, member_id=member_id, epoch=0, previous_epoch=0, revoking={})
        self._stop_timers(old.member_id)
        self.roster.replace(old.member_id, new)
        return new

    def step_to_target(
        self, before: ConsumerMember, now: ConsumerMember, owned: Assignment | None, now_ms: int
    ) -> ConsumerMember:
        """Handles a sign of life of a member. `before` is the member as it was (perhaps not yet in the
        group), `now` is the member as it describes itself, and `owned` are the partitions that it says it
        still has. Returns the member as the answer should show it. All topics must be known.
        """
        self.roster.put(now)
        resubscribed = before.topics != now.topics or before.regex != now.regex
        self._resubscribed = self._resubscribed or resubscribed
        if resubscribed or self.roster.epoch == 0:
            self.roster.raise_epoch(self._fingerprint())
        if self.roster.epoch > self.roster.assignment_epoch:
            self._make_targets()
        nearer = reconciled(
            now, self.roster.target(now.member_id), self.roster.assignment_epoch, owned, self.roster.is_free
        )
        self.roster.put(nearer)
        if nearer != now or now.classic != before.classic:
            self._time_revocation(nearer, now_ms)
        self.restart_session(nearer, now_ms)
        return nearer

    def leave_temporarily(self, member: ConsumerMember) -> None:
        """A static member keeps what is assigned to it until its session is over."""
        self.deadlines.clear((Timer.REVOKE, member.member_id))
        self.roster.put(replace(member, epoch=STATIC_LEAVE_EPOCH, revoking={}))

    def fence(self, member_ids: Iterable[str]) -> None:
        """Removes these members. Their partitions are free. If all other members speak the classic protocol,
        the epoch stays: the group is about to become classic (`group.py`). A rebalance there, at the
        generation that they know, costs cooperative members nothing.
        """
        fenced = [member_id for member_id in dict.fromkeys(member_ids) if member_id in self.roster.members]
        for member_id in fenced:
            self.roster.remove(member_id)
            self._stop_timers(member_id)
        self._resubscribed = self._resubscribed or bool(fenced)
        if fenced and (self.roster.new_protocol_members or not self.roster.members):
            known = self.topics.cover(self.wanted())
            self.roster.raise_epoch(self._fingerprint() if known else self.roster.fingerprint)

    def tick(self, now_ms: int) -> None:
        self.fence(member_id for _, member_id in self.deadlines.take_due(now_ms))

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """True if another member still owns a partition of its target."""
        missing = without(self.roster.target(member.member_id), member.assigned)
        free = chosen(missing, self.roster.is_free)
        return free != missing

    # --- within

    def _make_targets(self) -> None:
        members = [
            Subscriber(
                member_id=member.member_id,
                instance_id=member.instance_id,
                topics=self.topics.subscribed_ids(member),
                target=self.roster.target(member.member_id),
            )
            for member in self.roster.members.values()
        ]
        counts = self.topics.partition_counts(
            frozenset[TopicId]().union(*{member.topics for member in members})
        )
        for member_id, target in ASSIGNORS[self.roster.assignor](members, counts).items():
            self.roster.set_target(member_id, target)
        self.roster.assigned_all()

    def _time_revocation(self, member: ConsumerMember, now_ms: int) -> None:
        if member.classic is None and member.revoking:
            self.deadlines.set((Timer.REVOKE, member.member_id), now_ms + member.rebalance_timeout_ms)
        else:
            self.deadlines.clear((Timer.REVOKE, member.member_id))
        if member.classic is None:
            self.deadlines.clear((Timer.JOIN, member.member_id))
            self.deadlines.clear((Timer.SYNC, member.member_id))

    def _stop_timers(self, member_id: str) -> None:
        for timer in Timer:
            self.deadlines.clear((timer, member_id))
