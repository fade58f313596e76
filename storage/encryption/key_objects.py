"""The copies of topics' encrypted keys in the bucket (docs/encryption.md#a-log-rebuilt-from-the-bucket).

One object per key, apart from the commit journal: deleting it erases this key alone, and at once.

    {"format": 1, "version": 1, "wrapped_by": "file:2026-11", "wrapped": "base64"}

The topic and the key's id are in the object's own key. The encrypted key is bound to both, so a copy under
another key cannot be decrypted.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Final

from storage.identifiers import KeyId, ObjectKey, TopicId
from storage.segments.keys import key_of_topic_key, topic_key_of, topic_keys_prefix
from storage.stores.object_store import ObjectStore

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A key of a topic, encrypted."""

    topic_id: TopicId
    version: int
    """Counts the topic's keys. The highest encrypts."""
    key_id: KeyId
    """Names the key in batches."""
    wrapped_by: str
    """The name of the key that encrypted this one."""
    wrapped: bytes = field(repr=False)


class CorruptKeyObject(Exception):
    """An object of a topic's key cannot be read."""


class KeyObjects:
    """`cluster` is the first part of all keys. Each call raises StoreUnavailable."""

    def __init__(self, store: ObjectStore, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    def object_key(self, topic_id: TopicId, key_id: KeyId) -> ObjectKey:
        return key_of_topic_key(self._cluster, topic_id, key_id)

    async def put(self, key: WrappedKey) -> None:
        """Writes the object, or replaces it."""
        await self._store.put(self.object_key(key.topic_id, key.key_id), [_encoded(key)])

    async def list(self, topic_id: TopicId | None = None) -> AsyncIterator[tuple[TopicId, KeyId]]:
        """Lists the keys of one topic, or of all."""
        prefix = topic_keys_prefix(self._cluster)
        async for info in self._store.list(prefix if topic_id is None else f"{prefix}{topic_id}/"):
            found = topic_key_of(info.key)
            if found is not None:
                yield found

    async def get(self, topic_id: TopicId, key_id: KeyId) -> WrappedKey:
        """Raises ObjectNotFound or CorruptKeyObject."""
        data = await self._store.get(self.object_key(topic_id, key_id))
        return _decoded(topic_id, key_id, bytes(data))

    async def delete(self, keys: Iterable[tuple[TopicId, KeyId]]) -> None:
        await self._store.delete([self.object_key(*key) for key in keys])


def _encoded(key: WrappedKey) -> bytes:
    fields = {
        "format": _FORMAT,
        "version": key.version,
        "wrapped_by": key.wrapped_by,
        "wrapped": base64.b64encode(key.wrapped).decode(),
    }
    return json.dumps(fields).encode()


def _decoded(topic_id: TopicId, key_id: KeyId, data: bytes) -> WrappedKey:
    try:
        fields = json.loads(data)
        if fields["format"] != _FORMAT:
            raise CorruptKeyObject(f"its format {fields['format']} is not known")
        if not 0 < fields["version"] < 1 << 31:
            raise CorruptKeyObject(f"it has version {fields['version']}")
        return WrappedKey(
            topic_id=topic_id,
            version=int(fields["version"]),
            key_id=key_id,
            wrapped_by=str(fields["wrapped_by"]),
            wrapped=base64.b64decode(fields["wrapped"], validate=True),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptKeyObject("it is not whole") from error
