"""The keys of topics in this process' memory, and the batches that they seal and open.

Promises:
- A key is kept at most `encryption_key_life_s`, and at most `encryption_keys_kept` are. While a key is kept,
  neither Postgres, KMS nor Vault is asked for it.
- Each wait for a key ends within a bound, as KeyUnavailable.
- A key that could not be had is not asked for again for `encryption_retry_s`. Neither is any other, if its
  answer did not come in time and none came meanwhile. So a request waits once for the keys of all its topics,
  and one topic's key that hangs refuses no other topic.
- A key that did not come in time is asked for in the background from then on. A request waits a tenth of
  `encryption_timeout_s` for it, once per such try: it may name other topics, too.
- Concurrent requests for a key share one look-up.
"""

import asyncio
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.topics.known_configs import ENCRYPTION
from sequencer.topics.topic_keys import TopicKeyRows
from sequencer.topics.topics import Topic
from storage.batches.byte_arrays import Buffer
from storage.encryption.key_objects import KeyObjects, WrappedKey
from storage.encryption.key_wrapping import KeyUnavailable, KeyWrapping, key_wrapping
from storage.encryption.sealed_batches import (
    KEY_BYTES,
    SealBroken,
    TopicKey,
    check_seals,
    is_sealed,
    key_ids,
    opened,
    sealed_counts,
)
from storage.encryption.settings import EncryptionSettings
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import NO_KEY_ID, KeyId, TopicId, new_key_id
from storage.stores.object_store import ObjectStore, StoreUnavailable
from storage.stores.side_by_side import few_at_a_time, side_by_side
from storage.threads import Threads

_NEWEST = NO_KEY_ID
"""Stands for the key that seals."""


_OPENED_AT_ONCE_BYTES = 1 << 20
_OPENED_AT_ONCE = 64
"""More bytes or batches are opened in a thread: so many take a third of a millisecond."""
_PATIENCE = 0.1
"""Of `encryption_timeout_s`, for a key that did not come in time before."""
_SLOW = 0.8
"""A refusal that took this share of `encryption_timeout_s` comes from a Postgres, KMS, Vault or file that
does not answer."""


@dataclass(frozen=True, slots=True)
class _Kept:
    key: TopicKey
    until_s: float


@dataclass(frozen=True, slots=True)
class _Newest:
    key_id: KeyId
    until_s: float


@dataclass(frozen=True, slots=True)
class _Refused:
    reason: str
    until_s: float
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    answer: "asyncio.Task[TopicKey]"
    began_s: float


def is_sealing(topic: Topic) -> bool:
    """True if new batches of the topic are sealed."""
    return topic.config.get(ENCRYPTION) == "on"


class TopicKeys:
    def __init__(
        self,
        rows: TopicKeyRows,
        objects: KeyObjects,
        wrapping: KeyWrapping | None,
        known: Callable[[TopicId], Topic | None],
        settings: EncryptionSettings,
        threads: Threads,
        clock: Callable[[], float],
    ) -> None:
        """`known` returns a topic if this process has it in memory."""
        self._rows = rows
        self._objects = objects
        self._wrapping = wrapping
        self._known = known
        self._settings = settings
        self._threads = threads
        self._clock = clock
        self._kept: OrderedDict[tuple[TopicId, KeyId], _Kept] = OrderedDict()
        self._newest_of: OrderedDict[TopicId, _Newest] = OrderedDict()
        self._refused: OrderedDict[tuple[TopicId, KeyId], _Refused] = OrderedDict()
        self._away = _Refused("", clock())
        self._answered_s = -math.inf
        """When a key came last."""
        self._asked: dict[tuple[TopicId, KeyId], _Asked] = {}
        self._calls = asyncio.Semaphore(settings.encryption_calls)
        self._calls_of = WeakValueDictionary[TopicId, asyncio.Semaphore]()
        """Half of the calls are the most of one topic: the keys of a topic may all hang, and be many."""

    async def to_seal(self, topic_id: TopicId) -> TopicKey:
        """Returns the newest key of the topic, and makes the first. Raises KeyUnavailable."""
        return await self._get(topic_id, _NEWEST)

    async def of_id(self, topic_id: TopicId, key_id: KeyId) -> TopicKey:
        """Returns the key of the topic that has this id. Raises KeyUnavailable."""
        return await self._get(topic_id, key_id)

    async def all_of(self, topic_id: TopicId, config: Mapping[str, str]) -> TopicKeyring | None:
        """Returns all keys of a topic that has this config, for a job; None if it was never encrypted. Ask
        after its batches are known: then none of them has a newer key. If only older keys cannot be had, it
        says why. Raises KeyUnavailable.
        """
        if ENCRYPTION not in config or (config[ENCRYPTION] != "on" and not await self._ids_of(topic_id)):
            return None
        newest = await self.to_seal(topic_id)
        ids = await self._ids_of(topic_id)
        found = await few_at_a_time(self._get_or_reason, [(topic_id, key_id) for key_id in ids])
        answers = dict(zip(ids, found, strict=True))
        keys = {key_id: key for key_id, key in answers.items() if isinstance(key, TopicKey)}
        reasons = {key_id: why for key_id, why in answers.items() if isinstance(why, str)}
        return TopicKeyring(newest=newest, by_id={**keys, newest.key_id: newest}, refused=reasons)

    async def _ids_of(self, topic_id: TopicId) -> Sequence[KeyId]:
        try:
            return await self._rows.ids_of(topic_id)
        except SequencerUnavailable as error:
            raise KeyUnavailable(f"the topic's keys cannot be looked up: {error}") from error

    async def _get_or_reason(self, place: tuple[TopicId, KeyId]) -> TopicKey | str:
        try:
            return await self._get(*place)
        except KeyUnavailable as error:
            return str(error)

    def may_be_sealed(self, topic_id: TopicId) -> bool:
        """False: no batch of the topic is sealed. A topic that is not known may have some."""
        topic = self._known(topic_id)
        return topic is None or ENCRYPTION in topic.config

    async def get_ready(self, firsts: Iterable[tuple[TopicId, Buffer]]) -> None:
        """Asks for the keys of these batches side by side. What could not be had is refused by `opened`."""
        needed = set[tuple[TopicId, KeyId]]()
        for topic_id, batch in firsts:
            if is_sealed(batch):
                with suppress(SealBroken):
                    needed.update((topic_id, key_id) for key_id in key_ids(batch))
        now_s = self._clock()
        missing = [
            place for place in needed if (kept := self._kept.get(place)) is None or kept.until_s <= now_s
        ]
        if len(missing) > 1:
            await few_at_a_time(self._get_or_not, missing)

    async def _get_or_not(self, place: tuple[TopicId, KeyId]) -> None:
        with suppress(KeyUnavailable):
            await self._get(*place)

    async def opened(self, topic_id: TopicId, partition: int, batches: Buffer) -> Buffer:
        """Returns whole batches, those opened that are sealed. Raises KeyUnavailable or SealBroken."""
        needed = sealed_counts(batches)
        if not needed:
            return batches
        try:
            found = await side_by_side(self._get(topic_id, key_id) for key_id in needed)
        except KeyUnavailable:
            check_seals(batches)  # no key has an id that was damaged
            raise
        keys = dict(zip(needed, found, strict=True))
        if len(batches) < _OPENED_AT_ONCE_BYTES and sum(needed.values()) <= _OPENED_AT_ONCE:
            return opened(batches, partition, keys)
        return await self._threads.run(opened, batches, partition, keys)

    async def _get(self, topic_id: TopicId, key_id: KeyId) -> TopicKey:
        kept = self._known_key(topic_id, key_id)
        if kept is not None:
            return kept
        place, now_s = (topic_id, key_id), self._clock()
        asked, before = self._asked.get(place), self._refused.get(place)
        if asked is None:
            for refused in (self._away, before):
                if refused is not None and refused.until_s > now_s:
                    raise KeyUnavailable(refused.reason)
            asked = self._asked[place] = _Asked(asyncio.create_task(self._ask(topic_id, key_id)), now_s)
            asked.answer.add_done_callback(partial(self._answered, place))
        if before is None or not before.is_slow:
            return await asyncio.shield(asked.answer)
        try:
            async with asyncio.timeout(
                asked.began_s + _PATIENCE * self._settings.encryption_timeout_s - now_s
            ):
                return await asyncio.shield(asked.answer)
        except TimeoutError:
            raise KeyUnavailable(before.reason) from None

    def _known_key(self, topic_id: TopicId, key_id: KeyId) -> TopicKey | None:
        now_s = self._clock()
        if key_id == _NEWEST:
            newest = self._newest_of.get(topic_id)
            if newest is None or newest.until_s <= now_s:
                return None
            self._newest_of.move_to_end(topic_id)
            key_id = newest.key_id
        kept = self._kept.get((topic_id, key_id))
        if kept is None or kept.until_s <= now_s:
            return None
        self._kept.move_to_end((topic_id, key_id))
        return kept.key

    def _answered(self, place: tuple[TopicId, KeyId], asked: "asyncio.Task[TopicKey]") -> None:
        self._asked.pop(place, None)
        if not asked.cancelled():
            asked.exception()  # those who asked may have gone

    async def _ask(self, topic_id: TopicId, key_id: KeyId) -> TopicKey:
        asked_s = self._clock()
        try:
            key = await self._asked_once(topic_id, key_id)
        except KeyUnavailable as error:
            now_s = self._clock()
            is_slow = now_s - asked_s >= self._settings.encryption_timeout_s * _SLOW
            refused = _Refused(str(error), now_s + self._settings.encryption_retry_s, is_slow)
            if is_slow and self._answered_s < asked_s:
                self._away = refused
            self._refused[topic_id, key_id] = refused
            self._drop_oldest(self._refused)
            raise
        self._answered_s = self._clock()
        self._refused.pop((topic_id, key_id), None)
        until_s = asked_s + self._settings.encryption_key_life_s
        self._kept[topic_id, key.key_id] = _Kept(key, until_s)
        self._drop_oldest(self._kept)
        if key_id == _NEWEST:
            self._newest_of[topic_id] = _Newest(key.key_id, until_s)
            self._drop_oldest(self._newest_of)
        loop, life_s = asyncio.get_running_loop(), self._settings.encryption_key_life_s
        loop.call_later(life_s, self._forget, topic_id, key.key_id)
        return key

    def _forget(self, topic_id: TopicId, key_id: KeyId) -> None:
        """Also where nothing asks for the key again: that of a deleted topic must not stay in memory."""
        kept = self._kept.get((topic_id, key_id))
        if kept is not None and kept.until_s <= self._clock():
            del self._kept[topic_id, key_id]

    def _drop_oldest(self, some: OrderedDict[Any, Any]) -> None:
        while len(some) > self._settings.encryption_keys_kept:
            some.popitem(last=False)

    async def _asked_once(self, topic_id: TopicId, key_id: KeyId) -> TopicKey:
        own = self._calls_of.setdefault(
            topic_id, asyncio.Semaphore(max(1, self._settings.encryption_calls // 2))
        )
        try:
            async with asyncio.timeout(self._settings.encryption_timeout_s), own, self._calls:
                return await (self._newest(topic_id) if key_id == _NEWEST else self._of(topic_id, key_id))
        except TimeoutError:
            raise KeyUnavailable("the topic's key did not come in time") from None
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            raise KeyUnavailable(f"the topic's key cannot be looked up: {error}") from error

    async def _newest(self, topic_id: TopicId) -> TopicKey:
        found = await self._rows.newest(topic_id)
        if found is None:
            found = await new_version(self._rows, self._objects, self._need(), topic_id, 1)
        return await self._unwrapped(found)

    async def _of(self, topic_id: TopicId, key_id: KeyId) -> TopicKey:
        found = await self._rows.of_id(topic_id, key_id)
        if found is None:
            raise KeyUnavailable(f"the topic has no key {key_id:016x}")
        return await self._unwrapped(found)

    async def _unwrapped(self, found: WrappedKey) -> TopicKey:
        secret = await self._need().unwrap(found.wrapped_by, found.wrapped, found.topic_id, found.key_id)
        return TopicKey(found.topic_id, found.key_id, secret)

    def _need(self) -> KeyWrapping:
        if self._wrapping is None:
            raise KeyUnavailable(
                "this process has no TIDELOG_ENCRYPTION_PROVIDER, which the topic's keys need"
            )
        return self._wrapping


def keys_for_jobs(
    rows: TopicKeyRows, store: ObjectStore, cluster: str, settings: EncryptionSettings
) -> TopicKeys:
    """Returns the keys of topics for a process that keeps no topics in memory."""
    return TopicKeys(
        rows,
        KeyObjects(store, cluster),
        key_wrapping(settings),
        lambda _: None,
        settings,
        Threads("keys", 1),
        time.monotonic,
    )


async def new_version(
    rows: TopicKeyRows, objects: KeyObjects, wrapping: KeyWrapping, topic_id: TopicId, version: int
) -> WrappedKey:
    """Adds a version of a topic's key, or finds the one that another added first. The bucket has it before
    Postgres, so no batch is sealed with a key that a lost database would take along. Raises KeyUnavailable.
    """
    key_id = new_key_id()
    wrapped_by, wrapped = await wrapping.wrap(os.urandom(KEY_BYTES), topic_id, key_id)
    key = WrappedKey(
        topic_id=topic_id, version=version, key_id=key_id, wrapped_by=wrapped_by, wrapped=wrapped
    )
    await rows.reserve(topic_id, key_id)
    try:
        await objects.put(key)
        found = await rows.add(key)
        if found is None or found.key_id != key_id:
            await objects.delete([(topic_id, key_id)])
    except StoreUnavailable as error:
        raise KeyUnavailable(f"the topic's new key cannot be kept in the bucket: {error}") from error
    if found is None:
        raise KeyUnavailable("the topic is deleted, and its keys with it")
    return found
