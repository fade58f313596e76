"""A member of a streams group (KIP-1071), and its steps from the tasks that it has to its target. Pure.

Only active tasks have one owner at a time (`partition_sets.py`). Standby copies need no owner: a member gets
those of its target at each step. Two threads of one process may be told of one task for a moment; Kafka
Streams locks the task's directory.

A standby copy that is to become active stays a copy until the task is free. A client turns a copy that it is
told to have active into an active task, without building its state again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agent.groups.events import Endpoint, Tasks, TaskSets
from agent.groups.partition_sets import chosen, common, next_step, ranges, read_ranges, united, without
from agent.groups.roster import is_reconciled
from sequencer.groups.stored_groups import StoredMember
from storage.identifiers import Partition

NO_TASKS: Final = Tasks()
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = 0
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0
    previous_epoch: int = 0
    """Its epoch before the last answer that may have changed it. That answer may be lost."""
    commit_epoch: int = 0
    """It has lost no active task since this epoch. So an offset commit with this epoch or a later one is
    about tasks that are still its (KIP-1251).
    """
    assigned: Tasks = NO_TASKS
    revoking: TaskSets = field(default_factory=dict)
    """Active tasks that it was told to give up."""

    @property
    def owned(self) -> TaskSets:
        """All tasks that may be active at it."""
        return united(self.assigned.active, self.revoking)


def reconciled(
    member: StreamsMember,
    target: Tasks,
    target_epoch: int,
    owned: Tasks | None,
    is_free: Callable[[str, Partition], bool],
) -> StreamsMember:
    """Returns the member one step nearer to its target, or the member itself if no step is possible. `owned`:
    the tasks that it says it still has. None: it said nothing, which confirms nothing.
    """
    if is_reconciled(member, target, target_epoch):
        return member
    had = member.assigned
    active = None if owned is None else owned.active
    step = next_step(had.active, member.revoking, target.active, active, is_free)
    if step is None:
        return member
    to_come = without(target.active, step.assigned)
    assigned = Tasks(
        active=step.assigned,
        standby=united(target.standby, common(united(had.standby, had.warmup), to_come)),
        warmup=target.warmup,
    )
    if (
        assigned == had
        and step.revoking == member.revoking
        and (member.epoch == target_epoch or not step.is_done)
    ):
        return member
    epoch = target_epoch if step.is_done else member.epoch
    has_lost = bool(without(member.owned, united(step.assigned, step.revoking)))
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        commit_epoch=epoch if has_lost or not member.epoch else member.commit_epoch,
        assigned=assigned,
        revoking=step.revoking,
    )


def existing(tasks: Tasks, task_counts: Mapping[str, int]) -> Tasks:
    """Returns the tasks that a topology still has."""

    def exists(subtopology: str, number: Partition) -> bool:
        return number < task_counts.get(subtopology, 0)

    return Tasks(
        active=chosen(tasks.active, exists),
        standby=chosen(tasks.standby, exists),
        warmup=chosen(tasks.warmup, exists),
    )


# --- as documents


def member_document(member: StreamsMember, target: Tasks) -> StoredMember:
    endpoint = member.endpoint
    return StoredMember(
        epoch=member.epoch,
        document={
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "topology_epoch": member.topology_epoch,
            "process_id": member.process_id,
            "endpoint": None if endpoint is None else [endpoint.host, endpoint.port],
            "client_tags": dict(member.client_tags),
            "previous_epoch": member.previous_epoch,
            "commit_epoch": member.commit_epoch,
            "assigned": _write_tasks(member.assigned),
            "revoking": _write(member.revoking),
            "target": _write_tasks(target),
        },
    )


def read_member(member_id: str, stored: StoredMember) -> tuple[StreamsMember, Tasks]:
    """Returns the member and its target."""
    document = stored.document
    endpoint = document["endpoint"]
    member = StreamsMember(
        member_id=member_id,
        rack_id=document["rack_id"],
        client_id=document["client_id"],
        client_host=document["client_host"],
        rebalance_timeout_ms=document["rebalance_timeout_ms"],
        topology_epoch=document["topology_epoch"],
        process_id=document["process_id"],
        endpoint=None if endpoint is None else Endpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=document["client_tags"],
        epoch=stored.epoch,
        previous_epoch=document["previous_epoch"],
        commit_epoch=document["commit_epoch"],
        assigned=_read_tasks(document["assigned"]),
        revoking=_read(document["revoking"]),
    )
    return member, _read_tasks(document["target"])


def _write_tasks(tasks: Tasks) -> Mapping[str, Any]:
    return {
        "active": _write(tasks.active),
        "standby": _write(tasks.standby),
        "warmup": _write(tasks.warmup),
    }


def _read_tasks(document: Mapping[str, Any]) -> Tasks:
    return Tasks(
        active=_read(document["active"]),
        standby=_read(document["standby"]),
        warmup=_read(document["warmup"]),
    )


def _write(sets: TaskSets) -> Mapping[str, str]:
    return {subtopology: ranges(numbers) for subtopology, numbers in sorted(sets.items())}


def _read(document: Mapping[str, str]) -> TaskSets:
    return {subtopology: read_ranges(text) for subtopology, text in document.items()}
