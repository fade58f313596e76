"""Erasing from the log's objects: what consumers read, and what the bucket holds."""

from sequencer.topics.topics import Topic
from storage.arrow.arrow_columns import decode_batches
from storage.batches.record_batch import Compression
from storage.encryption.topic_keyring import ReadKeyring, opened_batches
from storage.identifiers import TopicId
from tests.compactor.merging import merge_everything, read_back
from tests.erasure.conftest import SECRET, Place
from tests.spark_compaction.log import Sent, SentBatch, records

PARTITIONS = 2


async def write(
    place: Place, segments: int = 4, *, topic: str = "orders", codec: Compression | None = None
) -> None:
    """Records of seven keys and of the key `K`, whose values have `SECRET`; one run per partition and
    segment."""
    for number in range(segments):
        batches = []
        for partition in range(PARTITIONS):
            own = list(records(9, 100 * number))
            own.insert(3, Sent(key=b"K", value=SECRET + b" %d" % number))
            chosen = Compression.NONE if codec is None else codec
            batches.append(SentBatch(partition=partition, records=own, compression=chosen))
        await place.log.write(topic, *batches)


async def topic_of(place: Place, name: str = "orders") -> Topic:
    return (await place.sequencer.topics.by_name([name]))[name]


async def rows_of(
    place: Place, name: str = "orders", keyring: ReadKeyring | None = None
) -> list[tuple[object, ...]]:
    """Partition, offset, key and value of each record, as readers find them by their coordinates. `keyring`
    opens sealed batches."""
    topic = await topic_of(place, name)
    found: list[tuple[object, ...]] = []
    for partition in range(topic.partition_count):
        back = await read_back(place.sequencer, place.store, topic, partition)
        for offset, data in back.batches:
            stored = bytes(8) + (len(data) + 4).to_bytes(4, "big") + bytes(4) + data
            batch = opened_batches(keyring, stored, partition)
            rows = decode_batches(batch, 0, len(batch), offset).to_pylist()
            found += [(partition, row["offset"], row["key"], row["value"]) for row in rows]
    return found


def left_of(
    place: Place, topic: str = "orders", erased: tuple[bytes | None, ...] = (b"K",)
) -> list[tuple[object, ...]]:
    rows = [(row[0], row[1], row[4], row[5]) for row in place.log.expected[topic] if row[4] not in erased]
    return sorted(rows, key=lambda row: (row[0], row[1]))


async def test_the_records_of_a_key_leave_every_object_and_no_other_offset_moves(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place)
    assert len(await place.objects_with(SECRET)) == 4

    async with place.kept():
        report = await place.erase(b"K")

    assert await rows_of(place) == left_of(place)
    assert await place.objects_with(SECRET) == []
    assert (report.raw_records, report.objects_rewritten, report.passes) == (8, 4, 2)
    [sizes] = await place.sequencer.database.run(
        "SELECT (SELECT sum(size_bytes) FROM partitions) AS said, (SELECT sum(length) FROM runs) AS are"
    )
    assert sizes.said == sizes.are
    assert await place.is_healthy()


async def test_other_topics_in_the_same_objects_move_byte_for_byte(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    other = await place.log.topic("other", PARTITIONS, retention_ms="-1")
    for _ in range(3):
        await _write_both(place, other)
    topic = await topic_of(place, "other")
    before = [await read_back(place.sequencer, place.store, topic, each) for each in range(PARTITIONS)]

    async with place.kept():
        await place.erase(b"K")

    after = [await read_back(place.sequencer, place.store, topic, each) for each in range(PARTITIONS)]
    assert after == before
    assert await rows_of(place) == left_of(place)
    assert await place.objects_with(SECRET) == await place.objects_with(b"of-other") != []
    assert await place.is_healthy()


async def _write_both(place: Place, other: TopicId) -> None:
    """One object with both topics; the other topic has records of the key, too."""
    from tests.spark_compaction import log as builders

    mine = SentBatch(partition=0, records=(Sent(key=b"K", value=SECRET),), compression=Compression.NONE)
    theirs = SentBatch(
        partition=1, records=(Sent(key=b"K", value=SECRET + b"of-other"),), compression=Compression.NONE
    )
    place.log.topic_ids["other"] = other
    segment = [
        builders._pending(place.log.topic_ids["orders"], mine),
        builders._pending(other, theirs),
    ]
    from tests.compactor.builders import written

    await written(place.sequencer, place.store, *segment)


async def test_every_codec(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    for codec in Compression:
        await write(place, 1, codec=codec)

    async with place.kept():
        report = await place.erase(b"K")

    assert await rows_of(place) == left_of(place)
    assert report.raw_records == 2 * len(Compression)


async def test_records_without_a_key_stay_unless_asked_for(place: Place) -> None:
    await place.log.topic("orders", retention_ms="-1")
    sent = (Sent(key=None, value=SECRET), Sent(key=b"", value=b"empty"), Sent(key=b"K", value=b"keyed"))
    await place.log.write("orders", SentBatch(partition=0, records=sent, compression=Compression.NONE))

    async with place.kept():
        await place.erase(b"")
        assert [row[3] for row in await rows_of(place)] == [SECRET, b"keyed"]
        await place.erase(None)

    assert [row[3] for row in await rows_of(place)] == [b"keyed"]
    assert await place.objects_with(SECRET) == []


async def test_a_key_that_is_not_there_rewrites_nothing(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place)

    async with place.kept():
        await place.erase(b"K")
        again = await place.erase(b"K")

    assert (again.raw_records, again.objects_rewritten, again.passes) == (0, 0, 1)


async def test_copies_that_merging_left_behind_go_too(place: Place) -> None:
    """The inputs of merges wait for the restore horizon, an hour, with all their bytes."""
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 8)
    assert await merge_everything(place.sequencer, place.store) > 0
    assert len(await place.objects_with(SECRET)) > 8

    async with place.kept():
        await place.erase(b"K")

    assert await rows_of(place) == left_of(place)
    assert await place.objects_with(SECRET) == []
    assert await place.is_healthy()


async def test_bytes_between_the_runs_of_other_topics_are_found(place: Place) -> None:
    """The topic's run has moved, and another topic's run keeps the object."""
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    other = await place.log.topic("other", PARTITIONS, retention_ms="-1")
    await _write_both(place, other)
    await place.sequencer.database.run(
        "DELETE FROM runs WHERE topic_id = %(topic_id)s", topic_id=place.log.topic_ids["orders"]
    )
    await place.sequencer.database.run(
        "UPDATE partitions SET log_start_offset = high_watermark, size_bytes = 0"
        " WHERE topic_id = %(topic_id)s",
        topic_id=place.log.topic_ids["orders"],
    )
    before = await place.objects_with(SECRET)

    async with place.kept():
        report = await place.erase(b"K")

    assert report.objects_rewritten == 1
    [left] = await place.objects_with(SECRET)
    assert left not in before
    data = bytes(await place.store.get(left))
    assert data.count(SECRET) == data.count(SECRET + b"of-other") == 1
