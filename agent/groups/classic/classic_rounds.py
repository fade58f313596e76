"""How a classic group goes from one generation to the next: members gather, a generation begins, its leader
assigns.

| from | on | to |
|---|---|---|
| Empty, Stable, CompletingRebalance | `begin_rebalance` | PreparingRebalance: members rejoin and wait |
| PreparingRebalance | `end_joining` | CompletingRebalance: a generation with a leader; all sync and wait |
| CompletingRebalance | the leader's sync | Stable |

Pure. A member that waits for an answer keeps its request. If the request is gone, the member goes on waiting.
As in Kafka, a member that joined and then lost its connection still takes part in the rebalance; only its
answer is dropped.

Promises:
- Every waiting request is answered within the rebalance timeout of the slowest member. A first generation
  waits for `group_initial_rebalance_delay_ms` after each newcomer, but no longer than that timeout.
- A rebalance ends within that timeout, without the members that did not come.
- Generations only rise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agent.groups.classic.classic_members import ClassicMember, ClassicRoster
from agent.groups.coordinator.deadlines import Deadlines
from agent.groups.events import (
    Answer,
    Answered,
    GroupFault,
    GroupState,
    JoinAnswer,
    JoinedMember,
    SyncAnswer,
    Token,
)

NEWCOMER_TIMEOUT_MS: Final = 300_000
"""A newcomer cannot send heartbeats while its first JoinGroup waits. After this time it must ask again, so
that clients that gave up do not gather in a long rebalance. Kafka's constant.
"""

LAST_GENERATION: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialDelay:
    """The wait before a group's first generation."""

    step_ms: int
    """The length of the current wait."""
    remaining_ms: int
    """The time that remains after it."""
    newcomers: bool = False
    """A member came during the wait, so the group waits for another step."""


class Waiting:
    """Members that wait for an answer: at most one request per member, and one member per request."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token | None] = {}
        self._members: dict[Token, str] = {}

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def put(self, member_id: str, token: Token) -> Token | None:
        """The member waits with this request. Returns its earlier request, which must be answered now."""
        earlier = self.take(member_id)
        self._tokens[member_id] = token
        self._members[token] = member_id
        return earlier

    def take(self, member_id: str) -> Token | None:
        """The member waits no more. Returns the request to answer, if there still is one."""
        token = self._tokens.pop(member_id, None)
        if token is not None:
            del self._members[token]
        return token

    def forget(self, token: Token) -> None:
        member_id = self._members.pop(token, None)
        if member_id is not None:
            self._tokens[member_id] = None

    def member_ids(self) -> Iterable[str]:
        return tuple(self._tokens)


class Rounds:
    """A group's members and their generation. The public attributes are for reading: only this class changes
    them, except `initial_delay_ms`.
    """

    def __init__(self, initial_delay_ms: int) -> None:
        self.initial_delay_ms = initial_delay_ms
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.roster = ClassicRoster()
        self.pending: set[str] = set()
        """Member ids given out (KIP-394) that did not join yet."""
        self._newcomers: set[str] = set()
        """Members that wait for their first generation."""
        self.joining = Waiting()
        self._syncing = Waiting()
        self._unsynced: set[str] = set()
        """Members of this generation that did not sync yet."""
        self._sessions: Deadlines[str] = Deadlines()
        """Deadlines of members and pending ids."""
        self._initial: InitialDelay | None = None
        self._join_due_ms: int | None = None
        self._sync_due_ms: int | None = None
        self._answers: list[Answered] = []

    # --- from outside: taken over, converted, unloaded

    def settle_in(self, members: Iterable[ClassicMember], leader: str | None, now_ms: int) -> None:
        """Makes the group Stable with these members, if there are any. If `leader` is not one of them, the
        first leads.
        """
        for member in members:
            self.roster.put(member)
            self.keep_alive(member.member_id, now_ms)
        if len(self.roster):
            self.state = GroupState.STABLE
            self.leader = leader if leader and leader in self.roster else next(iter(self.roster.by_id))

    def resume(self, generation: int, protocol_type: str, protocol_name: str | None) -> None:
        self.generation = generation
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name

    def dismiss(self, fault: GroupFault) -> None:
        """Answers every waiting request with this fault, and makes the group Dead. The members can still be
        read.
        """
        self.state = GroupState.DEAD
        self._sessions = Deadlines()
        self._initial = self._join_due_ms = self._sync_due_ms = None
        for member_id in self.joining.member_ids():
            self.answer(self.joining.take(member_id), JoinAnswer(fault=fault, member_id=member_id))
        for member_id in self._syncing.member_ids():
            self.answer(self._syncing.take(member_id), SyncAnswer(fault=fault))

    # --- time

    def tick(self, now_ms: int) -> None:
        """Fires the timers that are due. A timer that is set again is due after `now_ms`, so this ends."""
        while (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            if self._sessions.next_ms() == due_ms:
                self._expire_session(self._sessions.take_next(), now_ms)
            elif self._join_due_ms == due_ms:
                self._join_time_is_up(now_ms)
            else:
                self._sync_time_is_up(now_ms)

    def next_deadline_ms(self) -> int | None:
        due = (self._sessions.next_ms(), self._join_due_ms, self._sync_due_ms)
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def _expire_session(self, member_id: str, now_ms: int) -> None:
        if member_id in self.pending:
            self.pending.discard(member_id)
            self.end_joining_if_all_joined(now_ms)
        elif member_id in self._newcomers or not (member_id in self.joining or member_id in self._syncing):
            self.remove(member_id)
            self.rebalance(now_ms)

    def _join_time_is_up(self, now_ms: int) -> None:
        initial = self._initial
        if initial is None or not initial.newcomers or initial.remaining_ms == 0:
            self._end_joining(now_ms)
            return
        step_ms = min(self.initial_delay_ms, initial.remaining_ms)
        self._initial = InitialDelay(
            step_ms=step_ms, remaining_ms=max(initial.remaining_ms - initial.step_ms, 0)
        )
        self._join_due_ms = now_ms + step_ms

    def _sync_time_is_up(self, now_ms: int) -> None:
        self._sync_due_ms = None
        for member_id in sorted(self._unsynced):
            self.remove(member_id)
        self.begin_rebalance(now_ms)

    def _rebalance_timeout_ms(self) -> int:
        """At least one millisecond, whatever members ask for, so that time advances."""
        return max(self.roster.rebalance_timeout_ms, 1)

    # --- rounds

    def rebalance(self, now_ms: int) -> None:
        """A member came, went or changed. Begins a rebalance, or ends the joining if it waited only for this
        member.
        """
        if self.state is GroupState.PREPARING_REBALANCE:
            self.end_joining_if_all_joined(now_ms)
        else:
            self.begin_rebalance(now_ms)

    def begin_rebalance(self, now_ms: int) -> None:
        for member_id in self._syncing.member_ids():
            self.answer(self._syncing.take(member_id), SyncAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS))
            self.keep_alive(member_id, now_ms)
        self._unsynced.clear()
        self._sync_due_ms = None
        was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        delay_ms = self.initial_delay_ms
        if was_empty and delay_ms:
            remaining_ms = max(self._rebalance_timeout_ms() - delay_ms, 0)
            self._initial = InitialDelay(step_ms=delay_ms, remaining_ms=remaining_ms)
            self._join_due_ms = now_ms + delay_ms
        elif was_empty or self._all_joined():
            self._end_joining(now_ms)
        else:
            self._join_due_ms = now_ms + self._rebalance_timeout_ms()

    def _all_joined(self) -> bool:
        """The group waits for ids that were given out, unless it has no other members."""
        return len(self.joining) == len(self.roster) and (not self.pending or not len(self.roster))

    def end_joining_if_all_joined(self, now_ms: int) -> None:
        """A first generation still waits for its delay."""
        if self.state is GroupState.PREPARING_REBALANCE and self._initial is None and self._all_joined():
            self._end_joining(now_ms)

    def _end_joining(self, now_ms: int) -> None:
        """Removes members that did not rejoin. A static member stays until its session ends (KIP-345): it may
        be restarting, and finds its assignment when it returns. If no member came, the group waits for the
        static ones.
        """
        self._initial = None
        self._join_due_ms = None
        for member in self.roster:
            if member.instance_id is None and member.member_id not in self.joining:
                self.remove(member.member_id)
        if len(self.roster) and not len(self.joining):
            self._join_due_ms = now_ms + self._rebalance_timeout_ms()
            return
        self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        self.generation = 1 if self.generation == LAST_GENERATION else self.generation + 1
        self._newcomers.clear()
        if not len(self.roster):
            self.state = GroupState.EMPTY
            self.protocol_name = self.leader = None
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol_name = self.roster.vote()
        if self.leader is None or self.leader not in self.joining:
            self.leader = next(member.member_id for member in self.roster if member.member_id in self.joining)
        self._unsynced = set(self.roster.by_id)
        self._sync_due_ms = now_ms + self._rebalance_timeout_ms()
        for member in self.roster:
            self.keep_alive(member.member_id, now_ms)
            self.answer(self.joining.take(member.member_id), self.joined(member.member_id))

    def assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """The leader has assigned. A member that it did not name has nothing."""
        self.state = GroupState.STABLE
        for member in self.roster:
            self.roster.put(replace(member, assignment=assignments.get(member.member_id, b"")))
        for member_id in self._syncing.member_ids():
            self.answer(self._syncing.take(member_id), self.assigned(member_id))
            self.keep_alive(member_id, now_ms)

    def joined(self, member_id: str) -> JoinAnswer:
        """Returns the answer for a member of the current generation. The leader's answer has all members."""
        return JoinAnswer(
            member_id=member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            members=self._joined_members() if member_id == self.leader else (),
        )

    def assigned(self, member_id: str) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=self.roster[member_id].assignment,
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.roster
        )

    # --- members

    def give_out(self, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        """Gives an id to a newcomer. The group waits until it joins with the id."""
        self.pending.add(member_id)
        self._sessions.set(member_id, now_ms + session_timeout_ms)

    def take_back(self, member_id: str) -> None:
        """Stops waiting for an id that was given out."""
        self.pending.discard(member_id)
        self._sessions.clear(member_id)

    def admit(self, member: ClassicMember, protocol_type: str, token: Token, now_ms: int) -> None:
        """Adds a newcomer, which waits for the next generation. The first one sets the group's protocol
        type.
        """
        if not len(self.roster):
            self.leader = member.member_id
            self.protocol_type = protocol_type
        self.pending.discard(member.member_id)
        self._newcomers.add(member.member_id)
        if self._initial is not None:
            self._initial = replace(self._initial, newcomers=True)
        self.roster.put(member)
        self.joining.put(member.member_id, token)
        self._sessions.set(member.member_id, now_ms + NEWCOMER_TIMEOUT_MS)
        self.rebalance(now_ms)

    def change(self, member: ClassicMember) -> None:
        """Replaces what is known of a member."""
        self.roster.put(member)

    def gather(self, member_id: str, token: Token, now_ms: int) -> None:
        """A member waits with its JoinGroup for the next generation."""
        earlier = self.joining.put(member_id, token)
        self.answer(earlier, JoinAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS, member_id=member_id))
        self.rebalance(now_ms)

    def await_assignment(self, member_id: str, token: Token) -> None:
        """A member waits with its SyncGroup for its assignment."""
        earlier = self._syncing.put(member_id, token)
        self.answer(earlier, SyncAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS))

    def forget(self, token: Token) -> None:
        """Drops the answer. The member stays and goes on waiting."""
        self.joining.forget(token)
        self._syncing.forget(token)

    def replace_member(self, replaced_id: str, member: ClassicMember, now_ms: int) -> None:
        """Gives a static member a new id. The old id is fenced from now on, even if its client still runs."""
        led_before = self.leader
        self._release(replaced_id, GroupFault.FENCED_INSTANCE, told_id=replaced_id)
        self.roster.put(member)
        self.keep_alive(member.member_id, now_ms)
        if led_before == replaced_id:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Removes a member. The caller begins a rebalance. A waiting request of the member gets
        UNKNOWN_MEMBER, so that a client that is still alive joins again.
        """
        self._release(member_id, GroupFault.UNKNOWN_MEMBER, told_id="")
        if self.leader == member_id:
            self.leader = next(iter(self.roster.by_id), None)

    def _release(self, member_id: str, fault: GroupFault, told_id: str) -> None:
        self.answer(self.joining.take(member_id), JoinAnswer(fault=fault, member_id=told_id))
        self.answer(self._syncing.take(member_id), SyncAnswer(fault=fault))
        self._sessions.clear(member_id)
        self._newcomers.discard(member_id)
        self.synced(member_id)
        self.roster.remove(member_id)

    def synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._sync_due_ms = None

    def keep_alive(self, member_id: str, now_ms: int) -> None:
        self._sessions.set(member_id, now_ms + self.roster[member_id].session_timeout_ms)

    # --- answers

    def answer(self, token: Token | None, answer: Answer) -> None:
        """None: there is no request to answer any more."""
        if token is not None:
            self._answers.append(Answered(token=token, answer=answer))

    def take_answers(self) -> list[Answered]:
        answers, self._answers = self._answers, []
        return answers
