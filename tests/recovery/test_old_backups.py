"""Backups whose objects have been merged and deleted since: what still exists anywhere comes back at its
offset.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from minio import Minio
from minio.versioningconfig import ENABLED, VersioningConfig
from pydantic import SecretStr

from recovery.plan import Source
from recovery.recover import recover, rehearse
from recovery.young import YoungSegments
from sequencer.topics.topics import Topic
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.compactor.builders import pending, written
from tests.compactor.merging import a_log, merge_everything, read_all, read_back
from tests.recovery.conftest import Place
from tests.recovery.test_recover import idempotent, is_healthy
from tests.support.minio import MinioEndpoint
from tests.support.postgres import OWN_FOR_YEARS

pytestmark = pytest.mark.superuser


@pytest.fixture
async def topic(place: Place) -> Topic:
    return await place.sequencer.topics.create("orders", 2, {"retention.ms": "-1"})


async def merge_and_delete(place: Place) -> int:
    """Merges everything possible and deletes the inputs. Returns the number of deleted objects."""
    await place.sequencer.database.run(OWN_FOR_YEARS)
    assert await merge_everything(place.sequencer, place.store) > 0
    rows = await place.sequencer.database.run(
        "SELECT s.object_key FROM segments AS s WHERE state = 'committed'"
        " AND NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = s.segment_id)"
    )
    await place.store.delete([row.object_key for row in rows])
    return len(rows)


async def test_objects_that_were_merged_since_the_backup_are_replaced_by_merged_ones(
    place: Place, topic: Topic
) -> None:
    await a_log(place.sequencer, place.store, topic, segments=80)
    before = await read_all(place.sequencer, place.store, topic)
    backup = place.back_up()
    deleted = await merge_and_delete(place)
    assert deleted >= 64

    place.restore(backup)
    report = await place.recover()

    assert (report.source, report.is_lossless) == (Source.DATABASE, True)
    assert report.missing_objects >= 64
    assert report.replaced == 4 * report.missing_objects
    after = await read_all(place.sequencer, place.store, topic)
    assert [one.batches for one in after] == [one.batches for one in before]
    assert [one.high_watermark for one in after] == [one.high_watermark for one in before]
    assert await is_healthy(place)


async def test_a_merged_object_that_is_damaged_proves_nothing(place: Place, topic: Topic) -> None:
    await a_log(place.sequencer, place.store, topic, segments=40)
    backup = place.back_up()
    await merge_and_delete(place)
    merged = [info.key async for info in place.store.list("tidelog/merged/")]
    for key in merged:
        data = bytearray(await place.store.get(key))
        data[len(data) // 3] ^= 1
        await place.store.put(key, [bytes(data)])

    place.restore(backup)
    report = await place.recover()

    assert report.gone > 0
    assert report.gone + report.replaced == 4 * report.missing_objects
    for partition in range(2):
        await read_back(place.sequencer, place.store, topic, partition)
    assert await is_healthy(place)


async def test_what_was_written_and_merged_after_the_backup_comes_back_at_its_offsets(
    place: Place, topic: Topic
) -> None:
    """Without a journal, only footers say where it was."""
    await a_log(place.sequencer, place.store, topic, segments=10)
    await written(place.sequencer, place.store, idempotent(topic, 0))
    backup = place.back_up()
    await written(place.sequencer, place.store, idempotent(topic, 1))
    await a_log(place.sequencer, place.store, topic, segments=70, first=10)
    before = await read_all(place.sequencer, place.store, topic)
    await merge_and_delete(place)

    place.restore(backup)
    would = await place.rehearse()
    report = await place.recover()

    assert report.is_lossless, (report.gone_ranges, report.refused)
    assert would.replaced == report.replaced
    after = await read_all(place.sequencer, place.store, topic)
    assert sum(len(one.batches) for one in after) == sum(len(one.batches) for one in before)
    assert [one.high_watermark for one in after] == [one.high_watermark for one in before]
    # Batches that only young segments hold are appended; all others are where they were.
    for was, now in zip(before, after, strict=True):
        moved = set(was.batches) - set(now.batches)
        assert len(moved) <= report.appended
        assert now.batches[:60] == was.batches[:60]
    again = await written(place.sequencer, place.store, idempotent(topic, 1))
    [answer] = await place.sequencer.commits.commit([again.to_commit])
    assert "Duplicate" in str(answer)
    assert await is_healthy(place)


async def test_a_killed_recovery_leaves_nothing_that_the_next_one_appends_again(
    place: Place, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged objects brought back what also lies in young segments, whose batches have no producer that
    tells.
    """
    await a_log(place.sequencer, place.store, topic, segments=10)
    backup = place.back_up()
    await a_log(place.sequencer, place.store, topic, segments=70, first=10)
    before = await read_all(place.sequencer, place.store, topic)
    await place.sequencer.database.run(OWN_FOR_YEARS)
    assert await merge_everything(place.sequencer, place.store) > 0
    place.restore(backup)

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(YoungSegments, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            await place.recover()
    await place.recover()

    after = await read_all(place.sequencer, place.store, topic)
    assert sum(len(one.batches) for one in after) == sum(len(one.batches) for one in before)
    assert await is_healthy(place)


@pytest.fixture
def versioned_bucket(minio_endpoint: MinioEndpoint) -> str:
    client = Minio(
        endpoint=minio_endpoint.url.removeprefix("http://"),
        access_key=minio_endpoint.access_key,
        secret_key=minio_endpoint.secret_key,
        secure=False,
    )
    client.make_bucket(bucket_name="versioned")
    client.set_bucket_versioning(bucket_name="versioned", config=VersioningConfig(ENABLED))
    return minio_endpoint.store_url("versioned", "log")


@pytest.fixture
def minio_settings(minio_endpoint: MinioEndpoint) -> StoreSettings:
    return StoreSettings(
        s3_access_key=minio_endpoint.access_key, s3_secret_key=SecretStr(minio_endpoint.secret_key)
    )


@pytest.fixture
async def versioned_store(versioned_bucket: str, minio_settings: StoreSettings) -> AsyncIterator[ObjectStore]:
    opened = await open_store(versioned_bucket, minio_settings)
    yield opened
    await opened.close()


async def test_objects_come_back_from_a_bucket_with_versions(
    place: Place,
    topic: Topic,
    versioned_bucket: str,
    versioned_store: ObjectStore,
    minio_settings: StoreSettings,
) -> None:
    """MinIO with versioning: the delete markers of deleted objects are passed by."""
    segments = [await written(place.sequencer, versioned_store, pending(topic, 5)) for _ in range(6)]
    before = await read_back(place.sequencer, versioned_store, topic)
    await versioned_store.delete([segments[1].key, segments[4].key])
    await versioned_store.delete([segments[1].key])
    task = replace(place.task(), store_url=versioned_bucket, store_settings=minio_settings)

    would = await rehearse(task, versioned_store)
    report = await recover(task, versioned_store)

    assert (would.undeleted_objects, would.gone) == (2, 0)
    assert (report.missing_objects, report.undeleted_objects, report.gone) == (2, 2, 0)
    assert await read_back(place.sequencer, versioned_store, topic) == before
