"""The sink with `kafka.transactional.id`: whatever dies, consumers of committed data see each row once."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from tests.spark_source.conftest import Topic
from tests.spark_source.sources_that_fail import FailingSource, LateSource
from tests.support.child import child
from tests.support.spark_cluster import ROOT
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Query = Callable[..., StreamingQuery]


def records(bootstrap: str, topic: str, isolation: str = "read_committed") -> Counter[Any]:
    """How often each (partition, key, value) is in the topic, up to its end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads once",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    found: Counter[Any] = Counter()
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(2)])
    ended = 0
    while ended < 2:
        message = consumer.poll(60)
        assert message is not None, "the topic does not end"
        error = message.error()
        if error is None:
            found[message.partition(), message.key(), message.value()] += 1
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended += 1
        else:
            raise confluent_kafka.KafkaException(error)
    consumer.close()
    return found


def sent(*numbers: Iterable[int]) -> Counter[Any]:
    """What `Topic.send` makes of the numbers of each partition."""
    return Counter(
        (
            partition,
            None if number % 5 == 0 else f"key-{number}".encode(),
            None if number % 7 == 0 else f"value-{number}".encode(),
        )
        for partition, own in enumerate(numbers)
        for number in own
    )


@pytest.fixture
def frame(stream: Callable[..., DataStreamReader], topic: Topic) -> DataFrame:
    """What a streaming query reads: two tasks for each micro-batch."""
    columns = "partition,key,value"
    return stream(topic.name, startingOffsets="earliest", columns=columns, minPartitions="2").load()


@pytest.fixture
def query(
    frame: DataFrame, other_topic: Topic, options: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., StreamingQuery]]:
    """`query()` drains the source into the other topic and ends. Other arguments are options of the sink."""
    started: list[StreamingQuery] = []

    def start(
        rows: DataFrame = frame,
        *,
        checkpoint: str = "checkpoint",
        source: str = "tidelog",
        drains: bool = True,
        **more: str,
    ) -> StreamingQuery:
        writer: DataStreamWriter = rows.writeStream.format(source).options(
            **{**options, "topic": other_topic.name, "kafka.transactional.id": "copy", **more}
        )
        trigger: dict[str, Any] = {"availableNow": True} if drains else {"processingTime": "0 seconds"}
        running = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(**trigger).start()
        started.append(running)
        if drains:
            assert running.awaitTermination(240)
        return running

    yield start
    for running in started:
        running.stop()


def test_each_row_is_written_once_over_micro_batches_and_restarts(
    query: Query, topic: Topic, other_topic: Topic, bootstrap: str
) -> None:
    for start in range(0, 60, 20):
        topic.send(range(start, start + 20))
        topic.send(range(start, start + 5), partition=1)
        query()

    assert records(bootstrap, other_topic.name) == sent(
        range(60), [*range(5), *range(20, 25), *range(40, 45)]
    )


@pytest.mark.parametrize("how", ["raises midway", "raises at its end", "is killed at its end"])
def test_a_task_that_fails_and_is_tried_again_writes_its_rows_once(
    query: Query,
    session: SparkSession,
    topic: Topic,
    other_topic: Topic,
    bootstrap: str,
    tmp_path: Path,
    how: str,
) -> None:
    session.dataSource.register(FailingSource)
    topic.send(range(100))
    topic.send(range(100), partition=1)

    query(source="failing", failure=how, marker=str(tmp_path / "failed"))

    assert (tmp_path / "failed").exists()
    assert records(bootstrap, other_topic.name, "read_uncommitted").total() > 200
    assert records(bootstrap, other_topic.name) == sent(range(100), range(100))


def test_a_batch_write_is_all_or_nothing(
    read: Callable[..., DataFrameReader],
    session: SparkSession,
    options: dict[str, str],
    topic: Topic,
    other_topic: Topic,
    bootstrap: str,
    tmp_path: Path,
) -> None:
    topic.send(range(50))
    topic.send(range(50), partition=1)
    rows = read(topic.name, columns="partition,key,value", minPartitions="2").load()

    session.dataSource.register(FailingSource)

    def write(source: str, **more: str) -> None:
        given = {**options, "topic": other_topic.name, "kafka.transactional.id": "copy", **more}
        rows.write.format(source).options(**given).mode("append").save()

    with pytest.raises(PySparkException, match="this attempt fails"):
        write("failing", failure="always raises at its end", marker=str(tmp_path / "failed always"))
    before = records(bootstrap, other_topic.name)
    write("failing", failure="raises at its end", marker=str(tmp_path / "failed"))
    once = records(bootstrap, other_topic.name)
    write("tidelog")

    assert before == Counter()
    assert once == sent(range(50), range(50))
    assert records(bootstrap, other_topic.name) == once + once


def test_a_micro_batch_that_spark_does_not_know_to_be_committed_is_not_written_twice(
    query: Query, topic: Topic, other_topic: Topic, bootstrap: str, tmp_path: Path
) -> None:
    """Its log of commits is as if the driver had died between the commit of the sink and its own."""
    topic.send(range(10))
    query()
    topic.send(range(10, 30))
    topic.send(range(3), partition=1)
    query()
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        file.unlink()

    query()
    replayed = records(bootstrap, other_topic.name)
    topic.send([30])
    query()

    assert replayed == sent(range(30), range(3))
    assert records(bootstrap, other_topic.name) == sent(range(31), range(3))
    assert records(bootstrap, other_topic.name, "read_uncommitted").total() == 34 + 23


def test_an_empty_micro_batch_and_an_empty_task_write_nothing(
    query: Query, frame: DataFrame, topic: Topic, other_topic: Topic, bootstrap: str
) -> None:
    topic.send(range(1, 5))
    query(frame.where("value IS NULL AND key IS NULL"))
    topic.send(range(8, 12), partition=1)
    query(frame.where("key IS NOT NULL AND `partition` = 1"))

    assert records(bootstrap, other_topic.name) == Counter(
        {each: 1 for each in sent([], range(8, 12)) if each[1] is not None}
    )


@pytest.fixture
def forgetful_agent(options: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """An address in front of an agent, which passes on every request, and answers the first commit by
    closing the connection. And the answers to commits that it got.
    """
    agent = options["servers"].split(",")[0]
    answers: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = httpx.request(
                self.command,
                f"{agent}{self.path}",
                content=body,
                headers={"content-type": "application/json"},
            )
            if self.path.endswith("/commit"):
                answers.append(answer.text)
                if len(answers) == 1:
                    self.close_connection = True
                    return
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = _pass_on  # noqa: N815 - the server looks for these names

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}", answers
        server.shutdown()
        serving.join()


def test_a_commit_whose_answer_is_lost_is_repeated_and_writes_once(
    query: Query,
    topic: Topic,
    other_topic: Topic,
    bootstrap: str,
    forgetful_agent: tuple[str, list[str]],
) -> None:
    address, answers = forgetful_agent
    topic.send(range(20))
    topic.send(range(20), partition=1)

    query(servers=address)

    assert answers == ['{"committed":"now"}', '{"committed":"before"}']
    assert records(bootstrap, other_topic.name) == sent(range(20), range(20))


def test_a_commit_after_the_transactions_ran_out_of_time_fails_and_the_replay_succeeds(
    query: Query,
    topic: Topic,
    other_topic: Topic,
    session: SparkSession,
    bootstrap: str,
) -> None:
    session.dataSource.register(LateSource)
    topic.send(range(20))
    topic.send(range(20), partition=1)

    with pytest.raises(
        PySparkException, match="transactions are not open any more, so nothing was committed"
    ):
        query(source="late", **{"kafka.transaction.timeout.ms": "3000"})
    after_failure = records(bootstrap, other_topic.name)
    query()

    assert after_failure == Counter()
    assert records(bootstrap, other_topic.name) == sent(range(20), range(20))


def test_a_query_that_takes_the_name_of_an_older_one_ends_it_with_a_clear_error(
    query: Query, topic: Topic, other_topic: Topic, bootstrap: str
) -> None:
    topic.send(range(5))
    older = query(checkpoint="older", drains=False)
    wait_until(lambda: records(bootstrap, other_topic.name) == sent(range(5)))

    newer = query(checkpoint="newer", drains=False)
    wait_until(lambda: records(bootstrap, other_topic.name) == sent(range(5)) + sent(range(5)))
    topic.send(range(5, 8))
    wait_until(lambda: not older.isActive, 120)

    assert "Another writer has taken the name 'copy'" in str(older.exception())
    assert newer.isActive
    wait_until(lambda: records(bootstrap, other_topic.name) == sent(range(5)) + sent(range(8)), 120)


def run_program(directory: Path, log_name: str, asked: dict[str, Any]) -> int:
    """Runs a driver as a process. Returns its exit status."""
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = (sys.executable, "-m", "tests.spark_source.sink_program", json.dumps(asked))
    with child(command, directory / log_name, environment) as process:
        return process.wait(500)


@pytest.fixture
def asked(topic: Topic, other_topic: Topic, options: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    """What the program copies, and how."""
    return {
        "conf": {"spark.master": "local[2,3]"},
        "source": "tidelog",
        "reader": {**options, "topic": topic.name, "startingOffsets": "earliest", "minPartitions": "2"},
        "writer": {**options, "topic": other_topic.name, "kafka.transactional.id": "copy"},
        "checkpoint": str(tmp_path / "checkpoint"),
    }


@pytest.mark.faults
def test_a_driver_that_is_killed_after_the_commit_of_the_sink_writes_nothing_twice(
    asked: dict[str, Any], topic: Topic, other_topic: Topic, bootstrap: str, tmp_path: Path
) -> None:
    topic.send(range(20))
    topic.send(range(20), partition=1)

    killed = run_program(tmp_path, "killed.log", {**asked, "source": "dying"})
    logged = list((tmp_path / "checkpoint" / "commits").glob("0"))
    restarted = run_program(tmp_path, "restarted.log", asked)

    assert killed != 0
    assert logged == []
    assert restarted == 0, (tmp_path / "restarted.log").read_text()[-2_000:]
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()
    assert records(bootstrap, other_topic.name, "read_uncommitted").total() == 80
    assert records(bootstrap, other_topic.name) == sent(range(20), range(20))


@pytest.mark.faults
def test_of_two_attempts_at_a_task_that_run_at_the_same_time_one_counts(
    asked: dict[str, Any], topic: Topic, other_topic: Topic, bootstrap: str, tmp_path: Path
) -> None:
    """Spark's speculation, on two executors: a second attempt overtakes one that is slow."""
    topic.send(range(20))
    topic.send(range(20), partition=1)
    speculation = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1",
        "spark.speculation.efficiency.enabled": "false",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    slow = {"failure": "is slow", "marker": str(tmp_path / "attempt")}

    status = run_program(
        tmp_path,
        "speculation.log",
        {**asked, "conf": speculation, "source": "failing", "writer": {**asked["writer"], **slow}},
    )

    assert status == 0, (tmp_path / "speculation.log").read_text()[-2_000:]
    assert {file.name for file in tmp_path.glob("attempt-*")} == {"attempt-0", "attempt-1"}
    assert records(bootstrap, other_topic.name, "read_uncommitted").total() > 40
    assert records(bootstrap, other_topic.name) == sent(range(20), range(20))
