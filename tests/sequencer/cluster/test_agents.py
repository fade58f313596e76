"""Membership on the real Postgres."""

from dataclasses import replace

import pytest

from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress

HERE = AgentAddress(
    zone="a",
    kafka_host="10.0.0.1",
    kafka_port=9092,
    peer_host="10.0.0.1",
    peer_port=9093,
    http_url="http://10.0.0.1",
)
THERE = replace(HERE, zone="b", kafka_host="10.0.0.2")


async def test_live_agents_are_those_whose_lease_has_not_passed(sequencer: Sequencer) -> None:
    here = await sequencer.agents.join(HERE, 60)
    there = await sequencer.agents.join(THERE, 60)
    assert await sequencer.agents.live() == (here, there)

    assert await sequencer.agents.renew(here.node_id, here.incarnation, -1)
    assert await sequencer.agents.live() == (there,)

    assert await sequencer.agents.renew(here.node_id, here.incarnation, 60)
    await sequencer.agents.leave(there.node_id, there.incarnation)
    assert await sequencer.agents.live() == (here,)


async def test_a_second_agent_at_an_address_keeps_its_node_id_and_fences_the_first(
    sequencer: Sequencer,
) -> None:
    first = await sequencer.agents.join(HERE, 60)

    second = await sequencer.agents.join(HERE, 60)

    assert (second.node_id, second.incarnation) == (first.node_id, first.incarnation + 1)
    assert not await sequencer.agents.renew(first.node_id, first.incarnation, 60)
    await sequencer.agents.leave(first.node_id, first.incarnation)
    assert await sequencer.agents.live() == (second,)


async def test_a_node_id_is_not_used_again_for_another_address(sequencer: Sequencer) -> None:
    gone = await sequencer.agents.join(HERE, 60)
    await sequencer.database.run("UPDATE agents SET lease_until = clock_timestamp() - interval '2 days'")

    newcomer = await sequencer.agents.join(THERE, 60)
    returned = await sequencer.agents.join(HERE, 60)

    assert len({gone.node_id, newcomer.node_id, returned.node_id}) == 3
    assert not await sequencer.agents.renew(gone.node_id, gone.incarnation, 60)


async def test_an_agent_that_restarts_at_its_kafka_address_keeps_its_node_id(sequencer: Sequencer) -> None:
    """Its other ports may change with each start. It may have stopped or died."""
    died = await sequencer.agents.join(HERE, 60)
    stopped = await sequencer.agents.join(replace(HERE, peer_port=10_001), 60)
    await sequencer.agents.leave(stopped.node_id, stopped.incarnation)
    elsewhere = replace(HERE, zone="b", peer_host="10.0.0.9", peer_port=10_002, http_url="http://10.0.0.9")
    back = await sequencer.agents.join(elsewhere, 60)

    assert died.node_id == stopped.node_id == back.node_id
    assert died.incarnation < stopped.incarnation < back.incarnation
    assert await sequencer.agents.live() == (back,)
    assert back.address == elsewhere
    assert not await sequencer.agents.renew(died.node_id, died.incarnation, 60)


async def test_agents_that_live_behind_one_kafka_address_have_a_node_id_each(sequencer: Sequencer) -> None:
    """As behind a load balancer whose address they advertise."""
    addresses = [
        replace(HERE, peer_host=f"10.0.0.{number}", http_url=f"http://10.0.0.{number}") for number in (1, 2)
    ]

    first, second = [await sequencer.agents.join(address, 60) for address in addresses]
    again = await sequencer.agents.join(addresses[0], 60)

    assert first.node_id != second.node_id
    assert again.node_id == first.node_id
    assert await sequencer.agents.renew(second.node_id, second.incarnation, 60)


async def test_an_agent_learns_the_peer_secrets_with_its_lease_and_two_are_valid_at_a_time(
    sequencer: Sequencer,
) -> None:
    assert sequencer.agents.peer_secrets() == ()
    joined = await sequencer.agents.join(HERE, 60)
    [first] = sequencer.agents.peer_secrets()

    found = []
    for _ in range(2):
        await sequencer.agents.renew_peer_secret()
        assert await sequencer.agents.renew(joined.node_id, joined.incarnation, 60)
        found.append(sequencer.agents.peer_secrets())

    (second, before_second), (third, before_third) = found
    assert (before_second, before_third) == (first, second)
    assert len({first, second, third}) == 3
    assert {len(secret.value) for secret in (first, second, third)} == {32}


@pytest.mark.superuser
async def test_a_renewal_makes_a_secret_where_there_is_none(sequencer: Sequencer) -> None:
    await sequencer.database.run("DELETE FROM peer_secrets")
    await sequencer.agents.join(HERE, 60)
    assert sequencer.agents.peer_secrets() == ()

    await sequencer.agents.renew_peer_secret()
    await sequencer.agents.join(HERE, 60)

    assert len(sequencer.agents.peer_secrets()) == 1
