"""Readers of a compacted topic: its table and `--fresh` give the last record of each key, the data source
gives the log."""

import asyncio
from collections.abc import Callable

import confluent_kafka
import confluent_kafka.admin
import pytest

from spark_source.agents import Agents
from spark_source.planning import ReadContext, plan_reads
from spark_source.reading import read_task
from spark_source.settings import SourceSettings
from spark_source.window import Window
from tests.spark_source.conftest import Topic
from tests.tidelog.sql.conftest import Run, lines
from tidelog.devstack.stack import Stack
from tidelog.process.environment import Environment

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

ALL = 'SELECT partition, offset, decode(value) AS value FROM "{}" ORDER BY partition, offset'
Found = list[tuple[int, int, str]]


def send(stack: Stack, topic: Topic, *pairs: tuple[str, str | None], partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": stack.agents[0].address.bootstrap})
    for key, value in pairs:
        producer.produce(topic.name, key=key, value=value, partition=partition)
    assert producer.flush(60) == 0


def compact_by_key(topic: Topic) -> None:
    """No agent cleans the topic meanwhile."""
    configure(topic, ("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "1"))


def configure(topic: Topic, *configs: tuple[str, str]) -> None:
    resource = confluent_kafka.admin.ConfigResource("topic", topic.name)
    for name, value in configs:
        resource.add_incremental_config(
            confluent_kafka.admin.ConfigEntry(
                name, value, incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
            )
        )
    topic.admin.incremental_alter_configs([resource])[resource].result(30)


def rows(run: Run, topic: Topic, *options: str, engine: str = "duckdb") -> Found:
    text = ALL.format(topic.name)
    if engine == "spark":
        text = text.replace("decode(value)", "decode(value, 'utf-8')")
    found = lines(run("--format", "json", "--engine", engine, *options, text))
    return [(row["partition"], row["offset"], row["value"]) for row in found]


def logged(environment: Environment, topic: Topic) -> list[tuple[int, int]]:
    """The partitions and offsets that the data source's tasks read."""
    settings = environment.read(SourceSettings)
    agents = Agents(settings)
    found: list[tuple[int, int]] = []
    context = ReadContext(settings=settings, columns=("offset",), window=Window(), fail_on_data_loss=True)
    for partition, ends in agents.topic(topic.name).partitions.items():
        pieces = list(agents.pieces(topic.name, partition, ends.first_offset, ends.end_offset))
        tasks = plan_reads({(topic.name, partition): pieces}, task_bytes=1 << 20, min_partitions=1)
        found += [
            (partition, offset)
            for task in tasks
            for batch in read_task(context, task)
            for offset in batch.column("offset").to_numpy().tolist()
        ]
    return sorted(found)


def test_fresh_is_the_state_and_the_data_source_is_the_log(
    run: Run,
    new_topic: Callable[[], Topic],
    stack: Stack,
    environment: Environment,
) -> None:
    topic = new_topic()
    send(stack, topic, ("a", "a0"), ("b", "b1"), ("a", "a2"), ("c", "c3"))
    asyncio.run(topic.compact())
    appended = rows(run, topic)
    compact_by_key(topic)
    send(stack, topic, ("b", None), ("d", "d5"))
    send(stack, topic, ("a", "other"), partition=1)
    asyncio.run(topic.compact())
    stated = rows(run, topic)
    log = logged(environment, topic)
    send(stack, topic, ("c", None), ("b", "b7"), ("e", "e8"), ("e", "e9"), ("f", "f10"), ("f", None))
    fresh = rows(run, topic, "--fresh")

    assert appended == [(0, 0, "a0"), (0, 1, "b1"), (0, 2, "a2"), (0, 3, "c3")]
    assert stated == [(0, 2, "a2"), (0, 3, "c3"), (0, 5, "d5"), (1, 0, "other")]
    assert fresh == [(0, 2, "a2"), (0, 5, "d5"), (0, 7, "b7"), (0, 9, "e9"), (1, 0, "other")]
    assert rows(run, topic, "--fresh", engine="spark") == fresh
    assert log == [*((0, offset) for offset in range(6)), (1, 0)]
    assert logged(environment, topic) == [*((0, offset) for offset in range(12)), (1, 0)]


def test_fresh_of_a_topic_without_a_table_is_its_state(
    run: Run, new_topic: Callable[[], Topic], stack: Stack
) -> None:
    topic = new_topic()
    compact_by_key(topic)
    send(stack, topic, ("a", "a0"), ("b", "b1"), ("a", "a2"), ("b", None))
    for engine in ("duckdb", "spark"):
        assert rows(run, topic, "--fresh", engine=engine) == [(0, 2, "a2")]


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_fresh_has_all_new_records_of_a_topic_that_is_compacted_no_more(
    run: Run, new_topic: Callable[[], Topic], stack: Stack, engine: str
) -> None:
    topic = new_topic()
    compact_by_key(topic)
    send(stack, topic, ("a", "a0"), ("b", "b1"))
    asyncio.run(topic.compact())
    configure(topic, ("cleanup.policy", "delete"))
    send(stack, topic, ("a", "a2"), ("a", "a3"))

    assert rows(run, topic, "--fresh", engine=engine) == [
        (0, 0, "a0"),
        (0, 1, "b1"),
        (0, 2, "a2"),
        (0, 3, "a3"),
    ]
