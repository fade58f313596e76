"""Topics by name and by id, as this agent knows them: looked up in the sequencer, kept for a bounded time.

Promises: an answer is never older than `topic_cache_s` (`unknown_topic_cache_s` for "there is none"); what this agent
creates, changes or deletes itself is seen by its next lookup, and what others do about `topic_changes_poll_s` later,
while `run` runs and the sequencer can be asked; the cache holds at most `topic_cache_entries`. A stale
answer is harmless for the log: the sequencer refuses batches for a topic id that is gone. One lookup runs at a time;
when it fails, it fails for all that waited for it, so that nobody waits longer than for two.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from agent.settings import AgentSettings
from sequencer.database import SequencerUnavailable
from sequencer.topics import Topic, Topics
from storage.identifiers import TopicId

_Key = TypeVar("_Key", str, TopicId)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    topic: Topic | None
    until_s: float


class TopicDirectory:
    def __init__(self, topics: Topics, settings: AgentSettings, clock: Callable[[], float]) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[str | TopicId, _Known] = OrderedDict()
        self._changes: int | None = None
        self._one_lookup = asyncio.Lock()
        self._failed_lookups = 0
        self._last_failure = ""

    async def run(self) -> None:
        """Forget everything whenever topics have changed, until cancelled."""
        while True:
            # An answer that cannot be had is no news: what is known is trusted for as long as ever.
            with contextlib.suppress(SequencerUnavailable):
                await self.notice_changes()
            await asyncio.sleep(self._settings.topic_changes_poll_s)

    async def notice_changes(self) -> None:
        """Raises SequencerUnavailable."""
        changes = await self._topics.changes()
        if changes != self._changes:
            self._changes = changes
            self._known.clear()

    def forget_all(self) -> None:
        """Another Postgres answers than before."""
        self._changes = None
        self._known.clear()

    def __len__(self) -> int:
        """Entries in the cache: each topic counts by its name and by its id."""
        return len(self._known)

    def known(self, key: str | TopicId) -> Topic | None:
        """The topic, if it is known at present and need not be asked for."""
        known = self._kept(key, self._clock())
        return None if known is None else known.topic

    async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
        """The topics that exist. Raises SequencerUnavailable."""
        found, missing = self._recall(names)
        if missing:
            async with self._alone():
                again, missing = self._recall(missing)
                found |= again
                if missing:
                    noticed = self._changes
                    fresh = await self._topics.by_name(missing)
                    self._remember({name: fresh.get(name) for name in missing}, noticed)
                    found |= fresh
        return found

    async def fresh(self, names: Collection[str]) -> dict[str, Topic]:
        """The topics that exist, asked afresh: an administrator may have changed them through another agent a moment
        ago. Raises SequencerUnavailable."""
        noticed = self._changes
        found = await self._topics.by_name(names)
        for name in names:
            self.forget(name)
        self._remember({name: found.get(name) for name in names}, noticed)
        return found

    async def by_id(self, topic_ids: Collection[TopicId]) -> dict[TopicId, Topic]:
        """The topics that exist. Raises SequencerUnavailable."""
        found, missing = self._recall(topic_ids)
        if missing:
            async with self._alone():
                again, missing = self._recall(missing)
                found |= again
                if missing:
                    noticed = self._changes
                    fresh = await self._topics.by_id(missing)
                    self._remember({topic_id: fresh.get(topic_id) for topic_id in missing}, noticed)
                    found |= fresh
        return found

    async def all(self) -> tuple[Topic, ...]:
        """All topics, asked afresh. Raises SequencerUnavailable."""
        noticed = self._changes
        topics = tuple(await self._topics.list())
        self._remember({topic.name: topic for topic in topics}, noticed)
        return topics

    async def create(self, name: str, partition_count: int, config: Mapping[str, str]) -> Topic:
        """Raises TopicExists, InvalidConfig, SequencerUnavailable."""
        try:
            return await self._topics.create(name, partition_count, config)
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

    async def check_name(self, name: str) -> None:
        """Raises InvalidTopicName, SequencerUnavailable."""
        await self._topics.check_name(name)

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
        """Look it up afresh the next time."""
        known = self._known.pop(key, None)
        if known is not None and known.topic is not None:
            self._known.pop(known.topic.name, None)
            self._known.pop(known.topic.topic_id, None)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One lookup at a time: many ask for the same. Raises SequencerUnavailable if one that was waited for did."""
        failed_before = self._failed_lookups
        async with self._one_lookup:
            if self._failed_lookups != failed_before:
                raise SequencerUnavailable(self._last_failure)
            try:
                yield
            except SequencerUnavailable as error:
                self._failed_lookups += 1
                self._last_failure = str(error)
                raise

    def _kept(self, key: str | TopicId, now_s: float) -> _Known | None:
        """The entry, if it is not too old; it may say that there is no such topic."""
        known = self._known.get(key)
        return None if known is None or known.until_s < now_s else known

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
        self, answers: "Mapping[str, Topic | None] | Mapping[TopicId, Topic | None]", noticed: int | None
    ) -> None:
        """`noticed`: the changes known of when the answers were asked for. With more since, they may be old already."""
        if noticed != self._changes:
            return
        now_s = self._clock()
        for key, topic in answers.items():
            if topic is None:
                self._keep(key, _Known(topic=None, until_s=now_s + self._settings.unknown_topic_cache_s))
            else:
                known = _Known(topic=topic, until_s=now_s + self._settings.topic_cache_s)
                self._keep(topic.name, known)
                self._keep(topic.topic_id, known)

    def _keep(self, key: str | TopicId, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > 2 * self._settings.topic_cache_entries:
            self._known.popitem(last=False)
