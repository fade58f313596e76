"""`tidelog sql` by DuckDB, on a running stack."""

import asyncio
import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_compaction.compact import compact_topics
from spark_compaction.settings import CompactionSettings
from spark_source.settings import SourceSettings
from storage.identifiers import ObjectKey
from storage.stores.open_store import open_store
from tests.spark_source.conftest import Topic, expected
from tests.tidelog.sql.conftest import COMPACTED, IN_THE_TAIL, Run, lines
from tidelog.errors import UserError
from tidelog.process.environment import Environment
from tidelog.sql.choose_engine import Ask, EngineChoice, SqlSession
from tidelog.sql.engine import StatementFailed
from tidelog.sql.settings import SqlSettings
from tidelog.sql.statements import Statement

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

BY_DUCKDB = Ask(engine=EngineChoice.DUCKDB)


def statement(text: str) -> Statement:
    return Statement(text=text, is_ended=True)


def ask(session: SqlSession, text: str, how: Ask = BY_DUCKDB) -> list[tuple[Any, ...]]:
    """The rows, and no engine left at work."""
    run = session.ask(statement(text), how)
    try:
        batches = list(run.answer().batches)
    finally:
        run.stop()
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_history_is_what_was_produced(session: SqlSession, topic: Topic) -> None:
    session.begin()
    found = ask(session, f'SELECT * FROM topics."{topic.name}" ORDER BY partition, offset')

    rows = [
        (*row[:6], [(header["key"], header["value"]) for header in row[6]])
        for row in found
    ]  # fmt: skip
    assert rows == [expected(n, n, partition) for partition in (0, 1) for n in range(COMPACTED)]


def test_fresh_adds_the_newest_records_once(run: Run, topic: Topic) -> None:
    text = f'SELECT partition, count(*) AS n, max(offset) AS last FROM "{topic.name}" GROUP BY 1 ORDER BY 1'

    history = lines(run("--format", "json", text))
    fresh = lines(run("--format", "json", "--fresh", text))

    assert [row["n"] for row in history] == [COMPACTED, COMPACTED]
    assert [(row["n"], row["last"]) for row in fresh] == [
        (COMPACTED, COMPACTED - 1),
        (COMPACTED + IN_THE_TAIL, COMPACTED + IN_THE_TAIL - 1),
    ]


def test_fresh_reads_a_topic_that_has_no_history(run: Run, new_topic: Callable[[], Topic]) -> None:
    young = new_topic()
    young.send(range(1, 4))
    text = f'SELECT offset, CAST(value AS STRING) AS value FROM "{young.name}" ORDER BY offset'

    without = run(text)
    found = lines(run("--format", "json", "--fresh", text))

    assert without.exit_code == 1
    assert isinstance(without.exception, UserError)
    assert f"tidelog compact {young.name}" in str(without.exception)
    assert [row["value"] for row in found] == ["value-1", "value-2", "value-3"]


def test_no_record_is_twice_or_missing_while_a_producer_and_a_compaction_run(
    session: SqlSession, new_topic: Callable[[], Topic], compaction: CompactionSettings
) -> None:
    busy = new_topic()
    acknowledged = 0
    stop = threading.Event()

    def produce() -> None:
        nonlocal acknowledged
        while not stop.is_set():
            busy.send(range(acknowledged, acknowledged + 50))
            acknowledged += 50

    def compact() -> None:
        while not stop.is_set():
            compact_topics(compaction, [busy.name])

    threads = [threading.Thread(target=work) for work in (produce, compact)]
    for thread in threads:
        thread.start()
    sizes: set[int] = set()
    counts: list[int] = []
    try:
        until = time.monotonic() + 60
        while (len(sizes) < 4 or len(counts) < 10) and time.monotonic() < until:
            before = acknowledged
            session.begin()
            [(count, distinct, first, last)] = ask(
                session,
                f'SELECT count(*), count(DISTINCT offset), min(offset), max(offset) FROM "{busy.name}"',
                Ask(engine=EngineChoice.DUCKDB, fresh=True),
            )
            after = acknowledged + 50
            assert count == distinct == (0 if last is None else last + 1)
            assert first in (0, None)
            assert before <= count <= after
            counts.append(count)
            sizes.add(len(session.catalog.table(busy.name, or_topic=True).files))
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)

    assert len(sizes) >= 2, "no compaction was published meanwhile"
    assert counts == sorted(counts)


def test_statements_of_a_call_see_one_snapshot(
    session: SqlSession, new_topic: Callable[[], Topic], compaction: CompactionSettings
) -> None:
    topic = new_topic()
    topic.send(range(10))
    compact_topics(compaction, [topic.name])
    count = f'SELECT count(*) FROM "{topic.name}"'

    session.begin()
    before = ask(session, count)
    topic.send(range(10, 25))
    compact_topics(compaction, [topic.name])
    same_call = ask(session, count)
    session.begin()
    next_call = ask(session, count)

    assert (before, same_call, next_call) == ([(10,)], [(10,)], [(25,)])


def test_filters_leave_files_out(session: SqlSession, topic: Topic) -> None:
    session.begin()

    def words(condition: str) -> str:
        run = session.ask(statement(f'SELECT count(*) FROM "{topic.name}" WHERE {condition}'), BY_DUCKDB)
        reason = run.answer().reason
        run.stop()
        return reason

    assert "of 4 files" in words("true")
    assert "reads 2 of 4 files" in words("partition = 1")
    assert "reads 1 of 4 files" in words(f"partition = 1 AND offset >= {COMPACTED - 1}")
    assert "reads 0 of 4 files" in words("timestamp > now() - INTERVAL 1 HOUR")
    assert ask(session, f'SELECT count(*) FROM "{topic.name}" WHERE partition = 7') == [(0,)]


def test_formats_show_text_as_text_and_parquet_keeps_bytes(run: Run, topic: Topic, tmp_path: Path) -> None:
    columns = "key, value, headers, '\\xFF\\x00'::BLOB AS raw"
    text = f'SELECT {columns} FROM "{topic.name}" WHERE offset = 6 LIMIT 1'
    path = tmp_path / "answer.parquet"

    [as_json] = lines(run("--format", "json", text))
    as_csv = list(csv.reader(io.StringIO(run("--format", "csv", text).stdout)))
    as_table = run(text).stdout
    to_file = run("--format", "parquet", "--output", str(path), text)

    headers = [{"key": "n", "value": "6"}, {"key": "n", "value": None}]
    assert as_json == {"key": "key-6", "value": "value-6", "headers": headers, "raw": {"hex": "ff00"}}
    assert as_csv == [["key", "value", "headers", "raw"], ["key-6", "value-6", json.dumps(headers), "0xff00"]]
    assert "value-6" in as_table
    assert to_file.exit_code == 0
    [row] = pq.read_table(path).to_pylist()
    assert (row["key"], row["value"], row["raw"]) == (b"key-6", b"value-6", b"\xff\x00")
    assert [each.name for each in tmp_path.iterdir()] == ["answer.parquet"]


def test_statements_come_from_a_file_or_from_standard_input(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "statements.sql"
    file.write_text("SELECT 1 AS a; -- one;\nSELECT ';' AS b")

    from_file = lines(run("--format", "json", "-f", str(file)))
    from_stdin = lines(run("--format", "json", "-f", "-", stdin="SELECT 3 AS c;"))

    assert from_file == [{"a": 1}, {"b": ";"}]
    assert from_stdin == [{"c": 3}]


def test_the_answer_says_which_engine_and_why(run: Run, topic: Topic) -> None:
    result = run("--format", "csv", f'SELECT count(*) FROM topics."{topic.name}"')

    assert "1 row by duckdb in " in result.stderr
    assert "reads 4 of 4 files" in result.stderr
    assert result.stdout == f"count_star()\n{2 * COMPACTED}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT * FROM topics.sorce_1", "There is no topic 'sorce_1'"),
        ("SELECT * FROM nosuch.flights", "There is no namespace 'nosuch'"),
        ("SELECT 1 FROM WHERE", 'syntax error at or near "WHERE"'),
        ("SELECT\n  nocolumn\nFROM range(3)", "LINE 2:"),
        ("SELECT 1/(SELECT 1 UNION ALL SELECT 2)", "More than one row"),
    ],
)
def test_errors_say_what_to_do(run: Run, text: str, words: str) -> None:
    result = run("--engine", "duckdb", text)

    assert result.exit_code == 1
    assert isinstance(result.exception, UserError)
    assert words in str(result.exception)


def test_an_unknown_table_names_the_nearest(run: Run, topic: Topic) -> None:
    result = run(f'SELECT * FROM "{topic.name.replace("o", "0")}"')

    assert isinstance(result.exception, UserError)
    assert f'Did you mean "{topic.name}"?' in str(result.exception)


@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 1) TO '{path}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{path}'",
        "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
        "ATTACH '{path}' AS other",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO topics.t VALUES (1)",
        "DROP VIEW topics.t",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "RESET enable_external_access",
        "PRAGMA enable_profiling",
        "EXPORT DATABASE '{path}'",
        "USE memory",
        "CALL pragma_version()",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_parquet('tidelog://tidelog/segments/x')",
        "SELECT * FROM read_parquet('https://example.org/x.parquet')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT getenv('HOME')",
        "SELECT 1; DROP TABLE x",
        "WITH x AS (SELECT * FROM read_json('/etc/passwd')) FROM x",
        "FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
        "SELECT * FROM statements_of_this_test",
    ],
)
def test_statements_neither_write_nor_read_files(session: SqlSession, text: str, tmp_path: Path) -> None:
    statements_of_this_test = [1, 2, 3]
    path = tmp_path / "written"

    with pytest.raises(StatementFailed):
        ask(session, text.format(path=path))

    assert not path.exists()
    assert statements_of_this_test


def test_a_large_answer_comes_in_bounded_memory(
    environment: Environment, topic: Topic, tmp_path: Path
) -> None:
    rows = 1_000_000
    text = f'SELECT i, key, value FROM range({rows}) t(i) CROSS JOIN (SELECT * FROM "{topic.name}" LIMIT 1)'
    sizes = []

    def peak(form: str, statement: str) -> int:
        path = tmp_path / f"answer.{form}"
        arguments = [
            sys.executable,
            "-m",
            "tidelog",
            "sql",
            "--format",
            form,
            "--output",
            str(path),
            statement,
        ]
        process = subprocess.Popen(
            arguments, env={**os.environ, **environment.variables}, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        with path.open() as file:
            sizes.append(sum(1 for _ in file))
        return used.ru_maxrss

    small = peak("csv", f"{text} LIMIT 10")
    large = {form: peak(form, text) for form in ("csv", "json")}

    assert sizes == [11, rows + 1, rows]
    assert all(size - small < 100 << 10 for size in large.values()), (small, large)  # KiB


def test_a_statement_that_takes_too_long_is_cancelled(
    environment: Environment, settings: SqlSettings
) -> None:
    short = settings.model_copy(update={"sql_timeout_s": 1.0})
    with SqlSession(short, lambda: environment.read(SourceSettings), lambda _: None) as session:
        began = time.monotonic()
        with pytest.raises(StatementFailed, match="longer than 1 s"):
            ask(
                session,
                "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 7",
            )

        assert time.monotonic() - began < 20
        assert ask(session, "SELECT 1") == [(1,)]


def test_ctrl_c_ends_the_command_with_its_status(environment: Environment, tmp_path: Path) -> None:
    path = tmp_path / "answer.csv"
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 7"
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "sql", "--format", "csv", "-o", str(path), f"SELECT 1; {endless}"],
        env={**os.environ, **environment.variables},
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert b"1 row by duckdb" in process.stderr.readline()
    time.sleep(1)

    process.send_signal(signal.SIGINT)

    assert process.wait(30) == 130
    process.stderr.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_an_error_that_says_so(
    session: SqlSession,
    new_topic: Callable[[], Topic],
    compaction: CompactionSettings,
    settings: SqlSettings,
) -> None:
    topic = new_topic()
    topic.send(range(20))
    compact_topics(compaction, [topic.name])
    session.begin()
    table = session.catalog.table(topic.name)  # the snapshot that the statement will read

    async def take(put_back: dict[ObjectKey, bytes]) -> dict[ObjectKey, bytes]:
        store = await open_store(settings.store_url, settings)
        for key, data in put_back.items():
            await store.put(key, [data])
        taken = {file.key: bytes(await store.get(file.key)) for file in table.files}
        if not put_back:
            await store.delete(list(taken))
        await store.close()
        return taken

    taken = asyncio.run(take({}))
    try:
        with pytest.raises(StatementFailed, match="Run it again"):
            ask(session, f'SELECT max(value) FROM "{topic.name}"')
    finally:
        asyncio.run(take(taken))  # the stack is others' too

    assert ask(session, f'SELECT count(value) FROM "{topic.name}"') == [(17,)]


def test_no_agent_is_an_error_that_names_the_setting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_HTTP_URL", "http://127.0.0.1:1")

    result = run("SELECT * FROM topics.flights")

    assert isinstance(result.exception, UserError)
    assert "correct TIDELOG_HTTP_URL" in str(result.exception)
