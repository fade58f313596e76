"""Writes `sequencer/migrations/0001_first.sql` from the schema, the functions and the first rows:
`python -m tests.sequencer.first_migration`. Until the first release this is how the schema changes."""

from pathlib import Path

import sequencer

_FOLDER = Path(sequencer.__path__[0])
FIRST = _FOLDER / "migrations" / "0001_first.sql"
_HEAD = """\
-- The first migration: schema.sql, functions/ and first_rows.sql as they were when it was written. Until the
-- first release `python -m tests.sequencer.first_migration` writes it. After the release it never changes.

-- Functions with the owner's rights keep this path (SET search_path FROM CURRENT): a table that a caller
-- makes in pg_temp then stands for none of these.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
"""


def text() -> str:
    """What the files that developers read make of an empty database."""
    functions = sorted((_FOLDER / "functions").glob("*.sql"))
    files = (_FOLDER / "schema.sql", *functions, _FOLDER / "first_rows.sql")
    return "\n".join([_HEAD, *(file.read_text(encoding="utf-8") for file in files)])


if __name__ == "__main__":
    FIRST.write_text(text(), encoding="utf-8")
