"""Files are left out only if no row of them can pass: what DuckDB itself says about random conditions."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.sql.duckdb_engine import _scans
from tidelog.sql.scan_filters import Bounds, may_pass

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEW_YEAR_US = 1_767_225_600_000_000  # 2026-01-01
HOUR_US = 3_600_000_000


def bounds(**columns: tuple[int, int]) -> dict[str, Bounds]:
    return {name: Bounds(*pair) for name, pair in columns.items()}


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ("(partition = 3)", False),
        ("(partition = 2)", True),
        ("((offset >= 10) AND (offset <= 20))", True),
        ("((offset >= 21) AND (partition = 2))", False),
        (["(offset > 20)", "(key = 'x'::BLOB)"], False),
        ("(offset < 10)", False),
        ("(offset <= 10)", True),
        ("optional: (partition IN (1, 2))", True),
        ("optional: (partition IN (1, 3))", False),
        ("((partition = 1) OR (offset = 15))", True),
        ("((partition = 1) OR (offset = 25))", False),
        ("(timestamp >= '2026-01-01 02:00:00+00'::TIMESTAMP WITH TIME ZONE)", False),
        ("(timestamp < '2026-01-01 00:00:00.001+00'::TIMESTAMP WITH TIME ZONE)", True),
        ("(timestamp < '2025-12-31 23:00:00+00'::TIMESTAMP WITH TIME ZONE)", False),
        ("optional: Dynamic Filter (timestamp)", True),
        ("(timestamp = 'infinity'::TIMESTAMP WITH TIME ZONE)", True),
        ("(partition != 2)", True),
        ("(CAST(partition AS DECIMAL(11,1)) = 3.0)", True),
        ("(key = 'x) AND (partition = 3'::BLOB)", True),
        ("(key = 'it''s) AND (partition = 3'::BLOB)", True),
        ("(NOT (partition = 2))", True),
        ("", True),
        ([], True),
    ],
)
def test_filters_of_a_plan(filters: str | list[str], passes: bool) -> None:
    file = bounds(partition=(2, 2), offset=(10, 20), timestamp=(NEW_YEAR_US, NEW_YEAR_US + HOUR_US))

    assert may_pass(filters)(file) is passes


def test_a_file_without_bounds_is_always_needed() -> None:
    assert may_pass("((partition = 3) AND (offset = 5))")({})


@pytest.fixture(scope="module")
def planner() -> Any:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET disabled_optimizers = 'statistics_propagation,late_materialization'")
    connection.execute('CREATE TABLE t (partition INTEGER, "offset" BIGINT, timestamp TIMESTAMPTZ, key BLOB)')
    yield connection
    connection.close()


comparisons = st.one_of(
    st.builds(
        "partition {} {}".format, st.sampled_from(["=", "<>", "<", ">", "<=", ">="]), st.integers(0, 4)
    ),
    st.builds(
        '"offset" {} {}'.format, st.sampled_from(["=", "<>", "<", ">", "<=", ">="]), st.integers(-1, 9)
    ),
    st.builds('"offset" BETWEEN {} AND {}'.format, st.integers(0, 9), st.integers(0, 9)),
    st.builds("partition IN ({}, {})".format, st.integers(0, 4), st.integers(0, 4)),
    st.builds('partition + "offset" > {}'.format, st.integers(0, 9)),
    st.builds(
        "timestamp {} '2026-01-0{} 0{}:30:00+0{}'".format,
        st.sampled_from(["=", "<", ">", "<=", ">="]),
        st.integers(1, 3),
        st.integers(0, 9),
        st.integers(0, 2),
    ),
    st.sampled_from(
        [
            "timestamp IS NULL",
            "timestamp IS NOT NULL",
            "timestamp::date = '2026-01-02'",
            "date_trunc('day', timestamp) = '2026-01-02'",
            "key = 'a) AND (partition = 9'::BLOB",
            "key IS NOT NULL",
        ]
    ),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
    ),
    max_leaves=5,
)
rows = st.tuples(
    st.integers(0, 3),
    st.integers(0, 8),
    st.integers(0, 60),
    st.sampled_from([b"a", b"a) AND (partition = 9"]),
)


@settings(max_examples=300)
@given(conditions, st.lists(rows, min_size=1, max_size=8))
def test_a_row_that_passes_lies_in_a_file_that_is_needed(
    planner: Any, condition: str, found: list[tuple[int, int, int, bytes]]
) -> None:
    times = [EPOCH + timedelta(microseconds=NEW_YEAR_US + hour * HOUR_US) for _, _, hour, _ in found]
    values = ", ".join("(?::INTEGER, ?::BIGINT, ?::TIMESTAMPTZ, ?::BLOB)" for _ in found)
    given_rows = [
        part
        for (partition, offset, _, key), time in zip(found, times, strict=True)
        for part in (partition, offset, time, key)
    ]
    wanted = planner.execute(
        f'SELECT count(*) FROM (VALUES {values}) AS t(partition, "offset", timestamp, key) WHERE {condition}',
        given_rows,
    ).fetchone()[0]
    explained = planner.execute(f"EXPLAIN (FORMAT json) SELECT * FROM t WHERE {condition}").fetchall()[0][1]
    scans = list(_scans(json.loads(explained)))
    file = bounds(
        partition=(min(r[0] for r in found), max(r[0] for r in found)),
        offset=(min(r[1] for r in found), max(r[1] for r in found)),
        timestamp=(
            NEW_YEAR_US + HOUR_US * min(r[2] for r in found),
            NEW_YEAR_US + HOUR_US * max(r[2] for r in found),
        ),
    )

    needed = not scans or any(may_pass(scan.get("Filters") or [])(file) for scan in scans)

    assert needed or not wanted
