"""Membership on a real Postgres: leases count from when they were sent, views survive an outage, and an agent
that lost its lease joins again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import psycopg

from cache_ring.ring.membership import Membership
from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress
from sequencer.settings import SequencerSettings
from tests.cache_ring.builders import an_address
from tests.support.waiting import until

QUICK = CacheRingSettings(membership_lease_s=60.0, membership_renew_s=0.05, membership_margin_s=0.5)


@asynccontextmanager
async def joined(
    sequencer: Sequencer, address: AgentAddress, settings: CacheRingSettings = QUICK
) -> AsyncIterator[Membership]:
    membership = Membership(sequencer.agents, address, settings)
    running = asyncio.create_task(membership.run())
    try:
        await membership.wait_joined(60.0)
        yield membership
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await membership.leave()


async def test_agents_see_each_other_come_and_go(sequencer: Sequencer) -> None:
    async with joined(sequencer, an_address("a", 1, 9001)) as first:
        async with joined(sequencer, an_address("b", 2, 9002)) as second:
            await until(lambda: first.ring.zones == ("a", "b"))
            await until(lambda: second.ring.agents == first.ring.agents)
            assert first.is_serving()
        await until(lambda: first.ring.zones == ("a",))
    assert not first.is_serving()


async def test_a_lease_counts_from_when_its_renewal_was_sent(sequencer: Sequencer) -> None:
    times = iter([100.0, 103.0])
    last = [0.0]

    def clock() -> float:
        last[0] = next(times, last[0])
        return last[0]

    settings = CacheRingSettings(membership_lease_s=10.0, membership_renew_s=5.0, membership_margin_s=1.0)
    membership = Membership(sequencer.agents, an_address(), settings, clock=clock)
    running = asyncio.create_task(membership.run())
    await membership.wait_joined(60.0)

    assert (membership.is_serving(108.9), membership.is_serving(109.0)) == (True, False)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await membership.leave()


async def test_an_agent_whose_lease_was_lost_joins_again(sequencer: Sequencer, database_url: str) -> None:
    async with joined(sequencer, an_address()) as membership:
        before = membership.self_
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("DELETE FROM agents")

        await until(lambda: membership.self_ not in (None, before) and membership.is_serving())

        assert before is not None
        await until(lambda: membership.ring.agents == (membership.self_,))


async def test_a_second_agent_at_the_same_address_takes_the_first_ones_place(sequencer: Sequencer) -> None:
    async with joined(sequencer, an_address()) as first:
        old = first.self_
        second = await sequencer.agents.join(an_address(), 5.0)

        assert old is not None
        assert second.node_id == old.node_id
        await until(lambda: first.self_ is not None and first.self_.incarnation > second.incarnation)


async def test_the_last_view_is_kept_while_postgres_is_away_and_serving_ends_with_the_lease(
    database_url: str,
) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    now_s = [0.0]
    membership = Membership(sequencer.agents, an_address(), QUICK, clock=lambda: now_s[0])
    running = asyncio.create_task(membership.run())
    await membership.wait_joined(60.0)
    await until(lambda: len(membership.ring.agents) == 1)
    view = membership.ring

    await sequencer.close()
    await asyncio.sleep(0.2)
    now_s[0] += 59.4
    serving_before = membership.is_serving()
    now_s[0] += 0.2

    assert (serving_before, membership.is_serving(), membership.ring) == (True, False, view)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await membership.leave()


async def test_an_agent_drops_its_pages_before_it_says_so(sequencer: Sequencer) -> None:
    erasures = sequencer.erasures
    before = await erasures.drop_pages(datetime(2001, 1, 1, tzinfo=UTC))
    dropped: list[int] = []
    async with joined(sequencer, an_address("a", 1, 9001)) as agent, asyncio.timeout(60):
        agent.when_erased(dropped.append)
        while await erasures.agents_behind(before):  # noqa: ASYNC110 - the state is Postgres'
            await asyncio.sleep(0.01)

        number = await erasures.drop_pages(datetime(2002, 1, 1, tzinfo=UTC))
        while await erasures.agents_behind(number):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert dropped == [1_009_843_200_000]

        earlier = await erasures.drop_pages(datetime(2000, 1, 1, tzinfo=UTC))
        while await erasures.agents_behind(earlier):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert dropped == [1_009_843_200_000] * 2
    assert await erasures.agents_behind(earlier + 1) == 0, "an agent without a lease is not waited for"
