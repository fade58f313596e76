"""The history of a tenant's topic with the longest name there is, from compaction to SQL: an operator reads
`topics."<tenant>~<topic>"`.
"""

import asyncio
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from sequencer.client import Sequencer, SequencerSettings
from sequencer.tenants.tenant_limits import TenantLimits
from spark_compaction.compact import compact_topics
from spark_compaction.settings import CompactionSettings
from tests.spark_source.conftest import Topic
from tests.tidelog.sql.conftest import Run, lines
from tidelog.cli import app
from tidelog.devstack.stack import Stack

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TENANT = "t" * 63
LONGEST = f"{TENANT}~{'Orders.' * 35}2026"
RECORDS, IN_THE_TAIL = 20, 5


@pytest.fixture(scope="module")
def tenants_topic(stack: Stack, spark: None, compaction: CompactionSettings) -> Iterator[Topic]:  # noqa: ARG001
    async def make_tenant() -> None:
        sequencer = await Sequencer.open(stack.addresses.database_url, SequencerSettings())
        try:
            await sequencer.tenants.create(TENANT, [], TenantLimits())
        finally:
            await sequencer.close()

    asyncio.run(make_tenant())
    topic = Topic(stack.agents[0].address.bootstrap, compaction, LONGEST)
    topic.send(range(RECORDS))
    assert not compact_topics(compaction, [topic.name]).topics[0].failed
    topic.send(range(RECORDS, RECORDS + IN_THE_TAIL))
    yield topic
    topic.admin.delete_topics([topic.name])[topic.name].result(30)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
@pytest.mark.parametrize("fresh", [False, True], ids=["history", "fresh"])
def test_history_of_a_tenants_topic_is_read_by_its_full_name(
    run: Run, tenants_topic: Topic, engine: str, fresh: bool
) -> None:
    statement = f'SELECT count(*) AS n, max("offset") AS last FROM topics."{tenants_topic.name}"'
    if engine == "spark":
        statement = statement.replace('"offset"', "`offset`").replace('"', "`")
    found = run("--engine", engine, *(["--fresh"] if fresh else []), "--format", "json", statement)

    records = RECORDS + IN_THE_TAIL * fresh
    assert lines(found) == [{"n": records, "last": records - 1}]


@pytest.mark.parametrize(
    ("engine", "options"),
    [("duckdb", []), ("duckdb", ["--fresh"]), ("spark", [])],
    ids=["duckdb", "duckdb-fresh", "spark"],
)
def test_a_tenants_table_is_read_in_the_namespace_of_the_tenant(
    run: Run, tenants_topic: Topic, engine: str, options: list[str]
) -> None:
    local = tenants_topic.name.removeprefix(f"{TENANT}~")
    # The table's own name, and the namespace, are names for its columns.
    statement = f'SELECT count("{local}"."offset") AS n FROM "{TENANT}"."{local}"'
    if engine == "spark":
        statement = statement.replace('"', "`")
    found = run("--engine", engine, *options, "--format", "json", statement)

    assert lines(found) == [{"n": RECORDS + IN_THE_TAIL * bool(options)}]


def test_spark_says_how_to_name_a_tenants_topic_with_fresh(run: Run, tenants_topic: Topic) -> None:
    local = tenants_topic.name.removeprefix(f"{TENANT}~")
    found = run("--engine", "spark", "--fresh", f"SELECT 1 FROM `{TENANT}`.`{local}`")

    assert found.exit_code != 0
    assert "by its full name" in str(found.exception)


@pytest.mark.parametrize("name", [f'"{TENANT}".missing', "nobody.missing"])
@pytest.mark.usefixtures("tenants_topic")
def test_an_unknown_table_or_namespace_is_an_error_that_says_so(run: Run, name: str) -> None:
    found = run("--engine", "duckdb", f"SELECT 1 FROM {name}")

    assert found.exit_code != 0
    assert ("There is no topic" if TENANT in name else "There is no namespace 'nobody'") in str(
        found.exception
    )


@pytest.mark.parametrize(
    "command",
    [("topics", "describe"), ("history", "show"), ("compact",), ("ttl",)],
    ids=lambda command: command[0],
)
def test_commands_of_operators_take_the_full_name(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tenants_topic: Topic, command: tuple[str, ...]
) -> None:
    for name, value in stack.addresses.as_environment().items():
        monkeypatch.setenv(name, value)

    found = CliRunner().invoke(app, [*command, tenants_topic.name])

    assert found.exit_code == 0, (found.output, found.exception)
