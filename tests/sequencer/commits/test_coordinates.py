"""Coordinates, bounds and times on the real Postgres."""

from collections.abc import Sequence

import pytest

from sequencer.client import Sequencer
from sequencer.commits import coordinates as coordinates_module
from sequencer.commits.coordinates import CoordinateRequest, KnownEnd, PartitionCoordinates, RunCoordinate
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition
from tests.sequencer.builders import committed
from tests.sequencer.housekeeping.housekeeping import records_of


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 3, {})


async def read(
    sequencer: Sequencer, topic: Topic, from_offset: int, max_runs: int = 10, partition: int = 0
) -> PartitionCoordinates:
    key = (topic.topic_id, Partition(partition))
    request = CoordinateRequest(
        topic_id=key[0], partition=key[1], from_offset=Offset(from_offset), max_runs=max_runs
    )
    return (await sequencer.coordinates.read([request]))[key]


def offsets(runs: Sequence[RunCoordinate]) -> list[tuple[int, int]]:
    return [(run.base_offset, run.last_offset) for run in runs]


async def test_the_first_run_covers_the_asked_offset(sequencer: Sequencer, topic: Topic) -> None:
    for _ in range(4):
        await committed(sequencer, [records_of(topic, 5)])

    assert offsets((await read(sequencer, topic, 7, max_runs=2)).runs) == [(5, 9), (10, 14)]
    assert offsets((await read(sequencer, topic, 15)).runs) == [(15, 19)]
    assert offsets((await read(sequencer, topic, 20)).runs) == []
    assert offsets((await read(sequencer, topic, 99)).runs) == []


async def test_below_the_log_start_reading_begins_at_the_log_start(
    sequencer: Sequencer, topic: Topic
) -> None:
    for _ in range(3):
        await committed(sequencer, [records_of(topic, 5)])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(7))

    found = await read(sequencer, topic, 0)

    assert found.log_start_offset == 7
    assert offsets(found.runs) == [(5, 9), (10, 14)]


async def test_a_partition_that_does_not_exist_is_absent_and_polled_as_gone(
    sequencer: Sequencer, topic: Topic
) -> None:
    deleted = await sequencer.topics.create("deleted", 1, {})
    await sequencer.topics.delete("deleted")
    keys = [(topic.topic_id, Partition(2)), (topic.topic_id, Partition(3)), (deleted.topic_id, Partition(0))]

    bounds = await sequencer.coordinates.bounds(keys)
    known = [
        KnownEnd(
            topic_id=topic_id,
            partition=partition,
            known_end=Offset(0),
            log_start_offset=Offset(0),
            coordinate_epoch=0,
        )
        for topic_id, partition in keys
    ]
    polled = await sequencer.coordinates.poll(known, 10)

    assert list(bounds) == keys[:1]
    assert polled == {keys[1]: None, keys[2]: None}


async def test_nothing_asked_is_nothing_answered(sequencer: Sequencer) -> None:
    assert await sequencer.coordinates.read([]) == {}
    assert await sequencer.coordinates.poll([], 10) == {}
    assert await sequencer.coordinates.bounds([]) == {}


async def test_poll_after_a_merge_begins_with_the_run_that_covers_the_known_end(
    sequencer: Sequencer, topic: Topic
) -> None:
    for _ in range(3):
        await committed(sequencer, [records_of(topic, 5)])
    await sequencer.database.run("DELETE FROM runs WHERE base_offset = 5")
    await sequencer.database.run("UPDATE runs SET last_offset = 9 WHERE base_offset = 0")
    known = KnownEnd(
        topic_id=topic.topic_id,
        partition=Partition(0),
        known_end=Offset(5),
        log_start_offset=Offset(0),
        coordinate_epoch=0,
    )

    polled = (await sequencer.coordinates.poll([known], 10))[topic.topic_id, Partition(0)]

    assert polled is not None
    assert offsets(polled.runs) == [(0, 9), (10, 14)]


async def test_time_lookup_finds_the_first_run_that_may_hold_the_time(
    sequencer: Sequencer, topic: Topic
) -> None:
    for timestamp_ms in (100, 300, 200, 400, -1):
        await committed(sequencer, [records_of(topic, 2, timestamp_ms=timestamp_ms)])

    async def lookup(timestamp_ms: int, from_offset: int = 0) -> list[tuple[int, int]]:
        run = await sequencer.coordinates.candidate_run_for_timestamp(
            topic.topic_id, Partition(0), timestamp_ms, Offset(from_offset)
        )
        return offsets([run] if run else [])

    assert await lookup(50) == [(0, 1)]
    assert await lookup(150) == [(2, 3)]
    assert await lookup(150, from_offset=4) == [(4, 5)]
    assert await lookup(250, from_offset=4) == [(6, 7)]
    assert await lookup(401) == []
    assert await lookup(400, from_offset=8) == []


async def test_one_timestamp_from_the_future_does_not_stop_the_time_lookup(
    sequencer: Sequencer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is deleted, its running maximum stays: the lookup goes on by own maxima, in bounded steps."""
    monkeypatch.setattr(coordinates_module, "TIME_LOOKUP_STEP", 3)
    await committed(sequencer, [records_of(topic, timestamp_ms=10**12)])
    for timestamp_ms in range(100, 120):
        await committed(sequencer, [records_of(topic, timestamp_ms=timestamp_ms)])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(1))

    for timestamp_ms, offset in ((0, 1), (100, 1), (111, 12), (119, 20)):
        run = await sequencer.coordinates.candidate_run_for_timestamp(
            topic.topic_id, Partition(0), timestamp_ms
        )
        assert offsets([run] if run else []) == [(offset, offset)]
    assert await sequencer.coordinates.candidate_run_for_timestamp(topic.topic_id, Partition(0), 120) is None
