"""Streams: each record once, over restarts; what a micro-batch takes; what availableNow drains."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from spark_source.planning import DataLoss
from spark_source.source import StreamReader, TidelogSource
from tests.spark_source.conftest import Topic, read_all, schema_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Stream = Callable[..., DataStreamReader]
Source = Callable[..., TidelogSource]


def reader_of(source: TidelogSource) -> StreamReader:
    """As in the process that Spark starts for a query."""
    reader = source.streamReader(schema_of(source))
    assert isinstance(reader, StreamReader)
    return reader


def restarted(source: TidelogSource, logged: dict[str, Any]) -> StreamReader:
    """As after a restart: Spark first shows the last end that it has logged."""
    reader = reader_of(source)
    assert reader.partitions(logged, logged) == []
    return reader


def start_query(frame: DataFrame, directory: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(**trigger).start(str(directory / "rows"))


def test_each_record_is_read_once_over_restarts_in_bounded_micro_batches(
    stream: Stream, topic: Topic, session: SparkSession, tmp_path: Path
) -> None:
    frame = stream(
        topic.name, startingOffsets="earliest", columns="partition,offset", maxOffsetsPerTrigger="4"
    ).load()
    topic.send(range(5))
    topic.send(range(3), partition=1)
    sizes = []
    for _ in range(2):
        query = start_query(frame, tmp_path, processingTime="0 seconds")
        wait_until(lambda: sizes_of(query)[-1:] == [4])  # noqa: B023 - waits here
        query.stop()
        sizes += sizes_of(query)
    topic.send(range(5, 15))

    drain = start_query(stream(topic.name, columns="partition,offset").load(), tmp_path, availableNow=True)
    assert drain.awaitTermination(120)

    rows = sorted(tuple(row) for row in session.read.parquet(str(tmp_path / "rows")).collect())
    assert rows == [(0, n) for n in range(15)] + [(1, n) for n in range(3)]
    assert max(sizes) == 4


def sizes_of(query: StreamingQuery) -> list[int]:
    """The records of each micro-batch so far."""
    return [batch.numInputRows for batch in query.recentProgress]


def test_available_now_drains_to_the_high_watermark_at_its_start(
    stream: Stream, topic: Topic, tmp_path: Path
) -> None:
    topic.send(range(10))
    seen: list[int] = []

    def take(rows: DataFrame, _: int) -> None:
        topic.send(range(10, 20))  # while the query runs
        seen.extend(row["offset"] for row in rows.collect())

    frame = stream(topic.name, startingOffsets="earliest", columns="offset").load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)

    assert sorted(seen) == list(range(10))


def test_a_first_micro_batch_that_is_run_again_begins_where_it_began(source: Source, topic: Topic) -> None:
    topic.send(range(10))
    latest = source(topic.name, startingOffsets="latest")
    reader = reader_of(latest)
    began = reader.latestOffset()
    topic.send(range(10, 15))
    logged = reader.latestOffset()  # Spark writes this down and dies
    topic.send(range(15, 20))

    again = restarted(latest, logged)
    start = again.initialOffset()

    assert began["offsets"][topic.name] == {"0": 10, "1": 0}
    assert read_all(again, again.partitions(start, logged)) == list(range(10, 15))
    assert read_all(again, again.partitions(logged, again.latestOffset())) == list(range(15, 20))


def test_the_limit_counts_from_the_end_that_spark_logged_last(source: Source, topic: Topic) -> None:
    topic.send(range(20))
    limited = source(topic.name, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    reader = reader_of(limited)
    first = reader.latestOffset()
    reader.partitions(reader.initialOffset(), first)
    second = reader.latestOffset()

    again = restarted(limited, second)
    third = again.latestOffset()

    ends = [offset["offsets"][topic.name]["0"] for offset in (first, second, third)]
    assert ends == [6, 12, 18]
    assert reader.latestOffset() == second  # what Spark did not plan is offered again
    reader.commit(second)
    assert reader.latestOffset() == third


def test_nothing_new_is_the_same_offset(source: Source, topic: Topic) -> None:
    topic.send(range(5))
    reader = reader_of(source(topic.name, startingOffsets="earliest"))
    end = reader.latestOffset()
    reader.partitions(reader.initialOffset(), end)

    assert reader.latestOffset() == end


def test_an_added_partition_is_read_from_its_beginning(source: Source, topic: Topic) -> None:
    reader = reader_of(source(topic.name))
    start = reader.latestOffset()
    reader.partitions(start, start)
    more = confluent_kafka.admin.NewPartitions(topic.name, 3)
    topic.admin.create_partitions([more])[topic.name].result(30)
    topic.send(range(4), partition=2)

    end = reader.latestOffset()

    assert end["offsets"][topic.name] == {"0": 0, "1": 0, "2": 4}
    assert read_all(reader, reader.partitions(start, end)) == [0, 1, 2, 3]


def test_lost_offsets_fail_a_stream_unless_it_may_go_on(source: Source, topic: Topic) -> None:
    topic.send(range(10))
    strict = reader_of(source(topic.name, startingOffsets="earliest"))
    lenient = reader_of(source(topic.name, startingOffsets="earliest", failOnDataLoss="false"))
    start, end = strict.initialOffset(), strict.latestOffset()
    topic.delete_records(7)

    assert read_all(lenient, lenient.partitions(start, end)) == [7, 8, 9]
    with pytest.raises(DataLoss, match=r"has lost offsets \[0, 7\)"):
        strict.partitions(start, end)


def test_a_topic_of_the_same_name_is_another_topic(source: Source, topic: Topic) -> None:
    topic.send(range(10))
    named = source(topic.name, startingOffsets="earliest")
    logged = reader_of(named).latestOffset()
    topic.admin.delete_topics([topic.name])[topic.name].result(30)
    topic.create()
    topic.send(range(20))

    with pytest.raises(DataLoss, match="was deleted and created again"):
        restarted(named, logged).latestOffset()
