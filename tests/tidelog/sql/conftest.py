"""A stack with topics, one of them compacted once for all tests, and the command as a person runs it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spark_compaction.compact import compact_topics
from spark_compaction.settings import CompactionSettings
from spark_source.settings import SourceSettings
from tests.spark_source.conftest import Topic
from tests.support.stack import HERE
from tidelog.cli import app
from tidelog.devstack.stack import Stack
from tidelog.process.environment import Environment
from tidelog.sql.choose_engine import SqlSession
from tidelog.sql.settings import SqlSettings

Run = Callable[..., Result]
COMPACTED = 300
IN_THE_TAIL = 40


@pytest.fixture(scope="module")
def environment(stack: Stack) -> Environment:
    return HERE.with_variables(stack.addresses.as_environment())


@pytest.fixture(scope="module")
def settings(environment: Environment) -> SqlSettings:
    return environment.read(SqlSettings)


@pytest.fixture(scope="module")
def compaction(environment: Environment) -> CompactionSettings:
    return environment.read(CompactionSettings)


@pytest.fixture(scope="module")
def new_topic(stack: Stack, compaction: CompactionSettings) -> Iterator[Callable[[], Topic]]:
    made: list[Topic] = []

    def make() -> Topic:
        made.append(Topic(stack.agents[0].address.bootstrap, compaction))
        return made[-1]

    yield make
    for topic in made:
        topic.admin.delete_topics([topic.name])[topic.name].result(30)


@pytest.fixture(scope="module")
def topic(new_topic: Callable[[], Topic], spark: None, compaction: CompactionSettings) -> Topic:  # noqa: ARG001
    """Two partitions with COMPACTED records each in history, in two files, and more in the log alone."""
    topic = new_topic()
    for half in (range(COMPACTED // 2), range(COMPACTED // 2, COMPACTED)):
        for partition in (0, 1):
            topic.send(half, partition)
        assert not compact_topics(compaction, [topic.name]).topics[0].failed
    topic.send(range(COMPACTED, COMPACTED + IN_THE_TAIL), partition=1)
    return topic


@pytest.fixture(scope="module")
def session(settings: SqlSettings, environment: Environment) -> Iterator[SqlSession]:
    with SqlSession(settings, lambda: environment.read(SourceSettings), lambda _: None) as running:
        yield running


@pytest.fixture
def run(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("SELECT 1")` as `tidelog sql` runs it."""
    for name, value in environment.variables.items():
        monkeypatch.setenv(name, value)

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, ["sql", *arguments], input=stdin)

    return invoke


def lines(result: Result) -> list[dict[str, Any]]:
    """The rows of an answer in JSON."""
    assert result.exit_code == 0, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]
