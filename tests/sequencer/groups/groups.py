"""Builders for groups: claims, changes, members, offset commits, and what a group has committed."""

from collections.abc import Mapping
from typing import Any

from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import CommittedOffset, OffsetCommit, OffsetQuery
from sequencer.groups.groups import ClaimedGroup
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredMember
from sequencer.topics.topics import Topic
from storage.identifiers import NodeId, Offset, Partition

ANN, BOB = NodeId(1), NodeId(2)
"""Two agents."""


async def a_topic(sequencer: Sequencer, name: str = "orders", partitions: int = 4) -> Topic:
    return await sequencer.topics.create(name, partitions, {})


async def claimed(sequencer: Sequencer, group_id: str, agent: NodeId = ANN) -> ClaimedGroup:
    """The group, made if it was not there."""
    group = await sequencer.groups.claim(group_id, agent, create=True)
    assert group is not None
    return group


async def with_members(sequencer: Sequencer, group_id: str, *, generation: int = 1, **epochs: Any) -> int:
    """A group of these members at these epochs; returns its coordinator epoch."""
    epoch = (await claimed(sequencer, group_id)).coordinator_epoch
    members = {name: a_member(member_epoch) for name, member_epoch in epochs.items()}
    assert await sequencer.groups.write(group_id, epoch, a_change(generation=generation, members=members))
    return epoch


def a_member(epoch: int, **document: Any) -> StoredMember:
    return StoredMember(epoch=epoch, document=document)


def a_change(
    *,
    kind: GroupKind = "classic",
    generation: int = 1,
    state: str = "Stable",
    protocol_type: str = "consumer",
    document: Mapping[str, Any] | None = None,
    members: Mapping[str, StoredMember | None] | None = None,
    is_empty: bool = False,
) -> GroupChange:
    return GroupChange(
        kind=kind,
        generation=generation,
        state=state,
        protocol_type=protocol_type,
        document=document or {},
        members=members or {},
        is_empty=is_empty,
    )


def a_commit(topic: Topic, group_id: str, coordinator_epoch: int, offset: int, **more: Any) -> OffsetCommit:
    """Of one partition (0), unless `partition` says otherwise; the rest is the fence."""
    key = (topic.topic_id, Partition(more.pop("partition", 0)))
    return OffsetCommit(
        group_id=group_id,
        coordinator_epoch=coordinator_epoch,
        offsets=[(*key, CommittedOffset(offset=Offset(offset)))],
        **more,
    )


async def offsets_of(
    sequencer: Sequencer, topic: Topic, group_id: str, coordinator_epoch: int | None = None
) -> dict[int, int]:
    """The group's offsets of a topic by partition; without an epoch, as its next coordinator finds them."""
    if coordinator_epoch is None:
        coordinator_epoch = (await claimed(sequencer, group_id)).coordinator_epoch
    query = OffsetQuery(group_id=group_id, coordinator_epoch=coordinator_epoch, partitions=None)
    [found] = await sequencer.committed_offsets.fetch([query])
    assert found is not None, "its coordinator is another one"
    return {
        partition: offset.offset
        for (topic_id, partition), offset in found.items()
        if topic_id == topic.topic_id
    }
