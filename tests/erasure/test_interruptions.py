"""An erasure that is killed is run again, and one that others disturb ends all the same."""

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import SecretStr

from erasure.report import ErasureFailed, ErasureProgress
from erasure.settings import ErasureSettings
from sequencer.cluster.ownership import OwnershipLost, OwnershipUnconfirmed
from sequencer.history.history_values import Begun
from sequencer.topics.topics import UnknownTopic
from storage.identifiers import Offset, Partition
from tests.compactor.builders import CLUSTER
from tests.erasure.conftest import SECRET, Place
from tests.erasure.test_raw_log import PARTITIONS, left_of, rows_of, write

_OUTAGE_S = 3.0
"""Longer than `database_pool_timeout_s` here."""

_KILLED = """
import os, signal, sys
from erasure.erase import erase_records
from erasure.raw_log import RawEraser
from erasure.settings import ErasureSettings
from storage.arrow.erased_batches import ErasedKeys

point, settings = sys.argv[1], ErasureSettings.model_validate_json(sys.argv[2])
publish, publishes = RawEraser._publish, []

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def second(self, *arguments):
    publishes.append(1)
    if len(publishes) == 2:
        die()
    return await publish(self, *arguments)

if point == "publish":
    RawEraser._publish = second
if point == "publish of history":
    import erasure.history_files
    erasure.history_files.publish_staged = die
keys = ErasedKeys([sys.argv[3].encode()])
erase_records(settings, "orders", keys, lambda now: die() if now.stage == point else None)
"""


async def kill_an_erasure(settings: ErasureSettings, point: str, key: bytes = b"K") -> None:
    """Runs one in its own process, which dies at its second publish of a new object, before that of history,
    or at a stage."""
    quick = settings.model_copy(update={"job_lease_s": 1.0, "erase_object_bytes": 4096})
    plain = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in quick.model_dump().items()
    }
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _KILLED, point, json.dumps(plain), key.decode()),
        cwd=Path(__file__).parents[2],
    )
    assert await asyncio.wait_for(killed.wait(), 120) == -signal.SIGKILL


@pytest.mark.parametrize("point", ["publish", "reading the log", "waiting for old objects to be deleted"])
async def test_a_killed_erasure_is_finished_by_running_it_again(place: Place, point: str) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 12)
    async with place.kept():
        await kill_an_erasure(place.settings, point)

        await place.erase(b"K", job_lease_s=1.0)

    assert await rows_of(place) == left_of(place)
    assert await place.objects_with(SECRET) == []
    assert await place.is_healthy()


async def test_records_deleted_and_expired_meanwhile_are_gone_too(place: Place) -> None:
    topic_id = await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await place.log.topic("other", PARTITIONS, retention_ms="-1")
    await write(place, 12)
    await write(place, 3, topic="other")
    deleted: list[ErasureProgress] = []
    loop = asyncio.get_running_loop()

    def delete(now: ErasureProgress) -> None:
        if not deleted:
            deleted.append(now)
            for partition in map(Partition, range(PARTITIONS)):
                deleting = place.sequencer.retention.delete_records(topic_id, partition, Offset(25))
                asyncio.run_coroutine_threadsafe(deleting, loop).result(30)

    async with place.kept():
        await place.erase(b"K", on_progress=delete)

    assert deleted
    found = [row for row in await rows_of(place) if int(str(row[1])) >= 25]  # a run may begin before
    assert found == [row for row in left_of(place) if int(str(row[1])) >= 25]
    left = await place.objects_with(SECRET)
    assert left == await place.objects_with(SECRET)
    assert len(left) == 3  # of the other topic, whose records have the same key


async def test_a_topic_that_is_not_there_or_is_deleted_meanwhile_is_said(place: Place) -> None:
    with pytest.raises(UnknownTopic):
        await place.erase(b"K")
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 3)

    async with place.kept(restore_horizon_s=0):
        erasing = asyncio.create_task(place.erase(b"K"))
        await place.sequencer.topics.delete("orders")
        with contextlib.suppress(ErasureFailed, UnknownTopic):  # it may also have come first
            await erasing
        async with asyncio.timeout(60):
            while await place.objects_with(SECRET):  # noqa: ASYNC110 - the bucket sets no event
                await asyncio.sleep(0.1)


async def test_waits_end_and_the_next_run_goes_on(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 3)

    with pytest.raises(ErasureFailed, match="waiting for old objects to be deleted"):
        await place.erase(b"K", erase_timeout_s=0.5)  # no housekeeper deletes anything
    assert len(await place.objects_with(SECRET)) == 3
    async with place.kept():
        again = await place.erase(b"K")

    assert again.raw_records == 0
    assert await place.objects_with(SECRET) == []


@pytest.mark.superuser
@pytest.mark.parametrize("stage", ["reading the log", "waiting for old objects to be deleted"])
async def test_an_erasure_goes_on_after_an_outage_of_postgres(
    place: Place, database_url: str, stage: str
) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 12)
    name = urlsplit(database_url).path.strip("/")
    opening: list[threading.Timer] = []

    def close(now: ErasureProgress) -> None:
        if now.stage != stage or opening:
            return
        with psycopg.connect(database_url, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
        opening.append(threading.Timer(_OUTAGE_S, reopen))
        opening[0].start()

    def reopen() -> None:
        with psycopg.connect(database_url, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    async with place.kept(job_run_s=2.0, job_lease_s=4.0, merge_lease_s=4.0):
        await place.erase(b"K", on_progress=close, database_pool_timeout_s=0.5, job_lease_s=2.0)

    assert opening
    assert await rows_of(place) == left_of(place)
    assert await place.objects_with(SECRET) == []
    assert await place.is_healthy()


async def test_an_erasure_from_a_bucket_of_another_database_ends_at_once(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 3)
    loop = asyncio.get_running_loop()

    def lose(_now: ErasureProgress) -> None:
        asyncio.run_coroutine_threadsafe(place.sequencer.ownership.stop("it was copied"), loop).result(30)

    with pytest.raises(OwnershipLost, match="it was copied"):
        await asyncio.wait_for(place.erase(b"K", on_progress=lose), 30)


async def test_a_damaged_object_is_named(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 1)
    [key] = await place.objects_with(SECRET)
    data = bytearray(await place.store.get(key))
    data[data.index(SECRET)] ^= 1
    await place.store.put(key, [bytes(data)])

    with pytest.raises(ErasureFailed, match="does not decode"):
        await place.erase(b"K")


async def test_a_compaction_that_read_them_before_is_waited_for(place: Place) -> None:
    """It holds the old objects, and may still publish what it read."""
    topic_id = await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 3)
    history = place.sequencer.history
    async with place.kept():
        await until_owned(place)
        began_s = time.monotonic()
        begun = await history.begin_compaction(
            topic_id,
            await history.ends(topic_id),
            cluster=CLUSTER,
            lease_s=6,
            runs_per_partition=100,
        )
        assert isinstance(begun, Begun)
        stages: list[str] = []

        await place.erase(b"K", on_progress=lambda now: stages.append(now.stage))

    assert time.monotonic() - began_s > 6
    assert "waiting for other jobs" in stages
    assert await rows_of(place) == left_of(place)
    assert await place.objects_with(SECRET) == []


async def until_owned(place: Place) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OwnershipUnconfirmed):
                return await place.sequencer.ownership.demand()
            await asyncio.sleep(0.05)


async def test_an_empty_topic_has_nothing_to_erase(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    async with place.kept():
        report = await place.erase(b"K")

    assert (report.raw_records, report.objects_rewritten, report.passes) == (0, 0, 1)
