"""The ring: same view, same owner; little moves when an agent comes or goes."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_ring.ring import Ring
from storage.identifiers import Partition, TopicId
from tests.cache_ring.builders import ORDERS, an_agent

PAGES = [f"tidelog/segments/00/{number}" for number in range(2000)]


@given(st.permutations([an_agent(1, "a"), an_agent(2, "a"), an_agent(3, "b"), an_agent(4, "b")]))
@settings(max_examples=20, deadline=None)
def test_agents_with_the_same_view_name_the_same_owner(order: list) -> None:
    ring = Ring.of(order)
    same = Ring.of(sorted(order, key=lambda agent: agent.node_id))

    assert [ring.owner("a", page) for page in PAGES[:200]] == [same.owner("a", page) for page in PAGES[:200]]


def test_an_agent_that_leaves_moves_only_its_own_pages() -> None:
    agents = [an_agent(number) for number in range(1, 6)]
    before, after = Ring.of(agents), Ring.of(agents[:-1])

    moved = [page for page in PAGES if before.owner("a", page) != after.owner("a", page)]

    assert {before.owner("a", page) for page in moved} == {agents[-1]}


def test_an_agent_that_joins_takes_about_its_share() -> None:
    agents = [an_agent(number) for number in range(1, 6)]
    before, after = Ring.of(agents[:-1]), Ring.of(agents)

    moved = [page for page in PAGES if before.owner("a", page) != after.owner("a", page)]

    assert {after.owner("a", page) for page in moved} == {agents[-1]}
    assert len(PAGES) / 5 * 0.5 < len(moved) < len(PAGES) / 5 * 1.5


def test_an_owner_is_of_the_zone_asked_for() -> None:
    ring = Ring.of([an_agent(1, "a"), an_agent(2, "b"), an_agent(3, "b")])

    assert {owner.address.zone for page in PAGES[:100] if (owner := ring.owner("b", page))} == {"b"}
    assert ring.owner("c", PAGES[0]) is None


def test_replicas_are_one_agent_per_zone_and_the_zones_leader_is_among_them() -> None:
    ring = Ring.of([an_agent(number, zone) for number, zone in enumerate("aabbcc", start=1)])

    for partition in map(Partition, range(50)):
        replicas = ring.replicas(ORDERS, partition)
        assert [replica.address.zone for replica in replicas] == ["a", "b", "c"]
        assert [ring.partition_leader(zone, ORDERS, partition) for zone in "abc"] == list(replicas)


def test_clients_of_a_zone_without_agents_are_sent_to_any() -> None:
    ring = Ring.of([an_agent(1, "a"), an_agent(2, "b")])

    leaders = {ring.partition_leader("c", TopicId(UUID(int=number)), Partition(0)) for number in range(50)}

    assert leaders == set(ring.agents)


def test_partitions_spread_over_the_agents_of_a_zone() -> None:
    ring = Ring.of([an_agent(number) for number in range(1, 5)])

    leaders = [ring.partition_leader("a", ORDERS, Partition(number)) for number in range(1000)]

    assert all(leaders.count(agent) > 1000 / 4 * 0.5 for agent in ring.agents)


def test_the_later_incarnation_of_a_node_counts() -> None:
    ring = Ring.of([an_agent(1, incarnation=2), an_agent(1, incarnation=1)])

    assert ring.agents == (an_agent(1, incarnation=2),)


def test_an_empty_cluster_names_nobody() -> None:
    ring = Ring.of([])

    assert (ring.owner("a", "page"), ring.partition_leader("a", ORDERS, Partition(0)), ring.zones) == (None, None, ())
