"""Consumers read encrypted Parquet from an agent as they read the log, and lose it alone with its key."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from kio.schema.errors import ErrorCode

from sequencer.client import Sequencer
from sequencer.history.history_values import TableFile
from sequencer.topics.topics import Topic
from spark_compaction.bucket import LocalBucket
from spark_compaction.history_file import HistoryFile
from spark_compaction.settings import CompactionSettings
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.row_groups import footer_bytes
from storage.encryption.settings import EncryptionSettings
from storage.identifiers import TopicId
from storage.stores.object_store import ObjectStore, StoreSettings
from tests.agent.read_path.wire import a_fetch
from tests.agent.running import Running, Wire, running
from tests.spark_compaction.log import Log, drop_local, one, records
from tests.spark_compaction.reading import compact_one
from tests.spark_compaction.test_encrypted_topics import (
    encrypting,
    files_of,
    hidden,
    key_file,
    key_ids,
    rotate,
    seal,
    write,
)
from tests.spark_compaction.test_history_log import _consumed, _consumer, _rows

__all__ = ["encrypting", "key_file"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
FIRST_MS = 1_700_000_000_000
AnAgent: TypeAlias = Callable[[], AbstractAsyncContextManager[Running]]


async def _written(log: Log, settings: CompactionSettings, sequencer: Sequencer) -> None:
    """History of `orders` in the clear, of one key and of the next; then only history. `plain` is clear."""
    small = settings.model_copy(update={"parquet_row_group_bytes": 512, "parquet_file_bytes": 4096})
    for topic in ("orders", "plain"):
        await log.topic(topic, 2, tidelog_history="log", local_retention_ms="0", retention_ms="-1")
    await log.write("plain", one(0, *records(20)))
    await log.write("orders", one(0, *records(20, 0, timestamp_ms=FIRST_MS)), one(1, *records(5)))
    await compact_one(small, "plain")
    await compact_one(small, "orders")
    await sequencer.topics.alter_config("orders", {"tidelog.encryption": "on"})
    await seal(settings, log, "orders")
    await log.write("orders", one(0, *records(20, 20, timestamp_ms=FIRST_MS + 1000)))
    await compact_one(small, "orders")
    await rotate(settings, log, "orders")
    await log.write("orders", one(0, *records(20, 40, timestamp_ms=FIRST_MS + 2000)))
    await compact_one(small, "orders")
    assert len(set(await key_ids(log, "orders"))) == 3
    assert await drop_local(sequencer) > 0


@pytest.fixture
def an_agent(
    encrypting: CompactionSettings, database_url: str, store_url: str, store_settings: StoreSettings
) -> AnAgent:
    """With the keys' provider."""
    encryption = EncryptionSettings(
        encryption_provider="file",
        encryption_key=encrypting.encryption_key,
        encryption_key_life_s=600,
        encryption_retry_s=0,
    )
    return partial(running, database_url, store_url, store_settings=store_settings, encryption=encryption)


async def _read(wire: Wire, topic: Topic, *offsets: int) -> list[Any]:
    return list((await wire.ask(a_fetch(12, topic, *offsets))).responses[0].partitions)


async def test_consumers_read_history_of_two_keys_and_in_the_clear_as_it_was_written(
    log: Log,
    encrypting: CompactionSettings,
    sequencer: Sequencer,
    an_agent: AnAgent,
) -> None:
    await _written(log, encrypting, sequencer)
    async with an_agent() as agent:
        for _ in range(2):  # from the bucket, then from what is kept
            assert await _consumed(agent, "orders", partitions=2) == _rows(log, "orders")
        consumer = _consumer(agent)
        for first, timestamp_ms in ((0, FIRST_MS), (20, FIRST_MS + 1000), (40, FIRST_MS + 1001)):
            wanted = TopicPartition("orders", 0, timestamp_ms)
            [found] = await asyncio.to_thread(consumer.offsets_for_times, [wanted], 30)
            assert found.offset == first
        consumer.close()


async def test_without_keys_encrypted_history_alone_is_refused_until_they_are_back(
    log: Log,
    encrypting: CompactionSettings,
    key_file: Path,
    sequencer: Sequencer,
    an_agent: AnAgent,
) -> None:
    await _written(log, encrypting, sequencer)
    topics = await sequencer.topics.by_name(["orders", "plain"])
    text = hidden(key_file)
    async with an_agent() as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        locked, other = await _read(wire, topics["orders"], 30, 0)
        assert locked.error_code is ErrorCode.kafka_storage_error
        assert other.error_code is ErrorCode.none
        assert other.records
        [clear] = await _read(wire, topics["orders"], 0)
        assert clear.error_code is ErrorCode.none
        [plain] = await _read(wire, topics["plain"], 0)
        assert plain.records
        write(key_file, text)
        assert await _consumed(agent, "orders", partitions=2) == _rows(log, "orders")
        wire.close()


async def test_a_destroyed_key_and_a_damaged_file_fail_their_own_offsets(
    log: Log,
    encrypting: CompactionSettings,
    sequencer: Sequencer,
    store: ObjectStore,
    an_agent: AnAgent,
) -> None:
    await _written(log, encrypting, sequencer)
    topic_id = log.topic_ids["orders"]
    await sequencer.database.run(
        "DELETE FROM topic_keys WHERE topic_id = %(topic_id)s::uuid AND version = 1", topic_id=topic_id
    )
    [orders] = (await sequencer.topics.by_name(["orders"])).values()
    last = (await files_of(log, "orders"))[-1]
    data = bytearray(await store.get(last.object_key))
    for is_damaged in (False, True):
        if is_damaged:
            for at in range(4, len(data) // 2):
                data[at] ^= 1
            await store.put(last.object_key, [bytes(data)])
        async with an_agent() as agent:
            wire = await Wire.connect(agent.app.kafka_port)
            codes = [
                (await _read(wire, orders, offset))[0].error_code for offset in (0, 25, last.first_offset)
            ]
            wire.close()
        newest = ErrorCode.kafka_storage_error if is_damaged else ErrorCode.none
        assert codes == [ErrorCode.none, ErrorCode.kafka_storage_error, newest]


def _forged(tmp_path: Path, file: TableFile, topic_id: TopicId, size: int) -> bytes:
    """A file in the clear with a record at the first offset of `file`, and of its size."""
    bucket = LocalBucket(tmp_path)
    made = HistoryFile(bucket, "forged/", topic_id, file.partition, row_group_bytes=1 << 20)
    columns: dict[str, Any] = {
        "offset": [file.first_offset],
        "timestamp": [0],
        "timestamp_type": [0],
        "key": [b"forged"],
        "value": [b"forged"],
        "headers": [[]],
    }
    made.add(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA))
    data = bytes(bucket.get(made.close().object_key))
    begins = len(data) - footer_bytes(data)
    return data[:begins] + bytes(size - len(data)) + data[begins:]


async def test_agents_refuse_another_file_in_the_place_of_an_encrypted_one(
    log: Log,
    encrypting: CompactionSettings,
    sequencer: Sequencer,
    store: ObjectStore,
    an_agent: AnAgent,
    tmp_path: Path,
) -> None:
    await _written(log, encrypting, sequencer)
    [orders] = (await sequencer.topics.by_name(["orders"])).values()
    first, *_, last = await files_of(log, "orders")
    plain = bytes(await store.get(first.object_key))
    forged = await asyncio.to_thread(_forged, tmp_path, last, log.topic_ids["orders"], last.size_bytes)
    for data in (forged, plain):
        await store.put(last.object_key, [data])
        async with an_agent() as agent:
            wire = await Wire.connect(agent.app.kafka_port)
            [refused] = await _read(wire, orders, last.first_offset)
            [other] = await _read(wire, orders, 0)
            wire.close()
        assert refused.error_code is ErrorCode.kafka_storage_error
        assert not refused.records
        assert other.error_code is ErrorCode.none
