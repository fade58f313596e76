"""Offsets that are gone stop no reader: every client continues after them, and so do merging and Spark."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

import aiokafka
import confluent_kafka
import kafka
import pytest

from sequencer.history.history_values import RunToCompact
from sequencer.topics.topics import Topic
from spark_compaction.tasks import DecodedRows, decode_run
from storage.arrow.aborted_batches import columns_of
from storage.batches.record_batch import MOST_EMPTY_OFFSETS, empty_batch, index_batches, read_header
from storage.identifiers import Offset, SegmentId
from tests.agent.running import running
from tests.compactor.builders import pending, written
from tests.compactor.merging import coordinates, merge_everything, read_back
from tests.recovery.conftest import Place
from tests.recovery.test_recover import is_healthy
from tests.support.java import Java
from tests.support.postgres import OWN_FOR_YEARS

pytestmark = pytest.mark.superuser

EXPECTED = [*range(5), *range(15, 20), *range(25, 30)]
DEADLINE_S = 60.0


@pytest.fixture
async def topic(place: Place) -> Topic:
    """Its partition 0 has 30 offsets, of which [5, 15) and [20, 25) are gone."""
    topic = await place.sequencer.topics.create("holed", 1, {"retention.ms": "-1"})
    segments = [await written(place.sequencer, place.store, pending(topic, 5)) for _ in range(6)]
    await place.store.delete([segments[1].key, segments[2].key, segments[4].key])
    report = await place.recover()
    assert report.gone == 15
    await place.sequencer.database.run(OWN_FOR_YEARS)
    return topic


def _by_librdkafka(servers: str, topic: str) -> Iterator[int]:
    client = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "x", "enable.auto.commit": False}
    )
    client.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    with contextlib.closing(client):
        while True:
            for message in client.consume(1, timeout=DEADLINE_S):
                assert message.error() is None
                offset = message.offset()
                assert offset is not None
                yield offset


def _by_kafka_python(servers: str, topic: str) -> Iterator[int]:
    client = kafka.KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=int(DEADLINE_S * 1000))
    client.assign([kafka.TopicPartition(topic, 0)])
    client.seek_to_beginning()
    with contextlib.closing(client):
        for record in client:
            yield record.offset


@pytest.mark.parametrize("read", [_by_librdkafka, _by_kafka_python])
@pytest.mark.usefixtures("topic")
async def test_python_clients_go_on_behind_what_is_gone(
    place: Place, read: Callable[[str, str], Iterator[int]], caplog: pytest.LogCaptureFixture
) -> None:
    def all_of_them(servers: str) -> list[int]:
        offsets: list[int] = []
        for offset in read(servers, "holed"):
            offsets.append(offset)
            if offset == EXPECTED[-1]:
                break
        return offsets

    async with running(place.database_url, place.store_url) as agent:
        found = await asyncio.to_thread(all_of_them, agent.bootstrap)

    assert found == EXPECTED
    said = [record for record in caplog.records if "offsets are gone" in record.getMessage()]
    assert [(one.topic, one.base_offset, one.last_offset) for one in said] == [  # type: ignore[attr-defined]
        ("holed", 5, 14),
        ("holed", 20, 24),
    ]


@pytest.mark.usefixtures("topic")
async def test_aiokafka_goes_on_behind_what_is_gone(place: Place) -> None:
    async with running(place.database_url, place.store_url) as agent:
        client = aiokafka.AIOKafkaConsumer(bootstrap_servers=agent.bootstrap)
        await client.start()
        client.assign([aiokafka.TopicPartition("holed", 0)])
        await client.seek_to_beginning()
        found = [(await asyncio.wait_for(client.getone(), DEADLINE_S)).offset for _ in EXPECTED]
        await client.stop()

    assert found == EXPECTED


@pytest.mark.usefixtures("topic")
async def test_the_java_client_goes_on_behind_what_is_gone(place: Place, java: Java) -> None:
    async with running(place.database_url, place.store_url) as agent:
        arguments = ("--bootstrap-server", agent.bootstrap, "--topic", "holed", "--messages", "15")
        said = await asyncio.to_thread(java.tool, "ConsumerPerformance", *arguments, "--timeout", "60000")

    columns = said.strip().splitlines()[-1].split(", ")
    assert columns[4] == "15"


async def test_what_is_gone_is_merged_with_the_rest(place: Place, topic: Topic) -> None:
    before = await read_back(place.sequencer, place.store, topic)
    for _ in range(34):
        await written(place.sequencer, place.store, pending(topic, 1))

    assert await merge_everything(place.sequencer, place.store) > 0

    after = await read_back(place.sequencer, place.store, topic)
    assert after.runs < before.runs + 34
    assert after.batches[: len(before.batches)] == before.batches
    assert await is_healthy(place)


@pytest.mark.usefixtures("topic")
async def test_a_time_that_is_gone_leads_to_the_next_record(place: Place) -> None:
    async with running(place.database_url, place.store_url) as agent:
        client = confluent_kafka.Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "x"})
        asked = [confluent_kafka.TopicPartition("holed", 0, 1)]
        [found] = await asyncio.to_thread(client.offsets_for_times, asked, DEADLINE_S)
        client.close()

    assert found.offset == 0


@pytest.mark.parametrize("offsets", [1, 7, MOST_EMPTY_OFFSETS])
def test_an_empty_batch_spans_its_offsets(offsets: int) -> None:
    data = empty_batch(offsets, -1)

    [batch] = index_batches(data, 0, len(data)).tolist()
    assert batch == (0, 61, offsets - 1)
    assert read_header(data).record_count == 0


async def test_history_leaves_what_is_gone_out_and_goes_on(place: Place, topic: Topic) -> None:
    """A run that holds real batches around a gone range, as merging makes it."""
    for _ in range(34):
        await written(place.sequencer, place.store, pending(topic, 1))
    assert await merge_everything(place.sequencer, place.store) > 0
    found = await coordinates(place.sequencer, topic)
    pieces: list[tuple[int, int, bool]] = []
    for run in found.runs:
        data = bytes(await place.store.get(run.object_key, run.position, run.position + run.length))
        asked = RunToCompact(
            partition=run.partition,
            from_offset=run.base_offset,
            base_offset=run.base_offset,
            last_offset=run.last_offset,
            end_offset=Offset(run.last_offset + 1),
            segment_id=SegmentId(UUID(int=1)),
            object_key=run.object_key,
            position=run.position,
            length=run.length,
        )
        decoded = decode_run(asked, data, partial(_part, data), columns_of(()))
        pieces += [
            (piece.first_offset, piece.end_offset, isinstance(piece, DecodedRows)) for piece in decoded
        ]

    gone = [(first, end) for first, end, is_there in pieces if not is_there]
    assert gone == [(5, 15), (20, 25)]
    assert sum(end - first for first, end, is_there in pieces if is_there) == 49


def _part(data: bytes, start: int, end: int) -> bytes:
    return data[start:end]
