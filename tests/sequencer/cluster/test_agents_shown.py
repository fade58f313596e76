"""The list of live agents that all agents read: it agrees with the leases, and is cheap to read again."""

import random

import pytest
from psycopg import AsyncClientCursor

from sequencer.client import Sequencer
from sequencer.cluster.agents import SQL, AgentAddress, LiveAgent, Shown
from tests.cache_ring.builders import an_address
from tests.sequencer.housekeeping.housekeeping import waits_for_a_lock
from tests.sequencer.plans import pages_touched

MANY = 1_000
MOST_PAGES = 5


async def look(sequencer: Sequencer, before: Shown | None = None) -> Shown:
    return await sequencer.agents.shown(before, not_older_than_s=0.0)


async def leases_end(sequencer: Sequencer, *agents: LiveAgent) -> None:
    await sequencer.database.run(
        (
            "UPDATE agents SET lease_until = clock_timestamp() - interval '1 s' WHERE node_id = "
            "ANY(%(node_ids)s)"
        ),
        node_ids=[agent.node_id for agent in agents],
    )


async def test_an_agent_that_joins_or_leaves_is_shown_so_at_once(sequencer: Sequencer) -> None:
    here = await sequencer.agents.join(an_address("a", 1, 9001), 60.0)
    first = await sequencer.agents.shown(None, not_older_than_s=60.0)
    there = await sequencer.agents.join(an_address("b", 2, 9002), 60.0)
    second = await sequencer.agents.shown(first, not_older_than_s=60.0)
    await sequencer.agents.leave(here.node_id, here.incarnation)
    third = await sequencer.agents.shown(second, not_older_than_s=60.0)

    assert [shown.agents for shown in (first, second, third)] == [(here,), (here, there), (there,)]


async def test_an_agent_whose_lease_passed_is_not_shown_until_it_renews(sequencer: Sequencer) -> None:
    agent = await sequencer.agents.join(an_address(), 60.0)
    joined = await look(sequencer)
    await leases_end(sequencer, agent)
    not_looked_yet = await sequencer.agents.shown(joined, not_older_than_s=60.0)
    gone = await look(sequencer, joined)
    assert await sequencer.agents.renew(agent.node_id, agent.incarnation, 60.0)
    back = await look(sequencer, gone)

    assert [shown.agents for shown in (joined, not_looked_yet, gone, back)] == [
        (agent,),
        (agent,),
        (),
        (agent,),
    ]


async def test_a_look_says_of_which_moment_it_is(sequencer: Sequencer) -> None:
    await sequencer.agents.join(an_address(), 60.0)
    await sequencer.database.run("UPDATE agents_shown SET looked_at = clock_timestamp() - interval '9 s'")

    assert (await sequencer.agents.shown(None, not_older_than_s=60.0)).age_s >= 9
    assert (await sequencer.agents.shown(None, not_older_than_s=5.0)).age_s < 5


async def test_a_look_from_before_the_clock_was_set_back_is_made_again(sequencer: Sequencer) -> None:
    agent = await sequencer.agents.join(an_address(), 60.0)
    await sequencer.database.run("UPDATE agents_shown SET looked_at = clock_timestamp() + interval '1 hour'")
    await leases_end(sequencer, agent)

    assert (await sequencer.agents.shown(None, not_older_than_s=60.0)).agents == ()


async def test_a_look_costs_what_changed_however_many_agents_there_are(sequencer: Sequencer) -> None:
    await sequencer.database.run(
        "INSERT INTO agents"
        " (node_id, incarnation, zone, kafka_host, kafka_port, peer_host, peer_port, http_url, lease_until)"
        " SELECT n, 1, 'a', 'host', n, 'host', n, '', clock_timestamp() + interval '1 hour'"
        " FROM generate_series(100000, 100000 + %(many)s - 1) AS n",
        many=MANY,
    )
    shown = await look(sequencer)
    assert len(shown.agents) == MANY

    assert await _pages(sequencer, shown) <= MOST_PAGES
    await sequencer.agents.join(an_address(), 60.0)
    assert len(await sequencer.database.run(SQL["shown"], since=shown.changes)) == 1
    again = await look(sequencer, shown)
    assert len(again.agents) == MANY + 1


async def test_renewals_change_nothing_that_is_shown(sequencer: Sequencer) -> None:
    agent = await sequencer.agents.join(an_address(), 60.0)
    before = await look(sequencer)
    for _ in range(20):
        await sequencer.agents.renew(agent.node_id, agent.incarnation, 60.0)

    assert (await look(sequencer, before)).changes == before.changes


async def test_raced_a_join_that_waits_for_its_commit_holds_up_nobody(sequencer: Sequencer) -> None:
    """As while a standby stalls: the row of the agent that comes back stays locked."""
    back, other = [await sequencer.agents.join(an_address("a", port, port), 60.0) for port in (9001, 9002)]
    before = await look(sequencer)
    await leases_end(sequencer, back, other)
    async with sequencer.database.transaction() as held:
        await held.execute(
            "UPDATE agents SET incarnation = incarnation + 1, lease_until = clock_timestamp() + interval "
            "'1 minute' WHERE node_id = %s",
            (back.node_id,),
        )
        meanwhile = await look(sequencer, before)

    assert [agent.node_id for agent in meanwhile.agents] == [back.node_id], (
        "it is judged when its commit is over"
    )
    after = await look(sequencer, meanwhile)
    assert [(agent.node_id, agent.incarnation) for agent in after.agents] == [
        (back.node_id, back.incarnation + 1)
    ]


async def test_raced_a_change_is_not_passed_by_a_later_one(sequencer: Sequencer) -> None:
    """A number becomes visible after all lower ones: a concurrent reader waits for the one before."""
    first = await sequencer.agents.join(an_address("a", 1, 9001), 60.0)
    before = await look(sequencer)
    async with sequencer.database.transaction() as slow:
        await slow.execute(
            "UPDATE agents SET lease_until = clock_timestamp() WHERE node_id = %s", (first.node_id,)
        )
        await slow.execute("SELECT show_agents(0)")
        looking = await waits_for_a_lock(sequencer, lambda: look(sequencer, before))

    assert (await looking).agents == ()


async def test_rows_that_were_deleted_are_noticed(sequencer: Sequencer) -> None:
    for number in range(3):
        await sequencer.agents.join(an_address("a", number, 9001 + number), 60.0)
    before = await look(sequencer)
    await sequencer.database.run(
        "DELETE FROM agents WHERE node_id = %(node_id)s", node_id=before.agents[1].node_id
    )

    assert (await look(sequencer, before)).agents == (before.agents[0], before.agents[2])


@pytest.mark.parametrize("seed", range(2))
async def test_all_readers_see_the_leases_through_any_history(sequencer: Sequencer, seed: int) -> None:
    chance = random.Random(seed)
    readers: list[Shown | None] = [None] * 4
    alive: list[LiveAgent] = []
    for _ in range(60):
        match chance.randrange(4):
            case 0 | 1:
                alive.append(await sequencer.agents.join(_one_of(chance), 60.0))
            case 2 if alive:
                gone = alive.pop(chance.randrange(len(alive)))
                await sequencer.agents.leave(gone.node_id, gone.incarnation)
            case 3 if alive:
                await leases_end(sequencer, *chance.sample(alive, chance.randint(1, len(alive))))
        reader = chance.randrange(len(readers))
        readers[reader] = seen = await look(sequencer, readers[reader])
        assert seen.agents == await sequencer.agents.live()


def _one_of(chance: random.Random) -> AgentAddress:
    number = chance.randrange(8)
    return an_address("a", number, 9001 + number)


async def _pages(sequencer: Sequencer, shown: Shown) -> int:
    async with sequencer.database.connection() as connection:
        cursor = AsyncClientCursor(connection)
        for _ in range(2):  # the first reads the catalogue
            await cursor.execute(
                f"EXPLAIN (ANALYZE, BUFFERS) {SQL['shown']}".encode(), {"since": shown.changes}
            )
            plan = "\n".join(row[0] for row in await cursor.fetchall())
    assert "never executed" in plan, plan
    return pages_touched(plan)
