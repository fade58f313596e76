"""Topics by name and by id, as this agent knows them: looked up in the sequencer, kept for a bounded time.

Promises:
- An answer is never older than `topic_cache_s` (`unknown_topic_cache_s` for "there is none").
- The next lookup sees what this agent itself creates, changes or deletes. It sees what other agents do
  `topic_changes_poll_s` later, while `run` runs and the sequencer is reachable.
- After a change, the agent forgets only the topic that changed. A look that finds no change renews all
  entries, so an unchanged topic is looked up once.
- The cache holds at most `topic_cache_entries`.
- One statement answers concurrent lookups (`agent/shared_lookups.py`).

A stale answer is harmless for the log: the sequencer refuses batches for a topic id that is gone.
"""

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from agent.settings import AgentSettings
from agent.shared_lookups import SharedLookups
from sequencer.database.database import SequencerUnavailable
from sequencer.database.fair_queue import Asker
from sequencer.tenants.tenant_limits import Planned
from sequencer.topics.topics import Topic, Topics
from storage.identifiers import TopicId

_Key = TypeVar("_Key", str, TopicId)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    topic: Topic | None
    until_s: float


@dataclass(slots=True, eq=False)
class _Asking:
    """A lookup in flight, and what was forgotten since it was sent: its answer may be older than that."""

    forgotten: set[str | TopicId] = field(default_factory=set)
    is_void: bool = False
    """True if everything was forgotten."""


class TopicDirectory:
    def __init__(self, topics: Topics, settings: AgentSettings, clock: Callable[[], float]) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[str | TopicId, _Known] = OrderedDict()
        self._all_until_s = -math.inf
        """Until this time every known topic is trusted, because none had changed."""
        self._changes: int | None = None
        """The number of changes that this agent knows of."""
        self._under_way: list[_Asking] = []
        bounds = {"most_keys": settings.shared_lookup_keys, "most_waiting": settings.shared_lookups_waiting}
        self._by_name: SharedLookups[str, Topic] = SharedLookups(self._ask_by_name, **bounds)
        self._by_id: SharedLookups[TopicId, Topic] = SharedLookups(self._ask_by_id, **bounds)
        self._of_tenants: SharedLookups[str, tuple[Topic, ...]] = SharedLookups(
            self._ask_for_tenants, **bounds
        )
        self._all: SharedLookups[None, tuple[Topic, ...]] = SharedLookups(self._ask_for_all, **bounds)

    async def run(self) -> None:
        """Forgets topics that change, until cancelled."""
        while True:
            # While the sequencer is away, entries expire as always.
            with contextlib.suppress(SequencerUnavailable):
                await self.notice_changes()
            await asyncio.sleep(self._settings.topic_changes_poll_s)

    async def notice_changes(self) -> None:
        """Raises SequencerUnavailable."""
        asked_s, known = self._clock(), self._changes
        news = await self._topics.changes(known)
        if known != self._changes:
            return  # everything was forgotten meanwhile
        self._changes = news.number
        if news.topics is None:
            self._clear()
        else:
            for topic_id, name in news.topics:
                self.forget(topic_id)
                self.forget(name)
        self._all_until_s = asked_s + self._settings.topic_cache_s

    def forget_all(self) -> None:
        """Another Postgres became the primary."""
        self._changes = None
        self._all_until_s = -math.inf
        self._clear()

    def used_share(self, asker: Asker) -> float:
        """Returns how much of its fair part of the lookup queues this asker uses. 1.0 is all of it."""
        every = (self._by_name, self._by_id, self._of_tenants, self._all)
        return max(lookups.used_share(asker) for lookups in every)

    def __len__(self) -> int:
        """Entries in the cache: each topic counts by its name and by its id."""
        return len(self._known)

    def known(self, key: str | TopicId) -> Topic | None:
        """Returns the topic if it is known and need not be looked up."""
        known = self._kept(key, self._clock())
        return None if known is None else known.topic

    async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
        """Returns the topics that exist. Raises SequencerUnavailable."""
        found, missing = self._recall(names)
        return found | await self._by_name.get(missing) if missing else found

    async def fresh(self, names: Collection[str]) -> dict[str, Topic]:
        """Returns the topics that exist, looked up now: an administrator may just have changed them through
        another agent. Raises SequencerUnavailable.
        """
        return await self._by_name.get(names)

    async def by_id(self, topic_ids: Collection[TopicId]) -> dict[TopicId, Topic]:
        """Returns the topics that exist. Raises SequencerUnavailable."""
        found, missing = self._recall(topic_ids)
        return found | await self._by_id.get(missing) if missing else found

    async def all(self) -> tuple[Topic, ...]:
        """Returns all topics, looked up now. Raises SequencerUnavailable."""
        return (await self._all.get([None]))[None]

    async def of_tenant(self, tenant: str) -> tuple[Topic, ...]:
        """Returns all topics of the tenant, looked up now. Raises SequencerUnavailable."""
        return (await self._of_tenants.get([tenant]))[tenant]

    async def create(
        self, name: str, partition_count: int, config: Mapping[str, str], *, is_agents_own: bool = False
    ) -> Topic:
        """Raises what `Topics.create` does."""
        try:
            return await self._topics.create(name, partition_count, config, is_agents_own=is_agents_own)
        finally:
            self.forget(name)

    async def delete(self, name: str) -> Topic:
        """Raises UnknownTopic, SequencerUnavailable."""
        try:
            return await self._topics.delete(name)
        finally:
            self.forget(name)

    async def delete_by_id(self, topic_id: TopicId) -> Topic:
        """Raises UnknownTopic, SequencerUnavailable."""
        try:
            deleted = await self._topics.delete_by_id(topic_id)
            self.forget(deleted.name)
            return deleted
        finally:
            self.forget(topic_id)

    async def check_creation(
        self, name: str, partition_count: int, config: Mapping[str, str], planned: Planned
    ) -> Mapping[str, str]:
        return await self._topics.check_creation(name, partition_count, config, planned)

    async def check_growth(self, topic: Topic, total: int, planned: Planned) -> None:
        await self._topics.check_growth(topic, total, planned)

    async def check_alteration(self, topic: Topic, set: Mapping[str, str], remove: Collection[str]) -> None:
        await self._topics.check_alteration(topic, set, remove)

    async def add_partitions(self, name: str, total: int) -> None:
        try:
            await self._topics.add_partitions(name, total)
        finally:
            self.forget(name)

    async def alter_config(self, name: str, changed: Mapping[str, str], removed: Collection[str]) -> None:
        try:
            await self._topics.alter_config(name, changed, removed)
        finally:
            self.forget(name)

    def forget(self, key: str | TopicId) -> None:
        """Makes the next lookup ask the sequencer."""
        for asking in self._under_way:
            asking.forgotten.add(key)
        self._drop(key)

    async def _ask_by_name(self, names: list[str]) -> dict[str, Topic]:
        with self._asking() as asking:
            found = await self._topics.by_name(names)
        self._remember({name: found.get(name) for name in names}, asking)
        return found

    async def _ask_by_id(self, topic_ids: list[TopicId]) -> dict[TopicId, Topic]:
        with self._asking() as asking:
            found = await self._topics.by_id(topic_ids)
        self._remember({topic_id: found.get(topic_id) for topic_id in topic_ids}, asking)
        return found

    async def _ask_for_tenants(self, tenants: list[str]) -> dict[str, tuple[Topic, ...]]:
        with self._asking() as asking:
            found = await self._topics.of_tenants(tenants)
        for topics in found.values():
            self._remember({topic.name: topic for topic in topics}, asking)
        return found

    async def _ask_for_all(self, _: list[None]) -> dict[None, tuple[Topic, ...]]:
        with self._asking() as asking:
            topics = tuple(await self._topics.list())
        self._remember({topic.name: topic for topic in topics}, asking)
        return {None: topics}

    @contextmanager
    def _asking(self) -> Iterator[_Asking]:
        asking = _Asking()
        self._under_way.append(asking)
        try:
            yield asking
        finally:
            self._under_way.remove(asking)

    def _kept(self, key: str | TopicId, now_s: float) -> _Known | None:
        """Returns the entry, if it is not too old. It may say that there is no such topic."""
        known = self._known.get(key)
        if known is None or known.until_s >= now_s:
            return known
        return known if known.topic is not None and self._all_until_s >= now_s else None

    def _recall(self, keys: Collection[_Key]) -> tuple[dict[_Key, Topic], list[_Key]]:
        now_s = self._clock()
        found: dict[_Key, Topic] = {}
        missing = []
        for key in keys:
            known = self._kept(key, now_s)
            if known is None:
                missing.append(key)
            elif known.topic is not None:
                found[key] = known.topic
        return found, missing

    def _remember(
        self, answers: "Mapping[str, Topic | None] | Mapping[TopicId, Topic | None]", asking: _Asking
    ) -> None:
        if asking.is_void:
            return
        now_s = self._clock()
        for key, topic in answers.items():
            self._drop(key)
            if topic is None:
                if key not in asking.forgotten:
                    self._keep(key, _Known(topic=None, until_s=now_s + self._settings.unknown_topic_cache_s))
            elif asking.forgotten.isdisjoint((topic.name, topic.topic_id)):
                known = _Known(topic=topic, until_s=now_s + self._settings.topic_cache_s)
                self._keep(topic.name, known)
                self._keep(topic.topic_id, known)

    def _keep(self, key: str | TopicId, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > 2 * self._settings.topic_cache_entries:
            self._known.popitem(last=False)

    def _drop(self, key: str | TopicId) -> None:
        known = self._known.pop(key, None)
        if known is not None and known.topic is not None:
            self._known.pop(known.topic.name, None)
            self._known.pop(known.topic.topic_id, None)

    def _clear(self) -> None:
        for asking in self._under_way:
            asking.is_void = True
        self._known.clear()
