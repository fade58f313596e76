"""`tidelog sql --fresh` adds committed records alone, with both engines."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark_source.conftest import Topic
from tests.spark_source.test_transactions import Producer, write_all_sorts
from tests.support.stack import HERE
from tests.tidelog.sql.conftest import Run, lines
from tidelog.devstack.stack import Stack, StackSettings

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stack(module_directory: Path) -> Iterator[Stack]:
    with Stack(StackSettings(environment=HERE, data_dir=module_directory / "stack")) as stack:
        yield stack


def test_fresh_reads_up_to_the_first_open_transaction_without_aborted_ones(
    run: Run, new_topic: Callable[[], Topic], stack: Stack
) -> None:
    topic = new_topic()
    producer = Producer(stack.agents[0].address.bootstrap, topic)
    producer.send("before", 2)
    producer.commit()
    asyncio.run(topic.compact())
    wanted = [0, 1, *(3 + offset for offset in write_all_sorts(topic, producer))]
    text = f'SELECT offset FROM "{topic.name}" ORDER BY offset'

    while_open = _offsets(run, text)
    producer.commit()

    assert while_open == {"duckdb": wanted, "spark": wanted}
    last = [*wanted, 18, 19, 20]
    assert _offsets(run, text) == {"duckdb": last, "spark": last}


def _offsets(run: Run, text: str) -> dict[str, list[int]]:
    return {
        engine: [row["offset"] for row in lines(run("--format", "json", "--fresh", "--engine", engine, text))]
        for engine in ("duckdb", "spark")
    }
