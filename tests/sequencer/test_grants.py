"""What the agents' database role may do: what `grants.sql` says, and nothing else. All other tests of this
suite run with this role, so they show that it is enough.
"""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException

from sequencer import migrate as migrating
from sequencer.client import Sequencer
from sequencer.migrate import Migration, MigrationRefused, migrate, migrations
from sequencer.settings import MigrationSettings
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.housekeeping.housekeeping import records_of
from tests.support.postgres import AGENT, OWNER, as_owner, as_superuser

GRANTING = MigrationSettings(agent_database_role=AGENT)


@pytest.fixture
def agent(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_every_table_and_sequence_is_named_in_the_grants(agent: psycopg.Connection) -> None:
    """If this fails, the statements that use the new table fail where migrations have a separate role."""
    hidden = agent.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND NOT relispartition AND"
        " CASE relkind WHEN 'S' THEN NOT has_sequence_privilege(oid, 'USAGE')"
        " ELSE relkind IN ('r', 'p', 'v') AND NOT has_table_privilege(oid, 'SELECT') END"
    ).fetchall()

    assert hidden == [], "add it to sequencer/grants.sql"


def test_the_role_owns_nothing_and_has_no_attributes(agent: psycopg.Connection) -> None:
    [attributes] = agent.execute(
        "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls FROM pg_roles"
        " WHERE rolname = current_user"
    ).fetchall()
    owned = agent.execute("SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole").fetchone()

    assert attributes == (False, False, False, False, False)
    assert owned == (0,)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE another (value integer)",
        "CREATE FUNCTION another() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA another",
        "ALTER TABLE topics ADD COLUMN another integer",
        "DROP TABLE runs",
        "DROP FUNCTION sequence_segments",
        "TRUNCATE committed_offsets",
        "DELETE FROM cluster",
        "DELETE FROM ownership",
        "DELETE FROM tombstones",
        "UPDATE migrations SET name = ''",
        "CREATE TRIGGER another BEFORE INSERT ON runs EXECUTE FUNCTION count_topic_change()",
        "COPY topics TO PROGRAM 'true'",
        "SELECT pg_read_file('PG_VERSION')",
        "SELECT setval('node_ids', 1)",
    ],
)
def test_the_role_is_refused(agent: psycopg.Connection, statement: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        agent.execute(statement.encode())


def test_functions_with_the_owners_rights_touch_their_own_tables_alone(agent: psycopg.Connection) -> None:
    for statement in (
        "SELECT add_time_partition('cluster', 600, 1000)",
        "SELECT drop_time_partition('cluster', 1, 1000)",
    ):
        with pytest.raises(RaiseException, match="no table that is partitioned by time: cluster"):
            agent.execute(statement.encode())


def test_a_callers_temporary_table_stands_for_none_of_theirs(agent: psycopg.Connection) -> None:
    partitions = "SELECT count(*) FROM public.time_partitions WHERE of_table = 'outcomes'"
    before = agent.execute(partitions).fetchone()
    agent.execute("CREATE TEMP TABLE time_partitions (LIKE public.time_partitions)")
    agent.execute("CREATE TEMP TABLE outcomes (LIKE public.outcomes)")

    agent.execute("SELECT add_time_partition('outcomes', 6000, 1000)")

    assert before is not None
    after = agent.execute(partitions).fetchone()
    assert after is not None
    assert after[0] > before[0]
    assert agent.execute("SELECT count(*) FROM pg_temp.time_partitions").fetchone() == (0,)


def test_another_role_may_not_call_them(database_url: str) -> None:
    with psycopg.connect(as_superuser(database_url)) as connection:
        connection.execute("CREATE ROLE stranger")
        connection.execute("SET LOCAL ROLE stranger")
        with pytest.raises(InsufficientPrivilege):
            connection.execute("SELECT add_time_partition('outcomes', 6000, 1000)")
        connection.rollback()


async def test_an_up_to_date_database_is_no_error_for_the_agents_role(database_url: str) -> None:
    assert await migrate(database_url, MigrationSettings()) == []


async def test_the_agents_role_may_not_migrate_and_the_error_says_who_may(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations()
    pending = Migration(
        number=len(known) + 1, name="9999_next.sql", text="CREATE TABLE another (value integer)", step=None
    )
    monkeypatch.setattr(migrating, "migrations", lambda: [*known, pending])

    with pytest.raises(MigrationRefused, match="TIDELOG_MIGRATIONS_DATABASE_URL"):
        await migrate(database_url, MigrationSettings())
    assert await migrate(as_owner(database_url), GRANTING) == [pending.number]


async def test_rights_that_were_given_by_hand_are_taken_back(
    agent: psycopg.Connection, database_url: str
) -> None:
    with psycopg.connect(as_owner(database_url)) as owner:
        owner.execute(f"GRANT ALL ON cluster TO {AGENT}")

    await migrate(as_owner(database_url), GRANTING)

    with pytest.raises(InsufficientPrivilege):
        agent.execute("DELETE FROM cluster")


async def test_commits_go_on_while_rights_are_granted_again(sequencer: Sequencer, database_url: str) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    done = asyncio.Event()

    async def grant_on() -> None:
        while not done.is_set():
            await migrate(as_owner(database_url), GRANTING)

    granting = asyncio.create_task(grant_on())
    for _ in range(30):
        segment = await reserved(sequencer, [records_of(topic)])
        [answer] = await sequencer.commits.commit([segment])
        accepted(answer)
    done.set()
    await granting


@pytest.mark.parametrize(
    ("role", "why"), [("nobody_here", "there is no database role nobody_here"), (OWNER, "role that migrates")]
)
async def test_a_role_that_cannot_be_the_agents_is_refused(database_url: str, role: str, why: str) -> None:
    with pytest.raises(MigrationRefused, match=why):
        await migrate(as_owner(database_url), MigrationSettings(agent_database_role=role))
