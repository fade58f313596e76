"""A topic's compression.type: the form in which batches are kept, whatever their producer sent."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from storage.batches.batch_validation import BatchLimits, plain_records
from storage.batches.record_batch import Compression, TimestampType, index_batches, read_header
from tests.agent.kafka.apis.administrative_requests import alter, create
from tests.agent.read_path.wire import a_fetch
from tests.agent.running import Wire, a_batch, a_produce, partitions_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SET = 0
VALUES = [b"v" * 300 for _ in range(20)]
KEPT = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


async def _topic(wire: Wire, name: str, **configs: str) -> Any:
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = await create(wire, name, configs=given, num_partitions=len(Compression))
    assert topic.error_code is ErrorCode.none
    return topic


async def _produced(wire: Wire, name: str, partitions: dict[int, bytes]) -> list[ErrorCode]:
    return [found.error_code for found in partitions_of(await wire.ask(a_produce(name, dict(partitions))))]


async def _kept(wire: Wire, topic: Any, partition: int) -> list[memoryview]:
    """The batches of a partition."""
    async with asyncio.timeout(20):
        while True:
            [found] = (
                (await wire.ask(a_fetch(12, topic, *[0] * (partition + 1))))
                .responses[0]
                .partitions[partition:]
            )
            if found.records:
                break
    data = memoryview(bytes(found.records))
    places = index_batches(data, 0, len(data))
    ends = (places["position"] + places["size_bytes"]).tolist()
    return [data[start:end] for start, end in zip(places["position"].tolist(), ends, strict=True)]


@pytest.mark.parametrize("name", KEPT)
async def test_batches_are_kept_in_the_topics_compression(wire: Wire, name: str) -> None:
    topic = await _topic(wire, f"kept-in-{name}", compression_type=name)
    sent = {int(codec): a_batch(*VALUES, compression=codec, producer=(90, 0, 0)) for codec in Compression}

    codes = await _produced(wire, topic.name, sent)
    again = await _produced(wire, topic.name, {0: sent[0]})

    assert set(codes + again) == {ErrorCode.none}
    for codec in Compression:
        [batch] = await _kept(wire, topic, codec)
        header, original = read_header(batch), read_header(sent[codec])
        limit = BatchLimits().max_decompressed_bytes
        assert header.compression is KEPT[name]
        assert (
            plain_records(batch, header, limit).tobytes()
            == plain_records(memoryview(sent[codec]), original, limit).tobytes()
        )
        if codec is KEPT[name]:
            assert bytes(batch[21:]) == sent[codec][21:]


async def test_a_change_of_the_compression_holds_for_later_batches(wire: Wire) -> None:
    topic = await _topic(wire, "compressed-later")

    await _produced(wire, topic.name, {0: a_batch(*VALUES)})
    assert (await alter(wire, topic.name, ("compression.type", SET, "zstd"))).error_code is ErrorCode.none
    await _produced(wire, topic.name, {0: a_batch(*VALUES)})
    assert (await alter(wire, topic.name, ("compression.type", SET, "producer"))).error_code is ErrorCode.none
    await _produced(wire, topic.name, {0: a_batch(*VALUES, compression=Compression.LZ4)})

    kept = [read_header(batch).compression for batch in await _kept(wire, topic, 0)]
    assert kept == [Compression.NONE, Compression.ZSTD, Compression.LZ4]


async def test_a_topic_with_log_append_time_recompresses_too(wire: Wire) -> None:
    topic = await _topic(wire, "timed", compression_type="zstd", message_timestamp_type="LogAppendTime")

    assert await _produced(wire, topic.name, {0: a_batch(*VALUES)}) == [ErrorCode.none]

    [batch] = await _kept(wire, topic, 0)
    header = read_header(batch)
    assert (header.compression, header.timestamp_type) == (Compression.ZSTD, TimestampType.LOG_APPEND_TIME)


async def test_only_the_batch_that_becomes_too_large_is_refused(wire: Wire) -> None:
    topic = await _topic(wire, "too-large-plain", compression_type="uncompressed", max_message_bytes="5000")

    codes = await _produced(
        wire, topic.name, {0: a_batch(*VALUES, compression=Compression.GZIP), 1: a_batch(b"small")}
    )

    assert codes == [ErrorCode.message_too_large, ErrorCode.none]
