"""Migrations on the real Postgres: commits go on, and a killed migration goes on where it was."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import LiteralString

import pytest
from psycopg import AsyncConnection

from sequencer import migrate as migrating
from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.migrate import Migration, MigrationRefused, migrate, migrations
from sequencer.settings import MigrationSettings
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.housekeeping.housekeeping import records_of

pytestmark = pytest.mark.superuser
QUICK = MigrationSettings(
    migration_lock_timeout_ms=20, migration_pause_s=0.05, migration_longest_pause_s=0.05
)
LOCKING = "ALTER TABLE segments ADD COLUMN tried integer; "
A_STEP = (
    "WITH done AS MATERIALIZED (SELECT FROM segments WHERE tried = 1 OFFSET 3 LIMIT 1),"
    " gate AS MATERIALIZED (SELECT pg_advisory_xact_lock(7) FROM done),"
    " chosen AS (SELECT segment_id FROM segments LEFT JOIN gate ON true WHERE tried IS NULL LIMIT 2),"
    " changed AS (UPDATE segments AS s SET tried = 1 FROM chosen WHERE s.segment_id = chosen.segment_id "
    "RETURNING 1) SELECT count(*) FROM changed"
)
"""Two rows at a time. Once four are done, it waits at a gate."""


def and_then(text: LiteralString, step: LiteralString | None = None) -> Sequence[Migration]:
    """All migrations, and one more."""
    known = migrations()
    return [*known, Migration(number=len(known) + 1, name="9999_next.sql", text=text, step=step)]


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[AsyncConnection]:
    async with await AsyncConnection.connect(database_url) as connection:
        yield connection


async def test_commits_go_on_while_a_migration_waits_for_a_lock(
    sequencer: Sequencer,
    database_url: str,
    connection: AsyncConnection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(migrating, "migrations", lambda: and_then(LOCKING))
    topic = await sequencer.topics.create("orders", 1, {})
    segments = [await reserved(sequencer, [records_of(topic)]) for _ in range(5)]
    await connection.execute("SELECT FROM segments")  # a long transaction, which reads

    with caplog.at_level(logging.WARNING, "tidelog"):
        waiting = asyncio.create_task(migrate(database_url, QUICK))
        async with asyncio.timeout(60):
            for tried, segment in enumerate(segments, start=1):
                while caplog.text.count("waits for a lock") < tried:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                accepted((await sequencer.commits.commit([segment]))[0])
    assert not waiting.done()
    await connection.rollback()

    async with asyncio.timeout(60):
        assert await waiting == [len(migrations()) + 1]
    assert "let" in caplog.text
    await connection.execute("SELECT tried FROM segments")


async def test_a_migration_that_never_gets_its_lock_gives_up_and_says_what_to_do(
    database_url: str, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "migrations", lambda: and_then(LOCKING))
    await connection.execute("SELECT FROM segments")

    with pytest.raises(MigrationRefused, match="pg_stat_activity"):
        await migrate(database_url, QUICK.model_copy(update={"migration_patience_s": 0.1}))
    await connection.rollback()

    assert await migrate(database_url, QUICK) == [len(migrations()) + 1]


async def test_a_migration_that_was_killed_between_its_steps_goes_on_where_it_was(
    sequencer: Sequencer, database_url: str, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "migrations", lambda: and_then(LOCKING, A_STEP))
    topic = await sequencer.topics.create("orders", 1, {})
    for _ in range(7):
        await reserved(sequencer, [records_of(topic)])
    await connection.execute("SELECT pg_advisory_lock(7)")
    at_the_gate = "FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"

    killed = asyncio.create_task(
        migrate(database_url, QUICK.model_copy(update={"migration_lock_timeout_ms": 60_000}))
    )
    async with asyncio.timeout(60):
        while not await sequencer.database.run(  # noqa: ASYNC110 - Postgres sets no event
            f"SELECT pg_terminate_backend(pid) {at_the_gate}"
        ):
            await asyncio.sleep(0.005)
    with pytest.raises(SequencerUnavailable):
        await killed
    between = await tried(sequencer)
    await connection.execute("SELECT pg_advisory_unlock(7)")

    assert between == 4
    assert await migrate(database_url, QUICK) == [len(migrations()) + 1]
    assert await tried(sequencer) == 7
    assert await migrate(database_url, QUICK) == []


async def tried(sequencer: Sequencer) -> int:
    [row] = await sequencer.database.run("SELECT count(tried) AS rows FROM segments")
    return int(row.rows)


async def test_a_database_of_a_development_version_is_refused_with_what_to_do(
    database_url: str, connection: AsyncConnection
) -> None:
    await connection.execute("UPDATE migrations SET name = '0001_log.sql' WHERE number = 1")
    await connection.commit()

    with pytest.raises(MigrationRefused, match="before the first release"):
        await migrate(database_url, QUICK)
