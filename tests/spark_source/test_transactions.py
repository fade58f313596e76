"""Readers see committed records alone, from the log, from history, and across both."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import DataFrameReader

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from spark_compaction.settings import CompactionSettings
from spark_source.options import InvalidOption
from spark_source.source import Reader, StreamReader, TidelogSource
from tests.spark_compaction.log import drop_local
from tests.spark_source.conftest import Topic, collected, read_all, schema_of
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Source = Callable[..., TidelogSource]


@pytest.fixture(scope="module")
def stack(module_directory: Path) -> Iterator[Stack]:
    with Stack(StackSettings(environment=HERE, data_dir=module_directory / "stack")) as stack:
        yield stack


class Producer:
    """A transactional producer."""

    def __init__(self, bootstrap: str, topic: Topic) -> None:
        self._topic = topic.name
        settings = {"bootstrap.servers": bootstrap, "transactional.id": f"{topic.name}-tx"}
        self._producer = confluent_kafka.Producer(settings)
        self._producer.init_transactions(60)

    def send(self, value: str, count: int) -> None:
        """Begins a transaction. Its records are in the log, but it has not ended."""
        self._producer.begin_transaction()
        for _ in range(count):
            self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(60) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(60)

    def abort(self) -> None:
        self._producer.abort_transaction(60)


@pytest.fixture
def producer(bootstrap: str, topic: Topic) -> Producer:
    return Producer(bootstrap, topic)


def write_all_sorts(topic: Topic, producer: Producer) -> list[int]:
    """Returns the offsets that are to be read. The last transaction is open, from offset 15 on."""
    topic.send([1])
    for value in ("a", "b"):
        producer.send(value, 3)
        producer.abort() if value == "a" else producer.commit()
    topic.send([2])
    producer.send("c", 4)
    producer.abort()
    producer.send("d", 2)
    topic.send([3])
    return [0, 5, 6, 7, 9]


def batch_offsets(source: TidelogSource) -> list[int]:
    reader = source.reader(schema_of(source))
    assert isinstance(reader, Reader)
    return read_all(reader, reader.partitions())


def stream_of(source: TidelogSource) -> StreamReader:
    reader = source.streamReader(schema_of(source))
    assert isinstance(reader, StreamReader)
    return reader


async def test_committed_records_are_read_wherever_they_lie(
    source: Source, topic: Topic, producer: Producer, read: Callable[..., DataFrameReader]
) -> None:
    wanted = await asyncio.to_thread(write_all_sorts, topic, producer)
    from_log = await asyncio.to_thread(batch_offsets, source(topic.name))
    await topic.compact()
    from_history = await asyncio.to_thread(batch_offsets, source(topic.name))
    producer.commit()
    across = await asyncio.to_thread(batch_offsets, source(topic.name))
    in_spark = collected(read(topic.name).load().collect())
    await topic.compact()
    at_the_end = await asyncio.to_thread(batch_offsets, source(topic.name))

    assert (from_log, from_history) == (wanted, wanted)
    assert across == at_the_end == [*wanted, 15, 16, 17]
    assert [row[1] for row in in_spark] == across


def test_a_stream_reads_what_has_become_stable_once(source: Source, topic: Topic, producer: Producer) -> None:
    wanted = write_all_sorts(topic, producer)
    reader = stream_of(source(topic.name, startingOffsets="earliest"))
    start = reader.initialOffset()
    first = reader.latestOffset()
    found = read_all(reader, reader.partitions(start, first))
    while_open = reader.latestOffset()
    producer.commit()
    second = reader.latestOffset()

    assert first["offsets"][topic.name]["0"] == 15
    assert while_open == first
    assert [found, read_all(reader, reader.partitions(first, second))] == [wanted, [15, 16, 17]]


async def test_micro_batches_may_begin_and_end_at_any_offset_also_once_parquet_is_the_log(
    source: Source, topic: Topic, producer: Producer, compaction: CompactionSettings
) -> None:
    """Such as that of a marker, which no object holds any more."""
    wanted = [*await asyncio.to_thread(write_all_sorts, topic, producer), 15, 16, 17]
    producer.commit()
    sequencer = await Sequencer.open(compaction.database_url, SequencerSettings())
    await sequencer.topics.alter_config(topic.name, {"tidelog.history": "log", "local.retention.ms": "0"})
    await topic.compact()
    dropped = await drop_local(sequencer)
    await sequencer.close()
    found = []
    for offset in range(19):
        ranges = {"startingOffsets": _at(topic, offset), "endingOffsets": _at(topic, offset + 1)}
        found += await asyncio.to_thread(batch_offsets, source(topic.name, **ranges, partitions="0"))

    assert dropped > 0
    assert found == wanted


def _at(topic: Topic, offset: int) -> str:
    return f'{{"{topic.name}": {{"0": {offset}}}}}'


def test_uncommitted_records_cannot_be_asked_for(source: Source) -> None:
    for level, is_known in (("read_committed", True), ("read_uncommitted", False)):
        chosen = source("orders", **{"kafka.isolation.level": level})
        schema = schema_of(chosen)
        if is_known:
            chosen.reader(schema)
        else:
            with pytest.raises(InvalidOption, match="read_committed"):
                chosen.reader(schema)
