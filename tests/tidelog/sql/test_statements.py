"""SQL as text: statements are cut where they end, and rewritten only where the engines differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sql.statements import for_duckdb, for_spark, is_complete, named_tables, split, tokens_of


def texts(text: str, **how: bool) -> list[str]:
    return [statement.text for statement in split(text, **how)]


@given(st.text(alphabet="a'\"`$-/*;\\ \n5e:.()", max_size=60), st.booleans())
def test_tokens_are_the_text_whatever_it_is(text: str, backslash_escapes: bool) -> None:
    tokens = list(tokens_of(text, backslash_escapes=backslash_escapes))

    assert "".join(token.text for token in tokens) == text


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT ';'",
        "SELECT 'it''s;'",
        'SELECT ";" FROM "a;b"',
        "SELECT 1 -- ; no end\n + 1",
        "SELECT /* ; \n ; */ 1",
        "SELECT $$ ; $$, $a$ ; $$ ; $a$",
        "SELECT e'\\';'",
        "SELECT `;`",
    ],
)
def test_a_semicolon_inside_something_ends_no_statement(statement: str) -> None:
    assert texts(f"{statement} ; SELECT 2;") == [statement, "SELECT 2"]


def test_sparks_strings_have_backslashes_and_duckdbs_have_not() -> None:
    text = "SELECT '\\'; SELECT 'a"

    assert texts(text) == ["SELECT '\\'", "SELECT 'a"]
    assert texts(text, backslash_escapes=True) == [text]


def test_empty_statements_and_comments_are_left_out() -> None:
    assert texts(" ; ;; -- nothing\n ; /* ; */") == []


@pytest.mark.parametrize(
    ("text", "complete"),
    [("SELECT 1", False), ("SELECT 1;", True), ("SELECT ';", False), ("SELECT 1; -- end", True), ("", True)],
)
def test_a_shell_waits_for_the_semicolon(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SELECT offset FROM t", 'SELECT "offset" FROM t'),
        ("SELECT t.offset FROM t LIMIT 5 OFFSET 10", 'SELECT t."offset" FROM t LIMIT 5 OFFSET 10'),
        ("SELECT 1 WHERE offset > 5 OFFSET 1 ROWS", 'SELECT 1 WHERE "offset" > 5 OFFSET 1 ROWS'),
        ("SELECT 'offset', \"offset\" -- offset", "SELECT 'offset', \"offset\" -- offset"),
        ('SELECT `a``b"c` FROM `x`', 'SELECT "a`b""c" FROM "x"'),
        ("SELECT CAST(key AS STRING)", "SELECT text(key  )"),
        ("SELECT cast ( f(CAST(a AS int), ')') as varchar ) x", "SELECT text ( f(CAST(a AS int), ')')   ) x"),
        ("SELECT CAST(CAST(key AS STRING) AS TEXT)", "SELECT text(text(key  )  )"),
        ("SELECT CAST(a AS VARCHAR(5)), CAST(a AS int)", "SELECT CAST(a AS VARCHAR(5)), CAST(a AS int)"),
        ('SELECT t."key"::string, a::text[]', 'SELECT text(t."key"), a::text[]'),
        ("SELECT (a || b)::text", "SELECT (a || b)::text"),
        ('SELECT cast, "cast" FROM t', 'SELECT cast, "cast" FROM t'),
    ],
)
def test_what_duckdb_spells_otherwise_is_rewritten(text: str, written: str) -> None:
    assert for_duckdb(text) == written


def test_named_tables_are_found_in_any_case_and_quotes() -> None:
    text = "SELECT 'orders' FROM topics.Flights f JOIN `a-b` JOIN \"c.d\" -- clicks"

    assert named_tables(text, ["flights", "a-b", "c.d", "orders", "clicks"]) == {"flights", "a-b", "c.d"}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SELECT * FROM topics.flights", "SELECT * FROM `flights`"),
        ("SELECT topics.flights.key FROM tidelog.topics.FLIGHTS", "SELECT `flights`.key FROM `flights`"),
        ('SELECT * FROM "a-b" JOIN topics."a-b"', "SELECT * FROM `a-b` JOIN `a-b`"),
        ("SELECT 'topics.flights' FROM other.flights", "SELECT 'topics.flights' FROM other.flights"),
    ],
)  # fmt: skip
def test_tables_become_views_for_spark(text: str, written: str) -> None:
    assert for_spark(text, ["flights", "a-b"], "topics") == written
