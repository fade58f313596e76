"""docs/failures.md names tests that exist, so a test shows each claim of that page."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "failures.md"
NAMED = re.compile(r"`((?:\w+/)*test_\w+\.py)::(\w+)`")


@cache
def _found_in(file: Path) -> frozenset[str]:
    if not file.exists():
        return frozenset()
    found = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE.read_text())

    missing = [f"{file}::{name}" for file, name in named if name not in _found_in(TESTS / file)]

    assert missing == []
    assert len(named) > 20


def test_every_row_names_a_test() -> None:
    rows = [
        line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "what breaks" not in line
    ]

    assert [row for row in rows if not NAMED.search(row)] == []
