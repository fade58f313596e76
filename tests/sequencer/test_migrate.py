"""Migrations on the real Postgres: commits go on, a killed migration goes on where it was, and old rows come along."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import LiteralString

import psycopg
import pytest
from psycopg import AsyncConnection

from sequencer import migrate as migrating
from sequencer.client import Sequencer
from sequencer.commits import Refused
from sequencer.database import SequencerUnavailable
from sequencer.garbage import PartitionRules
from sequencer.migrate import Migration, MigrationRefused, migrate, migrations
from sequencer.settings import MigrationSettings
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.housekeeping import observed, records_of
from tidelog.embedded.postgres import EmbeddedPostgres

QUICK = MigrationSettings(migration_lock_timeout_ms=20, migration_pause_s=0.05, migration_longest_pause_s=0.05)
LOCKING = "ALTER TABLE segments ADD COLUMN tried integer; "
A_STEP = (
    "WITH done AS MATERIALIZED (SELECT FROM segments WHERE tried = 1 OFFSET 3 LIMIT 1),"
    " gate AS MATERIALIZED (SELECT pg_advisory_xact_lock(7) FROM done),"
    " chosen AS (SELECT segment_id FROM segments LEFT JOIN gate ON true WHERE tried IS NULL LIMIT 2),"
    " changed AS (UPDATE segments AS s SET tried = 1 FROM chosen WHERE s.segment_id = chosen.segment_id RETURNING 1)"
    " SELECT count(*) FROM changed"
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

    with caplog.at_level(logging.WARNING, "sequencer.migrate"):
        waiting = asyncio.create_task(migrate(database_url, QUICK))
        async with asyncio.timeout(60):
            for tried, segment in enumerate(segments, start=1):
                while caplog.text.count("waits for a lock") < tried:  # noqa: ASYNC110 - log lines set no event
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

    killed = asyncio.create_task(migrate(database_url, QUICK.model_copy(update={"migration_lock_timeout_ms": 60_000})))
    async with asyncio.timeout(60):
        while not await sequencer.database.fetch(  # noqa: ASYNC110 - Postgres sets no event
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
    [row] = await sequencer.database.fetch("SELECT count(tried) AS rows FROM segments")
    return int(row.rows)


# --- 0019: tombstones that were rows of segments

TOMBSTONES = 19
OLD_TOMBSTONES = (
    "INSERT INTO segments (segment_id, object_key, state, writer, lease_until, committed_at, outcome, doomed_at,"
    " deleted_at, forget_after)"
    " SELECT gen_random_uuid(), 'key', 'doomed', 'old', now(), now() - make_interval(mins => n %% 120), ARRAY[8 * n],"
    " now(), now(), now() + interval '1 day' FROM generate_series(1, 12000) AS n"
)


@pytest.fixture
def old_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database of the version before migration 19."""
    name = "tidelog_before_tombstones"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres.url(name)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_tombstones_of_an_earlier_version_come_along_and_their_commits_repeat(
    old_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(migrating, "migrations", lambda: migrations()[: TOMBSTONES - 1])
        await migrate(old_database_url)
    sequencer = await Sequencer.open(old_database_url)
    topic = await sequencer.topics.create("orders", 1, {})
    lately, long_ago, live = [await reserved(sequencer, [records_of(topic)]) for _ in range(3)]
    answers = await sequencer.commits.commit([lately, long_ago, live])
    await sequencer.database.fetch(
        "UPDATE segments SET state = 'doomed', deleted_at = now(), forget_after = now() + interval '1 day',"
        " committed_at = CASE WHEN segment_id = %(long_ago)s THEN now() - interval '2 hours' ELSE committed_at END"
        " WHERE segment_id <> %(live)s",
        long_ago=long_ago.segment_id,
        live=live.segment_id,
    )
    await sequencer.database.fetch(OLD_TOMBSTONES)
    before = [(await sequencer.commits.commit([segment]))[0] for segment in (lately, long_ago, live)]

    applied = await migrate(old_database_url)
    after = [(await sequencer.commits.commit([segment]))[0] for segment in (lately, long_ago, live)]
    rows = await sequencer.database.fetch(
        "SELECT (SELECT count(*) FROM segments) AS segments, (SELECT count(*) FROM tombstones) AS tombstones,"
        " (SELECT count(*) FROM outcomes) AS outcomes, (SELECT sum(row_count) FROM time_partitions) AS counted"
    )
    await sequencer.close()

    assert applied[0] == TOMBSTONES
    assert before == list(answers)
    assert after == [answers[0], Refused(reason="missing"), answers[2]]
    [found] = rows
    assert (found.segments, found.tombstones) == (1, 12_002)
    assert 5_000 < found.outcomes < 7_000
    assert found.counted == found.tombstones + found.outcomes


async def test_agents_of_the_version_before_may_leave_tombstones_after_the_migration(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)])
    [answer] = await sequencer.commits.commit([segment])
    await sequencer.database.fetch(
        "UPDATE segments SET state = 'doomed', deleted_at = now(), forget_after = now() + interval '1 day'"
    )
    counted = (await observed(sequencer)).census

    rules = PartitionRules(width_s=600, lock_timeout_ms=1000)
    moved = await sequencer.garbage.bury_old(10, outcome_retention_s=60, partitions=rules)

    assert (counted.tombstones, moved) == (1, 1)
    assert (await observed(sequencer)).census == counted
    assert await sequencer.commits.commit([segment]) == (answer,)
