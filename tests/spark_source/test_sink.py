"""The sink: rows that Spark writes are records of the topic, and what cannot be written is said."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_source.settings import SourceSettings
from spark_source.sink import WriteContext, write_rows
from spark_source.task_transaction import NotWritten
from tests.spark_source.conftest import Topic, collected, expected

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_ROWS = "SELECT `partition`, timestamp, key, value, headers FROM {rows}"


def test_records_that_spark_writes_are_equal_to_those_it_read(
    read: Callable[..., DataFrameReader],
    stream: Callable[..., DataStreamReader],
    session: SparkSession,
    topic: Topic,
    other_topic: Topic,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    topic.send(range(20))
    topic.send(range(20, 25), partition=1)
    rows = session.sql(_ROWS, rows=read(topic.name).load())

    rows.write.format("tidelog").options(topic=other_topic.name, **options).mode("append").save()
    again = stream(topic.name, startingOffsets="earliest", partitions="1").load()
    query = (
        session.sql(_ROWS, rows=again)
        .writeStream.format("tidelog")
        .options(topic=other_topic.name, **options)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    written = collected(read(other_topic.name).load().collect())

    wanted = [expected(n, n) for n in range(20)] + [expected(n, n - 20, 1) for n in range(20, 25)]
    assert written == wanted + [expected(n, n - 15, 1) for n in range(20, 25)]


def test_text_is_written_and_a_wrong_column_is_refused(
    session: SparkSession, topic: Topic, options: dict[str, str], read: Callable[..., DataFrameReader]
) -> None:
    def write(statement: str) -> None:
        session.sql(statement).write.format("tidelog").options(**options).mode("append").save()

    write(f"SELECT '{topic.name}' AS topic, 'k' AS key, 'v' AS value, 0 AS `partition`")
    [row] = read(topic.name).load().collect()

    assert (bytes(row["key"]), bytes(row["value"])) == (b"k", b"v")
    with pytest.raises(PySparkException, match="column offset bigint cannot be written"):
        write(f"SELECT '{topic.name}' AS topic, 'v' AS value, 1L AS offset")
    with pytest.raises(PySparkException, match="name where to write"):
        write("SELECT 'v' AS value")


def test_a_task_fails_if_the_log_does_not_take_its_rows(topic: Topic, bootstrap: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["v"], "partition": [7]})
    context = WriteContext(
        topic=topic.name,
        producer={"bootstrap.servers": bootstrap},
        flush_timeout_s=30.0,
        settings=SourceSettings(),
    )

    with pytest.raises(NotWritten, match="partition 7"):
        write_rows(context, [rows])


def test_a_thread_of_its_own_finds_the_sink(
    session: SparkSession, compaction: CompactionSettings, options: dict[str, str]
) -> None:
    """Spark's writer looks in the thread's active session only, and PySpark sets that in one thread."""

    def write() -> None:
        rows = spark_session(compaction).sql("SELECT 'v' AS value")
        rows.write.format("tidelog").options(**options).mode("append").save()

    assert session is not None  # Spark was started by another thread
    with ThreadPoolExecutor(1) as other, pytest.raises(PySparkException, match="name where to write"):
        other.submit(write).result(120)
