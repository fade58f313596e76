"""Keys of topics are rotated, and encrypted by another key, also if that is cut short."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from sequencer.client import Sequencer, SequencerSettings
from sequencer.topics.topic_key_cache import new_version
from storage.encryption.key_objects import KeyObjects
from storage.encryption.key_wrapping import FileKeys, KeyUnavailable
from storage.identifiers import KeyId, TopicId
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.sequencer.cluster.ownership import a_copy
from tests.support.key_file import key_line
from tidelog.cli import app
from tidelog.commands.keys import Rewrapped, rewrap_all

TOPICS = 3


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(key_line("old"))
    return path


@pytest.fixture
async def sequencer(database_url: str) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(database_url, SequencerSettings())
    yield opened
    await opened.close()


@pytest.fixture
def objects(store: ObjectStore) -> KeyObjects:
    return KeyObjects(store, "tidelog")


async def copies_are_like_rows(sequencer: Sequencer, objects: KeyObjects) -> bool:
    rows = {one.key.key_id: one.key async for one in sequencer.topic_keys.all()}
    return {key_id: await objects.get(topic_id, key_id) async for topic_id, key_id in objects.list()} == rows


def add_key(key_file: Path) -> None:
    key_file.write_text(key_line("new") + key_file.read_text())


def keep_newest(key_file: Path) -> None:
    key_file.write_text(key_file.read_text().splitlines()[0])


async def secrets_of(sequencer: Sequencer, keys: FileKeys) -> dict[Any, bytes]:
    return {
        (one.topic, one.key.version): await keys.unwrap(
            one.key.wrapped_by, one.key.wrapped, one.key.topic_id, one.key.key_id
        )
        async for one in sequencer.topic_keys.all()
    }


class CutShort(FileKeys):
    """Ends the process's work in the middle of a rewrap."""

    left = 1

    async def wrap(self, secret: bytes, topic_id: TopicId, key_id: KeyId) -> tuple[str, bytes]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return await super().wrap(secret, topic_id, key_id)


async def test_a_rewrap_that_is_cut_short_loses_nothing_and_goes_on(
    sequencer: Sequencer, objects: KeyObjects, key_file: Path
) -> None:
    keys = FileKeys(key_file)
    for number in range(TOPICS):
        topic = await sequencer.topics.create(f"topic-{number}", 1, {})
        await new_version(sequencer.topic_keys, objects, keys, topic.topic_id, 1)
    before = await secrets_of(sequencer, keys)
    add_key(key_file)

    with pytest.raises(KeyboardInterrupt):
        await rewrap_all(sequencer.topic_keys, objects, CutShort(key_file))
    assert await secrets_of(sequencer, keys) == before
    assert await rewrap_all(sequencer.topic_keys, objects, keys) == Rewrapped(changed=2, already=1)

    keep_newest(key_file)
    assert await secrets_of(sequencer, keys) == before
    assert await copies_are_like_rows(sequencer, objects)


async def test_a_wrapped_key_in_another_row_is_refused(key_file: Path) -> None:
    keys, topic, other = FileKeys(key_file), TopicId(uuid4()), TopicId(uuid4())
    name, wrapped = await keys.wrap(bytes(32), topic, KeyId(1))

    assert await keys.unwrap(name, wrapped, topic, KeyId(1)) == bytes(32)
    for place in ((other, KeyId(1)), (topic, KeyId(2))):
        with pytest.raises(KeyUnavailable):
            await keys.unwrap(name, wrapped, *place)


async def test_a_rewrap_of_a_key_that_changed_meanwhile_changes_nothing(
    sequencer: Sequencer, objects: KeyObjects, key_file: Path
) -> None:
    topic = await sequencer.topics.create("raced", 1, {})
    key = await new_version(sequencer.topic_keys, objects, FileKeys(key_file), topic.topic_id, 1)
    other = replace(key, wrapped_by="other", wrapped=b"other")

    assert await sequencer.topic_keys.rewrap(key, other)
    assert not await sequencer.topic_keys.rewrap(key, key)


class Overtaken(FileKeys):
    """Meanwhile another changes or deletes the key that is being rewrapped."""

    meanwhile: Callable[[], Awaitable[object]]

    async def wrap(self, secret: bytes, topic_id: TopicId, key_id: KeyId) -> tuple[str, bytes]:
        found = await super().wrap(secret, topic_id, key_id)
        await self.meanwhile()
        return found


async def test_a_rewrap_of_a_topic_that_is_deleted_meanwhile_leaves_no_copy(
    sequencer: Sequencer, objects: KeyObjects, key_file: Path
) -> None:
    topic = await sequencer.topics.create("deleted", 1, {})
    await new_version(sequencer.topic_keys, objects, FileKeys(key_file), topic.topic_id, 1)
    add_key(key_file)
    keys = Overtaken(key_file)
    keys.meanwhile = lambda: sequencer.topics.delete("deleted")

    assert await rewrap_all(sequencer.topic_keys, objects, keys) == Rewrapped(changed=0, already=1)

    assert [key async for key in objects.list()] == []


async def test_of_two_rewraps_at_once_the_copies_are_those_of_the_rows(
    sequencer: Sequencer, objects: KeyObjects, key_file: Path
) -> None:
    topic = await sequencer.topics.create("twice", 1, {})
    await new_version(sequencer.topic_keys, objects, FileKeys(key_file), topic.topic_id, 1)
    add_key(key_file)
    keys = Overtaken(key_file)
    keys.meanwhile = lambda: rewrap_all(sequencer.topic_keys, objects, FileKeys(key_file))

    assert await rewrap_all(sequencer.topic_keys, objects, keys) == Rewrapped(changed=0, already=1)

    assert await copies_are_like_rows(sequencer, objects)


async def test_the_commands_list_rotate_and_rewrap_keys_and_their_copies(
    sequencer: Sequencer,
    database_url: str,
    key_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store_url = f"file://{tmp_path}/store"
    for name, value in {
        "DATABASE_URL": database_url,
        "STORE_URL": store_url,
        "ENCRYPTION_PROVIDER": "file",
        "ENCRYPTION_KEY": str(key_file),
    }.items():
        monkeypatch.setenv(f"TIDELOG_{name}", value)

    async def run(*arguments: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["keys", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    await sequencer.topics.create("orders", 1, {})
    await run("rotate", "orders")
    await run("rotate", "orders")
    assert "has key 3" in await run("rotate", "orders")
    add_key(key_file)
    assert "3 keys" in await run("rewrap")

    listed = json.loads(await run("list", "--json"))
    assert [(one["topic"], one["version"], one["wrapped_by"]) for one in listed] == [
        ("orders", version, "file:new") for version in (1, 2, 3)
    ]
    store = await open_store(store_url, StoreSettings())
    assert await copies_are_like_rows(sequencer, KeyObjects(store, "tidelog"))
    await store.close()


@pytest.mark.superuser
async def test_a_copied_database_changes_no_key_in_the_bucket_of_its_original(
    sequencer: Sequencer,
    database_url: str,
    key_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store_url = f"file://{tmp_path}/store"
    store = await open_store(store_url, StoreSettings())
    objects = KeyObjects(store, "tidelog")
    await sequencer.ownership.ratchet(store, "tidelog")
    topic = await sequencer.topics.create("orders", 1, {})
    key = await new_version(sequencer.topic_keys, objects, FileKeys(key_file), topic.topic_id, 1)
    async with a_copy(sequencer, database_url, as_files=False) as copy:
        add_key(key_file)
        for name, value in {
            "DATABASE_URL": copy.database._url,
            "STORE_URL": store_url,
            "ENCRYPTION_PROVIDER": "file",
            "ENCRYPTION_KEY": str(key_file),
        }.items():
            monkeypatch.setenv(f"TIDELOG_{name}", value)
        for arguments in (["rewrap"], ["rotate", "orders"]):
            result = await asyncio.to_thread(CliRunner().invoke, app, ["keys", *arguments])
            assert result.exit_code == 1
            assert "restored dump" in str(result.exception)

    assert [await objects.get(*place) async for place in objects.list()] == [key]
    await store.close()
