"""Retention of groups: offsets unused for long or of deleted topics, and groups without members and offsets.

Promises:
- Offsets of a group with members end only with their topic.
- No offset is deleted before the retention time after its last commit.
- A step examines a bounded number of rows, never waits, and can be repeated at any moment.
- A removed group's coordinator is fenced: if the group is made again, it has another epoch.
"""

from dataclasses import dataclass
from uuid import UUID

from sequencer.database.array_parameters import TextArray
from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from storage.identifiers import Partition, TopicId

SQL = load_statements("group_retention")

OffsetKey = tuple[str, TopicId, Partition]
BEFORE_ALL: OffsetKey = ("", TopicId(UUID(int=0)), Partition(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsStep:
    unused: int
    """How many were deleted for their age."""
    of_deleted_topics: int
    next_after: OffsetKey | None
    """Where the next step continues; None: every offset was examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsStep:
    removed: int
    next_after: str | None


class GroupRetention:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def forget_offsets(
        self, retention_s: float, cap: int, after: OffsetKey | None = None
    ) -> OffsetsStep:
        """Examines the next `cap` offsets in key order, and deletes those that are due. Skips groups that are
        in use at this moment.
        """
        first = after or BEFORE_ALL
        page = {"after_group_id": first[0], "after_topic_id": first[1], "after_partition": first[2]}
        async with self._database.transaction() as connection:
            look = {"retention_s": retention_s, "cap": cap, **page}
            [looked] = await (await connection.execute(SQL["lock_groups_of_page"], look)).fetchall()
            last = {
                "to_group_id": looked.group_id,
                "to_topic_id": looked.topic_id,
                "to_partition": looked.partition,
            }
            judge = {"retention_s": retention_s, "group_ids": TextArray(looked.locked), **page, **last}
            [gone] = await (await connection.execute(SQL["forget_offsets"], judge)).fetchall()
        more = looked.looked_at == cap
        return OffsetsStep(
            unused=gone.unused,
            of_deleted_topics=gone.of_deleted_topics,
            next_after=(looked.group_id, looked.topic_id, looked.partition) if more else None,
        )

    async def remove_idle_groups(self, grace_s: float, cap: int, after: str | None = None) -> GroupsStep:
        """Examines the next `cap` groups in id order. Removes those without members and offsets that no agent
        has claimed or left for `grace_s`.
        """
        async with self._database.transaction() as connection:
            look = {"grace_s": grace_s, "cap": cap, "after": after or ""}
            [looked] = await (await connection.execute(SQL["lock_idle_groups"], look)).fetchall()
            judge = {"grace_s": grace_s, "group_ids": TextArray(looked.locked)}
            [gone] = await (await connection.execute(SQL["remove_groups"], judge)).fetchall()
        return GroupsStep(removed=gone.removed, next_after=looked.last if looked.looked_at == cap else None)
