"""Gets the keys of encrypted topics where a query is planned: in Spark's driver, or in `tidelog sql`.

Promises:
- Keys travel with a task's own topic alone. The reader that travels to executors has none.
- A topic in the clear costs nothing. A topic whose key cannot be had fails where a record of it is needed.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spark_source.settings import SourceSettings
from storage.encryption.bucket_keys import read_topic_keys
from storage.encryption.key_objects import KeyObjects
from storage.encryption.key_wrapping import key_wrapping
from storage.encryption.topic_keyring import ReadKeyring
from storage.identifiers import ObjectKey, TopicId
from storage.segments.keys import cluster_of
from storage.stores.object_store import StoreUnavailable
from storage.stores.open_store import open_store


@dataclass(frozen=True, slots=True)
class _Kept:
    found: ReadKeyring
    until_s: float


class SourceKeys:
    """Unwraps a key once in `encryption_key_life_s`. Keys that came since are found at each call."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._kept: dict[TopicId, _Kept] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_kept": {}}

    def of_topic(self, topic: str, topic_id: TopicId, objects: Iterable[str]) -> ReadKeyring:
        """Returns the keys that the topic has now. Ask after its objects are known: a key is in the bucket
        before what it encrypts. `objects` are keys of objects with its records.
        """
        cluster = next(filter(None, (cluster_of(ObjectKey(key)) for key in objects)), None)
        if cluster is None:
            return _nothing(topic, "")
        now_s = time.monotonic()
        kept = self._kept.get(topic_id)
        known = kept.found if kept is not None and kept.until_s > now_s else _nothing(topic, "")
        found = asyncio.run(self._read(cluster, topic, topic_id, known))
        if kept is None or kept.until_s <= now_s:
            self._kept[topic_id] = _Kept(found, now_s + self._settings.encryption_key_life_s)
        else:
            self._kept[topic_id] = _Kept(found, kept.until_s)
        return found

    async def _read(self, cluster: str, topic: str, topic_id: TopicId, known: ReadKeyring) -> ReadKeyring:
        try:
            store = await open_store(self._settings.store_url, self._settings)
        except StoreUnavailable as error:
            return _nothing(topic, str(error))
        try:
            return await read_topic_keys(
                KeyObjects(store, cluster),
                key_wrapping(self._settings),
                self._settings,
                topic=topic,
                topic_id=topic_id,
                known=known.by_id,
            )
        finally:
            await store.close()


def _nothing(topic: str, reason: str) -> ReadKeyring:
    return ReadKeyring(by_id={}, refused={}, topic=topic, reason=reason)
