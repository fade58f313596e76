"""Looks whether something of an encrypted topic still needs a key that cannot be had, before an erasure
changes anything. A key whose batches and files have all gone by retention keeps no erasure waiting."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from erasure.report import ErasureFailed
from erasure.settings import ErasureSettings
from sequencer.client import Sequencer
from sequencer.history.history_values import TableFile
from sequencer.housekeeping.erasures import ErasureScope, PartitionEnd, RunToErase
from sequencer.topics.topics import Topic
from storage.encryption.parquet_keys import check_name, key_id_of
from storage.encryption.sealed_batches import SealBroken, key_ids
from storage.encryption.topic_keyring import TopicKeyring, key_of_id
from storage.identifiers import Offset
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.side_by_side import side_by_side

_TAIL_BYTES = 64 << 10
_LENGTH_AND_MAGIC = 8


class MissingKeys:
    """Reads the runs of the log and the footers of history files, and opens neither."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        settings: ErasureSettings,
        topic: Topic,
        keyring: TopicKeyring,
    ) -> None:
        self._sequencer = sequencer
        self._store = store
        self._settings = settings
        self._topic = topic
        self._keyring = keyring

    async def check(self, scope: ErasureScope) -> None:
        """Raises KeyUnavailable if a batch or a file needs a missing key, and ErasureFailed,
        SequencerUnavailable or StoreUnavailable."""
        for end in scope.partitions:
            await self._check_files(end)
            await self._check_runs(end)

    async def _check_files(self, end: PartitionEnd) -> None:
        from_offset = Offset(0)
        while from_offset < end.end_offset and (
            page := await self._sequencer.history.files_from(
                self._topic.topic_id, end.partition, from_offset, self._settings.erase_page_rows
            )
        ):
            for file in page:
                await self._check_file(file)
            from_offset = Offset(page[-1].last_offset + 1)

    async def _check_file(self, file: TableFile) -> None:
        size = file.size_bytes
        try:
            tail = bytes(await self._store.get(file.object_key, max(0, size - _TAIL_BYTES), size))
            footer_bytes = int.from_bytes(tail[-8:-4], "little") + _LENGTH_AND_MAGIC
            if footer_bytes > len(tail):
                tail = bytes(await self._store.get(file.object_key, max(0, size - footer_bytes), size))
            metadata = pq.read_metadata(pa.BufferReader(tail))
            check_name(metadata, file.object_key)
            key_id = key_id_of(metadata)
        except ObjectNotFound:
            return  # another job has replaced it, with the newest key
        except (pa.ArrowInvalid, OSError, SealBroken) as error:
            raise ErasureFailed(f"{file.object_key} has no readable footer: {error}") from error
        if key_id is not None:
            key_of_id(self._keyring, key_id)

    async def _check_runs(self, end: PartitionEnd) -> None:
        from_offset = Offset(0)
        while runs := await self._sequencer.erasures.runs(
            self._topic.topic_id, end, from_offset, self._settings.erase_page_rows
        ):
            waiting = iter(runs)
            await side_by_side(self._check_some(waiting) for _ in range(self._settings.erase_requests))
            from_offset = Offset(runs[-1].last_offset + 1)

    async def _check_some(self, waiting: Iterable[RunToErase]) -> None:
        for run in waiting:
            try:
                data = await self._store.get(run.object_key, run.position, run.position + run.length)
                needed = key_ids(data)
            except (ObjectNotFound, SealBroken):
                continue  # swapped since, or damaged, which the erasure says
            for key_id in needed:
                key_of_id(self._keyring, key_id)
