"""Committed offsets: where each group continues to read, written for many groups in one round trip
(docs/design/groups.md#offset-commits).

Promises:
- A commit is applied only while its coordinator's epoch and its fence (generation, member, member epoch) are
  valid, judged while no one else can change them.
- The group's next coordinator reads every commit that was accepted before.
- Offsets and epoch are read at one moment.
- Offsets of deleted topics are never returned.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sequencer.database.array_parameters import BytesArray, Int4Array, Int8Array, TextArray, UuidArray
from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from sequencer.groups.groups import can_be_id
from storage.identifiers import NO_OFFSET, Offset, Partition, TopicId

SQL = load_statements("committed_offsets")

PartitionKey = tuple[TopicId, Partition]
_NO_NUMBER = -1
_NO_MEMBER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    offset: Offset
    leader_epoch: int = -1
    metadata: str = ""


NOT_COMMITTED = CommittedOffset(offset=NO_OFFSET)
"""Of a partition for which the group has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """One commit of one group. Every given part of the fence must hold: the group's generation, the member's
    being in the group, the member's epoch. If none is given, the group must have no members.
    """

    group_id: str
    coordinator_epoch: int
    offsets: Sequence[tuple[TopicId, Partition, CommittedOffset]]
    """If a partition is named twice, the last one counts."""
    generation: int | None = None
    member_id: str | None = None
    member_epoch: int | None = None
    """With `member_id`."""


class CommitVerdict(Enum):
    """The values are those of the function `commit_offsets`."""

    DONE = 0
    NOT_COORDINATOR = 1
    """Another agent has claimed the group, or it was deleted."""
    UNKNOWN_MEMBER = 2
    ILLEGAL_GENERATION = 3
    STALE_MEMBER_EPOCH = 4


_VERDICTS = tuple(CommitVerdict)
"""By their numbers, which count from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuery:
    """`partitions` None: all that the group has. `coordinator_epoch` None: whichever agent coordinates it."""

    group_id: str
    coordinator_epoch: int | None
    partitions: Collection[PartitionKey] | None


class CommittedOffsets:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(self, commits: Sequence[OffsetCommit]) -> list[CommitVerdict]:
        """Applies commits of any groups in this order, in one transaction and one round trip. Returns one
        verdict per commit.

        Raises SequencerUnavailable (nothing was written) or CommitOutcomeUnknown: it may be applied, now or a
        little later. Then claim its groups again before the next commit for them: the claim waits for it or
        fences it.
        """
        if not commits:
            return []
        [row] = await self._database.write(SQL["commit"], **commit_parameters(commits))
        return [_VERDICTS[verdict] for verdict in row.verdicts]

    async def fetch(
        self, queries: Sequence[OffsetQuery]
    ) -> list[Mapping[PartitionKey, CommittedOffset] | None]:
        """Returns one answer per query: every partition asked for (NO_OFFSET if it has none), or all that the
        group has. None: another agent has claimed the group, or there is no such group. All answers are from
        one moment.
        """
        if not queries:
            return []
        wanted = [frozenset(query.partitions or ()) for query in queries]
        asked = [(number, *key) for number, keys in enumerate(wanted, start=1) for key in keys]
        rows = await self._database.read(
            SQL["fetch"],
            group_ids=TextArray(query.group_id for query in queries),
            coordinator_epochs=Int8Array(_number(query.coordinator_epoch) for query in queries),
            everything=[query.partitions is None for query in queries],
            of_groups=Int4Array(number for number, _, _ in asked),
            topic_ids=UuidArray(topic_id for _, topic_id, _ in asked),
            partitions=Int4Array(partition for _, _, partition in asked),
        )
        answers: list[dict[PartitionKey, CommittedOffset] | None] = [None] * len(queries)
        for row in rows:
            if row.topic_id is None:
                answers[row.number - 1] = dict.fromkeys(wanted[row.number - 1], NOT_COMMITTED)
        for row in rows:
            answer = answers[row.number - 1]
            if row.topic_id is not None and answer is not None:
                answer[TopicId(row.topic_id), Partition(row.partition)] = CommittedOffset(
                    offset=Offset(row.committed_offset),
                    leader_epoch=row.leader_epoch,
                    metadata=row.metadata.decode(),
                )
        return list(answers)

    async def pending(self, group_ids: Sequence[str]) -> dict[str, set[PartitionKey]]:
        """Returns the partitions for which open transactions have offsets. Groups without any are left
        out."""
        found: dict[str, set[PartitionKey]] = {}
        possible = [group_id for group_id in group_ids if can_be_id(group_id)]
        if possible:
            for row in await self._database.read(SQL["pending"], group_ids=TextArray(possible)):
                found.setdefault(row.group_id, set()).add((TopicId(row.topic_id), Partition(row.partition)))
        return found

    async def delete(
        self, group_id: str, coordinator_epoch: int, partitions: Collection[PartitionKey]
    ) -> bool:
        """Deletes offsets. Missing offsets are no error. False: another agent has claimed the group, or it
        was deleted. May be repeated after CommitOutcomeUnknown.
        """
        [row] = await self._database.write(
            SQL["delete"],
            group_id=group_id,
            coordinator_epoch=coordinator_epoch,
            topic_ids=UuidArray(topic_id for topic_id, _ in partitions),
            partitions=Int4Array(partition for _, partition in partitions),
        )
        return bool(row.held)


def commit_parameters(commits: Sequence[OffsetCommit]) -> Mapping[str, Any]:
    """Returns the parameters of `commit_offsets` (functions/commit_offsets.sql)."""
    group_ids = sorted({commit.group_id for commit in commits}, key=str.encode)
    position = {group_id: number for number, group_id in enumerate(group_ids, start=1)}
    offsets = [
        (number, *offset) for number, commit in enumerate(commits, start=1) for offset in commit.offsets
    ]
    metadata = [offset.metadata.encode() for _, _, _, offset in offsets]
    return {
        "group_ids": TextArray(group_ids),
        "commit_groups": Int4Array(position[commit.group_id] for commit in commits),
        "commit_epochs": Int8Array(commit.coordinator_epoch for commit in commits),
        "commit_generations": Int4Array(_number(commit.generation) for commit in commits),
        "commit_members": TextArray(commit.member_id or _NO_MEMBER for commit in commits),
        "commit_member_epochs": Int4Array(_number(commit.member_epoch) for commit in commits),
        "offset_commits": Int4Array(number for number, _, _, _ in offsets),
        "offset_topics": UuidArray(topic_id for _, topic_id, _, _ in offsets),
        "offset_partitions": Int4Array(partition for _, _, partition, _ in offsets),
        "offset_values": Int8Array(offset.offset for _, _, _, offset in offsets),
        "offset_leader_epochs": Int4Array(offset.leader_epoch for _, _, _, offset in offsets),
        "offset_metadata": BytesArray(metadata if any(metadata) else ()),
    }


def _number(given: int | None) -> int:
    return _NO_NUMBER if given is None else given
