"""The keys of one topic, read from the bucket by those who have no Postgres."""

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from spark_compaction.history_file import decryption_of
from storage.encryption.bucket_keys import read_topic_keys
from storage.encryption.key_objects import KeyObjects, WrappedKey
from storage.encryption.key_wrapping import FileKeys, KeyUnavailable
from storage.encryption.sealed_batches import KEY_BYTES, TopicKey
from storage.encryption.settings import EncryptionSettings
from storage.encryption.topic_keyring import ReadKeyring, opened_batches
from storage.identifiers import KeyId, TopicId, new_key_id
from storage.stores.local_store import LocalStore
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.agent.running import a_batch
from tests.storage.encryption.test_parquet_keys import KEY, OTHER, SECRET, TOPIC, a_file
from tests.support.key_file import key_line

SETTINGS = EncryptionSettings(encryption_calls=2, encryption_keys_kept=5, encryption_timeout_s=1.0)


def write_keys(path: Path, *names: str) -> None:
    path.write_text("".join(map(key_line, names)))


class Bucket:
    """A bucket with keys of topics, and the file that decrypts them."""

    def __init__(self, path: Path) -> None:
        self.key_file = path / "keys"
        write_keys(self.key_file, "first")
        self.store: ObjectStore = LocalStore(path / "store")
        self.objects = KeyObjects(self.store, "tidelog")
        self.wrapping = FileKeys(self.key_file)

    async def add(self, topic_id: TopicId = TOPIC, secret: bytes = SECRET, version: int = 1) -> KeyId:
        key_id = new_key_id()
        name, wrapped = await self.wrapping.wrap(secret, topic_id, key_id)
        await self.objects.put(
            WrappedKey(topic_id=topic_id, version=version, key_id=key_id, wrapped_by=name, wrapped=wrapped)
        )
        return key_id

    async def read(self, topic_id: TopicId = TOPIC, known: ReadKeyring | None = None) -> ReadKeyring:
        return await read_topic_keys(
            self.objects,
            self.wrapping,
            SETTINGS,
            topic="orders",
            topic_id=topic_id,
            known=None if known is None else known.by_id,
        )


def need(keyring: ReadKeyring, key_id: KeyId) -> None:
    """Opens a batch of this key."""
    batch = TopicKey(TOPIC, key_id, SECRET).seal(a_batch(b"a secret"), 0)
    opened_batches(keyring, batch, 0)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


async def test_all_keys_of_the_topic_are_read_and_none_of_others(bucket: Bucket) -> None:
    own = [await bucket.add(secret=bytes([number]) * KEY_BYTES) for number in range(5)]
    await bucket.add(OTHER)

    found = pickle.loads(pickle.dumps(await bucket.read()))

    assert set(found.by_id) == set(own)
    sealed = TopicKey(TOPIC, own[3], bytes([3]) * KEY_BYTES).seal(a_batch(b"a secret"), 7)
    assert opened_batches(found, sealed, 7) == a_batch(b"a secret")
    assert repr(SECRET)[2:-1] not in repr(found)


async def test_keys_that_are_known_need_no_provider_and_destroyed_ones_are_forgotten(bucket: Bucket) -> None:
    first, second = await bucket.add(), await bucket.add()
    known = await bucket.read()
    bucket.key_file.unlink()
    await bucket.objects.delete([(TOPIC, first)])

    found = await bucket.read(known=known)

    assert set(found.by_id) == {second}
    with pytest.raises(
        KeyUnavailable, match=f"'orders' is encrypted with the key {first:016x}: the bucket has"
    ):
        need(found, first)


async def test_without_a_provider_only_what_needs_a_key_fails_and_names_the_settings(bucket: Bucket) -> None:
    found = await read_topic_keys(bucket.objects, None, SETTINGS, topic="orders", topic_id=TOPIC)
    clear = a_batch(b"in the clear")

    assert opened_batches(found, clear, 0) == clear
    assert decryption_of(found, pq.read_metadata(pa.BufferReader(a_file(None))), "file") is None
    with pytest.raises(KeyUnavailable, match=r"'orders'.*TIDELOG_ENCRYPTION_PROVIDER"):
        opened_batches(found, clear + KEY.seal(clear, 0), 0)
    with pytest.raises(KeyUnavailable, match=r"'orders'.*TIDELOG_ENCRYPTION_PROVIDER"):
        decryption_of(found, pq.read_metadata(pa.BufferReader(a_file())), "file")


async def test_a_key_that_cannot_be_had_leaves_the_others(bucket: Bucket) -> None:
    old, damaged = await bucket.add(), await bucket.add()
    await bucket.store.put(bucket.objects.object_key(TOPIC, damaged), [b"{}"])
    write_keys(bucket.key_file, "second")
    new = await bucket.add()

    found = await bucket.read()

    assert set(found.by_id) == {new}
    with pytest.raises(KeyUnavailable, match="has no key named file:first"):
        need(found, old)
    with pytest.raises(KeyUnavailable, match="tidelog keys rewrap"):
        need(found, damaged)


async def test_keys_are_bounded(bucket: Bucket) -> None:
    ids = [await bucket.add() for _ in range(SETTINGS.encryption_keys_kept + 1)]

    found = await bucket.read()

    assert not found.by_id
    with pytest.raises(KeyUnavailable, match="raise TIDELOG_ENCRYPTION_KEYS_KEPT"):
        need(found, ids[0])


async def test_a_provider_that_does_not_answer_is_asked_once_and_not_for_each_key(bucket: Bucket) -> None:
    ids = [await bucket.add() for _ in range(5)]
    bucket.key_file.unlink()
    os.mkfifo(bucket.key_file)  # reading it does not end
    short = SETTINGS.model_copy(update={"encryption_timeout_s": 0.1, "encryption_calls": 1})

    found = await read_topic_keys(
        bucket.objects, FileKeys(bucket.key_file), short, topic="orders", topic_id=TOPIC
    )

    with os.fdopen(os.open(bucket.key_file, os.O_RDWR | os.O_NONBLOCK), "w") as writer:
        writer.write("ended\n")  # the one thread that reads it goes on
    assert set(found.refused) == set(ids)
    with pytest.raises(KeyUnavailable, match=r"within 0\.1 s"):
        need(found, ids[0])


async def test_known_keys_are_enough_while_the_bucket_is_away(bucket: Bucket) -> None:
    key_id = await bucket.add()
    known = await bucket.read()
    away = StoreSettings(s3_access_key="key", s3_secret_key=SecretStr("secret"), s3_attempts=1)
    bucket.objects = KeyObjects(await open_store("s3://bucket?endpoint=http://127.0.0.1:9", away), "tidelog")

    found = await bucket.read(known=known)

    need(found, key_id)
    with pytest.raises(KeyUnavailable, match="the bucket does not list the topic's keys"):
        need(found, KeyId(key_id ^ 1))
