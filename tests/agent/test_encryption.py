"""Topics with tidelog.encryption=on, over the wire."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from compactor.cleaning import Cleaner, CleaningDiscoveryJob
from compactor.metrics import CleaningMetrics
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer, SequencerSettings
from sequencer.topics.topic_key_cache import keys_for_jobs, new_version
from storage.batches.record_batch import HEADER_BYTES
from storage.encryption.key_objects import KeyObjects
from storage.encryption.key_wrapping import FileKeys, KeyUnavailable
from storage.encryption.sealed_batches import SEAL_BYTES
from storage.encryption.settings import EncryptionSettings
from storage.segments.segment import verify_segment
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.agent.kafka.apis.administrative_requests import alter, create, delete
from tests.agent.read_path.wire import a_fetch, a_list_offsets
from tests.agent.running import Running, Wire, a_batch, a_produce, partitions_of, running
from tests.support.key_file import key_line

SET, DELETE = 0, 1
SECRET = b"nobody may read this in the bucket"
ENCRYPTED = [
    {"name": "tidelog.encryption", "value": "on"},
    {"name": "tidelog.history", "value": "off"},
]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(key_line("first"))
    return path


@asynccontextmanager
async def an_agent(database_url: str, key_file: Path, **settings: Any) -> AsyncIterator[tuple[Running, Wire]]:
    encryption = EncryptionSettings(encryption_provider="file", encryption_key=str(key_file), **settings)
    async with running(database_url, f"file://{key_file.parent}/store", encryption=encryption) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        yield agent, wire
        wire.close()


def hidden(key_file: Path) -> str:
    text = key_file.read_text()
    key_file.unlink()
    return text


def write(key_file: Path, text: str) -> None:
    key_file.write_text(text)


def stored(key_file: Path) -> bytes:
    files = [path for path in (key_file.parent / "store").rglob("*") if path.is_file()]
    return b"".join(path.read_bytes() for path in files)


async def produced(wire: Wire, topic: str, partitions: dict[int, bytes]) -> list[ErrorCode]:
    return [one.error_code for one in partitions_of(await wire.ask(a_produce(topic, dict(partitions))))]


async def read(wire: Wire, topic: Any, *offsets: int) -> list[Any]:
    return list((await wire.ask(a_fetch(12, topic, *offsets))).responses[0].partitions)


async def until_read(wire: Wire, topic: Any, *offsets: int) -> list[Any]:
    async with asyncio.timeout(20):
        while True:
            found = await read(wire, topic, *offsets)
            if all(one.records or one.error_code is not ErrorCode.none for one in found):
                return found


async def test_records_are_sealed_in_the_bucket_and_plain_for_clients(
    database_url: str, key_file: Path
) -> None:
    batch = a_batch(SECRET, SECRET, timestamp_ms=1_700_000_000_000)
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "secrets", configs=ENCRYPTED, num_partitions=1)
        plain = await create(wire, "plain", configs=[], num_partitions=1)
        assert await produced(wire, "secrets", {0: batch}) == [ErrorCode.none]
        assert await produced(wire, "plain", {0: a_batch(b"in the clear")}) == [ErrorCode.none]
        [found] = await until_read(wire, topic, 0)
        assert bytes(found.records)[16:] == batch[16:]
        [in_clear] = await until_read(wire, plain, 0)
        assert b"in the clear" in bytes(in_clear.records)
        asked = await wire.ask(a_list_offsets(5, "secrets", 1_700_000_000_000))
        assert asked.topics[0].partitions[0].offset == 0
    assert b"in the clear" in stored(key_file)
    assert SECRET not in stored(key_file)


async def test_a_topic_that_is_compacted_by_key_stays_sealed_and_plain_for_clients(
    database_url: str, key_file: Path
) -> None:
    compacted = [
        {"name": "tidelog.encryption", "value": "on"},
        {"name": "cleanup.policy", "value": "compact"},
        {"name": "min.cleanable.dirty.ratio", "value": "0"},
        {"name": "compression.type", "value": "uncompressed"},
    ]
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "state", configs=compacted, num_partitions=1)
        for number in range(5):
            batch = a_batch(SECRET + b"-%d" % number, b"own", keys=(b"key", b"key-%d" % number))
            assert await produced(wire, "state", {0: batch}) == [ErrorCode.none]
        sequencer = await Sequencer.open(database_url, SequencerSettings())
        store = await open_store(f"file://{key_file.parent}/store", StoreSettings())
        encryption = EncryptionSettings(encryption_provider="file", encryption_key=str(key_file))
        keys = keys_for_jobs(sequencer.topic_keys, store, "tidelog", encryption)
        settings = HousekeeperSettings()
        await sequencer.ownership.ratchet(store, "tidelog")
        await CleaningDiscoveryJob(sequencer, settings).step(None)
        metrics = CleaningMetrics(CollectorRegistry())
        assert await Cleaner(sequencer, store, "tidelog", settings, metrics, keys=keys).clean_once()
        await store.close()
        await sequencer.close()
        [found] = await until_read(wire, topic, 0)
        records = bytes(found.records)
        assert SECRET + b"-4" in records
        assert (records.count(SECRET), records.count(b"own")) == (1, 5)
    assert SECRET not in stored(key_file)


async def test_a_topic_stays_readable_when_it_is_switched_off_and_the_agent_restarts(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "switched", configs=ENCRYPTED, num_partitions=1)
        assert await produced(wire, "switched", {0: a_batch(SECRET)}) == [ErrorCode.none]
        changed = await alter(wire, "switched", ("tidelog.encryption", SET, "off"))
        assert changed.error_code is ErrorCode.none
        changed = await alter(wire, "switched", ("tidelog.encryption", DELETE, None))
        assert changed.error_code is ErrorCode.none
        assert await produced(wire, "switched", {0: a_batch(b"not sealed")}) == [ErrorCode.none]
    async with an_agent(database_url, key_file) as (_, wire):
        records = b""
        async with asyncio.timeout(20):
            while b"not sealed" not in records:
                [found] = await until_read(wire, topic, 0)
                records = bytes(found.records)
    assert SECRET in records
    assert SECRET not in stored(key_file)
    assert b"not sealed" in stored(key_file)


async def test_a_changed_byte_in_the_bucket_fails_its_partition_alone(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "damaged", configs=ENCRYPTED, num_partitions=2)
        assert await produced(wire, "damaged", {0: a_batch(SECRET)}) == [ErrorCode.none]
        [segment] = (key_file.parent / "store" / "tidelog" / "segments").rglob("*-*")
        assert await produced(wire, "damaged", {1: a_batch(SECRET)}) == [ErrorCode.none]
    data = bytearray(segment.read_bytes())
    position = verify_segment(data).runs[0].position
    data[position + HEADER_BYTES + SEAL_BYTES] ^= 1
    segment.write_bytes(data)
    async with an_agent(database_url, key_file) as (_, wire):
        damaged, sound = await until_read(wire, topic, 0, 0)
    assert damaged.error_code is ErrorCode.corrupt_message
    assert not damaged.records
    assert SECRET in bytes(sound.records)


async def test_without_its_key_a_topic_is_refused_and_others_are_not(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file, encryption_key_life_s=0.001, encryption_retry_s=0) as (
        _,
        wire,
    ):
        topic = await create(wire, "locked", configs=ENCRYPTED, num_partitions=1)
        open_topic = await create(wire, "open", configs=[], num_partitions=1)
        assert await produced(wire, "locked", {0: a_batch(SECRET)}) == [ErrorCode.none]
        text = hidden(key_file)

        assert await produced(wire, "locked", {0: a_batch(SECRET)}) == [ErrorCode.not_enough_replicas]
        assert await produced(wire, "open", {0: a_batch(b"yes")}) == [ErrorCode.none]
        [found] = await until_read(wire, topic, 0)
        assert found.error_code is ErrorCode.kafka_storage_error
        [found] = await until_read(wire, open_topic, 0)
        assert b"yes" in bytes(found.records)

        write(key_file, text)
        [found] = await until_read(wire, topic, 0)
        assert SECRET in bytes(found.records)


async def test_an_encrypted_topic_may_have_a_table_and_the_log_in_it(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        await create(wire, "later", configs=ENCRYPTED, num_partitions=1)
        for value in ("table", "log"):
            changed = await alter(wire, "later", ("tidelog.history", SET, value))
            assert changed.error_code is ErrorCode.none


async def test_two_who_make_a_topics_first_key_get_the_same_and_its_deletion_destroys_it(
    database_url: str, key_file: Path, store: ObjectStore
) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    keys, wrapping = sequencer.topic_keys, FileKeys(key_file)
    objects = KeyObjects(store, "tidelog")
    try:
        topic = await sequencer.topics.create("raced", 1, {})
        found = await asyncio.gather(
            *(new_version(keys, objects, wrapping, topic.topic_id, 1) for _ in range(8))
        )
        assert len({key.wrapped for key in found}) == 1
        assert [key async for key in objects.list()] == [(topic.topic_id, found[0].key_id)]

        await sequencer.topics.delete("raced")

        with psycopg.connect(database_url) as connection:
            assert connection.execute("SELECT count(*) FROM topic_keys").fetchone() == (0,)
        with pytest.raises(KeyUnavailable, match="deleted"):
            await new_version(keys, objects, wrapping, topic.topic_id, 2)
    finally:
        await sequencer.close()


def feed(pipe: Path, text: str) -> None:
    """Gives the text to a reader that waits, if there is one."""
    try:
        writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    os.write(writer, text.encode())
    os.close(writer)


async def test_a_key_file_that_hangs_holds_up_its_topics_alone(database_url: str, key_file: Path) -> None:
    text = hidden(key_file)
    os.mkfifo(key_file)  # reading it waits until somebody writes
    async with an_agent(database_url, key_file, encryption_timeout_s=60) as (agent, wire):
        other = await Wire.connect(agent.app.kafka_port)
        await create(wire, "locked", configs=ENCRYPTED, num_partitions=1)
        await create(wire, "open", configs=[], num_partitions=1)
        waiting = asyncio.create_task(produced(wire, "locked", {0: a_batch(SECRET)}))

        assert await produced(other, "open", {0: a_batch(b"yes")}) == [ErrorCode.none]
        assert not waiting.done()

        while not waiting.done():
            feed(key_file, text)
            await asyncio.sleep(0.01)
        assert await waiting == [ErrorCode.none]
        other.close()


@asynccontextmanager
async def a_service_that_never_answers() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Its URL, and what it was asked."""
    asked: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_a_kms_that_does_not_answer_is_waited_for_once(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a request that names several topics."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    async with a_service_that_never_answers() as (url, asked):
        encryption = EncryptionSettings(
            encryption_provider="aws-kms",
            encryption_key="alias/tidelog",
            encryption_kms_endpoint=url,
            encryption_timeout_s=5.0,
            encryption_retry_s=3600,
        )
        async with running(database_url, f"file://{tmp_path}/store", encryption=encryption) as agent:
            wire = await Wire.connect(agent.app.kafka_port)
            for name in ("one", "two", "three"):
                await create(wire, name, configs=ENCRYPTED, num_partitions=1)
            await create(wire, "open", configs=[], num_partitions=1)
            assert await produced(wire, "one", {0: a_batch(SECRET)}) == [ErrorCode.not_enough_replicas]
            assert asked
            before = len(asked)

            for name in ("one", "two", "three"):
                assert await produced(wire, name, {0: a_batch(SECRET)}) == [ErrorCode.not_enough_replicas]
            assert await produced(wire, "open", {0: a_batch(b"yes")}) == [ErrorCode.none]
            assert len(asked) == before
            wire.close()


async def at_any_agent(ask: Callable[..., Awaitable[list[Any]]], *arguments: Any) -> list[Any]:
    """Asks again where the agent names another one, as it does once: any agent serves any partition."""
    while True:
        answers = await ask(*arguments)
        codes = [one if isinstance(one, ErrorCode) else one.error_code for one in answers]
        if ErrorCode.not_leader_or_follower not in codes:
            return answers


async def test_two_agents_that_make_a_topics_first_key_at_once_use_one(
    database_url: str, key_file: Path
) -> None:
    async with (
        an_agent(database_url, key_file) as (_, one),
        an_agent(database_url, key_file) as (_, two),
    ):
        topic = await create(one, "shared", configs=ENCRYPTED, num_partitions=2)
        codes = await asyncio.gather(
            at_any_agent(produced, one, "shared", {0: a_batch(SECRET + b"1")}),
            at_any_agent(produced, two, "shared", {1: a_batch(SECRET + b"2")}),
        )
        assert [*codes[0], *codes[1]] == [ErrorCode.none] * 2

        for wire in (one, two):
            parts = await at_any_agent(until_read, wire, topic, 0, 0)
            assert [part.error_code for part in parts] == [ErrorCode.none] * 2
            found = b"".join(bytes(part.records) for part in parts)
            assert SECRET + b"1" in found
            assert SECRET + b"2" in found
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM topic_keys").fetchone() == (1,)
    assert len(list((key_file.parent / "store" / "tidelog" / "topic-keys").rglob("*-*/*"))) == 1


async def test_a_topic_made_again_has_another_key(database_url: str, key_file: Path) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        await create(wire, "again", configs=ENCRYPTED, num_partitions=1)
        assert await produced(wire, "again", {0: a_batch(SECRET)}) == [ErrorCode.none]
        await delete(wire, 4, name="again")
        topic = await create(wire, "again", configs=ENCRYPTED, num_partitions=1)
        assert await produced(wire, "again", {0: a_batch(b"second life")}) == [ErrorCode.none]
        [found] = await until_read(wire, topic, 0)
        assert b"second life" in bytes(found.records)
        assert SECRET not in bytes(found.records)
    with psycopg.connect(database_url) as connection:
        keys = connection.execute("SELECT count(DISTINCT key_id) FROM topic_keys").fetchone()
        destroyed = connection.execute("SELECT count(*) FROM key_copies_to_delete").fetchone()
    assert (keys, destroyed) == ((1,), (1,))


async def test_a_fetch_asks_for_the_keys_of_its_partitions_side_by_side(
    database_url: str, key_file: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    objects, wrapping = KeyObjects(store, "tidelog"), FileKeys(key_file)
    async with an_agent(database_url, key_file, encryption_key_life_s=0.001) as (_, wire):
        topic = await create(wire, "rotated", configs=ENCRYPTED, num_partitions=3)
        for partition in range(3):
            await new_version(sequencer.topic_keys, objects, wrapping, topic.topic_id, partition + 1)
            assert await produced(wire, "rotated", {partition: a_batch(SECRET)}) == [ErrorCode.none]
    await sequencer.close()
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE topic_keys SET wrapped_by = 'aws-kms:any'")
    async with a_service_that_never_answers() as (url, asked):
        encryption = EncryptionSettings(
            encryption_provider="aws-kms",
            encryption_key="alias/tidelog",
            encryption_kms_endpoint=url,
            encryption_timeout_s=5.0,
            encryption_retry_s=3600,
        )
        store_url = f"file://{key_file.parent}/store"
        async with running(database_url, store_url, encryption=encryption) as agent:
            wire = await Wire.connect(agent.app.kafka_port)
            found = await until_read(wire, topic, 0, 0, 0)
            assert [one.error_code for one in found] == [ErrorCode.kafka_storage_error] * 3
            assert len(asked) >= 3
            wire.close()
