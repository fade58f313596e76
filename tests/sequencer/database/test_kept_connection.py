"""The connection kept for commits: whatever happens to it, an answer belongs to its question."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg import AsyncConnection

from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Committed, SegmentRefused, SegmentToCommit
from sequencer.database.commit_connection import KeptConnection, KeptStatement
from sequencer.database.database import CommitOutcomeUnknown, Row, SequencerUnavailable
from sequencer.settings import SequencerSettings
from sequencer.topics.topics import Topic
from storage.identifiers import Offset
from tests.sequencer.builders import accepted, committed, reserved
from tests.sequencer.housekeeping.housekeeping import records_of, waits_for_a_lock

THE_KEPT_ONE = (
    "datname = current_database() AND position('JOIN sequence_segments(' IN query) > 0"
    " AND position('pg_stat_activity' IN query) = 0"  # those that asked this before
)
MOST_BATCHES = 20_000


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    created = await sequencer.topics.create("orders", 1, {})
    await committed(sequencer, [records_of(created)])
    return created


async def backends(sequencer: Sequencer, condition: str = "true") -> list[int]:
    rows = await sequencer.database.run(
        f"SELECT pid FROM pg_stat_activity WHERE {THE_KEPT_ONE} AND {condition} ORDER BY pid"
    )
    return [row.pid for row in rows]


async def until_none_is_left(sequencer: Sequencer, condition: str = "true") -> None:
    async with asyncio.timeout(60):
        while True:
            if not await backends(sequencer, condition):
                return
            await asyncio.sleep(0.01)


async def commits_at(sequencer: Sequencer, topic: Topic, offset: int) -> None:
    answer = await committed(sequencer, [records_of(topic)])
    assert answer.outcomes == (Assigned(base_offset=Offset(offset)),)


@asynccontextmanager
async def held_up(
    sequencer: Sequencer, segment: SegmentToCommit
) -> AsyncIterator[tuple[AsyncConnection[Row], asyncio.Task[Sequence[Committed | SegmentRefused]]]]:
    """Its commit, and the connection whose lock it waits for."""
    async with sequencer.database.transaction() as held:
        await held.execute("SELECT 1 FROM partitions FOR NO KEY UPDATE")
        yield held, await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))


async def test_commits_share_one_backend_until_it_ends(sequencer: Sequencer, topic: Topic) -> None:
    first = await backends(sequencer)

    await commits_at(sequencer, topic, 1)

    assert len(first) == 1
    assert await backends(sequencer) == first


async def test_a_connection_that_ended_between_commits_is_replaced_before_anything_is_sent(
    sequencer: Sequencer, topic: Topic
) -> None:
    for offset in range(1, 4):
        await sequencer.database.run(
            f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {THE_KEPT_ONE}"
        )
        await commits_at(sequencer, topic, offset)

    assert sequencer.database.counters.lost_connections == 0


async def test_a_commit_killed_midway_is_unknown_and_the_next_has_another_connection(
    sequencer: Sequencer, topic: Topic
) -> None:
    segment = await reserved(sequencer, [records_of(topic)])
    async with held_up(sequencer, segment) as (held, waiting):
        await held.execute(
            f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {THE_KEPT_ONE}"
        )
        with pytest.raises(CommitOutcomeUnknown, match="terminating connection") as unknown:
            await waiting

    assert unknown.value.connection_lost
    await commits_at(sequencer, topic, 1)
    assert accepted((await sequencer.commits.commit([segment]))[0]).outcomes == (
        Assigned(base_offset=Offset(2)),
    )


async def test_a_cancelled_commit_goes_on_in_postgres_and_its_answer_is_no_other_commits(
    sequencer: Sequencer, topic: Topic
) -> None:
    segment = await reserved(sequencer, [records_of(topic)])
    async with held_up(sequencer, segment) as (_, waiting):
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await backends(sequencer, "wait_event_type = 'Lock'"), "Postgres was not asked to cancel it"

    await commits_at(sequencer, topic, 2)
    assert accepted((await sequencer.commits.commit([segment]))[0]).outcomes == (
        Assigned(base_offset=Offset(1)),
    )


async def test_a_commit_that_is_cancelled_as_its_answer_comes_takes_no_answer_from_the_next(
    sequencer: Sequencer, topic: Topic
) -> None:
    for turns_later in range(6):
        segment = await reserved(sequencer, [records_of(topic)])
        committing = asyncio.create_task(sequencer.commits.commit([segment]))
        await asyncio.sleep(0.002)
        for _ in range(turns_later):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])

        again = accepted((await sequencer.commits.commit([segment]))[0])

        assert again.outcomes == (Assigned(base_offset=Offset(1 + turns_later)),)


async def test_a_closed_client_has_no_connection_left(
    database_url: str, sequencer: Sequencer, topic: Topic
) -> None:
    other = await Sequencer.open(f"{database_url}&application_name=other", SequencerSettings())
    await committed(other, [records_of(topic)])

    await other.close()

    await until_none_is_left(sequencer, "application_name = 'other'")
    with pytest.raises(SequencerUnavailable):
        await other.commits.commit([await reserved(sequencer, [records_of(topic)])])


async def test_a_client_closed_while_it_connects_for_its_first_commit_has_no_connection_left(
    database_url: str, sequencer: Sequencer, topic: Topic
) -> None:
    await sequencer.database.run("UPDATE cluster SET store_id = 'here', store_name = 'here'")
    other = await Sequencer.open(f"{database_url}&application_name=other", SequencerSettings())
    other.database.keep_to("here")
    segment = await reserved(sequencer, [records_of(topic)])

    async with sequencer.database.transaction() as held:
        await held.execute("LOCK TABLE cluster")  # which every new connection reads first
        waiting = await waits_for_a_lock(sequencer, lambda: other.commits.commit([segment]))
        await other.close()

    assert accepted((await waiting)[0]).outcomes == (Assigned(base_offset=Offset(1)),)
    await until_none_is_left(sequencer, "application_name = 'other'")


@pytest.mark.superuser
async def test_a_commit_that_postgres_refuses_behind_its_rows_is_unknown_at_once(
    sequencer: Sequencer, topic: Topic
) -> None:
    segment = await reserved(sequencer, [records_of(topic)])
    await sequencer.database.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'refused at the end' USING ERRCODE = 'query_canceled'; END $$"
    )
    await sequencer.database.run(
        "CREATE CONSTRAINT TRIGGER at_the_end AFTER INSERT ON runs DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )

    with pytest.raises(CommitOutcomeUnknown, match="refused at the end"):
        await sequencer.commits.commit([segment])

    await sequencer.database.run("DROP TRIGGER at_the_end ON runs")
    assert accepted((await sequencer.commits.commit([segment]))[0]).outcomes == (
        Assigned(base_offset=Offset(1)),
    )


@pytest.mark.superuser
async def test_the_statement_is_planned_anew_after_a_migration(sequencer: Sequencer, topic: Topic) -> None:
    segment = await reserved(sequencer, [records_of(topic)])

    await sequencer.database.run("ALTER FUNCTION sequence_segments RENAME TO sequence_segments_before")
    for _ in range(2):
        with pytest.raises(SequencerUnavailable, match="tidelog migrate"):
            await sequencer.commits.commit([segment])
    await sequencer.database.run("ALTER FUNCTION sequence_segments_before RENAME TO sequence_segments")

    assert accepted((await sequencer.commits.commit([segment]))[0]).outcomes == (
        Assigned(base_offset=Offset(1)),
    )
    await sequencer.database.run("ALTER TABLE runs ADD COLUMN later integer")
    await commits_at(sequencer, topic, 2)


async def test_a_commit_larger_than_the_sockets_buffers_arrives_whole(
    sequencer: Sequencer, topic: Topic
) -> None:
    answer = await committed(sequencer, [records_of(topic)] * MOST_BATCHES)

    assert answer.found.base_offsets.tolist() == list(range(1, MOST_BATCHES + 1))


async def test_a_connection_that_ended_right_behind_its_answer_is_used_no_more(database_url: str) -> None:
    statement = KeptStatement(name="pid", text="SELECT pg_backend_pid()", kinds={})
    kept = KeptConnection(await AsyncConnection.connect(database_url, autocommit=True), statement)
    answer = await kept.execute([])
    pid = kept.connection.info.backend_pid

    with psycopg.connect(database_url, autocommit=True) as other:  # while the loop stands still
        activity = "SELECT state, state_change FROM pg_stat_activity WHERE pid = %s"
        before = other.execute(activity, [pid]).fetchone()
        answering = asyncio.create_task(kept.execute([]))
        await asyncio.sleep(0)
        while (now := other.execute(activity, [pid]).fetchone()) == before or now is None or now[0] != "idle":
            pass
        other.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])

    assert await answering == answer
    async with asyncio.timeout(60):
        while True:
            if not kept.is_usable:
                break
            await asyncio.sleep(0)
    await kept.let_go()


async def test_a_new_connection_with_the_number_of_a_failed_ones_socket_is_heard(database_url: str) -> None:
    """libpq closes a socket on which it cannot send, and the next connection gets its number."""
    statement = KeptStatement(name="pid", text="SELECT pg_backend_pid()", kinds={})
    kept = KeptConnection(await AsyncConnection.connect(database_url, autocommit=True), statement)
    number = kept.connection.fileno()
    with socket.socket(fileno=os.dup(number)) as its_socket:
        its_socket.shutdown(socket.SHUT_RDWR)

    with pytest.raises(psycopg.OperationalError):
        await kept.execute([])
    async with asyncio.timeout(10):
        next_one = KeptConnection(await AsyncConnection.connect(database_url, autocommit=True), statement)
        await kept.let_go()
        answer = await next_one.execute([])

    assert next_one.connection.fileno() == number
    assert [int.from_bytes(value or b"") for [value] in answer] == [next_one.connection.info.backend_pid]
    await next_one.let_go()


def wait_for_the_end_of(pid: int) -> None:
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_connection_that_is_reset_behind_its_last_words_is_lost_at_once(
    run: Callable[[Coroutine[Any, Any, None]], None], database_url: str
) -> None:
    """A backend that ends without having read what it was asked resets the connection."""

    async def ask_one_that_ends() -> None:
        statement = KeptStatement(name="pid", text="SELECT pg_backend_pid()", kinds={})
        kept = KeptConnection(await AsyncConnection.connect(database_url, autocommit=True), statement)
        await kept.execute([])
        pid = kept.connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        asking = asyncio.create_task(kept.execute([]))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        wait_for_the_end_of(pid)  # the loop stands still, and then finds words and reset together
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            async with asyncio.timeout(30):
                await asking
        await kept.let_go()

    run(ask_one_that_ends())
