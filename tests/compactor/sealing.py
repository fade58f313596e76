"""A compacted topic whose log has batches of two keys and in the clear, in turn."""

from itertools import cycle
from pathlib import Path

from sequencer.client import Sequencer
from sequencer.topics.topic_key_cache import keys_for_jobs, new_version
from storage.batches.byte_arrays import Buffer
from storage.encryption.key_objects import KeyObjects
from storage.encryption.key_wrapping import FileKeys
from storage.encryption.sealed_batches import TopicKey
from storage.encryption.settings import EncryptionSettings
from storage.identifiers import TopicId
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER
from tests.support.key_file import key_line


class Sealing:
    def __init__(self, sequencer: Sequencer, store: ObjectStore, directory: Path) -> None:
        self._sequencer = sequencer
        self._store = store
        self.key_file = directory / "keys"
        self.key_file.write_text(key_line("first"))
        self._turns: cycle[TopicKey | None] = cycle([None])
        self.forget()

    def forget(self) -> None:
        """As another process, which has no key in memory yet."""
        settings = EncryptionSettings(
            encryption_provider="file", encryption_key=str(self.key_file), encryption_retry_s=0
        )
        self.keys = keys_for_jobs(self._sequencer.topic_keys, self._store, CLUSTER, settings)

    async def begin(self, topic_id: TopicId) -> None:
        older = await self.keys.to_seal(topic_id)
        newest = await self.rotate(topic_id)
        self._turns = cycle([older, None, newest])

    async def rotate(self, topic_id: TopicId) -> TopicKey:
        """Adds a key, which is the newest from now on."""
        rows, objects = self._sequencer.topic_keys, KeyObjects(self._store, CLUSTER)
        newest = await rows.newest(topic_id)
        assert newest is not None
        await new_version(rows, objects, FileKeys(self.key_file), topic_id, newest.version + 1)
        self.forget()
        return await self.keys.to_seal(topic_id)

    def next_key(self) -> TopicKey | None:
        """What seals the next batch. None: it stays in the clear."""
        return next(self._turns)

    async def opened(self, topic_id: TopicId, data: Buffer) -> memoryview:
        """The batches of partition 0, in the clear."""
        return memoryview(await self.keys.opened(topic_id, 0, data))
