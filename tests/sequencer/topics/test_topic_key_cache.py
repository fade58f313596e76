"""The keys in a process' memory while KMS, or whatever decrypts keys, answers for some of them only."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from sequencer.client import Sequencer
from sequencer.topics.topic_key_cache import TopicKeys, new_version
from storage.encryption.key_objects import KeyObjects
from storage.encryption.key_wrapping import FileKeys, KeyUnavailable
from storage.encryption.settings import EncryptionSettings
from storage.identifiers import KeyId, TopicId
from storage.stores.memory_store import MemoryStore
from storage.threads import Threads
from tests.support.key_file import key_line

TIMEOUT_S, RETRY_S = 5.0, 3600.0


class HeldKeys(FileKeys):
    """A file of keys that does not answer for the keys of some topics."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.held = set[TopicId]()
        self.released = asyncio.Event()
        self.asked = self.waiting = 0

    async def unwrap(self, name: str, wrapped: bytes, topic_id: TopicId, key_id: KeyId) -> bytes:
        self.asked += 1
        if topic_id in self.held:
            self.waiting += 1
            try:
                await self.released.wait()
            finally:
                self.waiting -= 1
        return await super().unwrap(name, wrapped, topic_id, key_id)


class Agent:
    """The keys of one process, whose clock moves when a test says so."""

    def __init__(self, sequencer: Sequencer, path: Path, **changed: float) -> None:
        path.write_text(key_line("only"))
        self.wrapping = HeldKeys(path)
        self.now_s = 0.0
        self._sequencer = sequencer
        self._objects = KeyObjects(MemoryStore(), "tidelog")
        settings = EncryptionSettings.model_validate({"encryption_retry_s": RETRY_S, **changed})
        rows, threads = sequencer.topic_keys, Threads("keys", 1)
        self.keys = TopicKeys(
            rows, self._objects, self.wrapping, lambda _: None, settings, threads, lambda: self.now_s
        )

    async def topic(self, name: str, *, versions: int = 1, is_held: bool = False) -> TopicId:
        topic_id = (await self._sequencer.topics.create(name, 1, {"tidelog.encryption": "on"})).topic_id
        for version in range(1, versions + 1):
            rows, objects = self._sequencer.topic_keys, self._objects
            await new_version(rows, objects, self.wrapping, topic_id, version)
        if is_held:
            self.wrapping.held.add(topic_id)
        return topic_id

    async def times_out(self, asked: "asyncio.Task[object]") -> str:
        """Returns the error of a request for a key that is held."""
        while self.wrapping.asked == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.now_s += TIMEOUT_S
        with pytest.raises(KeyUnavailable) as failed:
            await asked
        return str(failed.value)


@pytest.mark.parametrize("answers", [True, False], ids=["others are answered", "nothing is answered"])
async def test_only_a_service_that_answers_nothing_makes_all_topics_wait(
    sequencer: Sequencer, tmp_path: Path, answers: bool
) -> None:
    """One key may hang alone: that of another KMS key, region or account."""
    agent = Agent(sequencer, tmp_path / "keys", encryption_timeout_s=1.0)
    held = await agent.topic("held", is_held=True)
    first, second = await agent.topic("first"), await agent.topic("second")

    asked = asyncio.create_task(agent.keys.to_seal(held))
    await asyncio.sleep(0)
    if answers:
        assert (await agent.keys.to_seal(first)).topic_id == first
    assert await agent.times_out(asked) == "the topic's key did not come in time"

    with pytest.raises(KeyUnavailable):
        await agent.keys.to_seal(held)
    if answers:
        assert (await agent.keys.to_seal(second)).topic_id == second
    else:
        with pytest.raises(KeyUnavailable):
            await agent.keys.to_seal(second)


async def test_many_keys_of_one_topic_that_hang_leave_room_for_other_topics(
    sequencer: Sequencer, tmp_path: Path
) -> None:
    agent = Agent(sequencer, tmp_path / "keys", encryption_timeout_s=600, encryption_calls=2)
    held, other = await agent.topic("held", versions=4, is_held=True), await agent.topic("other")
    ids = await sequencer.topic_keys.ids_of(held)

    asked = [asyncio.create_task(agent.keys.of_id(held, key_id)) for key_id in ids]
    while not agent.wrapping.asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    assert (await agent.keys.to_seal(other)).topic_id == other
    assert agent.wrapping.asked == 2
    assert not any(each.done() for each in asked)
    for each in asked:
        each.cancel()


async def test_a_key_that_nothing_asks_for_leaves_the_memory_as_its_life_ends(
    sequencer: Sequencer, tmp_path: Path
) -> None:
    """That of a deleted topic, for example."""
    agent = Agent(sequencer, tmp_path / "keys", encryption_key_life_s=0.05)
    key = weakref.ref(await agent.keys.to_seal(await agent.topic("orders")))

    agent.now_s += 1
    while key() is not None:
        await asyncio.sleep(0.01)
        gc.collect()


async def test_as_many_topics_are_written_and_read_as_keys_are_kept(
    sequencer: Sequencer, tmp_path: Path
) -> None:
    """Without asking for a key again."""
    agent = Agent(sequencer, tmp_path / "keys", encryption_keys_kept=3)
    topics = [await agent.topic(name) for name in ("one", "two", "three", "four")]
    for _ in range(3):
        for topic_id in topics[:3]:
            newest = await agent.keys.to_seal(topic_id)
            assert await agent.keys.of_id(topic_id, newest.key_id) is newest
    assert agent.wrapping.asked == 3

    await agent.keys.to_seal(topics[3])
    await agent.keys.to_seal(topics[0])
    assert agent.wrapping.asked == 5


async def test_a_key_that_hung_is_asked_for_in_the_background_and_holds_no_later_request(
    sequencer: Sequencer, tmp_path: Path
) -> None:
    """A consumer's request names many topics, and would wait again and again."""
    agent = Agent(sequencer, tmp_path / "keys", encryption_timeout_s=3.0)
    held = await agent.topic("held", is_held=True)
    await agent.times_out(asyncio.create_task(agent.keys.to_seal(held)))
    agent.now_s += RETRY_S

    with pytest.raises(KeyUnavailable, match="did not come in time"):
        await agent.keys.to_seal(held)
    assert agent.wrapping.waiting == 1

    agent.wrapping.released.set()
    while agent.wrapping.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await agent.keys.to_seal(held)).topic_id == held
    assert agent.wrapping.asked == 2
