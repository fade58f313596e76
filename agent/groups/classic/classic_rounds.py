"""How a classic group goes from one generation to the next: members gather, a generation begins, its leader assigns.

    Empty, Stable, CompletingRebalance --begin_rebalance--> PreparingRebalance: members rejoin and wait
    PreparingRebalance --end_joining--> CompletingRebalance: a generation with a leader; all sync and wait
    CompletingRebalance --the leader's sync--> Stable

Pure. Promises: every waiting request is answered within the rebalance timeout of the slowest member (a first generation
waits for `group_initial_rebalance_delay_ms` after each newcomer, but no longer than that timeout); a rebalance ends
within it, without those who did not come; generations only rise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from agent.groups.classic.classic_members import ClassicMember, Roster
from agent.groups.classic.classic_waiting import Waiting
from agent.groups.coordinator.deadlines import Deadlines
from agent.groups.events import Answer, Answered, GroupFault, GroupState, JoinAnswer, JoinedMember, SyncAnswer, Token
from agent.groups.settings import GroupSettings

NEWCOMER_TIMEOUT_MS: Final = 300_000
"""A newcomer cannot send heartbeats while its first JoinGroup waits; one that waits for longer must ask again, so that
clients that gave up do not gather in a long rebalance. Kafka's constant."""

LAST_GENERATION: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialDelay:
    """The wait before a group's first generation."""

    step_ms: int
    """What is being waited now."""
    remaining_ms: int
    """What may still be waited after it."""
    newcomers: bool = False
    """Somebody came meanwhile: wait on."""


class ClassicRounds:
    def __init__(self, group_id: str, settings: GroupSettings, new_id: Callable[[], str]) -> None:
        self._group_id = group_id
        self._settings = settings
        self._new_id = new_id
        self._state = GroupState.EMPTY
        self._generation = 0
        self._protocol_type = ""
        self._protocol_name: str | None = None
        self._leader: str | None = None
        self._roster = Roster()
        self._pending: set[str] = set()
        """Member ids given out (KIP-394) that did not join yet."""
        self._newcomers: set[str] = set()
        """Members that wait for their first generation."""
        self._joining = Waiting()
        self._syncing = Waiting()
        self._unsynced: set[str] = set()
        """Members of this generation that did not sync yet."""
        self._sessions: Deadlines[str] = Deadlines()
        """Of members and pending ids."""
        self._initial: InitialDelay | None = None
        self._join_due_ms: int | None = None
        self._sync_due_ms: int | None = None
        self._answers: list[Answered] = []

    def configure(self, settings: GroupSettings) -> None:
        self._settings = settings

    # --- time

    def tick(self, now_ms: int) -> list[Answered]:
        """Lets go off what is due. What a timer sets anew is later than `now_ms`, so this ends."""
        while (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            if self._sessions.next_ms() == due_ms:
                self._expire_session(self._sessions.take_next(), now_ms)
            elif self._join_due_ms == due_ms:
                self._join_time_is_up(now_ms)
            else:
                self._sync_time_is_up(now_ms)
        return self._take_answers()

    def next_deadline_ms(self) -> int | None:
        due = (self._sessions.next_ms(), self._join_due_ms, self._sync_due_ms)
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def _expire_session(self, member_id: str, now_ms: int) -> None:
        if member_id in self._pending:
            self._pending.discard(member_id)
            self._end_joining_if_all_joined(now_ms)
        elif member_id in self._newcomers or not (member_id in self._joining or member_id in self._syncing):
            self._remove(member_id)
            self._rebalance(now_ms)

    def _join_time_is_up(self, now_ms: int) -> None:
        initial = self._initial
        if initial is None or not initial.newcomers or initial.remaining_ms == 0:
            self._end_joining(now_ms)
            return
        step_ms = min(self._settings.group_initial_rebalance_delay_ms, initial.remaining_ms)
        self._initial = InitialDelay(step_ms=step_ms, remaining_ms=max(initial.remaining_ms - initial.step_ms, 0))
        self._join_due_ms = now_ms + step_ms

    def _sync_time_is_up(self, now_ms: int) -> None:
        self._sync_due_ms = None
        for member_id in sorted(self._unsynced):
            self._remove(member_id)
        self._begin_rebalance(now_ms)

    def _rebalance_timeout_ms(self) -> int:
        """At least one millisecond, whatever members say, so that time goes on."""
        return max(self._roster.rebalance_timeout_ms, 1)

    # --- rounds

    def _rebalance(self, now_ms: int) -> None:
        """Somebody came, went or changed: begin a rebalance, or end the joining if that is what it waited for."""
        if self._state is GroupState.PREPARING_REBALANCE:
            self._end_joining_if_all_joined(now_ms)
        else:
            self._begin_rebalance(now_ms)

    def _begin_rebalance(self, now_ms: int) -> None:
        for member_id in self._syncing.member_ids():
            self._answer(self._syncing.take(member_id), SyncAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS))
            self._keep_alive(member_id, now_ms)
        self._unsynced.clear()
        self._sync_due_ms = None
        was_empty = self._state is GroupState.EMPTY
        self._state = GroupState.PREPARING_REBALANCE
        delay_ms = self._settings.group_initial_rebalance_delay_ms
        if was_empty and delay_ms:
            remaining_ms = max(self._rebalance_timeout_ms() - delay_ms, 0)
            self._initial = InitialDelay(step_ms=delay_ms, remaining_ms=remaining_ms)
            self._join_due_ms = now_ms + delay_ms
        elif was_empty or self._all_joined():
            self._end_joining(now_ms)
        else:
            self._join_due_ms = now_ms + self._rebalance_timeout_ms()

    def _all_joined(self) -> bool:
        """Ids given out are waited for, unless they would be the only ones."""
        return len(self._joining) == len(self._roster) and (not self._pending or not len(self._roster))

    def _end_joining_if_all_joined(self, now_ms: int) -> None:
        """A first generation waits for its delay all the same."""
        if self._state is GroupState.PREPARING_REBALANCE and self._initial is None and self._all_joined():
            self._end_joining(now_ms)

    def _end_joining(self, now_ms: int) -> None:
        """Members that did not come are out. A static one stays until its session ends (KIP-345): it may be restarting,
        and what the leader gives it is there when it is back. If nobody came, the static ones are waited for."""
        self._initial = None
        self._join_due_ms = None
        for member in self._roster:
            if member.instance_id is None and member.member_id not in self._joining:
                self._remove(member.member_id)
        if len(self._roster) and not len(self._joining):
            self._join_due_ms = now_ms + self._rebalance_timeout_ms()
            return
        self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        self._generation = 1 if self._generation == LAST_GENERATION else self._generation + 1
        self._newcomers.clear()
        if not len(self._roster):
            self._state = GroupState.EMPTY
            self._protocol_name = self._leader = None
            return
        self._state = GroupState.COMPLETING_REBALANCE
        self._protocol_name = self._roster.vote()
        if self._leader is None or self._leader not in self._joining:
            self._leader = next(member.member_id for member in self._roster if member.member_id in self._joining)
        self._unsynced = set(self._roster.by_id)
        self._sync_due_ms = now_ms + self._rebalance_timeout_ms()
        for member in self._roster:
            self._keep_alive(member.member_id, now_ms)
            self._answer(self._joining.take(member.member_id), self._joined(member.member_id))

    def _joined(self, member_id: str) -> JoinAnswer:
        """What a member of the current generation is told; the leader is told of all."""
        return JoinAnswer(
            member_id=member_id,
            generation=self._generation,
            protocol_type=self._protocol_type,
            protocol_name=self._protocol_name,
            leader=self._leader or "",
            members=self._joined_members() if member_id == self._leader else (),
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self._protocol_name),
            )
            for member in self._roster
        )

    # --- members

    def _admit(self, member: ClassicMember, protocol_type: str, token: Token, now_ms: int) -> None:
        """A newcomer: it waits for the next generation. The first says what the group is for."""
        if not len(self._roster):
            self._leader = member.member_id
            self._protocol_type = protocol_type
        self._pending.discard(member.member_id)
        self._newcomers.add(member.member_id)
        if self._initial is not None:
            self._initial = replace(self._initial, newcomers=True)
        self._roster.put(member)
        self._joining.put(member.member_id, token)
        self._sessions.set(member.member_id, now_ms + NEWCOMER_TIMEOUT_MS)
        self._rebalance(now_ms)

    def _remove(self, member_id: str) -> None:
        """Out of the group; the caller begins a rebalance. What it waits for is answered UNKNOWN_MEMBER, so that a
        client that is alive after all joins again."""
        self._release(member_id, GroupFault.UNKNOWN_MEMBER, told_id="")
        if self._leader == member_id:
            self._leader = next(iter(self._roster.by_id), None)

    def _release(self, member_id: str, fault: GroupFault, told_id: str) -> ClassicMember:
        self._answer(self._joining.take(member_id), JoinAnswer(fault=fault, member_id=told_id))
        self._answer(self._syncing.take(member_id), SyncAnswer(fault=fault))
        self._sessions.clear(member_id)
        self._newcomers.discard(member_id)
        self._synced(member_id)
        return self._roster.remove(member_id)

    def _synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._sync_due_ms = None

    def _keep_alive(self, member_id: str, now_ms: int) -> None:
        self._sessions.set(member_id, now_ms + self._roster[member_id].session_timeout_ms)

    # --- answers

    def _answer(self, token: Token | None, answer: Answer) -> None:
        """None: nobody waits for it any more."""
        if token is not None:
            self._answers.append(Answered(token=token, answer=answer))

    def _take_answers(self) -> list[Answered]:
        answers, self._answers = self._answers, []
        return answers
