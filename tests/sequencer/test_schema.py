"""A database that migrations made is the one that `schema.sql`, `functions/` and `first_rows.sql`
describe.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Connection, sql

from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from tests.sequencer.first_migration import text
from tidelog.embedded.postgres import EmbeddedPostgres

_CATALOG = {
    "columns": """
        SELECT table_name, column_name, ordinal_position, data_type, udt_name, is_nullable, column_default,
            collation_name
        FROM information_schema.columns WHERE table_schema = 'public'""",
    "tables": """
        SELECT c.relname, c.relkind, c.reloptions, pg_get_partkeydef(c.oid) FROM pg_class AS c
        WHERE c.relnamespace = 'public'::regnamespace""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace""",
    "triggers": "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace""",
    "sequences": """
        SELECT sequencename, data_type::text, start_value, increment_by, cycle, cache_size FROM pg_sequences
        WHERE schemaname = 'public'""",
}
"""What makes a schema, by Postgres's own catalog."""


@pytest.fixture
def two_databases(postgres: EmbeddedPostgres) -> Iterator[tuple[str, str]]:
    names = ("tidelog_of_migrations", "tidelog_of_schema")
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        for name in names:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield postgres.url(names[0]), postgres.url(names[1])
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        for name in names:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


async def test_migrations_make_what_the_files_describe(two_databases: tuple[str, str]) -> None:
    of_migrations, of_schema = two_databases
    await migrate(of_migrations, MigrationSettings())
    with psycopg.connect(of_migrations) as migrated, psycopg.connect(of_schema) as described:
        described.execute(text().encode())
        migrated.execute("DROP TABLE migrations")
        for what, query in _CATALOG.items():
            assert _found(migrated, query) == _found(described, query), (
                f"{what}: a migration and the files disagree"
            )
        assert _rows(migrated) == _rows(described)
        described.execute("ALTER TABLE runs ADD COLUMN other integer")
        assert _found(migrated, _CATALOG["columns"]) != _found(described, _CATALOG["columns"])


def _found(connection: Connection[Any], query: str) -> list[str]:
    return sorted(map(str, connection.execute(query.encode()).fetchall()))


def _rows(connection: Connection[Any]) -> dict[str, int]:
    """How many rows each table begins with."""
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
    )
    counts = {}
    for (table,) in tables.fetchall():
        [(count,)] = connection.execute(
            sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
        ).fetchall()
        counts[table] = count
    return counts
