"""Spark's own Kafka source and sink (`spark-sql-kafka-0-10`) as a plain client of Tidelog.

Its jars come from Maven Central by name, once (`tests/support/spark_kafka.xml`). The token provider of 4.1.3
is left out, which names classes that Spark 4.1 no longer has; that of 4.0.0 takes its place.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from tests.spark_source.conftest import Topic, collected, expected
from tests.support.spark_kafka import add_kafka_source

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_ROWS = """
SELECT partition, offset, timestamp, timestampType AS timestamp_type, key, value,
    coalesce(headers, array()) AS headers
FROM {rows}"""


@pytest.fixture(scope="module")
def kafka_session(session: SparkSession) -> SparkSession:
    add_kafka_source(session)
    return session


def test_sparks_kafka_source_reads_and_its_sink_writes(
    kafka_session: SparkSession,
    topic: Topic,
    other_topic: Topic,
    bootstrap: str,
    read: Callable[..., DataFrameReader],
    tmp_path: Path,
) -> None:
    topic.send(range(30))
    topic.send(range(30, 40), partition=1)
    options = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true"}

    def rows(frame: DataFrame) -> DataFrame:
        return kafka_session.sql(_ROWS, rows=frame)

    batch = kafka_session.read.format("kafka").options(subscribe=topic.name, **options).load()
    stream = kafka_session.readStream.format("kafka").options(
        subscribe=topic.name, startingOffsets="earliest", maxOffsetsPerTrigger="25", **options
    )
    query = (
        kafka_session.sql("SELECT partition, timestamp, key, value, headers FROM {rows}", rows=stream.load())
        .writeStream.format("kafka")
        .options(topic=other_topic.name, checkpointLocation=str(tmp_path), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    wanted = [expected(n, n) for n in range(30)] + [expected(n, n - 30, 1) for n in range(30, 40)]
    assert collected(rows(batch).collect()) == wanted
    values = [(row[0], row[4], row[5], row[6]) for row in collected(read(other_topic.name).load().collect())]
    assert values == [(row[0], row[4], row[5], row[6]) for row in wanted]
