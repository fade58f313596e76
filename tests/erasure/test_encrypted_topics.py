"""Erasing from the log of encrypted topics: batches in the clear, of an old key and of a new one."""

import asyncio
import contextlib
import dataclasses
import logging
from pathlib import Path

import pytest

from erasure.report import ErasureFailed, ErasureProgress
from sequencer.housekeeping.erasures import PartitionEnd
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import TopicKey, sealed_counts
from storage.encryption.settings import EncryptionSettings
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import KeyId, ObjectKey, Offset, Partition
from storage.stores.inline_objects import InlineObjects
from storage.stores.object_store import StoreSettings
from tests.agent.running import running
from tests.compactor.merging import merge_everything
from tests.erasure.conftest import SECRET, Place
from tests.erasure.reading import consumed
from tests.erasure.test_interruptions import kill_an_erasure
from tests.erasure.test_raw_log import PARTITIONS, left_of, rows_of, topic_of, write
from tests.erasure.test_transactions import committed, write_all_sorts
from tests.spark_compaction.log import CLUSTER, one, records
from tests.spark_compaction.test_encrypted_topics import (
    hidden,
    key_file,
    keyring_of,
    rotate,
    seal,
)
from tests.spark_compaction.test_encrypted_topics import write as write_keys
from tests.support.key_file import key_line

__all__ = ["key_file"]
OF_OTHERS = b"value-"
"""In the value of each record that stays."""


@pytest.fixture
def keyed(place: Place, key_file: Path) -> Place:
    """Its erasures have the key encryption key."""
    encryption = {"encryption_provider": "file", "encryption_key": str(key_file)}
    return dataclasses.replace(place, settings=place.settings.model_copy(update=encryption))


def encryption_of(place: Place) -> EncryptionSettings:
    return EncryptionSettings(encryption_provider="file", encryption_key=place.settings.encryption_key)


async def keys_of(place: Place) -> TopicKeyring:
    return await keyring_of(place.settings, place.log, "orders")


async def write_mixed(place: Place, segments: int = 2) -> TopicKey:
    """Objects in the clear, of one key, and of the next, which it returns."""
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, segments)
    await place.sequencer.topics.alter_config("orders", {"tidelog.encryption": "on"})
    await seal(place.settings, place.log, "orders")
    await write(place, segments)
    newest = await rotate(place.settings, place.log, "orders")
    await write(place, segments)
    return newest


async def key_ids_of_runs(place: Place, partitions: int = PARTITIONS) -> set[KeyId | None]:
    """The keys of all batches that runs of the log have; None stands for batches in the clear."""
    topic = await topic_of(place)
    found: set[KeyId | None] = set()
    for partition in map(Partition, range(partitions)):
        end = PartitionEnd(
            partition=partition, log_start_offset=Offset(0), end_offset=Offset(1 << 40), size_bytes=0
        )
        for run in await place.sequencer.erasures.runs(topic.topic_id, end, Offset(0), 1000):
            data = await InlineObjects(place.store).get(
                run.object_key, run.position, run.position + run.length
            )
            found |= set(sealed_counts(data)) or {None}
    return found


async def snapshot(place: Place) -> set[ObjectKey]:
    return {info.key async for info in place.store.list(f"{CLUSTER}/")}


async def test_clear_and_sealed_batches_lose_the_records_and_are_sealed_with_the_newest_key(
    keyed: Place, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    newest = await write_mixed(keyed)
    before = await keys_of(keyed)
    assert len(await keyed.objects_holding(b"K", before)) == 6
    assert len(await keyed.objects_with(OF_OTHERS)) == 2

    async with keyed.kept():
        report = await keyed.erase(b"K")

    keyring = await keys_of(keyed)
    assert (report.raw_records, report.objects_rewritten, report.passes) == (12, 6, 2)
    assert await rows_of(keyed, keyring=keyring) == left_of(keyed)
    assert await keyed.objects_holding(b"K", keyring) == []
    assert await keyed.objects_with(SECRET) == await keyed.objects_with(OF_OTHERS) == []
    assert await key_ids_of_runs(keyed) == {newest.key_id}
    assert await keyed.is_healthy()
    encryption = encryption_of(keyed)
    async with running(
        database_url, store_url, store_settings=store_settings, encryption=encryption
    ) as agent:
        assert await consumed(agent, "orders", PARTITIONS) == left_of(keyed)


@pytest.mark.parametrize("point", ["publish", "reading the log", "waiting for old objects to be deleted"])
async def test_a_killed_erasure_of_sealed_batches_is_finished_by_running_it_again(
    keyed: Place, point: str
) -> None:
    newest = await write_mixed(keyed, 4)

    async with keyed.kept():
        await kill_an_erasure(keyed.settings, point)
        await keyed.erase(b"K", job_lease_s=1.0)

    keyring = await keys_of(keyed)
    assert await rows_of(keyed, keyring=keyring) == left_of(keyed)
    assert await keyed.objects_holding(b"K", keyring) == []
    assert await keyed.objects_with(SECRET) == await keyed.objects_with(OF_OTHERS) == []
    assert await key_ids_of_runs(keyed) == {newest.key_id}
    assert await keyed.is_healthy()


async def test_a_run_without_such_a_record_keeps_its_seals(keyed: Place) -> None:
    await keyed.log.topic("orders", PARTITIONS, retention_ms="-1", tidelog_encryption="on")
    first = await seal(keyed.settings, keyed.log, "orders")
    await keyed.log.write("orders", one(0, *records(5)), one(1, *records(5)))
    second = await rotate(keyed.settings, keyed.log, "orders")
    await write(keyed, 1)

    async with keyed.kept():
        report = await keyed.erase(b"K")

    assert report.objects_rewritten == 1
    assert await key_ids_of_runs(keyed) == {first.key_id, second.key_id}
    assert await rows_of(keyed, keyring=await keys_of(keyed)) == left_of(keyed)


async def test_a_topic_that_is_encrypted_no_longer_is_sealed_where_it_is_rewritten(keyed: Place) -> None:
    newest = await write_mixed(keyed)
    await keyed.sequencer.topics.alter_config("orders", {"tidelog.encryption": "off"})
    del keyed.log.sealing["orders"]
    await write(keyed, 1)

    async with keyed.kept():
        report = await keyed.erase(b"K")

    assert report.raw_records == 14
    assert await key_ids_of_runs(keyed) == {newest.key_id}
    assert await rows_of(keyed, keyring=await keys_of(keyed)) == left_of(keyed)


async def test_batches_that_lose_all_records_stay_empty_and_the_rest_is_read(
    keyed: Place, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    await write_mixed(keyed)
    others = tuple(f"key-{number}".encode() for number in range(1, 7))

    async with keyed.kept():
        await keyed.erase(b"K", *others)

    left = left_of(keyed, erased=(b"K", *others))
    assert left
    assert await rows_of(keyed, keyring=await keys_of(keyed)) == left
    async with keyed.kept():
        await keyed.erase(b"key-0")
    assert await rows_of(keyed, keyring=await keys_of(keyed)) == []
    encryption = encryption_of(keyed)
    async with running(
        database_url, store_url, store_settings=store_settings, encryption=encryption
    ) as agent:
        assert await consumed(agent, "orders", PARTITIONS) == []
    assert await keyed.is_healthy()


async def test_sealed_copies_that_merging_left_behind_go_too(keyed: Place) -> None:
    await write_mixed(keyed, 4)
    assert await merge_everything(keyed.sequencer, keyed.store) > 0
    assert len(await keyed.objects_holding(b"K", await keys_of(keyed))) > 12

    async with keyed.kept():
        await keyed.erase(b"K")

    keyring = await keys_of(keyed)
    assert await rows_of(keyed, keyring=keyring) == left_of(keyed)
    assert await keyed.objects_holding(b"K", keyring) == []
    assert await keyed.objects_with(SECRET) == []
    assert await keyed.is_healthy()


@pytest.mark.parametrize("merged", [False, True])
async def test_sealed_transactions_end_as_they_would_have(
    keyed: Place, database_url: str, store_url: str, store_settings: StoreSettings, merged: bool
) -> None:
    await keyed.log.topic("orders", retention_ms="-1", tidelog_encryption="on")
    await seal(keyed.settings, keyed.log, "orders")
    still_open, aborted = await write_all_sorts(keyed)
    newest = await rotate(keyed.settings, keyed.log, "orders")
    if merged:
        await merge_everything(keyed.sequencer, InlineObjects(keyed.store))

    async with keyed.kept():
        report = await keyed.erase(b"K")
    await keyed.log.end(still_open, commit=True)

    assert report.raw_records == 34
    assert newest.key_id in await key_ids_of_runs(keyed, partitions=1)
    encryption = encryption_of(keyed)
    async with running(
        database_url, store_url, store_settings=store_settings, encryption=encryption
    ) as agent:
        assert await consumed(agent, "orders", 1) == committed(keyed)
        everything = await consumed(agent, "orders", 1, isolation="read_uncommitted")
    assert everything == sorted(committed(keyed) + aborted, key=lambda row: row[1])
    assert await keyed.is_healthy()


async def test_without_a_provider_nothing_changes(place: Place, keyed: Place) -> None:
    await write_mixed(keyed)
    before = await snapshot(place)

    with pytest.raises(KeyUnavailable, match="TIDELOG_ENCRYPTION_PROVIDER"):
        await place.erase(b"K")

    assert await snapshot(place) == before
    assert len(await place.objects_holding(b"K", await keys_of(keyed))) == 6


async def test_without_the_key_of_an_old_batch_nothing_changes_until_it_is_back(
    keyed: Place, key_file: Path
) -> None:
    old, new = hidden(key_file), key_line("second")
    write_keys(key_file, old)
    await keyed.log.topic("orders", PARTITIONS, retention_ms="-1", tidelog_encryption="on")
    first = await seal(keyed.settings, keyed.log, "orders")
    await write(keyed, 2)
    write_keys(key_file, new + old)
    await rotate(keyed.settings, keyed.log, "orders")
    await write(keyed, 2)
    before = await snapshot(keyed)
    write_keys(key_file, new)

    with pytest.raises(KeyUnavailable, match=f"{first.key_id:016x}: .*has no key named file:first"):
        await keyed.erase(b"K")
    assert await snapshot(keyed) == before
    write_keys(key_file, new + old)
    async with keyed.kept():
        report = await keyed.erase(b"K")

    assert report.raw_records == 8
    assert await keyed.objects_holding(b"K", await keys_of(keyed)) == []


async def test_a_missing_key_that_nothing_needs_any_more_keeps_no_erasure_waiting(
    keyed: Place, key_file: Path
) -> None:
    old, new = hidden(key_file), key_line("second")
    write_keys(key_file, old)
    topic_id = await keyed.log.topic("orders", PARTITIONS, retention_ms="-1", tidelog_encryption="on")
    first = await seal(keyed.settings, keyed.log, "orders")
    await write(keyed, 2)
    write_keys(key_file, new + old)
    second = await rotate(keyed.settings, keyed.log, "orders")
    await write(keyed, 2)
    write_keys(key_file, new)
    for partition in map(Partition, range(PARTITIONS)):
        await keyed.sequencer.retention.delete_records(topic_id, partition, Offset(20))

    async with keyed.kept():
        async with asyncio.timeout(60):
            while first.key_id in await key_ids_of_runs(keyed):  # noqa: ASYNC110 - retention sets no event
                await asyncio.sleep(0.05)
        report = await keyed.erase(b"K")

    assert report.raw_records == 4
    assert await key_ids_of_runs(keyed) == {second.key_id}
    keyring = await keys_of(keyed)
    assert await rows_of(keyed, keyring=keyring) == [row for row in left_of(keyed) if int(str(row[1])) >= 20]


async def test_what_a_destroyed_key_sealed_is_never_said_to_be_erased(keyed: Place) -> None:
    topic_id = await keyed.log.topic("orders", PARTITIONS, retention_ms="-1", tidelog_encryption="on")
    destroyed = await seal(keyed.settings, keyed.log, "orders")
    await write(keyed, 1)
    await keyed.sequencer.database.run("DELETE FROM topic_keys WHERE topic_id = %(id)s", id=topic_id)
    await seal(keyed.settings, keyed.log, "orders")
    await write(keyed, 1)
    before = await snapshot(keyed)

    async with keyed.kept():
        with pytest.raises(KeyUnavailable, match=f"the topic has no key {destroyed.key_id:016x}"):
            await keyed.erase(b"K")
        assert before <= await snapshot(keyed)
        for partition in map(Partition, range(PARTITIONS)):
            await keyed.sequencer.retention.delete_records(topic_id, partition, Offset(10))
        report = await keyed.erase(b"K")  # what no key opens was deleted

    assert report.raw_records == 2
    keyring = await keys_of(keyed)
    assert await rows_of(keyed, keyring=keyring) == [row for row in left_of(keyed) if int(str(row[1])) >= 10]


async def test_a_damaged_seal_is_named(keyed: Place) -> None:
    await keyed.log.topic("orders", 1, retention_ms="-1", tidelog_encryption="on")
    await seal(keyed.settings, keyed.log, "orders")
    await keyed.log.write("orders", one(0, *records(9)))
    [key] = [key for key in await snapshot(keyed) if "/segments/" in key]
    data = bytearray(await keyed.store.get(key))
    data[200] ^= 1
    await keyed.store.put(key, [bytes(data)])

    with pytest.raises(ErasureFailed, match=f"{key} at byte .* does not decode"):
        await keyed.erase(b"K")


async def test_an_erasure_goes_on_once_the_provider_of_keys_is_back(keyed: Place, key_file: Path) -> None:
    await write_mixed(keyed)
    text: list[str] = []
    waited: list[str] = []

    def hide(now: ErasureProgress) -> None:
        if now.stage == "reading the log" and not text:
            text.append(hidden(key_file))

    class BackAgain(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text and not waited:
                waited.append(record.getMessage())
                write_keys(key_file, text[0])

    watching = BackAgain()
    logging.getLogger("tidelog").addHandler(watching)
    try:
        async with keyed.kept():
            await keyed.erase(b"K", on_progress=hide, encryption_key_life_s=1e-6, encryption_retry_s=0)
    finally:
        logging.getLogger("tidelog").removeHandler(watching)

    assert "the erasure tries again" in waited[0]
    assert str(key_file) in waited[0]
    keyring = await keys_of(keyed)
    assert await rows_of(keyed, keyring=keyring) == left_of(keyed)
    assert await keyed.objects_holding(b"K", keyring) == []


async def test_a_topic_that_is_deleted_meanwhile_takes_its_keys_along(keyed: Place) -> None:
    topic_id = await keyed.log.topic("orders", PARTITIONS, retention_ms="-1", tidelog_encryption="on")
    await seal(keyed.settings, keyed.log, "orders")
    await write(keyed, 8)
    loop = asyncio.get_running_loop()
    deleted: list[ErasureProgress] = []

    def delete(now: ErasureProgress) -> None:
        if not deleted:
            deleted.append(now)
            asyncio.run_coroutine_threadsafe(keyed.sequencer.topics.delete("orders"), loop).result(30)

    async with keyed.kept(restore_horizon_s=0):
        with contextlib.suppress(ErasureFailed):  # the sweep of the topic may come first
            await keyed.erase(b"K", on_progress=delete, encryption_key_life_s=1e-6, encryption_retry_s=0)

    assert deleted
    assert await keyed.sequencer.topic_keys.ids_of(topic_id) == []
