"""What errors say, and what a lost connection does to a commit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sequencer.client import Sequencer, SequencerSettings
from sequencer.commits.commits import Assigned
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable, describe_address
from sequencer.database.named_sql import parse_statements
from sequencer.migrate import MigrationRefused, migrate, migrations
from sequencer.settings import MigrationSettings
from storage.identifiers import Offset
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.housekeeping.housekeeping import records_of, waits_for_a_lock
from tidelog.embedded.postgres import EmbeddedPostgres

CUT_THE_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
NOT_WAITING_FOR_CONNECTIONS = SequencerSettings(database_pool_timeout_s=0.3)
NOT_WAITING_FOR_LOCKS = SequencerSettings(database_statement_timeout_ms=1000)


async def test_a_commit_whose_connection_is_cut_before_it_applied_is_unknown_and_applied_once_by_the_repeat(
    database_url: str, sequencer: Sequencer
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)])
    other = await Sequencer.open(database_url, SequencerSettings())
    try:
        async with other.database.transaction() as held:
            await held.execute("SELECT 1 FROM partitions FOR NO KEY UPDATE")
            waiting = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))
            await held.execute(f"{CUT_THE_OTHERS} AND query LIKE '%sequence_segments%'")
            with pytest.raises(CommitOutcomeUnknown) as unknown:
                await waiting
    finally:
        await other.close()

    assert unknown.value.connection_lost
    answers = [await sequencer.commits.commit([segment]) for _ in range(2)]
    assert answers[0] == answers[1]
    assert accepted(answers[0][0]).outcomes == (Assigned(base_offset=Offset(0)),)


async def test_a_commit_that_waits_too_long_for_a_lock_is_ended_and_unknown(
    database_url: str, sequencer: Sequencer
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)])
    impatient = await Sequencer.open(database_url, NOT_WAITING_FOR_LOCKS)
    try:
        async with sequencer.database.transaction() as held:
            await held.execute("SELECT 1 FROM partitions FOR NO KEY UPDATE")
            with pytest.raises(CommitOutcomeUnknown, match="QueryCanceled"):
                await impatient.commits.commit([segment])
        assert impatient.database.counters.statement_timeouts == 1
        accepted((await impatient.commits.commit([segment]))[0])
    finally:
        await impatient.close()


async def test_connections_that_died_in_the_pool_fail_no_question(sequencer: Sequencer) -> None:
    await asyncio.gather(*(sequencer.topics.list() for _ in range(4)))
    async with sequencer.database.connection() as connection:
        await connection.execute(CUT_THE_OTHERS)

    assert await asyncio.gather(*(sequencer.topics.list() for _ in range(8))) == [[]] * 8


async def test_an_unreachable_database_is_unavailable_within_the_timeout_and_says_where() -> None:
    url = "postgresql://someone:secret@127.0.0.1:1/tidelog"
    sequencer = await Sequencer.open(url, NOT_WAITING_FOR_CONNECTIONS)
    try:
        with pytest.raises(
            SequencerUnavailable, match=r"127\.0\.0\.1:1/tidelog.*TIDELOG_DATABASE_URL"
        ) as unavailable:
            await sequencer.topics.list()
        assert "secret" not in str(unavailable.value)
        with pytest.raises(SequencerUnavailable, match="Is it running"):
            await migrate(url, MigrationSettings())
    finally:
        await sequencer.close()


REASONS = {
    "a wrong password": ("me", "wrong-secret", "", 'password authentication failed for user "me"'),
    "no such database": ("me", "right-secret", "_no", "does not exist"),
    "no such user": ("nobody", "right-secret", "", 'password authentication failed for user "nobody"'),
    "too many connections": ("busy", "right-secret", "", 'too many connections for role "busy"'),
    "not now": ("me", "right-secret", "_closed", "is not currently accepting connections"),
}


@pytest.fixture(scope="module")
def guarded(other_postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server that demands a password from every role except `postgres`."""
    with psycopg.connect(other_postgres.url(), autocommit=True) as connection:
        for role, limit in (("me", -1), ("busy", 0)):
            connection.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {limit} PASSWORD 'right-secret'")
        connection.execute("CREATE DATABASE guarded")
        connection.execute("CREATE DATABASE guarded_closed ALLOW_CONNECTIONS false")
        [found] = connection.execute("SHOW hba_file").fetchall()
        rules, before = Path(found[0]), Path(found[0]).read_text()
        rules.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        connection.execute("SELECT pg_reload_conf()")
        yield other_postgres
        rules.write_text(before)
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("DROP DATABASE guarded")
        connection.execute("DROP DATABASE guarded_closed")
        connection.execute("DROP ROLE me")
        connection.execute("DROP ROLE busy")


@pytest.mark.parametrize("why", REASONS)
async def test_postgres_own_reason_is_told_and_no_password(guarded: EmbeddedPostgres, why: str) -> None:
    user, password, suffix, reason = REASONS[why]
    url = guarded.url(f"guarded{suffix}").replace("postgres@", f"{user}:{password}@")
    sequencer = await Sequencer.open(url, NOT_WAITING_FOR_CONNECTIONS)
    try:
        with pytest.raises(SequencerUnavailable, match="TIDELOG_DATABASE_URL") as unavailable:
            await sequencer.topics.list()
    finally:
        await sequencer.close()

    assert reason in str(unavailable.value)
    assert "secret" not in str(unavailable.value)
    assert str(sequencer.database.unreachable()) == str(unavailable.value)


async def test_a_connection_that_comes_after_all_ends_what_kept_others_from_it(
    guarded: EmbeddedPostgres,
) -> None:
    with psycopg.connect(guarded.url(), autocommit=True) as connection:
        sequencer = await Sequencer.open(guarded.url("guarded_closed"), NOT_WAITING_FOR_CONNECTIONS)
        try:
            with pytest.raises(SequencerUnavailable, match="not currently accepting"):
                await sequencer.database.run("SELECT 1")
            connection.execute("ALTER DATABASE guarded_closed ALLOW_CONNECTIONS true")
            assert await sequencer.database.run("SELECT 1")
            assert sequencer.database.unreachable() is None
        finally:
            await sequencer.close()
            connection.execute("ALTER DATABASE guarded_closed ALLOW_CONNECTIONS false")


def test_an_address_is_described_without_its_password() -> None:
    assert describe_address("postgresql://u:secret@db.internal:6432/log") == "db.internal:6432/log"
    assert "secret" not in describe_address("not a url://u:secret@x")


async def test_an_empty_database_is_called_not_migrated(postgres: EmbeddedPostgres) -> None:
    sequencer = await Sequencer.open(postgres.url("postgres"), SequencerSettings())
    try:
        with pytest.raises(SequencerUnavailable, match="tidelog migrate"):
            await sequencer.topics.list()
    finally:
        await sequencer.close()


async def test_a_healthy_database_has_no_complaints_and_others_do(
    database_url: str, sequencer: Sequencer
) -> None:
    health = await sequencer.cluster.health()
    assert health.complaints() == ()
    assert health.identity == sequencer.database.identity

    for url, settings, complaint in (
        (database_url, SequencerSettings(standbys_expected=True), "synchronous_standby_names is empty"),
        (
            f"{database_url}&options=-c%20synchronous_commit%3Doff",
            SequencerSettings(),
            "synchronous_commit is off",
        ),
    ):
        careless = await Sequencer.open(url, settings)
        try:
            assert complaint in (await careless.cluster.health()).complaints()[0]
        finally:
            await careless.close()


@pytest.mark.superuser
async def test_a_database_whose_first_migration_is_being_applied_has_a_complaint(
    sequencer: Sequencer,
) -> None:
    await sequencer.database.run("DELETE FROM migrations")

    health = await sequencer.cluster.health()

    assert "migration 0: run `tidelog migrate`" in health.complaints()[0]


async def test_a_cluster_id_is_made_once(database_url: str, sequencer: Sequencer) -> None:
    other = await Sequencer.open(database_url, SequencerSettings())
    try:
        assert await other.cluster.cluster_id() == await sequencer.cluster.cluster_id()
        assert len(await other.cluster.cluster_id()) == 22
    finally:
        await other.close()


async def test_migrating_again_and_by_many_at_once_changes_nothing(
    database_url: str, sequencer: Sequencer
) -> None:
    assert await asyncio.gather(*(migrate(database_url, MigrationSettings()) for _ in range(3))) == [
        [],
        [],
        [],
    ]
    rows = await sequencer.database.run("SELECT number FROM migrations ORDER BY number")
    assert [row.number for row in rows] == [migration.number for migration in migrations()]


@pytest.mark.superuser
async def test_a_database_from_the_future_is_refused(database_url: str, sequencer: Sequencer) -> None:
    await sequencer.database.run("INSERT INTO migrations (number, name) VALUES (9999, '9999_later.sql')")

    with pytest.raises(MigrationRefused, match="9999"):
        await migrate(database_url, MigrationSettings())


def test_named_statements_are_split_at_their_names_and_defined_once() -> None:
    text = "-- about\n-- name: one\n-- why\nSELECT 1\n\n-- name: two\nSELECT 2\n"
    assert parse_statements("x", text) == {"one": "-- why\nSELECT 1", "two": "SELECT 2"}
    with pytest.raises(ValueError, match="twice"):
        parse_statements("x", "-- name: one\nSELECT 1\n-- name: one\nSELECT 2")
    with pytest.raises(ValueError, match="before the first"):
        parse_statements("x", "SELECT 0\n-- name: one\nSELECT 1")
