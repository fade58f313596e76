"""What every group's state machine offers, whichever protocol it speaks: the coordinator knows no more of it."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from agent.groups.events import (
    Answered,
    CommitFence,
    GroupDescription,
    GroupEvent,
    GroupFault,
    GroupState,
    Token,
    TopicsWanted,
)
from agent.groups.settings import GroupSettings
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup


class GroupMachine(Protocol):
    """Pure: time comes in with every call, as monotonic milliseconds; answers and changes go out."""

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

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> CommitFence | GroupFault: ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None: ...

    def check_delete(self) -> GroupFault | None: ...

    def check_offset_delete(self) -> GroupFault | None: ...

    def subscribed(self, topic: str) -> bool: ...

    def describe(self) -> GroupDescription: ...

    def configure(self, settings: GroupSettings) -> None: ...


MachineMaker: TypeAlias = Callable[[StoredGroup | None, int], GroupMachine]
"""From what Postgres has of a group, and the time."""
