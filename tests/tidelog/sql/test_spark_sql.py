"""`tidelog sql` by Spark: the same answers as DuckDB's, and what DuckDB leaves to Spark."""

from typing import Any

import pytest

from spark_source.settings import SourceSettings
from tests.spark_source.conftest import Topic
from tests.tidelog.sql.conftest import COMPACTED, IN_THE_TAIL
from tidelog.process.environment import Environment
from tidelog.sql.choose_engine import Ask, EngineChoice, SqlSession
from tidelog.sql.duckdb_engine import DuckDBEngine
from tidelog.sql.engine import StatementFailed
from tidelog.sql.settings import SqlSettings
from tidelog.sql.spark_engine import SparkEngine
from tidelog.sql.statements import Statement

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

BY_SPARK = Ask(engine=EngineChoice.SPARK)


def ask(session: SqlSession, text: str, how: Ask = BY_SPARK) -> list[tuple[Any, ...]]:
    run = session.ask(Statement(text=text, is_ended=True), how)
    try:
        batches = list(run.answer().batches)
    finally:
        run.stop()
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def session(settings: SqlSettings, environment: Environment) -> SqlSession:
    """Its Spark is that of all tests, which outlives it: so it is not closed."""
    return SqlSession(settings, lambda: environment.read(SourceSettings), lambda _: None)


@pytest.mark.parametrize("fresh", [False, True])
def test_both_engines_give_the_same_rows(session: SqlSession, topic: Topic, fresh: bool) -> None:
    session.begin()
    text = f'SELECT partition, offset, timestamp, key, value FROM topics."{topic.name}" ORDER BY 1, 2'

    by_spark = ask(session, text, Ask(engine=EngineChoice.SPARK, fresh=fresh))
    by_duckdb = ask(session, text, Ask(engine=EngineChoice.DUCKDB, fresh=fresh))

    assert len(by_spark) == 2 * COMPACTED + (IN_THE_TAIL if fresh else 0)
    assert by_spark == by_duckdb


def test_most_rows_are_read_and_one_more(session: SqlSession, topic: Topic) -> None:
    how = Ask(engine=EngineChoice.SPARK, most_rows=5)

    assert len(ask(session, f'SELECT * FROM "{topic.name}"', how)) == 6


def test_auto_leaves_to_spark_what_duckdb_does_not_know(session: SqlSession, topic: Topic) -> None:
    session.begin()
    run = session.ask(
        Statement(text=f"SELECT count(*) FROM \"{topic.name}\" WHERE value LIKE 'value-1%'", is_ended=True),
        Ask(engine=EngineChoice.AUTO),
    )
    answer = run.answer()
    run.stop()

    assert answer.engine == "spark"
    assert answer.reason.startswith("DuckDB: No function matches")


def test_auto_leaves_to_spark_what_is_large(
    environment: Environment, settings: SqlSettings, topic: Topic
) -> None:
    small = settings.model_copy(update={"sql_duckdb_bytes": 10})
    with_bound = SqlSession(small, lambda: environment.read(SourceSettings), lambda _: None)
    reasons = {}
    for text in (f'SELECT max(value) FROM "{topic.name}"', f'SELECT count(*) FROM "{topic.name}"'):
        run = with_bound.ask(Statement(text=text, is_ended=True), Ask(most_rows=10))
        answer = run.answer()
        run.stop()
        reasons[answer.engine] = answer.reason

    assert "more than TIDELOG_SQL_DUCKDB_BYTES" in reasons["spark"]
    assert "their footers" in reasons["duckdb"]


def test_a_statement_that_neither_understands_needs_no_spark(
    environment: Environment, settings: SqlSettings
) -> None:
    told: list[str] = []
    with (
        SqlSession(settings, lambda: environment.read(SourceSettings), told.append) as fresh_session,
        pytest.raises(StatementFailed, match='syntax error at or near "selec"'),
    ):
        ask(fresh_session, "selec 1", Ask())

    assert told == []


@pytest.mark.parametrize(
    "text",
    [
        "INSERT OVERWRITE DIRECTORY '{path}' USING csv SELECT 1",
        "WITH x AS (SELECT 1) INSERT INTO topics.t SELECT * FROM x",
        "FROM (SELECT 1 AS a) INSERT INTO topics.t SELECT a",
        "CREATE TABLE t (a INT) USING csv LOCATION '{path}'",
        "CREATE TABLE topics.t (a INT)",
        "CREATE TEMPORARY VIEW v AS SELECT 1",
        "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc/passwd')",
        "ADD JAR '/tmp/x.jar'",
        "SET spark.sql.runSQLOnFiles = true",
        "CACHE TABLE x AS SELECT 1",
        "DROP TABLE topics.t",
        "SELECT * FROM csv.`/etc/passwd`",
        "SELECT * FROM text.`/etc/passwd`",
        "TRUNCATE TABLE topics.t",
    ],
)
def test_statements_neither_write_nor_read_files(session: SqlSession, text: str, tmp_path: Any) -> None:
    path = tmp_path / "written"

    with pytest.raises(StatementFailed):
        ask(session, text.format(path=path))

    assert not path.exists()


def test_an_unknown_table_names_the_nearest(session: SqlSession, topic: Topic) -> None:
    with pytest.raises(StatementFailed, match=f'Did you mean "{topic.name}"'):
        ask(session, f'SELECT * FROM topics."{topic.name}0"')


def test_metadata_tables_are_sparks(session: SqlSession, topic: Topic) -> None:
    [(count,)] = ask(session, f'SELECT count(*) FROM topics."{topic.name}".files', Ask())

    assert count == 4


def test_a_statement_may_name_its_snapshot(session: SqlSession, topic: Topic) -> None:
    session.begin()
    table = f'topics."{topic.name}"'
    [first, *_] = ask(session, f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")

    [(count,)] = ask(session, f"SELECT count(*) FROM {table} VERSION AS OF {first[0]}")

    assert count == COMPACTED
    with pytest.raises(StatementFailed, match="Leave out --fresh"):
        ask(
            session,
            f"SELECT 1 FROM {table} VERSION AS OF {first[0]}",
            Ask(engine=EngineChoice.SPARK, fresh=True),
        )


def test_engines_are_named_as_the_option_names_them() -> None:
    assert {DuckDBEngine.name, SparkEngine.name} | {"auto"} == set(EngineChoice)
