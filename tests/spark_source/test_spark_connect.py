"""The data source for clients of a Spark Connect server: the server finds it, and the client has no JVM."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from tests.spark_source.conftest import Topic, collected, expected
from tests.support.directories import new_directory
from tests.support.spark_connect import spark_connect

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def remote() -> Iterator[SparkSession]:
    with new_directory("connect") as directory, spark_connect(directory, {}) as address:
        session = SparkSession.builder.remote(address).create()
        yield session
        session.stop()


def test_a_client_reads_a_topic_and_streams_and_writes_into_another(
    remote: SparkSession, new_topic: Callable[[], Topic], options: dict[str, str], tmp_path: Path
) -> None:
    source, sink = new_topic(), new_topic()
    source.send(range(30))
    source.send(range(5), partition=1)

    def read(topic: Topic) -> list[tuple[object, ...]]:
        return collected(
            remote.read.format("tidelog").options(**{**options, "topic": topic.name}).load().collect()
        )

    wanted = [expected(n, n) for n in range(30)] + [expected(n, n, 1) for n in range(5)]
    assert read(source) == wanted

    arriving = remote.readStream.format("tidelog").options(
        topic=source.name, startingOffsets="earliest", **options
    )
    query = (
        arriving.load()
        .select("partition", "timestamp", "key", "value", "headers")
        .writeStream.format("tidelog")
        .options(topic=sink.name, **options)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert read(sink) == wanted

    remote.sql("SELECT 0 AS `partition`, 'k' AS key, 'v' AS value").write.format("tidelog").options(
        topic=sink.name, **options
    ).mode("append").save()
    assert read(sink)[30][4:6] == (b"k", b"v")


def test_a_client_gets_the_sources_own_words_for_a_wrong_option(
    remote: SparkSession, options: dict[str, str]
) -> None:
    reader = remote.read.format("tidelog").options(**options, topic="there-is-none", startingOffset="0")

    with pytest.raises(PySparkException, match="'startingoffset' is unknown"):
        reader.load().collect()
