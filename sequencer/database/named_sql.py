"""SQL as named statements in files, one file per concern (`sequencer/sql/<concern>.sql`).

A statement starts at a line `-- name: <identifier>` and ends at the next one. Comments stay where they are.
Parameters are psycopg's `%(name)s`. A file with a duplicate name, or with text before the first name, does
not load.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import LiteralString, cast

_NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)[ \t]*$", re.MULTILINE)


@cache
def load_statements(concern: str) -> Mapping[str, LiteralString]:
    """Returns the statements of `sequencer/sql/<concern>.sql` by name. They are our own text, so the type is
    LiteralString."""
    text = resources.files("sequencer").joinpath("sql", f"{concern}.sql").read_text(encoding="utf-8")
    return parse_statements(concern, text)


def parse_statements(concern: str, text: str) -> Mapping[str, LiteralString]:
    before, *named = _NAME.split(text)
    outside = [line for line in before.splitlines() if line.strip() and not line.startswith("--")]
    if outside:
        raise ValueError(f"{concern}.sql: text before the first `-- name:` line: {outside[0]!r}")
    statements: dict[str, LiteralString] = {}
    for name, body in zip(named[::2], named[1::2], strict=True):
        if name in statements:
            raise ValueError(f"{concern}.sql: statement {name!r} is defined twice")
        statements[name] = cast(LiteralString, body.strip())
    return MappingProxyType(statements)
