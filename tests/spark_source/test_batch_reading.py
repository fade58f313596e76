"""Batch queries: what they read is what was produced, wherever it lies."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from pyspark_tidelog import DefaultSource
from spark_compaction.settings import CompactionSettings
from spark_source.agents import Agents, Piece, RequestRefused
from spark_source.options import InvalidOption
from spark_source.planning import DataLoss
from spark_source.settings import SourceSettings
from spark_source.source import Reader, TidelogSource
from storage.identifiers import ObjectKey
from storage.stores.object_store import StoreSettings
from storage.stores.open_store import open_store
from tests.spark_source.conftest import FIRST_MS, Topic, collected, expected, read_all, schema_of, time_of
from tidelog.devstack.stack import Stack

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Read = Callable[..., DataFrameReader]
Source = Callable[..., TidelogSource]


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def reader_of(source: TidelogSource) -> Reader:
    reader = source.reader(schema_of(source))
    assert isinstance(reader, Reader)
    return reader


def read_offsets(source: TidelogSource) -> list[int]:
    """What the source's tasks return, without Spark."""
    reader = reader_of(source)
    return read_all(reader, reader.partitions())


async def test_records_are_read_equal_from_the_log_from_history_and_across_both(
    read: Read, topic: Topic
) -> None:
    topic.send(range(100))
    topic.send(range(100, 130), partition=1)
    wanted = [expected(n, n) for n in range(100)] + [expected(n, n - 100, 1) for n in range(100, 130)]

    from_log = collected(read(topic.name).load().collect())
    await topic.compact()
    from_history = collected(read(topic.name).load().collect())
    topic.send(range(200, 220), partition=1)
    across = collected(read(topic.name).load().collect())

    assert from_log == wanted
    assert from_history == wanted
    assert across == wanted + [expected(n, n - 170, 1) for n in range(200, 220)]


def a_schema(columns: str) -> StructType:
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return schema


def test_columns_are_chosen_by_option_and_by_schema(read: Read, source: Source, topic: Topic) -> None:
    topic.send(range(1, 3))

    by_option = read(topic.name, columns="value,offset").load()
    reader = source(topic.name).reader(a_schema("topic string, offset bigint"))
    [task] = reader.partitions()
    [by_schema] = reader.read(task)

    assert by_option.columns == ["value", "offset"]
    assert sorted(tuple(row) for row in by_option.collect()) == [(b"value-1", 0), (b"value-2", 1)]
    assert isinstance(by_schema, pa.RecordBatch)
    assert by_schema.to_pydict() == {"topic": [topic.name] * 2, "offset": [0, 1]}
    with pytest.raises(InvalidOption, match="schema: offset int is none of"):
        source(topic.name).reader(a_schema("offset int"))


def test_several_topics_are_read_with_their_names(
    new_topic: Callable[[], Topic], options: dict[str, str]
) -> None:
    both = [new_topic(), new_topic()]
    for topic in both:
        topic.send(range(3))
    source = DefaultSource({**options, "topics": ", ".join(topic.name for topic in both)})
    reader = reader_of(source)

    names = {
        name
        for task in reader.partitions()
        for rows in reader.read(task)
        for name in rows.column("topic").to_pylist()
    }

    assert schema_of(source).names[0] == "topic"
    assert names == {topic.name for topic in both}


@pytest.mark.parametrize("compacted", [False, True])
async def test_ranges_of_offsets_partitions_and_times_are_read_exactly(
    source: Source, topic: Topic, *, compacted: bool
) -> None:
    topic.send(range(50))
    topic.send(range(50), partition=1)
    if compacted:
        await topic.compact()
    by_offset = {
        "startingOffsets": f'{{"{topic.name}": {{"0": 10, "1": -2}}}}',
        "endingOffsets": f'{{"{topic.name}": {{"0": 13, "1": 1}}}}',
    }
    by_time = {"startingTimestamp": time_of(20).isoformat(), "endingTimestamp": str(FIRST_MS + 22)}

    assert read_offsets(source(topic.name, **by_offset)) == [10, 11, 12, 0]
    assert read_offsets(source(topic.name, partitions="1", **by_time)) == [20, 21]


def test_filters_are_pushed_where_the_session_enables_it(
    read: Read, topic: Topic, session: SparkSession
) -> None:
    topic.send(range(50))
    topic.send(range(50), partition=1)
    where = (
        "`partition` = 1 AND `offset` >= 10 AND `offset` < 20 "
        "AND timestamp > timestamp_millis(1700000000014) AND value != 'value-17'"
    )
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = read(topic.name).load().where(where)
        plan = pushed._jdf.queryExecution().executedPlan().toString()
        found = offsets(pushed)
        everything = read(topic.name).load().count()
    finally:
        session.conf.set("spark.sql.python.filterPushdown.enabled", "false")

    assert found == [15, 16, 18, 19]
    assert offsets(read(topic.name).load().where(where)) == found
    assert everything == 100
    left = next(line for line in plan.splitlines() if "Filter" in line)
    assert "value#" in left  # what ranges cannot say is Spark's
    assert "offset#" not in left


def test_lost_offsets_fail_the_query_unless_it_may_go_on(source: Source, topic: Topic) -> None:
    topic.send(range(20))
    topic.delete_records(15)
    start = {"startingOffsets": f'{{"{topic.name}": {{"0": 10}}}}'}

    assert read_offsets(source(topic.name)) == [15, 16, 17, 18, 19]
    assert read_offsets(source(topic.name, failOnDataLoss="false", **start)) == [15, 16, 17, 18, 19]
    with pytest.raises(DataLoss, match=r"has lost offsets \[10, 15\)"):
        read_offsets(source(topic.name, **start))


def test_an_end_that_is_not_there_yet_is_no_end_of_a_batch(source: Source, topic: Topic) -> None:
    topic.send(range(20))

    wanted = {
        "startingOffsets": f'{{"{topic.name}": {{"0": 0}}}}',
        "endingOffsets": f'{{"{topic.name}": {{"0": 30}}}}',
    }

    with pytest.raises(DataLoss, match="ends before offset 20, not 30"):
        read_offsets(source(topic.name, **wanted))


def test_a_query_is_cut_into_the_tasks_asked_for(source: Source, topic: Topic) -> None:
    for start in range(0, 40, 10):
        topic.send(range(start, start + 10))

    assert len(reader_of(source(topic.name)).partitions()) == 1
    assert len(reader_of(source(topic.name, minPartitions="4")).partitions()) == 4
    assert len(reader_of(source(topic.name, sourceTaskBytes="1")).partitions()) == 4
    assert read_offsets(source(topic.name, minPartitions="4")) == list(range(40))


async def test_objects_that_go_after_planning_are_looked_up_again(
    source: Source, topic: Topic, compaction: CompactionSettings
) -> None:
    topic.send(range(10))
    topic.send(range(10, 20))
    reader = reader_of(source(topic.name))
    planned = reader.partitions()
    raw = pieces_of(compaction, topic.name)

    await topic.compact()
    await delete(compaction, raw)

    assert {piece.kind for piece in raw} == {"raw"}
    assert {piece.kind for piece in pieces_of(compaction, topic.name)} == {"parquet"}
    assert read_all(reader, planned) == list(range(20))


async def test_a_large_file_is_read_by_ranges_of_its_offsets(
    source: Source, topic: Topic, compaction: CompactionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.send(range(2000))
    await topic.compact(parquet_row_group_bytes=4096)
    monkeypatch.setattr("spark_source.reading.WHOLE_FILE_BYTES", 0)  # as if it were large
    [file] = pieces_of(compaction, topic.name)

    options = {"minPartitions": "5", "columns": "offset"}
    reader = reader_of(source(topic.name, **options))
    planned = reader.partitions()

    assert file.kind == "parquet"
    assert len(planned) >= 5
    assert read_all(reader, planned) == list(range(2000))


def pieces_of(compaction: CompactionSettings, topic: str) -> list[Piece]:
    return list(Agents(SourceSettings(http_url=compaction.http_url)).pieces(topic, 0, 0, 1 << 40))


async def delete(compaction: CompactionSettings, pieces: list[Piece]) -> None:
    keys = StoreSettings(s3_access_key=compaction.s3_access_key, s3_secret_key=compaction.s3_secret_key)
    store = await open_store(compaction.store_url, keys)
    await store.delete([ObjectKey(piece.object_key) for piece in pieces])
    await store.close()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"startingOffset": "earliest"}, "'startingoffset' is unknown"),
        ({"startingOffsets": "latest"}, "cannot start at the latest"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "'other' is not among the topics"),
        ({"endingOffsets": '{"t": {"0": -3}}'}, "endingOffsets: "),
        ({"startingTimestamp": "soon"}, "startingTimestamp: 'soon'"),
        ({"startingTimestamp": "2026-05-01T12:00:00"}, "startingTimestamp: '2026"),
        ({"maxOffsetsPerTrigger": "5"}, "a batch query has no triggers"),
        ({"minPartitions": "0"}, "minPartitions: '0'"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: 'no'"),
        ({"partitions": "all"}, "partitions: 'all'"),
        ({"columns": "offset,size"}, "columns: 'offset,size'"),
    ],
)
def test_a_wrong_option_is_named(source: Source, more: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_offsets(source("t", **more))


def test_what_an_agent_refuses_is_said_in_its_words(source: Source, read: Read, topic: Topic) -> None:
    with pytest.raises(RequestRefused, match="option servers: 'localhost'"):
        read_offsets(source(topic.name, servers="localhost"))
    with pytest.raises(InvalidOption, match="has no partition 9"):
        read_offsets(source(topic.name, startingOffsets=f'{{"{topic.name}": {{"9": 0}}}}'))
    with pytest.raises(PySparkException, match="There is no topic 'none'"):
        read("none").load().collect()


def test_an_agent_that_is_away_is_passed_over(source: Source, topic: Topic, options: dict[str, str]) -> None:
    topic.send(range(3))

    assert read_offsets(source(topic.name, servers=f"http://127.0.0.1:1,{options['servers']}")) == [0, 1, 2]


def test_the_stack_of_this_directory_is_found_without_options(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".tidelog").symlink_to(stack.data_dir)
    monkeypatch.chdir(tmp_path)

    found = DefaultSource({"topic": "t"}).settings()

    assert found.http_url == stack.addresses.http_urls[0]
    assert found.store_url == stack.addresses.store_url
    assert found.s3_access_key == stack.addresses.s3_access_key


def test_a_damaged_batch_fails_the_query_unless_it_may_go_on(
    source: Source, topic: Topic, compaction: CompactionSettings
) -> None:
    topic.send(range(10))
    [piece] = pieces_of(compaction, topic.name)
    strict = reader_of(source(topic.name))
    lenient = reader_of(source(topic.name, failOnDataLoss="false"))
    [planned] = strict.partitions()
    [good] = planned.value.pieces
    planned.value = replace(planned.value, pieces=(replace(good, position=good.position + 1),))

    assert good == piece
    assert read_all(lenient, [planned]) == []
    with pytest.raises(DataLoss, match="do not decode"):
        read_all(strict, [planned])
