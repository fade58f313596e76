"""Log compaction of encrypted topics: no byte of a record is written in the clear, and a topic whose key
cannot be had waits without keeping others waiting.
"""

import logging
import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from prometheus_client import CollectorRegistry

from compactor.cleaning import Cleaner
from compactor.metrics import CleaningMetrics
from sequencer.client import Sequencer
from sequencer.topics.topic_key_cache import keys_for_jobs
from storage.encryption.sealed_batches import is_sealed, key_ids
from storage.encryption.settings import EncryptionSettings
from storage.identifiers import Offset, Partition
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER
from tests.compactor.builders import settings as small_steps
from tests.compactor.sealing import Sealing
from tests.compactor.test_cleaning import NO_GRACE, NOTHING_LATER, Place
from tests.spark_compaction.log import Log, Sent, one

MARKER = b"marker-of-a-secret-9Kd4"


@pytest.fixture
def place(sequencer: Sequencer, store: ObjectStore, tmp_path: Path) -> Place:
    log = Log(sequencer=sequencer, store=store)
    return Place(sequencer=sequencer, store=store, log=log, sealing=Sealing(sequencer, store, tmp_path))


async def stored_runs(place: Place) -> list[bytes]:
    """The runs' bytes as they are in the bucket."""
    key = (place.topic_id, Partition(0))
    runs = await place.sequencer.cleanings.runs(key, Offset(0), Offset(1 << 62), 1000)
    return [
        bytes(await place.store.get(one.object_key, one.run.position, one.run.position + one.run.length))
        for one in runs
    ]


def sealing_of(place: Place) -> Sealing:
    assert place.sealing is not None
    return place.sealing


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
async def test_what_a_cleaning_writes_is_sealed_with_the_newest_key(place: Place, codec: str) -> None:
    await place.topic(compression_type=codec)
    sealing = sealing_of(place)
    for number in range(6):  # of three kinds: two keys and in the clear
        await place.write(*((b"%s-%d" % (MARKER, n), b"%s-%d" % (MARKER, number)) for n in range(4)))
    newest = await sealing.rotate(place.topic_id)

    assert await place.clean()

    [run] = await stored_runs(place)
    assert MARKER not in run
    assert key_ids(run) == {newest.key_id}
    assert [(key, value) for _, key, value in await place.read()] == [
        (b"%s-%d" % (MARKER, n), b"%s-5" % MARKER) for n in range(4)
    ]
    assert await place.is_healthy()


async def test_a_topic_without_encryption_is_written_in_the_clear(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    """What shows that the search above finds something."""
    place = Place(sequencer=sequencer, store=store, log=Log(sequencer=sequencer, store=store))
    await place.topic(compression_type="uncompressed")
    for _ in range(2):
        await place.write((MARKER, MARKER))

    assert await place.clean()

    assert any(MARKER in run for run in await stored_runs(place))


async def test_a_topic_waits_for_its_key_and_others_are_cleaned(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.topic()
    for number in range(4):
        await place.write((b"a", b"%d" % number))
    plain = await place.sequencer.topics.create("plain", 1, NOTHING_LATER)
    place.log.topic_ids["plain"], place.log.expected["plain"] = plain.topic_id, []
    for number in range(2):
        await place.log.write("plain", one(0, Sent(key=b"a", value=b"%d" % number)))
    sealing, text = sealing_of(place), sealing_of(place).key_file.read_text()
    sealing.key_file.unlink()
    sealing.forget()
    before = await stored_runs(place)
    assert await place.discover() == 2

    with caplog.at_level(logging.WARNING, "tidelog"):
        cleaner = place.cleaner()
        worked = [await cleaner.clean_once() for _ in range(3)]

    assert worked == [True, True, False]  # it is not tried again before the next discovery
    assert await stored_runs(place) == before
    assert len([one for one in caplog.records if "waits for its key" in one.getMessage()]) == 1
    assert (
        len(await place.sequencer.cleanings.runs((plain.topic_id, Partition(0)), Offset(0), Offset(9), 9))
        == 1
    )
    assert await place.discover() == 1
    sealing.key_file.write_text(text)
    assert await place.cleaner().clean_once()
    assert await place.read() == [(3, b"a", b"3")]


async def test_a_housekeeper_without_a_provider_lets_the_topic_wait(place: Place) -> None:
    await place.topic()
    for number in range(3):
        await place.write((b"a", b"%d" % number))
    await place.discover()
    metrics = CleaningMetrics(CollectorRegistry())

    cleaner = Cleaner(place.sequencer, place.store, CLUSTER, small_steps(**NO_GRACE), metrics)

    assert [await cleaner.clean_once(), await cleaner.clean_once()] == [True, False]
    assert len(await place.read()) == 3


async def test_a_topic_that_was_never_encrypted_needs_no_provider(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    """Tools set configs to their defaults, too."""
    place = Place(sequencer=sequencer, store=store, log=Log(sequencer=sequencer, store=store))
    await place.topic(tidelog_encryption="off")
    for number in range(3):
        await place.write((b"a", b"%d" % number))
    await place.discover()
    keys = keys_for_jobs(sequencer.topic_keys, store, CLUSTER, EncryptionSettings())
    metrics = CleaningMetrics(CollectorRegistry())

    assert await Cleaner(sequencer, store, CLUSTER, small_steps(**NO_GRACE), metrics, keys=keys).clean_once()

    assert await place.read() == [(2, b"a", b"2")]
    assert await sequencer.topic_keys.ids_of(place.topic_id) == []


async def test_a_batch_that_no_key_opens_stays_and_the_rest_is_cleaned(place: Place) -> None:
    """Its CRC is right, so only the tag shows that it was changed."""
    await place.topic()
    for number in range(9):
        await place.write((b"a", b"%d" % number), (b"%d" % number, random.randbytes(1100)))
    key = (place.topic_id, Partition(0))
    runs = await place.sequencer.cleanings.runs(key, Offset(0), Offset(18), 10)
    harmed = runs[3]
    data = bytearray(await place.store.get(harmed.object_key))
    start, end = harmed.run.position, harmed.run.position + harmed.run.length
    assert is_sealed(data, start)
    data[end - 1] ^= 1
    struct.pack_into(">I", data, start + 17, crc32c(bytes(data[start + 21 : end])))
    await place.store.put(harmed.object_key, [bytes(data)])

    assert await place.clean(merge_run_bytes=1024)  # each run is a stretch

    left = await place.sequencer.cleanings.runs(key, Offset(0), Offset(18), 10)
    stay = {each.object_key for each in left} & {each.object_key for each in runs}
    assert stay == {harmed.object_key, runs[8].object_key}  # and the last one, which loses nothing
