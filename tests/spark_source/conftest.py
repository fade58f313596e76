"""A running stack, a Spark session that finds the source by its name, and topics with records."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.types import StructType

from pyspark_tidelog import DefaultSource
from spark_compaction.compact import compact_topics
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_source.source import Reader, StreamReader, TidelogSource
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack

FIRST_MS = 1_700_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_numbers = count()


@pytest.fixture(scope="module")
def compaction(stack: Stack) -> CompactionSettings:
    return HERE.with_variables(stack.addresses.as_environment()).read(CompactionSettings)


@pytest.fixture(scope="module")
def session(spark: None, compaction: CompactionSettings) -> SparkSession:  # noqa: ARG001 - Spark runs
    return spark_session(compaction)


@pytest.fixture(scope="module")
def options(compaction: CompactionSettings) -> dict[str, str]:
    """How a reader reaches the stack."""
    assert compaction.s3_access_key is not None
    assert compaction.s3_secret_key is not None
    return {
        "servers": compaction.http_url,
        "storeUrl": compaction.store_url,
        "s3AccessKey": compaction.s3_access_key,
        "s3SecretKey": compaction.s3_secret_key.get_secret_value(),
    }


@pytest.fixture
def read(session: SparkSession, options: dict[str, str]) -> Callable[..., DataFrameReader]:
    return lambda topic, **more: session.read.format("tidelog").options(**{**options, "topic": topic, **more})


@pytest.fixture
def stream(session: SparkSession, options: dict[str, str]) -> Callable[..., DataStreamReader]:
    def reading(topic: str, **more: str) -> DataStreamReader:
        return session.readStream.format("tidelog").options(**{**options, "topic": topic, **more})

    return reading


@pytest.fixture
def source(spark: None, options: dict[str, str]) -> Callable[..., TidelogSource]:  # noqa: ARG001 - parses DDL
    """The source as Spark's Python worker makes it."""
    return lambda topic, **more: DefaultSource({**options, "topic": topic, **more})


def schema_of(source: TidelogSource) -> StructType:
    found = StructType.fromDDL(source.schema())
    assert isinstance(found, StructType)
    return found


def read_all(reader: Reader | StreamReader, partitions: Sequence[InputPartition]) -> list[int]:
    """The offsets of all rows, in the order in which the tasks return them."""
    return [
        offset
        for partition in partitions
        for rows in reader.read(partition)
        for offset in rows.column("offset").to_pylist()
    ]


def _refuse_failures(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
    if error is not None:
        raise confluent_kafka.KafkaException(error)  # out of `flush`


class Topic:
    """A topic with two partitions. What is sent to it is what must be read."""

    def __init__(self, bootstrap: str, compaction: CompactionSettings, name: str | None = None) -> None:
        self.name = name or f"source-{next(_numbers)}"
        self._bootstrap = bootstrap
        self._compaction = compaction
        self.admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        self.create()

    def create(self) -> None:
        keep = {"retention.ms": "-1"}  # the records' times are long ago
        new = confluent_kafka.admin.NewTopic(self.name, 2, config=keep)
        self.admin.create_topics([new])[self.name].result(30)

    def send(self, numbers: Iterable[int], partition: int = 0) -> None:
        """Record `n` has the value `value-n` and a timestamp n milliseconds after the first."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True}
        )
        for number in numbers:
            producer.produce(
                self.name,
                key=None if number % 5 == 0 else f"key-{number}",
                value=None if number % 7 == 0 else f"value-{number}",
                partition=partition,
                timestamp=FIRST_MS + number,
                headers=[("n", str(number)), ("n", None)] if number % 3 == 0 else [],
                on_delivery=_refuse_failures,
            )
        assert producer.flush(60) == 0

    async def compact(self, **changes: int) -> None:
        settings = self._compaction.model_copy(update=changes)
        report = await asyncio.to_thread(compact_topics, settings, [self.name])
        assert not report.topics[0].failed

    def delete_records(self, end: int, partition: int = 0) -> None:
        before = confluent_kafka.TopicPartition(self.name, partition, end)
        self.admin.delete_records([before])[before].result(30)


@pytest.fixture
def bootstrap(stack: Stack) -> str:
    return stack.agents[0].address.bootstrap


@pytest.fixture
def new_topic(bootstrap: str, compaction: CompactionSettings) -> Iterator[Callable[[], Topic]]:
    made: list[Topic] = []

    def make() -> Topic:
        made.append(Topic(bootstrap, compaction))
        return made[-1]

    yield make
    for topic in made:
        topic.admin.delete_topics([topic.name])[topic.name].result(30)


@pytest.fixture
def topic(new_topic: Callable[[], Topic]) -> Topic:
    return new_topic()


@pytest.fixture
def other_topic(new_topic: Callable[[], Topic]) -> Topic:
    return new_topic()


def expected(number: int, offset: int, partition: int = 0) -> tuple[Any, ...]:
    """The row of record `number`."""
    return (
        partition,
        offset,
        time_of(number),
        0,
        None if number % 5 == 0 else f"key-{number}".encode(),
        None if number % 7 == 0 else f"value-{number}".encode(),
        [("n", str(number).encode()), ("n", None)] if number % 3 == 0 else [],
    )


def time_of(number: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=FIRST_MS + number)


def collected(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Spark's rows in (partition, offset) order, with times in UTC."""
    found = [
        (
            row["partition"],
            row["offset"],
            row["timestamp"].astimezone(UTC),
            row["timestamp_type"],
            row["key"] and bytes(row["key"]),
            row["value"] and bytes(row["value"]),
            [(header["key"], header["value"] and bytes(header["value"])) for header in row["headers"]],
        )
        for row in rows
    ]
    return sorted(found, key=lambda row: row[:2])
