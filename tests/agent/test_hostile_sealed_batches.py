"""Encrypted topics and clients that misuse them, objects that are damaged, and repeated requests."""

import asyncio
import struct
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from compactor.doctor import DoctorSettings, examine
from sequencer.client import Sequencer, SequencerSettings
from storage.batches.record_batch import CRC_POSITION, CRC_START, HEADER_BYTES
from storage.encryption.sealed_batches import SEAL_BYTES, is_sealed
from storage.segments.segment import verify_segment
from storage.stores.object_store import StoreSettings
from storage.stores.open_store import open_store
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.running import a_batch, a_produce, partitions_of
from tests.agent.test_encryption import ENCRYPTED, SECRET, an_agent, key_file, produced, until_read

__all__ = ["key_file"]

LENGTH, ATTRIBUTES = 8, 22
KEY_ID, SALT = HEADER_BYTES + 2, HEADER_BYTES + 18


def segments(key_file: Path) -> list[Path]:
    return list((key_file.parent / "store" / "tidelog" / "segments").rglob("*-*"))


def stored_batch(key_file: Path) -> bytes:
    """The only sealed batch in the bucket."""
    [segment] = segments(key_file)
    data = segment.read_bytes()
    run = verify_segment(data).runs[0]
    return data[run.position : run.position + run.length]


def with_crc(batch: bytes) -> bytes:
    return batch[:CRC_POSITION] + struct.pack(">I", crc32c(batch[CRC_START:])) + batch[CRC_START:]


def changed(batch: bytes, position: int, value: bytes) -> bytes:
    return batch[:position] + value + batch[position + len(value) :]


async def test_what_looks_sealed_is_refused_from_a_client_and_other_partitions_are_taken(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "secrets", configs=ENCRYPTED, num_partitions=1)
        await create(wire, "attacked", configs=ENCRYPTED, num_partitions=6)
        assert await produced(wire, "secrets", {0: a_batch(SECRET)}) == [ErrorCode.none]
        sealed, plain = stored_batch(key_file), a_batch(b"plain")
        assert is_sealed(sealed)

        attack = {
            0: a_batch(b"honest"),
            1: sealed,
            2: with_crc(changed(plain, ATTRIBUTES, b"\x07")),
            3: changed(plain, LENGTH, struct.pack(">i", 2**31 - 1)),
            4: changed(sealed, LENGTH, struct.pack(">i", -1)),
            5: sealed + a_batch(b"after a sealed one"),
        }
        codes = await produced(wire, "attacked", attack)

        assert codes[0] is ErrorCode.none
        assert all(code not in (ErrorCode.none, ErrorCode.unknown_server_error) for code in codes[1:])
        [found] = await until_read(wire, topic, 0)
        assert SECRET in bytes(found.records)


@pytest.mark.parametrize(
    "position",
    [ATTRIBUTES - 1, HEADER_BYTES, KEY_ID, KEY_ID + 7, SALT - 1, SALT, HEADER_BYTES + SEAL_BYTES - 16, -1],
    ids=["attributes", "format", "first of key id", "last of key id", "number", "salt", "records", "tag"],
)
@pytest.mark.parametrize("is_forged", [False, True], ids=["damaged", "with a right CRC"])
async def test_a_changed_bit_fails_its_partition_alone_with_no_record_of_it(
    database_url: str, key_file: Path, position: int, is_forged: bool
) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "damaged", configs=ENCRYPTED, num_partitions=2)
        assert await produced(wire, "damaged", {0: a_batch(SECRET)}) == [ErrorCode.none]
        [segment] = segments(key_file)
        batch = stored_batch(key_file)
        assert await produced(wire, "damaged", {1: a_batch(SECRET)}) == [ErrorCode.none]
    place = position % len(batch)
    other = changed(batch, place, bytes([batch[place] ^ 1]))
    segment.write_bytes(segment.read_bytes().replace(batch, with_crc(other) if is_forged else other))

    async with an_agent(database_url, key_file) as (_, wire):
        damaged, sound = await until_read(wire, topic, 0, 0)

    is_other_key = is_forged and KEY_ID <= place < KEY_ID + 8
    expected = ErrorCode.kafka_storage_error if is_other_key else ErrorCode.corrupt_message
    assert damaged.error_code is expected
    assert not damaged.records
    assert SECRET in bytes(sound.records)


async def test_a_repeated_sealed_batch_of_an_idempotent_producer_is_there_once(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "once", configs=ENCRYPTED, num_partitions=1)
        first, second = (a_batch(SECRET, producer=(7, 0, number)) for number in (0, 1))
        answers = [
            partitions_of(await wire.ask(a_produce("once", {0: batch})))[0]
            for batch in (first, first, second, first, second)
        ]

        assert [one.error_code for one in answers] == [ErrorCode.none] * 5
        assert [one.base_offset for one in answers] == [0, 0, 1, 0, 1]
        records = b""
        async with asyncio.timeout(20):
            while records.count(SECRET) < 2:
                [found] = await until_read(wire, topic, 0)
                records = bytes(found.records)
        assert records.count(SECRET) == 2


@pytest.mark.parametrize(
    "config",
    [
        {"message.timestamp.type": "LogAppendTime"},
        {"compression.type": "zstd"},
        {"max.message.bytes": str(len(a_batch(b"x" * 1000)))},
    ],
    ids=lambda config: next(iter(config)),
)
async def test_configs_that_change_or_bound_batches_work_with_sealing(
    database_url: str, key_file: Path, config: dict[str, str]
) -> None:
    configs = [*ENCRYPTED, *({"name": name, "value": value} for name, value in config.items())]
    async with an_agent(database_url, key_file) as (_, wire):
        topic = await create(wire, "configured", configs=configs, num_partitions=1)
        assert await produced(wire, "configured", {0: a_batch(b"x" * 1000)}) == [ErrorCode.none]
        [found] = await until_read(wire, topic, 0)
        assert found.error_code is ErrorCode.none
        records = bytes(found.records)
        assert struct.unpack_from(">I", records, CRC_POSITION)[0] == crc32c(records[CRC_START:])
        assert not is_sealed(records)


async def test_the_doctor_finds_sealed_segments_and_copies_of_keys_sound(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file) as (_, wire):
        await create(wire, "examined", configs=ENCRYPTED, num_partitions=1)
        for _ in range(3):
            assert await produced(wire, "examined", {0: a_batch(SECRET)}) == [ErrorCode.none]
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    store = await open_store(f"file://{key_file.parent}/store", StoreSettings())
    diagnosis = await examine(sequencer, store, "tidelog", True, DoctorSettings())
    await store.close()
    await sequencer.close()
    assert diagnosis.findings == ()


def transactions(port: int, topic: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "transactional.id": f"t-{uuid4()}"})
    producer.init_transactions(30)
    for number, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, SECRET + b"%d" % number, partition=0)
        producer.flush(30)
        (producer.commit_transaction if is_kept else producer.abort_transaction)(30)


def consumed(port: int, topic: str, isolation: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": f"g-{uuid4()}",
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "check.crcs": True,
            "enable.partition.eof": False,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    return found


async def test_transactions_of_encrypted_topics_are_read_as_isolation_asks(
    database_url: str, key_file: Path
) -> None:
    async with an_agent(database_url, key_file) as (agent, wire):
        await create(wire, "transactional", configs=ENCRYPTED, num_partitions=1)
        port: Any = agent.app.kafka_port
        await asyncio.to_thread(transactions, port, "transactional")

        committed = await asyncio.to_thread(consumed, port, "transactional", "read_committed", 2)
        everything = await asyncio.to_thread(consumed, port, "transactional", "read_uncommitted", 3)

        assert committed == [SECRET + b"0", SECRET + b"2"]
        assert everything == [SECRET + b"0", SECRET + b"1", SECRET + b"2"]
    for segment in segments(key_file):
        assert SECRET not in segment.read_bytes()
