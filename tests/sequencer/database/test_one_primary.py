"""A failover whose old primary lives on: two real Postgres, one promoted, connections that do not move."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import pytest

from sequencer.client import Sequencer, SequencerSettings
from sequencer.commits.commits import Assigned
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.database.servers import DatabaseIdentity, Primaries, Verdict
from sequencer.topics.topics import Topic
from storage.identifiers import Offset
from storage.stores.memory_store import MemoryStore
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.database.failovers import until_it_answers
from tests.sequencer.housekeeping.housekeeping import records_of
from tests.support.replication import Replication, Server
from tests.support.waiting import until

WATCHFUL = SequencerSettings(database_recheck_s=0.2, database_durability_check_s=0.1)
TRUSTING = SequencerSettings(database_recheck_s=3600.0)
AT_ONCE = 8


@pytest.fixture
def pair(new_replication: Callable[..., Replication]) -> Replication:
    return new_replication(synchronous=False)


@pytest.fixture
async def trusting(pair: Replication) -> AsyncIterator[Sequencer]:
    """A client that makes no connection to look where the address leads."""
    opened = await Sequencer.open(pair.address.url, TRUSTING)
    await opened.store_identity.bind(MemoryStore(), "tidelog", "memory://here")
    yield opened
    await opened.close()


@pytest.fixture
async def watchful(pair: Replication) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(pair.address.url, WATCHFUL)
    yield opened
    await opened.close()


async def ask_with_all_connections(sequencer: Sequencer) -> set[str]:
    """The data directories of the servers that answer."""

    async def ask() -> str:
        [row] = await sequencer.database.read(
            "SELECT current_setting('data_directory') AS found, pg_sleep(0.05)"
        )
        return str(row.found)

    return set(await asyncio.gather(*(ask() for _ in range(AT_ONCE))))


def clients_of(server: Server) -> int:
    [(found,)] = server.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> "
        "pg_backend_pid()"
    )
    assert isinstance(found, int)
    return found


async def replicated(pair: Replication) -> None:
    """The standby has all that was committed so far."""
    shown = "SELECT pg_current_wal_lsn() <= replay_lsn FROM pg_stat_replication WHERE state = 'streaming'"
    await until(lambda: pair.primary.ask(shown) == [(True,)])


def test_a_lower_timeline_of_the_same_system_is_an_old_primary() -> None:
    primaries = Primaries()
    first, promoted = (DatabaseIdentity(system_identifier=7, timeline=timeline) for timeline in (1, 2))
    another = DatabaseIdentity(system_identifier=8, timeline=1)

    verdicts = [
        primaries.judge(seen) for seen in (first, first, promoted, first, promoted, another, first, promoted)
    ]

    assert verdicts == [
        *(Verdict.SAME, Verdict.SAME, Verdict.CHANGED, Verdict.OLD),
        *(Verdict.SAME, Verdict.CHANGED, Verdict.OLD, Verdict.CHANGED),
    ]
    assert primaries.current == promoted


async def test_one_new_connection_that_shows_the_failover_ends_all_older_ones(
    pair: Replication, trusting: Sequencer
) -> None:
    assert await ask_with_all_connections(trusting) == {str(pair.primary.data)}
    await replicated(pair)

    old = pair.fail_over()
    [row] = await trusting.database.read("SELECT current_setting('data_directory') AS found")
    assert row.found == str(old.data), "pooled connections stay"
    await trusting.database.check_address()

    assert await ask_with_all_connections(trusting) == {str(pair.primary.data)}
    await until(lambda: clients_of(old) == 0)


async def test_a_client_all_of_whose_connections_lead_to_the_old_primary_finds_out_by_itself(
    pair: Replication, watchful: Sequencer
) -> None:
    await ask_with_all_connections(watchful)
    await replicated(pair)

    pair.fail_over()

    await until(lambda: watchful.database.generation == 1)
    assert await until_it_answers(lambda: ask_with_all_connections(watchful)) == {str(pair.primary.data)}


async def test_an_old_primary_to_which_the_address_leads_back_is_refused(
    pair: Replication, trusting: Sequencer
) -> None:
    topic = await trusting.topics.create("orders", 1, {})
    segment = await reserved(trusting, [records_of(topic)])
    await replicated(pair)
    old = pair.fail_over()
    await trusting.database.check_address()
    assert await ask_with_all_connections(trusting) == {str(pair.primary.data)}

    pair.address.lead_to(old.url)
    pair.primary.postgres.stop()

    for asked in (trusting.topics.list, lambda: trusting.commits.commit([segment])):
        with pytest.raises(SequencerUnavailable, match=r"old primary.*timeline is 1.*timeline 2"):
            await _past_lost_connections(asked)
    assert old.ask("SELECT state FROM segments") == [("reserved",)]
    pair.primary.postgres.start()
    pair.address.lead_to(pair.primary.url)
    [answer] = await until_it_answers(lambda: trusting.commits.commit([segment]))
    assert accepted(answer).outcomes == (Assigned(base_offset=Offset(0)),)


async def _past_lost_connections(ask: Callable[[], Awaitable[object]]) -> None:
    """Raises what a new connection meets; those to a server that went away are lost first."""
    for _ in range(2 * AT_ONCE):
        try:
            await ask()
        except CommitOutcomeUnknown:
            continue
        except SequencerUnavailable as unavailable:
            if "old primary" in str(unavailable):
                raise


async def test_a_commit_under_way_on_the_old_primary_is_unknown_once_the_new_one_is_known(
    pair: Replication, trusting: Sequencer
) -> None:
    topic = await trusting.topics.create("orders", 1, {})
    segments = [await reserved(trusting, [records_of(topic)]) for _ in range(2)]
    await trusting.commits.commit(segments[:1])
    await replicated(pair)
    with psycopg.connect(pair.primary.url) as held:
        held.execute("SELECT 1 FROM partitions FOR NO KEY UPDATE")
        committing = asyncio.create_task(trusting.commits.commit(segments[1:]))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: pair.primary.ask(waits) == [(1,)])
        old = pair.fail_over()
        await trusting.database.check_address()

        with pytest.raises(CommitOutcomeUnknown, match="another Postgres is the primary"):
            await committing
    await until(lambda: old.ask("SELECT high_watermark FROM partitions") == [(2,)])

    [answer] = await trusting.commits.commit(segments[1:])
    assert accepted(answer).outcomes == (Assigned(base_offset=Offset(1)),)
    assert pair.primary.ask("SELECT high_watermark FROM partitions") == [(2,)]


async def test_who_cares_hears_of_a_failover_before_anything_is_asked_of_the_new_primary(
    pair: Replication, trusting: Sequencer
) -> None:
    heard: list[DatabaseIdentity | None] = []
    trusting.database.on_change(lambda: heard.append(trusting.database.identity))
    await trusting.topics.list()
    await replicated(pair)

    pair.fail_over()
    await trusting.database.check_address()

    assert [None if identity is None else identity.timeline for identity in heard] == [2]
    assert await trusting.topics.list() == []
    assert trusting.database.generation == len(heard) == 1


async def test_a_transaction_begun_on_the_old_primary_is_not_committed_once_the_new_one_is_known(
    pair: Replication, trusting: Sequencer
) -> None:
    await trusting.topics.create("orders", 1, {})
    await replicated(pair)

    async def rename() -> None:
        async with trusting.database.transaction() as connection:
            await connection.execute("UPDATE topics SET name = 'others'")
            pair.fail_over()
            await trusting.database.check_address()

    with pytest.raises(CommitOutcomeUnknown):
        await rename()

    old = pair.standby
    assert old.ask("SELECT name FROM topics") == [("orders",)]
    found: list[Topic] = list(await trusting.topics.list())
    assert [topic.name for topic in found] == ["orders"]
