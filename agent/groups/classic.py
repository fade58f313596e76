"""The classic consumer group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (KIP-62, 345, 394, 559, 814).

Pure: events and the time come in, answers and changes go out; no clock, no I/O.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from agent.groups.classic_members import ClassicMember
from agent.groups.settings import GroupSettings
from agent.groups.values import (
    Answered,
    CommitFence,
    GroupDescription,
    GroupEvent,
    GroupFault,
    GroupState,
    Token,
    TopicsWanted,
)
from sequencer.group_values import GroupChange, GroupKind, StoredGroup


class ClassicGroup:
    kind: GroupKind = "classic"

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        new_id: Callable[[], str],
        stored: StoredGroup | None,
        now_ms: int,
    ) -> None: ...

    @classmethod
    def converted(
        cls,
        group_id: str,
        settings: GroupSettings,
        new_id: Callable[[], str],
        *,
        members: Sequence[ClassicMember],
        generation: int,
        protocol_type: str,
        stored_member_ids: Collection[str],
        begin_rebalance: bool,
        now_ms: int,
    ) -> "ClassicGroup":
        """A group that was of the new protocol until now: Stable with these members and their assignments, at this
        generation, the first member leading; with a rebalance begun if asked (`False`: the event handled next begins
        one). `stored_member_ids` are those that Postgres has; the first change writes the members, deletes the rest."""
        raise NotImplementedError

    # --- what a conversion to the new protocol reads

    @property
    def members(self) -> Mapping[str, ClassicMember]:
        """By member id, without pending ones."""
        raise NotImplementedError

    @property
    def stored_member_ids(self) -> frozenset[str]:
        """The members that Postgres has once the changes taken so far are written."""
        raise NotImplementedError

    @property
    def protocol_type(self) -> str:
        """Empty while no member ever joined."""
        raise NotImplementedError

    @property
    def protocol_name(self) -> str | None:
        """The assignor that the members voted for; None while there is none."""
        raise NotImplementedError

    def dismiss(self, fault: GroupFault) -> list[Answered]:
        """Answers every waiting JoinGroup and SyncGroup with this fault; before a conversion (REBALANCE_IN_PROGRESS),
        or when the group is unloaded."""
        raise NotImplementedError

    # --- the interface of every machine (see values.py)

    @property
    def state(self) -> GroupState:
        raise NotImplementedError

    @property
    def is_empty(self) -> bool:
        raise NotImplementedError

    @property
    def generation(self) -> int:
        raise NotImplementedError

    def handle(self, event: GroupEvent, now_ms: int) -> list[Answered]:
        raise NotImplementedError

    def tick(self, now_ms: int) -> list[Answered]:
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        raise NotImplementedError

    def take_changes(self) -> GroupChange | None:
        raise NotImplementedError

    def forget(self, token: Token) -> None:
        raise NotImplementedError

    def topics_wanted(self) -> TopicsWanted:
        raise NotImplementedError

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> CommitFence | GroupFault:
        raise NotImplementedError

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None:
        raise NotImplementedError

    def check_delete(self) -> GroupFault | None:
        raise NotImplementedError

    def subscribed(self, topic: str) -> bool:
        raise NotImplementedError

    def describe(self) -> GroupDescription:
        raise NotImplementedError
