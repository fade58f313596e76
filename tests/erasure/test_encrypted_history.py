"""Erasing from the history of encrypted topics: files in the clear, of an old key and of a new one."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from storage.batches.record_batch import Compression
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import TopicKey
from storage.stores.object_store import StoreSettings
from tests.agent.running import running
from tests.erasure.conftest import Place
from tests.erasure.reading import Row, consumed
from tests.erasure.test_encrypted_topics import OF_OTHERS, encryption_of, key_file, keyed, keys_of, snapshot
from tests.erasure.test_history_files import KEY, UNHURRIED
from tests.erasure.test_interruptions import kill_an_erasure
from tests.spark_compaction.log import Sent, drop_local, one, records
from tests.spark_compaction.reading import Rows, compact_one
from tests.spark_compaction.test_encrypted_topics import hidden, history, key_ids, rotate, seal
from tests.spark_compaction.test_encrypted_topics import write as write_keys
from tests.support.key_file import key_line
from tidelog.cli import app

__all__ = ["key_file", "keyed"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


async def _write(place: Place, first: int) -> None:
    for number in (first, first + 1):
        own = list(records(20, 100 * number))
        own.insert(5, Sent(key=KEY, value=b"of K %d" % number))
        batches = (one(0, *own), one(1, *records(5, number), *own))
        await place.log.write(
            "orders",
            *(one(each.partition, *each.records, compression=Compression.NONE) for each in batches),
        )


async def _compact(place: Place) -> None:
    report = await compact_one(place.settings, "orders")
    assert (report.waits, report.failed, report.advanced) == ("", (), True)


async def write_mixed(place: Place, **config: str) -> TopicKey:
    """History in the clear, of one key and of the next, which it returns."""
    await place.log.topic("orders", 2, retention_ms="-1", **config)
    await _write(place, 0)
    await _compact(place)
    await place.sequencer.topics.alter_config("orders", {"tidelog.encryption": "on"})
    first = await seal(place.settings, place.log, "orders")
    await _write(place, 2)
    await _compact(place)
    second = await rotate(place.settings, place.log, "orders")
    await _write(place, 4)
    await _compact(place)
    assert set(await key_ids(place.log, "orders")) == {None, first.key_id, second.key_id}
    return second


def _left(place: Place) -> Rows:
    return sorted((row for row in place.log.expected["orders"] if row[4] != KEY), key=lambda row: row[:2])


def _consumed_rows(place: Place) -> list[Row]:
    return [(row[0], row[1], row[4], row[5]) for row in _left(place)]


async def is_erased_and_hidden(place: Place) -> bool:
    """No object has the key, also not in what is encrypted, and none a byte of any record in the clear."""
    holding = await place.objects_holding(KEY, await keys_of(place))
    in_the_clear = await place.objects_with(KEY) + await place.objects_with(OF_OTHERS)
    print(holding, in_the_clear)
    return not holding and not in_the_clear


def _asked(place: Place, catalog_url: str, monkeypatch: pytest.MonkeyPatch, engine: str) -> list[Any]:
    """Partition, offset, key and value by `tidelog sql`."""
    given = place.settings.model_dump(exclude_unset=True, exclude_none=True) | {"http_url": catalog_url}
    for name, value in given.items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        monkeypatch.setenv(f"TIDELOG_{name.upper()}", text)
    statement = (
        'SELECT partition, "offset", CAST(key AS STRING) AS key, CAST(value AS STRING) AS value '
        "FROM topics.orders ORDER BY 1, 2"
    )
    arguments = ["sql", "--engine", engine, "--format", "json", statement]
    found = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    rows = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    return [(row["partition"], row["offset"], row["key"].encode(), row["value"].encode()) for row in rows]


async def test_clear_and_encrypted_files_lose_the_records_and_are_encrypted_with_the_newest_key(
    keyed: Place,
    catalog_url: str,
    monkeypatch: pytest.MonkeyPatch,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    newest = await write_mixed(keyed, tidelog_history="table")
    await _write(keyed, 6)  # not in history yet
    assert not await is_erased_and_hidden(keyed)
    assert await keyed.objects_with(OF_OTHERS)

    async with keyed.kept(**UNHURRIED):
        report = await keyed.erase(KEY)

    assert (report.raw_records, report.history_records) == (16, 12)
    assert await is_erased_and_hidden(keyed)
    assert set(await key_ids(keyed.log, "orders")) == {newest.key_id}
    in_table = await history(keyed.settings, keyed.log, "orders", partitions=2)
    assert len(in_table) == 270
    assert in_table == [row for row in _left(keyed) if row in in_table]
    await _compact(keyed)
    assert await history(keyed.settings, keyed.log, "orders", partitions=2) == _left(keyed)
    assert await is_erased_and_hidden(keyed)
    for engine in ("duckdb", "spark"):
        asked = await asyncio.to_thread(_asked, keyed, catalog_url, monkeypatch, engine)
        assert asked == _consumed_rows(keyed)
    encryption = encryption_of(keyed)
    async with running(
        database_url, store_url, store_settings=store_settings, encryption=encryption
    ) as agent:
        assert await consumed(agent, "orders", 2) == _consumed_rows(keyed)
    assert await keyed.is_healthy()


async def test_encrypted_parquet_as_the_log_loses_them_and_consumers_read_on(
    keyed: Place, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    newest = await write_mixed(keyed, tidelog_history="log", local_retention_ms="0")
    assert await drop_local(keyed.sequencer) > 0
    await _write(keyed, 6)
    encryption = encryption_of(keyed)

    async with (
        running(database_url, store_url, store_settings=store_settings, encryption=encryption) as agent,
        keyed.kept(**UNHURRIED),
    ):
        assert len([row for row in await consumed(agent, "orders", 2) if row[2] == KEY]) == 16

        report = await keyed.erase(KEY)

        assert (report.raw_records, report.history_records) == (4, 12)
        assert await consumed(agent, "orders", 2) == _consumed_rows(keyed)
    assert set(await key_ids(keyed.log, "orders")) == {newest.key_id}
    assert await is_erased_and_hidden(keyed)
    assert await keyed.is_healthy()


@pytest.mark.parametrize(
    "point", ["reading the history", "publish of history", "waiting for old objects to be deleted"]
)
async def test_a_killed_erasure_of_encrypted_files_is_finished_by_running_it_again(
    keyed: Place, point: str
) -> None:
    newest = await write_mixed(keyed, tidelog_history="table")

    async with keyed.kept(**UNHURRIED):
        await kill_an_erasure(keyed.settings, point, KEY)
        await keyed.erase(KEY, erase_timeout_s=300)

    assert await is_erased_and_hidden(keyed)
    assert set(await key_ids(keyed.log, "orders")) == {newest.key_id}
    assert await history(keyed.settings, keyed.log, "orders", partitions=2) == _left(keyed)
    assert await keyed.is_healthy()


async def test_a_file_of_a_destroyed_key_is_never_said_to_be_erased(keyed: Place) -> None:
    topic_id = await keyed.log.topic(
        "orders", 2, retention_ms="-1", tidelog_encryption="on", tidelog_history="log", local_retention_ms="0"
    )
    destroyed = await seal(keyed.settings, keyed.log, "orders")
    await _write(keyed, 0)
    await _compact(keyed)
    assert await drop_local(keyed.sequencer) > 0
    await keyed.sequencer.database.run("DELETE FROM topic_keys WHERE topic_id = %(id)s", id=topic_id)

    async with keyed.kept(**UNHURRIED):
        with pytest.raises(KeyUnavailable, match=f"{destroyed.key_id:016x}: the topic has no key of this id"):
            await keyed.erase(KEY)

    assert set(await key_ids(keyed.log, "orders")) == {destroyed.key_id}


async def test_a_file_of_a_missing_key_is_named_before_anything_changes(keyed: Place, key_file: Path) -> None:
    old, new = hidden(key_file), key_line("second")
    write_keys(key_file, old)
    await keyed.log.topic(
        "orders", 2, retention_ms="-1", tidelog_encryption="on", tidelog_history="log", local_retention_ms="0"
    )
    first = await seal(keyed.settings, keyed.log, "orders")
    await _write(keyed, 0)
    await _compact(keyed)
    assert await drop_local(keyed.sequencer) > 0
    write_keys(key_file, new + old)
    await rotate(keyed.settings, keyed.log, "orders")
    await _write(keyed, 2)
    write_keys(key_file, new)
    before = await snapshot(keyed)

    with pytest.raises(KeyUnavailable, match=f"{first.key_id:016x}: .*has no key named file:first"):
        await keyed.erase(KEY)
    assert await snapshot(keyed) == before
    write_keys(key_file, new + old)
    async with keyed.kept(**UNHURRIED):
        report = await keyed.erase(KEY)

    assert (report.raw_records, report.history_records) == (4, 4)
    assert await is_erased_and_hidden(keyed)
