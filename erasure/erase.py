"""One erasure from its beginning to its end: `erase_records` (docs/design/erasure.md).

Promises:
- When it returns, no object, no live snapshot and no page of a live agent holds a record of these keys whose
  offset was below the high watermark when it began. No other record's offset has moved.
- It may be killed at any point, and run again: then it finds what is left.
- Every wait ends by `erase_timeout_s`.
- A step that Postgres, the store or the provider of keys ended, or a late confirmation of the bucket's
  ownership, begins again.
- Of an encrypted topic nothing changes while a key that it needs cannot be had. What no key opens is an
  error, and never counts as erased.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from erasure.missing_keys import MissingKeys
from erasure.raw_log import RawEraser
from erasure.report import ErasureFailed, ErasureProgress, ErasureReport, OnProgress, Stage
from erasure.settings import ErasureSettings
from sequencer.client import Sequencer
from sequencer.cluster.ownership import OwnershipLost, OwnershipUnconfirmed
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.housekeeping.garbage import BEFORE_ALL
from sequencer.topics.topics import Topic, UnknownTopic
from spark_compaction.job_keys import JobKeys, open_job_keys
from spark_compaction.open_log import open_log
from storage.arrow.erased_batches import ErasedKeys
from storage.encryption.key_wrapping import KeyUnavailable
from storage.stores.object_store import ObjectStore, StoreUnavailable
from storage.stores.open_store import open_store

log = logging.getLogger("tidelog")

Result = TypeVar("Result")

_CLOCK_SKEW = timedelta(minutes=5)
"""An agent names its objects by its own clock."""
_ATTEMPTS = 20
_LONGEST_PAUSE_S = 30.0
_PASSING = (SequencerUnavailable, CommitOutcomeUnknown, StoreUnavailable, OwnershipUnconfirmed)


def erase_records(
    settings: ErasureSettings, topic_name: str, keys: ErasedKeys, on_progress: OnProgress = lambda _: None
) -> ErasureReport:
    """Erases the records of these keys from a topic. Do not call it from a coroutine.

    Raises ErasureFailed, UnknownTopic, KeyUnavailable, and what compaction raises.
    """
    return asyncio.run(_erase_records(settings, topic_name, keys, on_progress))


async def _erase_records(
    settings: ErasureSettings, topic_name: str, keys: ErasedKeys, on_progress: OnProgress
) -> ErasureReport:
    async with open_log(settings) as sequencer, open_job_keys(settings, sequencer) as job_keys:
        store = await open_store(settings.store_url, settings)
        try:
            topics = await sequencer.topics.by_name([topic_name])
            if topic_name not in topics:
                raise UnknownTopic(f"There is no topic '{topic_name}'.")
            topic = topics[topic_name]
            return await Erasure(sequencer, store, settings, topic, keys, job_keys, on_progress).run()
        finally:
            await store.close()


class Erasure:
    """The steps of one erasure."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        settings: ErasureSettings,
        topic: Topic,
        keys: ErasedKeys,
        job_keys: JobKeys,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self._sequencer = sequencer
        self._erasures = sequencer.erasures
        self._store = store
        self._settings = settings
        self._topic = topic
        self._keys = keys
        self._job_keys = job_keys
        self._on_progress = on_progress
        self._report = ErasureReport(topic=topic.name, keys=len(keys.keys))

    async def run(self) -> ErasureReport:
        """Raises ErasureFailed, KeyUnavailable and what its steps raise."""
        began_s = time.monotonic()
        scope = await self._erasures.scope(self._topic.topic_id)
        if scope is None:
            raise ErasureFailed(f"topic '{self._topic.name}' was deleted meanwhile")
        keyring = await self._job_keys.of(self._topic)
        if keyring is not None and keyring.refused:
            missing = MissingKeys(self._sequencer, self._store, self._settings, self._topic, keyring)
            await missing.check(scope)
        raw = RawEraser(
            self._sequencer,
            self._store,
            self._settings,
            self._topic,
            self._keys,
            self._job_keys,
            scope,
            self._report,
            self._on_progress,
        )
        await self._past_outages(raw.run)
        # What they wrote is dead or published then.
        await self._past_outages(lambda: self._jobs_have_ended(self._erasures.jobs_on_garbage))
        await self._past_outages(raw.empty_old_copies)
        if await self._past_outages(lambda: self._erasures.has_history(self._topic.topic_id)):
            from erasure.history_files import HistoryEraser  # Spark, which an erasure of the log alone spares

            history = HistoryEraser(
                self._sequencer,
                self._settings,
                self._topic,
                self._keys,
                self._job_keys,
                scope,
                self._report,
                self._on_progress,
            )
            await self._past_outages(history.run)
        let_go_at = await self._past_outages(self._old_objects_are_gone)
        await self._past_outages(lambda: self._agents_drop_pages(let_go_at))
        self._report.took_s = time.monotonic() - began_s
        return self._report

    async def _past_outages(self, step: Callable[[], Awaitable[Result]]) -> Result:
        """Runs a step, from its beginning after each outage: it finds what is left. Some eight minutes
        without an end of the outage are too long, and what the step raised is raised."""
        pause_s = self._settings.erase_poll_s
        for _ in range(_ATTEMPTS - 1):
            try:
                return await step()
            except OwnershipLost:
                raise
            except KeyUnavailable as missing:
                if await self._erasures.scope(self._topic.topic_id) is None:
                    raise ErasureFailed(f"topic '{self._topic.name}' was deleted meanwhile") from missing
                if await self._missing_key() is None:  # no key of the topic opens this, and none will
                    raise
                outage: Exception = missing
            except _PASSING as passing:
                outage = passing
            log.warning("the erasure tries again in %.1f s: %s", pause_s, outage)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return await step()

    async def _missing_key(self) -> str | None:
        """Why a key of the topic cannot be had; None if all can."""
        try:
            keyring = await self._job_keys.of(self._topic)
        except KeyUnavailable as missing:
            return str(missing)
        if keyring is None or not keyring.refused:
            return None
        key_id, reason = next(iter(keyring.refused.items()))
        return f"its key {key_id:016x}: {reason}"

    async def _jobs_have_ended(self, at_work: Callable[[], Awaitable[frozenset[UUID]]]) -> None:
        """Waits for the jobs that are at work now, not for those that begin later."""
        waited_for = await at_work()

        async def left() -> int:
            return len(waited_for & await at_work()) if waited_for else 0

        await self._until_none("waiting for other jobs", left)

    async def _old_objects_are_gone(self) -> datetime:
        """Returns a moment since which no object was made that held these records."""
        topic_id = self._topic.topic_id
        now = await self._erasures.now()
        await self._jobs_have_ended(lambda: self._erasures.older_jobs(topic_id, now))
        await self._jobs_have_ended(self._erasures.jobs_on_garbage)
        for _ in range(2):  # a row that is locked while the pass goes by is left out
            await self._find_garbage()
        let_go_at = await self._erasures.let_go(topic_id)

        async def left() -> int:
            there = await self._erasures.still_there(topic_id, let_go_at)
            return there.segments + there.history_objects or await self._unpublished(let_go_at)

        await self._until_none("waiting for old objects to be deleted", left)
        return let_go_at

    async def _find_garbage(self) -> None:
        """One pass as the garbage scan's, so that nothing waits to be found."""
        after = BEFORE_ALL
        while True:
            page = await self._sequencer.garbage.mark_unreferenced(after, self._settings.erase_page_rows)
            if page.last_seen is None:
                return
            after = page.last_seen

    async def _unpublished(self, before: datetime) -> int:
        """Files that ended Spark jobs left. They are swept once no late upload can come."""
        left = 0
        for prefix in await self._erasures.unswept_prefixes(self._topic.topic_id, before):
            keys = [info.key async for info in self._store.list(prefix) if info.key.endswith(".parquet")]
            left += len(keys) - len(await self._sequencer.history.garbage.recorded(keys))
        return left

    async def _agents_drop_pages(self, made_before: datetime) -> None:
        number = await self._erasures.drop_pages(made_before + _CLOCK_SKEW)
        await self._until_none(
            "waiting for agents to drop cached pages", lambda: self._erasures.agents_behind(number)
        )

    async def _until_none(self, stage: Stage, left: Callable[[], Awaitable[int]]) -> None:
        ends_s = time.monotonic() + self._settings.erase_timeout_s
        most = 0
        while count := await left():
            most = max(most, count)
            self._on_progress(ErasureProgress(stage=stage, done=most - count, total=most))
            if time.monotonic() > ends_s:
                raise ErasureFailed(
                    f"{stage}: {count} left after {self._settings.erase_timeout_s:g} s "
                    "(TIDELOG_ERASE_TIMEOUT_S). Run the command again: it goes on from here"
                )
            await asyncio.sleep(self._settings.erase_poll_s)
