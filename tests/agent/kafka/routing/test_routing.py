"""Which agent a partition's clients are sent to: the partitions that an agent leads, and how a connection
learns that one moved.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest_asyncio

from agent.kafka.context import ConnectionState, RequestContext
from agent.kafka.routing.routing import RoutingTable, moved_partitions
from cache_ring.ring.ring import Ring
from storage.identifiers import NodeId, Partition
from tests.agent.running import Running, running
from tests.cache_ring.builders import ORDERS, an_agent
from tests.support.waiting import until

PARTITIONS = range(50)


def led_by(ring: Ring, node_id: int, zone: str = "a") -> set[int]:
    leaders = {
        partition: ring.partition_leader(zone, ORDERS, Partition(partition)) for partition in PARTITIONS
    }
    return {
        partition for partition, leader in leaders.items() if leader is not None and leader.node_id == node_id
    }


def test_an_agent_leads_its_own_partitions_and_no_other() -> None:
    ring, table = Ring.of([an_agent(1), an_agent(2)]), RoutingTable(1_000)
    own, others = led_by(ring, 1), led_by(ring, 2)
    assert own
    assert others

    for _ in range(2):  # the second time from the table
        assert table.leads_all(ring, "a", ORDERS, own, NodeId(1))
        assert not table.leads_all(ring, "a", ORDERS, own | {min(others)}, NodeId(1))
        assert not table.leads_all(ring, "a", ORDERS, own, NodeId(2))
        assert table.leads_all(ring, "a", ORDERS, others, NodeId(2))


def test_routes_of_an_earlier_ring_do_not_count() -> None:
    alone, table = Ring.of([an_agent(1)]), RoutingTable(1_000)
    both = Ring.of([an_agent(1), an_agent(2)])

    assert table.leads_all(alone, "a", ORDERS, PARTITIONS, NodeId(1))
    assert not table.leads_all(both, "a", ORDERS, PARTITIONS, NodeId(1))
    assert table.leads_all(both, "a", ORDERS, led_by(both, 1), NodeId(1))
    assert table.leads_all(alone, "a", ORDERS, PARTITIONS, NodeId(1))


def test_each_zone_has_its_own_leaders() -> None:
    ring, table = Ring.of([an_agent(1, "a"), an_agent(2, "b")]), RoutingTable(1_000)

    assert table.leads_all(ring, "a", ORDERS, PARTITIONS, NodeId(1))
    assert not table.leads_all(ring, "b", ORDERS, PARTITIONS, NodeId(1))


def test_without_agents_no_client_is_redirected() -> None:
    assert RoutingTable(1_000).leads_all(Ring.of([]), "a", ORDERS, PARTITIONS, NodeId(1))


def test_a_table_that_is_full_forgets_and_still_answers() -> None:
    ring, table = Ring.of([an_agent(1), an_agent(2)]), RoutingTable(3)

    for _ in range(2):
        assert table.leads_all(ring, "a", ORDERS, led_by(ring, 1), NodeId(1))
        assert not table.leads_all(ring, "a", ORDERS, PARTITIONS, NodeId(1))


@pytest_asyncio.fixture
async def context(module_database_url: str) -> AsyncIterator[RequestContext[Any]]:
    """A request to the first of two agents."""
    async with running(module_database_url) as first, running(module_database_url) as second:
        await until(lambda: first.agents_seen == second.agents_seen == 2)
        yield _a_request_to(first)


def _a_request_to(agent: Running) -> RequestContext[Any]:
    assembly = agent.app._reached.assembly
    assert assembly is not None
    parts = assembly.parts
    memory = parts.request_memory.try_reserve(1)
    assert memory is not None
    return RequestContext(
        api_key=0,
        api_version=9,
        client_id=None,
        client_zone=parts.membership.zone,
        connection=ConnectionState(connection_id=1, peer="127.0.0.1:1"),
        settings=parts.settings,
        parts=parts,
        received_at_s=100.0,
        memory=memory,
        turn=None,
        watch=None,
    )


async def test_a_connection_is_redirected_for_each_moved_partition_for_a_while(
    context: RequestContext[Any],
) -> None:
    membership, window_s = context.parts.membership, context.settings.redirect_window_s
    assert membership.self_ is not None
    own = led_by(membership.ring, membership.self_.node_id, membership.zone)
    others = set(PARTITIONS) - own
    assert own
    assert others

    assert moved_partitions(context, ORDERS, own) == set()
    assert moved_partitions(context, ORDERS, PARTITIONS) == others
    assert (
        moved_partitions(replace(context, received_at_s=100.0 + window_s / 2), ORDERS, PARTITIONS) == others
    )
    assert moved_partitions(replace(context, received_at_s=100.0 + window_s), ORDERS, PARTITIONS) == set()


async def test_when_an_agent_falls_silent_each_connection_is_refused_one_partition_once(
    context: RequestContext[Any],
) -> None:
    membership, window_s = context.parts.membership, context.settings.refresh_window_s
    assert membership.self_ is not None
    own = led_by(membership.ring, membership.self_.node_id, membership.zone)
    (other,) = (
        agent.node_id for agent in membership.ring.agents if agent.node_id != membership.self_.node_id
    )
    assert moved_partitions(context, ORDERS, own) == set()

    membership.leave_out({other}, {other})

    assert moved_partitions(context, ORDERS, own) == {min(own)}
    assert moved_partitions(replace(context, received_at_s=100.0 + window_s / 2), ORDERS, own) == {min(own)}
    assert moved_partitions(replace(context, received_at_s=100.0 + window_s), ORDERS, PARTITIONS) == set()

    membership.leave_out(set(), set())


async def test_a_connection_newer_than_a_silence_is_not_refused(
    context: RequestContext[Any],
) -> None:
    membership = context.parts.membership
    (other,) = (agent.node_id for agent in membership.ring.agents if agent != membership.self_)

    membership.leave_out({other}, {other})

    assert moved_partitions(context, ORDERS, PARTITIONS) == set()

    membership.leave_out(set(), set())


async def test_behind_one_address_nothing_moves(context: RequestContext[Any]) -> None:
    one_address = context.settings.model_copy(update={"one_address": "balancer.example:9092"})

    assert moved_partitions(replace(context, settings=one_address), ORDERS, PARTITIONS) == set()
