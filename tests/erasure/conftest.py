"""A log, its housekeeper, and the command's settings: with waits of a second or so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.doctor import DoctorSettings, examine
from compactor.housekeeper import Housekeeper
from compactor.settings import HousekeeperSettings
from erasure.erase import erase_records
from erasure.report import ErasureReport, OnProgress
from erasure.settings import ErasureSettings
from sequencer.client import Sequencer
from spark_compaction.history_file import decryption_of
from storage.arrow.arrow_columns import decode_batches
from storage.arrow.erased_batches import ErasedKeys
from storage.encryption.topic_keyring import ReadKeyring, opened_batches
from storage.identifiers import ObjectKey
from storage.segments.keys import segment_id_of
from storage.segments.segment import verify_segment
from storage.stores.object_store import ObjectNotFound, ObjectStore, StoreSettings
from tests.compactor.builders import settings as small_steps
from tests.spark_compaction.conftest import CatalogServer
from tests.spark_compaction.log import CLUSTER, Log
from tests.support.postgres import OWN_FOR_YEARS

SECRET = b"SECRET-of-K"
"""In the value of each record that is to be erased."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cluster without agents: what tests erase from."""

    log: Log
    settings: ErasureSettings

    @property
    def sequencer(self) -> Sequencer:
        return self.log.sequencer

    @property
    def store(self) -> ObjectStore:
        return self.log.store

    @asynccontextmanager
    async def kept(self, **changed: Any) -> AsyncIterator[None]:
        async with housekeeping_at_work(self.sequencer, self.store, **changed):
            yield

    async def erase(
        self,
        *keys: bytes | None,
        topic: str = "orders",
        on_progress: OnProgress = lambda _: None,
        **changed: Any,
    ) -> ErasureReport:
        settings = self.settings.model_copy(update=changed)
        return await asyncio.to_thread(erase_records, settings, topic, ErasedKeys(keys), on_progress)

    async def objects_with(self, needle: bytes) -> list[ObjectKey]:
        """The objects of the bucket whose bytes have it somewhere. Write without compression."""
        return [key async for key, data in self._objects() if needle in data]

    async def _objects(self) -> AsyncIterator[tuple[ObjectKey, bytes]]:
        """Leaves out what is deleted while they are read."""
        async for info in self.store.list(f"{CLUSTER}/"):
            with contextlib.suppress(ObjectNotFound):
                yield info.key, bytes(await self.store.get(info.key))

    async def objects_holding(self, key: bytes, keyring: ReadKeyring | None = None) -> list[ObjectKey]:
        """The objects of the bucket with a record of this key, in whatever compression. `keyring` opens what
        is encrypted: without it, that is an error."""
        found = []
        async for object_key, data in self._objects():
            if object_key.endswith(".parquet"):
                decryption = decryption_of(keyring, pq.read_metadata(pa.BufferReader(data)), object_key)
                file = pq.ParquetFile(pa.BufferReader(data), decryption_properties=decryption)
                keys = file.read(columns=["key"]).column("key").to_pylist()
            elif segment_id_of(object_key) is not None:
                keys = [
                    row["key"]
                    for run in verify_segment(data).runs
                    for row in _rows(data[run.position : run.position + run.length], run.partition, keyring)
                ]
            else:
                continue
            if key in keys:
                found.append(object_key)
        return found

    async def is_healthy(self) -> bool:
        diagnosis = await examine(self.sequencer, self.store, CLUSTER, True, DoctorSettings())
        print(diagnosis)
        return diagnosis.is_healthy


def _rows(run: bytes, partition: int, keyring: ReadKeyring | None) -> list[dict[str, Any]]:
    batches = opened_batches(keyring, run, partition)
    return decode_batches(batches, 0, len(batches), 0).to_pylist()


@asynccontextmanager
async def housekeeping_at_work(
    sequencer: Sequencer, store: ObjectStore, **changed: Any
) -> AsyncIterator[None]:
    """With a housekeeper that waits a second or so where others wait minutes."""
    working = asyncio.create_task(Housekeeper(sequencer, store, quick_settings(**changed)).run())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.wait([working], timeout=30)
        await sequencer.database.run(OWN_FOR_YEARS)  # nothing ratchets so often from here on


def quick_settings(**changed: Any) -> HousekeeperSettings:
    return small_steps(
        **{
            **{
                f"{name}_interval_s": 0.05
                for name in ("retention", "topic_sweep", "producer_expiry", "dooming", "garbage", "merge")
            },
            "garbage_segments_per_step": 100,
            "retention_partitions_per_step": 100,
            "ownership_ratchet_s": 1.0,
            "garbage_grace_s": 2.01,
            "late_write_window_s": 2.01,
            "history_reader_grace_s": 3600,
            "outcome_retention_s": 0,
            "reservation_lease_s": 0.1,
            "job_retry_s": 0.02,
            "restore_horizon_s": 3600,
            "journal_interval_s": 0.1,
            "checkpoint_interval_s": 0.3,
            "checkpoint_pace": 0,
            **changed,
        }
    )


@pytest.fixture
def catalog_url(database_url: str, store_url: str, store_settings: StoreSettings) -> Iterator[str]:
    server = CatalogServer(database_url, store_url, store_settings)
    yield server.start()
    server.stop()


@pytest.fixture
def place(
    sequencer: Sequencer,
    store: ObjectStore,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> Place:
    settings = ErasureSettings(
        **store_settings.model_dump(),
        database_url=database_url,
        store_url=store_url,
        compact_task_bytes=4096,
        parquet_file_bytes=64 << 10,
        parquet_row_group_bytes=16 << 10,
        erase_poll_s=0.05,
        erase_timeout_s=60,
        erase_page_rows=7,
    )
    return Place(log=Log(sequencer=sequencer, store=store), settings=settings)
