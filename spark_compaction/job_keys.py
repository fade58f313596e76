"""The keys of encrypted topics, for the driver of jobs. It gives executors those of the topics they work on.

Promises:
- Executors need neither Postgres nor KMS. Keys reach them as the bucket's credentials do, with their tasks:
  no configuration, log or argument has them.
- The key of one topic that cannot be had keeps no other topic waiting (`sequencer.topics.topic_key_cache`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sequencer.client import Sequencer
from sequencer.topics.topic_key_cache import TopicKeys, keys_for_jobs
from sequencer.topics.topics import Topic
from spark_compaction.settings import CompactionSettings
from storage.batches.byte_arrays import Buffer
from storage.encryption.topic_keyring import TopicKeyring
from storage.stores.open_store import open_store


class JobKeys:
    def __init__(self, keys: TopicKeys) -> None:
        self._keys = keys

    async def of(self, topic: Topic) -> TopicKeyring | None:
        """Returns all keys of a topic; None if it was never encrypted. Call it after the job was planned:
        then no batch of the plan has a newer key. Raises KeyUnavailable.
        """
        return await self._keys.all_of(topic.topic_id, topic.config)

    async def opened(self, topic: Topic, partition: int, batches: Buffer) -> Buffer:
        """Returns whole batches, those opened that are sealed. Raises KeyUnavailable or SealBroken."""
        return await self._keys.opened(topic.topic_id, partition, batches)


@asynccontextmanager
async def open_job_keys(settings: CompactionSettings, sequencer: Sequencer) -> AsyncIterator[JobKeys]:
    """Raises StoreUnavailable."""
    store = await open_store(settings.store_url, settings)
    try:
        yield JobKeys(keys_for_jobs(sequencer.topic_keys, store, settings.cluster, settings))
    finally:
        await store.close()
