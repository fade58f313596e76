"""Nothing is acknowledged that a failover would lose: weak settings, and waits for the standby that were cut
short.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from cache_ring.ring.membership import Membership
from cache_ring.settings import CacheRingSettings
from sequencer import migrate as migrating
from sequencer.client import Sequencer, SequencerSettings
from sequencer.cluster.agents import AgentAddress
from sequencer.commits.commits import Assigned
from sequencer.commits.coordinates import KnownEnd
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.migrate import Migration, migrate, migrations
from sequencer.settings import MigrationSettings
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.database.failovers import until_it_answers
from tests.sequencer.housekeeping.housekeeping import records_of
from tests.support.replication import Replication
from tests.support.waiting import until

QUICK = SequencerSettings(
    database_recheck_s=3600.0,
    database_durability_check_s=0.1,
    database_pool_timeout_s=0.5,
    database_answer_timeout_s=0.5,
    standbys_expected=True,
)
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' ORDER BY pid"
WAITING_FOR = "SELECT query FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
COMMITTED = "SELECT count(*) FROM segments WHERE state = 'committed'"
MANY = 20
WRITERS = QUICK.database_lease_connections - 1
"""Connections that reservations may take."""
AN_ADDRESS = AgentAddress(
    zone="a", kafka_host="here", kafka_port=1, peer_host="here", peer_port=2, http_url="http://here"
)


@pytest.fixture
def pair(new_replication: Callable[..., Replication]) -> Replication:
    return new_replication(synchronous=True)


@asynccontextmanager
async def opened(pair: Replication, settings: SequencerSettings = QUICK) -> AsyncIterator[Sequencer]:
    sequencer = await Sequencer.open(pair.address.url, settings)
    try:
        yield sequencer
    finally:
        await sequencer.close()


@pytest.fixture
async def client(pair: Replication) -> AsyncIterator[Sequencer]:
    async with opened(pair) as sequencer:
        yield sequencer


@pytest.fixture
async def topic(client: Sequencer) -> Topic:
    return await client.topics.create("orders", 1, {})


@asynccontextmanager
async def stalled(pair: Replication) -> AsyncIterator[None]:
    """The standby takes nothing more."""
    pair.standby.freeze("walreceiver")
    try:
        yield
    finally:
        pair.standby.thaw()


async def one_waits(pair: Replication) -> int:
    """The backend whose commit waits for the standby."""
    await until(lambda: pair.primary.ask(WAITING) != [])
    [(pid,)] = pair.primary.ask(WAITING)
    assert isinstance(pid, int)
    return pid


async def commits(client: Sequencer, topic: Topic) -> Offset:
    [answer] = await client.commits.commit([await reserved(client, [records_of(topic)])])
    [outcome] = accepted(answer).outcomes
    assert isinstance(outcome, Assigned)
    return outcome.base_offset


# --- settings


@pytest.mark.parametrize(
    ("weak", "strong", "reason"),
    [
        ({"synchronous_commit": "off"}, {"synchronous_commit": "on"}, "synchronous_commit is off"),
        ({"synchronous_commit": "local"}, {"synchronous_commit": "on"}, "synchronous_commit is local"),
        (
            {"synchronous_standby_names": ""},
            {"synchronous_standby_names": "pg2"},
            "synchronous_standby_names is empty",
        ),
    ],
)
async def test_commits_are_refused_by_themselves_while_settings_are_weak_and_go_on_once_they_are_mended(
    pair: Replication, topic: Topic, weak: dict[str, str], strong: dict[str, str], reason: str
) -> None:
    async with opened(
        pair, SequencerSettings(standbys_expected=True, database_durability_check_s=3600.0)
    ) as client:
        assert await commits(client, topic) == 0
        segment = await reserved(client, [records_of(topic)])

        pair.primary.configure(**weak)

        with pytest.raises(SequencerUnavailable, match=reason):
            await client.commits.commit([segment])
        assert pair.primary.ask(COMMITTED) == [(1,)]
        assert reason in (await client.cluster.health()).complaints()[0]
        with pytest.raises(SequencerUnavailable, match=reason):
            await client.topics.delete("orders")
        pair.primary.configure(**strong)
        [answer] = await client.commits.commit([segment])
        assert accepted(answer).outcomes == (Assigned(base_offset=Offset(1)),)
        assert (await client.cluster.health()).complaints() == ()


async def test_weak_settings_are_noticed_and_forgiven_without_a_commit(
    pair: Replication, client: Sequencer
) -> None:
    await client.topics.list()

    pair.primary.configure(synchronous_commit="off")

    await until(lambda: client.database.weakness is not None)
    with pytest.raises(SequencerUnavailable, match="synchronous_commit is off"):
        await client.topics.create("orders", 1, {})
    pair.primary.configure(synchronous_commit="on")
    await until(lambda: client.database.weakness is None)
    await client.topics.create("orders", 1, {})


async def test_a_commit_under_way_keeps_the_synchronous_commit_that_it_began_with(
    pair: Replication, client: Sequencer, topic: Topic
) -> None:
    segment = await reserved(client, [records_of(topic)])
    async with stalled(pair):
        committing = asyncio.create_task(client.commits.commit([segment]))
        await one_waits(pair)
        pair.primary.configure(synchronous_commit="off")
        assert pair.primary.ask(WAITING) != []

    assert accepted((await committing)[0]).outcomes == (Assigned(base_offset=Offset(0)),)


# --- a standby that stalls


async def test_a_commit_waits_for_a_stalled_standby_for_longer_than_any_answer_may_take(
    pair: Replication, client: Sequencer, topic: Topic
) -> None:
    segment = await reserved(client, [records_of(topic)])
    async with stalled(pair):
        committing = asyncio.create_task(client.commits.commit([segment]))
        await one_waits(pair)
        done, _ = await asyncio.wait([committing], timeout=4 * QUICK.database_answer_timeout_s)
        assert not done
        assert pair.primary.ask("SELECT high_watermark FROM partitions") == [(0,)], "visible to none"

    assert accepted((await committing)[0]).outcomes == (Assigned(base_offset=Offset(0)),)
    assert client.database.counters.statement_timeouts == 0


async def test_cancelled_calls_go_on_waiting_for_the_standby_on_bounded_connections(
    pair: Replication, client: Sequencer, topic: Topic
) -> None:
    """As of a client that connects, sends, and hangs up, again and again."""
    segment = await reserved(client, [records_of(topic)])
    async with stalled(pair):
        calls: list[asyncio.Task[object]] = [asyncio.create_task(client.commits.commit([segment]))]
        await one_waits(pair)
        calls += [asyncio.create_task(reserved(client, [records_of(topic)])) for _ in range(MANY)]
        most = 1 + WRITERS
        await until(lambda: len(pair.primary.ask(WAITING)) == most)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

        assert len(pair.primary.ask(WAITING)) == most, "none was cancelled"
        assert [found.name for found in await client.topics.list()] == ["orders"], (
            "reads have connections left"
        )
        assert pair.primary.ask(COMMITTED) == [(0,)]

    await until(lambda: pair.primary.ask(WAITING) == [])
    assert pair.primary.ask(COMMITTED) == [(1,)]
    [answer] = await client.commits.commit([segment])
    assert accepted(answer).outcomes == (Assigned(base_offset=Offset(0)),)
    assert await client.database.is_certain(0.0)


async def test_leases_are_renewed_while_the_standby_stalls_and_every_writer_waits(
    pair: Replication, client: Sequencer, topic: Topic
) -> None:
    ring = CacheRingSettings(membership_lease_s=3.0, membership_renew_s=0.2, membership_margin_s=0.5)
    membership = Membership(client.agents, AN_ADDRESS, ring)
    running = asyncio.create_task(membership.run())
    await membership.wait_joined(60.0)
    async with stalled(pair):
        calls = [asyncio.create_task(reserved(client, [records_of(topic)])) for _ in range(MANY)]
        await until(lambda: len(pair.primary.ask(WAITING)) == WRITERS)
        renewed_s = membership.last_renewal_s
        assert renewed_s is not None

        await until(lambda: (membership.last_renewal_s or 0.0) > renewed_s + ring.membership_lease_s)

        assert membership.is_serving()
        assert membership.ring.agents
    await asyncio.gather(*calls, return_exceptions=True)
    running.cancel()
    await asyncio.wait([running])


async def test_leases_are_renewed_while_a_migration_of_their_table_waits_for_the_standby(
    pair: Replication, client: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration is done once the standby has it."""
    change = Migration(
        number=len(migrations()) + 1,
        name="9999_next.sql",
        text="ALTER TABLE agents ADD COLUMN tried integer",
        step=None,
    )
    known = [*migrations(), change]
    monkeypatch.setattr(migrating, "migrations", lambda: known)
    agent = await client.agents.join(AN_ADDRESS, lease_s=60.0)
    async with stalled(pair):
        migration = asyncio.create_task(migrate(pair.primary.url, MigrationSettings()))
        await one_waits(pair)

        async with asyncio.timeout(10):
            renewed = await client.agents.renew(agent.node_id, agent.incarnation, 60.0)

        assert renewed
        assert not migration.done()
    assert await migration == [change.number]


# --- a wait that is cut short


async def test_a_commit_whose_wait_is_cancelled_is_unknown_and_its_repeat_waits_for_the_standby(
    pair: Replication, client: Sequencer, topic: Topic
) -> None:
    segment = await reserved(client, [records_of(topic)])
    async with stalled(pair):
        committing = asyncio.create_task(client.commits.commit([segment]))
        pair.primary.ask("SELECT pg_cancel_backend(%s)", await one_waits(pair))

        with pytest.raises(CommitOutcomeUnknown, match="give up its wait for a synchronous standby"):
            await committing
        assert pair.primary.ask("SELECT high_watermark FROM partitions") == [(1,)], "it is visible"
        repeating = asyncio.create_task(client.commits.commit([segment]))
        await until(lambda: any("sequence_segments" in query for (query,) in pair.primary.ask(WAITING_FOR)))
        assert not repeating.done()

    assert accepted((await repeating)[0]).outcomes == (Assigned(base_offset=Offset(0)),)


@pytest.mark.parametrize("end", ["SELECT pg_cancel_backend(%s)", "SELECT pg_terminate_backend(%s)"])
async def test_what_no_standby_may_have_is_not_read_before_a_barrier_by_its_writer_nor_by_others(
    pair: Replication, client: Sequencer, topic: Topic, end: str
) -> None:
    segment = await reserved(client, [records_of(topic)])
    known = KnownEnd(topic.topic_id, Partition(0), Offset(0), Offset(0), 0)
    async with opened(pair) as other:
        assert await other.coordinates.poll([known], 10) == {}
        async with stalled(pair):
            committing = asyncio.create_task(client.commits.commit([segment]))
            pair.primary.ask(end, await one_waits(pair))
            with pytest.raises(CommitOutcomeUnknown):
                await committing
            await until(lambda: pair.primary.ask("SELECT number FROM doubts") == [(1,)])

            for reader in (client, other):
                with pytest.raises(SequencerUnavailable, match="has not confirmed"):
                    await reader.coordinates.poll([known], 10)
            assert "standby" in (await client.cluster.health()).complaints()[0]

        for reader in (client, other):
            poll = partial(reader.coordinates.poll, [known], 10)
            [coordinates] = (await until_it_answers(poll)).values()
            assert coordinates is not None
            assert coordinates.high_watermark == 1


async def test_after_a_restart_of_postgres_nothing_is_read_before_a_barrier(
    pair: Replication, client: Sequencer, topic: Topic
) -> None:
    segment = await reserved(client, [records_of(topic)])
    async with stalled(pair):
        committing = asyncio.create_task(client.commits.commit([segment]))
        await one_waits(pair)
        pair.primary.postgres.kill()
        pair.primary.postgres.start()
        with pytest.raises((CommitOutcomeUnknown, SequencerUnavailable)):
            await committing
        assert pair.primary.ask("SELECT high_watermark FROM partitions") == [(1,)], (
            "the crash made it visible"
        )

        with pytest.raises(SequencerUnavailable):
            await client.topics.list()
        assert not await client.database.is_certain(0.0)

    [answer] = await until_it_answers(lambda: client.commits.commit([segment]))
    assert accepted(answer).outcomes == (Assigned(base_offset=Offset(0)),)
