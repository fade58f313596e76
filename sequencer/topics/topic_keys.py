"""The keys of topics, as Postgres keeps them: encrypted by a key encryption key that it never sees.

Promises:
- Two who add the same version of a topic's key get one of them, and the same.
- A copy in the bucket that no row has is deleted, also if its maker died.
- A deleted topic has no keys: its deletion deletes them in the same transaction, and none is added later.
- `rewrap` changes a row only if it is still as it was read, so it can be repeated and run twice at once.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from storage.encryption.key_objects import WrappedKey
from storage.identifiers import KeyId, TopicId

SQL = load_statements("topic_keys")
_PER_PAGE: Final = 500
_RESERVED_S: Final = 60.0
"""How long after `reserve` a key can be added. Less than any window for late writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    topic: str
    created_at: datetime
    key: WrappedKey


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyToDelete:
    topic_id: TopicId
    key_id: KeyId
    is_last: bool
    """True: it was deleted once, and no late write can bring it back any more."""


class TopicKeyRows:
    """Each call raises SequencerUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest(self, topic_id: TopicId) -> WrappedKey | None:
        rows = await self._database.read(SQL["newest"], topic_id=topic_id)
        return key_of(rows[0]) if rows else None

    async def of_id(self, topic_id: TopicId, key_id: KeyId) -> WrappedKey | None:
        rows = await self._database.read(SQL["of_id"], topic_id=topic_id, key_id=key_id)
        return key_of(rows[0]) if rows else None

    async def ids_of(self, topic_id: TopicId) -> Sequence[KeyId]:
        """Returns the ids of the topic's keys, the oldest first."""
        rows = await self._database.read(SQL["of_topics"], topic_ids=[topic_id])
        return [KeyId(row.key_id) for row in rows]

    async def of_version(self, topic_id: TopicId, version: int) -> WrappedKey | None:
        rows = await self._database.read(SQL["of_version"], topic_id=topic_id, version=version)
        return key_of(rows[0]) if rows else None

    async def reserve(self, topic_id: TopicId, key_id: KeyId) -> None:
        """Call it before the key's copy is written: if `add` does not follow, the copy is deleted."""
        await self._database.run(SQL["reserve"], topic_id=topic_id, key_id=key_id)

    async def known(self, copies: Sequence[tuple[TopicId, KeyId]]) -> set[tuple[TopicId, KeyId]]:
        """Returns those copies that have a reason to be in the bucket."""
        rows = await self._database.read(
            SQL["known"], topic_ids=[copy[0] for copy in copies], key_ids=[copy[1] for copy in copies]
        )
        return {(TopicId(row.topic_id), KeyId(row.key_id)) for row in rows}

    async def add(self, key: WrappedKey) -> WrappedKey | None:
        """Returns the key of this version: this one, or the one that another added first. None: the topic is
        deleted, or the key was reserved too long ago.
        """
        await self._database.write(
            SQL["add"],
            topic_id=key.topic_id,
            version=key.version,
            key_id=key.key_id,
            wrapped_by=key.wrapped_by,
            wrapped=key.wrapped,
            reserved_s=_RESERVED_S,
        )
        return await self.of_version(key.topic_id, key.version)

    async def rewrap(self, before: WrappedKey, after: WrappedKey) -> bool:
        """False: the key was rewrapped or destroyed meanwhile."""
        rows = await self._database.write(
            SQL["rewrap"],
            topic_id=before.topic_id,
            version=before.version,
            before=before.wrapped,
            wrapped_by=after.wrapped_by,
            wrapped=after.wrapped,
        )
        return bool(rows)

    async def all(self) -> AsyncIterator[ListedKey]:
        topic_id, version = UUID(int=0), 0
        while True:
            rows = await self._database.read(SQL["page"], topic_id=topic_id, version=version, cap=_PER_PAGE)
            for row in rows:
                topic_id, version = row.topic_id, row.version
                yield ListedKey(topic=row.name, created_at=row.created_at, key=key_of(row))
            if len(rows) < _PER_PAGE:
                return

    async def copies_to_delete(self, *, late_write_window_s: float, cap: int) -> Sequence[CopyToDelete]:
        """Copies of keys in the bucket that must be deleted now."""
        rows = await self._database.run(
            SQL["copies_to_delete"], late_write_window_s=late_write_window_s, cap=cap
        )
        return [
            CopyToDelete(topic_id=TopicId(row.topic_id), key_id=KeyId(row.key_id), is_last=row.is_last)
            for row in rows
        ]

    async def copies_deleted(self, keys: Sequence[CopyToDelete]) -> None:
        """Notes that these copies are deleted. Forgets the keys for which this was the last time."""
        for statement, is_last in (("note_deleted", False), ("forget_copies", True)):
            done = [key for key in keys if key.is_last is is_last]
            if done:
                await self._database.run(
                    SQL[statement],
                    topic_ids=[key.topic_id for key in done],
                    key_ids=[key.key_id for key in done],
                )


def key_of(row: Row) -> WrappedKey:
    return WrappedKey(
        topic_id=TopicId(row.topic_id),
        version=row.version,
        key_id=KeyId(row.key_id),
        wrapped_by=row.wrapped_by,
        wrapped=bytes(row.wrapped),
    )
