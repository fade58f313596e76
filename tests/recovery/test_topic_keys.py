"""Encrypted topics after the database was lost: their keys come from the bucket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compactor.diagnosis import Fault
from compactor.doctor import DoctorSettings, examine
from compactor.garbage_jobs import KeyCopiesJob
from sequencer.client import Sequencer
from sequencer.journal.recovery import RecoverySession
from sequencer.topics.topic_key_cache import new_version
from sequencer.topics.topics import Topic
from storage.encryption.key_objects import KeyObjects, WrappedKey
from storage.encryption.key_wrapping import FileKeys, KeyWrapping
from storage.encryption.settings import EncryptionSettings
from storage.identifiers import KeyId, TopicId
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.read_path.wire import a_fetch
from tests.agent.running import Wire, a_batch, running
from tests.agent.test_encryption import ENCRYPTED, produced
from tests.compactor.builders import CLUSTER, settings
from tests.recovery.conftest import Place
from tests.recovery.test_from_the_bucket import begin, destroy, journal
from tests.recovery.test_recover import is_healthy
from tests.support.key_file import key_line
from tidelog.commands.keys import rewrap_all

pytestmark = pytest.mark.superuser


@pytest.fixture
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(key_line("only"))
    return path


@pytest.fixture
def wrapping(key_file: Path) -> KeyWrapping:
    return FileKeys(key_file)


@pytest.fixture
def objects(place: Place) -> KeyObjects:
    return KeyObjects(place.store, CLUSTER)


@asynccontextmanager
async def an_agent(place: Place, key_file: Path) -> AsyncIterator[Wire]:
    encryption = EncryptionSettings(
        encryption_provider="file", encryption_key=str(key_file), encryption_key_life_s=0.001
    )
    async with running(place.database_url, place.store_url, encryption=encryption) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        yield wire
        wire.close()


async def records(wire: Wire, topic: Any, count: int) -> bytes:
    """What a consumer reads of the first partition, from the beginning."""
    found, offset = b"", 0
    while offset < count:
        [one] = (await wire.ask(a_fetch(12, topic, offset))).responses[0].partitions
        assert one.error_code.value == 0
        found += bytes(one.records or b"")
        offset = found.count(b"record-")
    return found


async def back_up(place: Place) -> str:
    """A copy of the database. The connections that this cuts are replaced."""
    backup = place.back_up()
    await place.sequencer.topics.list()
    return backup


async def restore(place: Place, backup: str) -> None:
    place.restore(backup)
    await place.sequencer.topics.list()


async def rows(sequencer: Sequencer) -> dict[KeyId, WrappedKey]:
    return {one.key.key_id: one.key async for one in sequencer.topic_keys.all()}


async def listed(objects: KeyObjects) -> set[KeyId]:
    return {key_id async for _, key_id in objects.list()}


async def test_all_records_are_read_after_a_recovery_from_the_bucket_alone(
    place: Place, key_file: Path, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    """The topic's key is rotated before a checkpoint and after the last entry."""
    keys = place.sequencer.topic_keys
    async with an_agent(place, key_file) as wire:
        made = await create(wire, "secrets", configs=ENCRYPTED, num_partitions=1)
        topic_id = TopicId(made.topic_id)
        assert (await produced(wire, "secrets", {0: a_batch(b"record-1")}))[0].value == 0
        await journal(place)
        await new_version(keys, objects, wrapping, topic_id, 2)
        assert (await produced(wire, "secrets", {0: a_batch(b"record-2")}))[0].value == 0
        await journal(place, checkpoint=True)
        await new_version(keys, objects, wrapping, topic_id, 3)
        assert (await produced(wire, "secrets", {0: a_batch(b"record-3")}))[0].value == 0
        before = await rows(place.sequencer)

    destroy(place)
    report = await place.recover()

    assert (report.is_lossless, report.keys_found, report.key_faults) == (True, 3, [])
    assert await rows(place.sequencer) == before
    async with an_agent(place, key_file) as wire:
        found = await records(wire, made, 3)
        assert all(b"record-%d" % number in found for number in (1, 2, 3))
        assert (await produced(wire, "secrets", {0: a_batch(b"record-4")}))[0].value == 0
        assert b"record-4" in await records(wire, made, 4)


async def test_records_of_a_key_made_after_the_backup_are_read_after_a_recovery_of_it(
    place: Place, key_file: Path, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    """Also if somebody rotates the restored database's key before its recovery."""
    keys = place.sequencer.topic_keys
    async with an_agent(place, key_file) as wire:
        made = await create(wire, "secrets", configs=ENCRYPTED, num_partitions=1)
        assert (await produced(wire, "secrets", {0: a_batch(b"record-1")}))[0].value == 0
        await journal(place, checkpoint=True)
    backup, topic_id = await back_up(place), TopicId(made.topic_id)
    later = await new_version(keys, objects, wrapping, topic_id, 2)
    async with an_agent(place, key_file) as wire:
        assert (await produced(wire, "secrets", {0: a_batch(b"record-2")}))[0].value == 0
        await journal(place)
    await restore(place, backup)
    other = await new_version(keys, objects, wrapping, topic_id, 2)
    await KeyCopiesJob(place.sequencer, place.store, CLUSTER, settings()).step(None)
    assert {later.key_id, other.key_id} < await listed(objects)

    report = await place.recover()

    assert (report.is_lossless, report.keys_found) == (True, 1)
    async with an_agent(place, key_file) as wire:
        found = await records(wire, made, 2)
        assert (b"record-1" in found, b"record-2" in found) == (True, True)


async def a_topic_with_a_key(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects, name: str = "secrets"
) -> tuple[Topic, WrappedKey]:
    topic = await place.sequencer.topics.create(name, 1, {})
    return topic, await new_version(place.sequencer.topic_keys, objects, wrapping, topic.topic_id, 1)


async def test_a_key_made_after_the_backup_is_not_taken_for_one_of_the_restored_database(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    await begin(place)
    topic, first = await a_topic_with_a_key(place, wrapping, objects)
    backup = await back_up(place)
    add = place.sequencer.topic_keys
    lost = await new_version(add, objects, wrapping, topic.topic_id, 2)
    await restore(place, backup)
    other = await new_version(add, objects, wrapping, topic.topic_id, 2)

    report = await place.recover()

    found = await rows(place.sequencer)
    assert report.keys_found == 1
    assert {key.version: key.key_id for key in found.values()} == {
        1: first.key_id,
        2: other.key_id,
        3: lost.key_id,
    }
    assert found[lost.key_id].wrapped == lost.wrapped
    assert await place.recover() is not None
    assert await rows(place.sequencer) == found


async def test_a_rewrap_after_the_backup_is_kept(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    await begin(place)
    topic, key = await a_topic_with_a_key(place, wrapping, objects)
    backup = await back_up(place)
    secret = await wrapping.unwrap(key.wrapped_by, key.wrapped, topic.topic_id, key.key_id)
    _, wrapped = await wrapping.wrap(secret, topic.topic_id, key.key_id)
    again = WrappedKey(
        topic_id=key.topic_id, version=1, key_id=key.key_id, wrapped_by="file:again", wrapped=wrapped
    )
    await objects.put(again)
    await restore(place, backup)

    await place.recover()

    assert await rows(place.sequencer) == {key.key_id: again}


async def test_the_copy_of_a_deleted_topics_key_goes_at_once_and_once_more(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    await begin(place)
    _, key = await a_topic_with_a_key(place, wrapping, objects)
    _, live = await a_topic_with_a_key(place, wrapping, objects, "live")
    job = KeyCopiesJob(place.sequencer, place.store, CLUSTER, settings())

    await place.sequencer.topics.delete("secrets")
    await job.step(None)
    assert await listed(objects) == {live.key_id}

    await objects.put(key)  # a late write
    await job.step(None)
    with psycopg.connect(place.database_url) as connection:
        connection.execute("UPDATE key_copies_to_delete SET deleted_at = deleted_at - interval '1 day'")
    await job.step(None)
    assert await listed(objects) == {live.key_id}
    with psycopg.connect(place.database_url) as connection:
        assert connection.execute("SELECT count(*) FROM key_copies_to_delete").fetchone() == (0,)


async def reserved_key(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects, topic_id: TopicId, key_id: KeyId
) -> WrappedKey:
    """A key whose copy is in the bucket, and whose row is not in Postgres."""
    name, wrapped = await wrapping.wrap(bytes(32), topic_id, key_id)
    key = WrappedKey(topic_id=topic_id, version=1, key_id=key_id, wrapped_by=name, wrapped=wrapped)
    await place.sequencer.topic_keys.reserve(topic_id, key_id)
    await objects.put(key)
    return key


async def test_the_copy_of_a_key_that_was_reserved_when_the_backup_was_made_is_kept(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    """The backup says that the copy is to be deleted unless the key is added; it was added later."""
    await begin(place)
    topic = await place.sequencer.topics.create("secrets", 1, {})
    keys, key_id = place.sequencer.topic_keys, KeyId(77)
    key = await reserved_key(place, wrapping, objects, topic.topic_id, key_id)
    backup = await back_up(place)
    assert await keys.add(key) == key
    await restore(place, backup)

    await place.recover()

    await place.sequencer.ownership.ratchet(place.store, CLUSTER)
    with psycopg.connect(place.database_url) as connection:
        connection.execute("UPDATE key_copies_to_delete SET deleted_at = deleted_at - interval '1 day'")
    await KeyCopiesJob(place.sequencer, place.store, CLUSTER, settings()).step(None)
    assert await rows(place.sequencer) == {key_id: key}
    assert await listed(objects) == {key_id}


@pytest.mark.parametrize("is_backup_older", [False, True], ids=["no backup", "older backup"])
async def test_a_key_that_was_deleted_is_not_brought_back(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects, is_backup_older: bool
) -> None:
    await begin(place)
    await a_topic_with_a_key(place, wrapping, objects)
    _, live = await a_topic_with_a_key(place, wrapping, objects, "live")
    await journal(place)
    backup = await back_up(place)
    await place.sequencer.topics.delete("secrets")
    await journal(place)
    await restore(place, backup) if is_backup_older else destroy(place)

    report = await place.recover()

    assert report.key_faults == []
    assert await rows(place.sequencer) == {live.key_id: live}
    await place.sequencer.ownership.ratchet(place.store, CLUSTER)
    await KeyCopiesJob(place.sequencer, place.store, CLUSTER, settings()).step(None)
    assert await listed(objects) == {live.key_id}


async def test_a_damaged_copy_is_listed_and_one_that_is_missing_is_written_again(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    await begin(place)
    topic, key = await a_topic_with_a_key(place, wrapping, objects)
    second = await new_version(place.sequencer.topic_keys, objects, wrapping, topic.topic_id, 2)
    third = await new_version(place.sequencer.topic_keys, objects, wrapping, topic.topic_id, 3)
    with psycopg.connect(place.database_url) as connection:
        connection.execute("DELETE FROM topic_keys WHERE version = 3")
    place_of_second = objects.object_key(topic.topic_id, second.key_id)
    for damaged in (place_of_second, objects.object_key(topic.topic_id, third.key_id)):
        await place.store.put(damaged, [b'{"format": 1, "version": "x"}'])
    await objects.delete([(topic.topic_id, key.key_id)])

    report = await place.recover()

    assert len(report.key_faults) == 2
    assert all("topic-keys" in fault for fault in report.key_faults)
    assert await objects.get(topic.topic_id, key.key_id) == key
    assert await objects.get(topic.topic_id, second.key_id) == second
    assert third.key_id not in await rows(place.sequencer)


async def test_a_rehearsal_writes_no_key(place: Place, wrapping: KeyWrapping, objects: KeyObjects) -> None:
    await begin(place)
    topic, key = await a_topic_with_a_key(place, wrapping, objects)
    await journal(place)
    await objects.delete([(topic.topic_id, key.key_id)])

    await place.rehearse()

    assert await listed(objects) == set()


async def test_the_copy_of_a_key_whose_maker_died_is_deleted_and_the_key_is_never_used(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    await begin(place)
    topic = await place.sequencer.topics.create("secrets", 1, {})
    keys, key_id = place.sequencer.topic_keys, KeyId(77)
    key = await reserved_key(place, wrapping, objects, topic.topic_id, key_id)
    job = KeyCopiesJob(place.sequencer, place.store, CLUSTER, settings())
    await job.step(None)
    assert await listed(objects) == {key_id}
    assert await is_healthy(place)

    with psycopg.connect(place.database_url) as connection:
        connection.execute("UPDATE key_copies_to_delete SET deleted_at = deleted_at - interval '1 day'")
    assert await keys.add(key) is None
    await job.step(None)

    assert await listed(objects) == set()
    assert await rows(place.sequencer) == {}


async def test_the_doctor_names_copies_that_are_missing_damaged_or_nobodys_and_a_rewrap_writes_them(
    place: Place, wrapping: KeyWrapping, objects: KeyObjects
) -> None:
    await begin(place)
    topic, first = await a_topic_with_a_key(place, wrapping, objects)
    keys = place.sequencer.topic_keys
    second = await new_version(keys, objects, wrapping, topic.topic_id, 2)
    third = await new_version(keys, objects, wrapping, topic.topic_id, 3)
    await objects.delete([(topic.topic_id, first.key_id)])
    await place.store.put(objects.object_key(topic.topic_id, second.key_id), [b"{}"])
    await objects.put(replace(third, wrapped=b"of another rewrap"))
    await objects.put(replace(third, key_id=KeyId(77)))

    found = (await examine(place.sequencer, place.store, CLUSTER, False, settings=DoctorSettings())).findings

    assert {(one.fault, one.where) for one in found} == {
        (Fault.MISSING_OBJECT, objects.object_key(topic.topic_id, first.key_id)),
        (Fault.CORRUPT_OBJECT, objects.object_key(topic.topic_id, second.key_id)),
        (Fault.CORRUPT_OBJECT, objects.object_key(topic.topic_id, third.key_id)),
        (Fault.ORPHAN_OBJECT, objects.object_key(topic.topic_id, KeyId(77))),
    }
    await rewrap_all(keys, objects, wrapping)
    await objects.delete([(topic.topic_id, KeyId(77))])
    assert await is_healthy(place)


async def recovered(place: Place, monkeypatch: pytest.MonkeyPatch, most: int | None = None) -> int:
    """Recovers, and is killed after `most` statements. Returns how many there were."""
    made = 0
    execute = RecoverySession.execute

    async def counted(session: RecoverySession, statement: Any, **parameters: Any) -> Any:
        nonlocal made
        if made == most:
            raise KeyboardInterrupt
        made += 1
        return await execute(session, statement, **parameters)

    with monkeypatch.context() as patch:
        patch.setattr(RecoverySession, "execute", counted)
        if most is None:
            await place.recover()
        else:
            with pytest.raises(KeyboardInterrupt):
                await place.recover()
    return made


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
async def test_a_recovery_that_was_killed_on_its_way_loses_no_key(
    place: Place,
    key_file: Path,
    wrapping: KeyWrapping,
    objects: KeyObjects,
    monkeypatch: pytest.MonkeyPatch,
    part: float,
) -> None:
    """`part`: of the statements that a recovery makes."""
    async with an_agent(place, key_file) as wire:
        made = await create(wire, "secrets", configs=ENCRYPTED, num_partitions=1)
        for number in (1, 2):
            assert (await produced(wire, "secrets", {0: a_batch(b"record-%d" % number)}))[0].value == 0
            await journal(place, checkpoint=number == 1)
            await new_version(
                place.sequencer.topic_keys, objects, wrapping, TopicId(made.topic_id), number + 1
            )
        assert (await produced(wire, "secrets", {0: a_batch(b"record-3")}))[0].value == 0
        before = await rows(place.sequencer)
    destroy(place)
    statements = await recovered(place, monkeypatch)

    destroy(place)
    await recovered(place, monkeypatch, int(statements * part))
    report = await place.recover()

    assert (report.is_lossless, report.key_faults) == (True, [])
    assert await rows(place.sequencer) == before
    assert await listed(objects) == set(before)
    async with an_agent(place, key_file) as wire:
        found = await records(wire, made, 3)
        assert all(b"record-%d" % number in found for number in (1, 2, 3))
