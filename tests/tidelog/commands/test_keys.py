"""Keys of topics are rotated, and encrypted by another key, also if that is cut short."""

import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agent.topic_keys import new_version
from sequencer.client import Sequencer, SequencerSettings
from sequencer.topics.topic_keys import WrappedKey
from storage.encryption.key_wrapping import FileKeys, KeyUnavailable
from storage.identifiers import TopicId
from tidelog.commands.keys import Rewrapped, rewrap_all

TOPICS = 3


def a_line(name: str) -> str:
    return f"{name} {base64.b64encode(os.urandom(32)).decode()}\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(a_line("old"))
    return path


@pytest.fixture
async def sequencer(database_url: str) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(database_url, SequencerSettings())
    yield opened
    await opened.close()


def add_key(key_file: Path) -> None:
    key_file.write_text(a_line("new") + key_file.read_text())


def keep_newest(key_file: Path) -> None:
    key_file.write_text(key_file.read_text().splitlines()[0])


async def secrets_of(sequencer: Sequencer, keys: FileKeys) -> dict[Any, bytes]:
    return {
        (one.topic, one.key.version): await keys.unwrap(
            one.key.wrapped_by, one.key.wrapped, one.key.topic_id, one.key.version
        )
        async for one in sequencer.topic_keys.all()
    }


class CutShort(FileKeys):
    """Ends the process's work in the middle of a rewrap."""

    left = 1

    async def wrap(self, secret: bytes, topic_id: TopicId, version: int) -> tuple[str, bytes]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return await super().wrap(secret, topic_id, version)


async def test_a_rewrap_that_is_cut_short_loses_nothing_and_goes_on(
    sequencer: Sequencer, key_file: Path
) -> None:
    keys = FileKeys(key_file)
    for number in range(TOPICS):
        topic = await sequencer.topics.create(f"topic-{number}", 1, {})
        await new_version(sequencer.topic_keys, keys, topic.topic_id, 1)
    before = await secrets_of(sequencer, keys)
    add_key(key_file)

    with pytest.raises(KeyboardInterrupt):
        await rewrap_all(sequencer.topic_keys, CutShort(key_file))
    assert await secrets_of(sequencer, keys) == before
    assert await rewrap_all(sequencer.topic_keys, keys) == Rewrapped(changed=2, already=1)

    keep_newest(key_file)
    assert await secrets_of(sequencer, keys) == before


async def test_a_wrapped_key_in_another_row_is_refused(key_file: Path) -> None:
    keys, topic, other = FileKeys(key_file), TopicId(uuid4()), TopicId(uuid4())
    name, wrapped = await keys.wrap(bytes(32), topic, 1)

    assert await keys.unwrap(name, wrapped, topic, 1) == bytes(32)
    for place in ((other, 1), (topic, 2)):
        with pytest.raises(KeyUnavailable):
            await keys.unwrap(name, wrapped, *place)


async def test_a_rewrap_of_a_key_that_changed_meanwhile_changes_nothing(
    sequencer: Sequencer, key_file: Path
) -> None:
    topic = await sequencer.topics.create("raced", 1, {})
    key = await new_version(sequencer.topic_keys, FileKeys(key_file), topic.topic_id, 1)
    other = WrappedKey(topic_id=topic.topic_id, version=1, wrapped_by="other", wrapped=b"other")

    assert await sequencer.topic_keys.rewrap(key, other)
    assert not await sequencer.topic_keys.rewrap(key, key)
