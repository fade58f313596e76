"""The ring: agents with the same view name the same owner, and little moves when an agent comes or goes."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_ring.ring.ring import Ring
from sequencer.cluster.agents import LiveAgent
from storage.identifiers import Partition, TopicId
from tests.cache_ring.builders import ORDERS, an_agent

PAGES = [f"tidelog/segments/00/{number}" for number in range(2000)]
OWNERS_BY_UHASHRING = [
    (8, 7, 7), (8, 3, 8), (2, 1, 2), (6, 1, 6), (4, 1, 1), (2, 7, 7),
    (4, 3, 3), (8, 1, 1), (6, 7, 7), (6, 9, 6), (4, 9, 4), (2, 5, 5),
]  # fmt: skip
"""The owner in zone a, in zone b, and the coordinator, for twelve pages and nine agents, of which the even
ones are in zone a.
"""


@given(st.permutations([an_agent(1, "a"), an_agent(2, "a"), an_agent(3, "b"), an_agent(4, "b")]))
@settings(max_examples=20, deadline=None)
def test_agents_with_the_same_view_name_the_same_owner(order: list[LiveAgent]) -> None:
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


def test_an_empty_cluster_names_no_agent() -> None:
    ring = Ring.of([])

    assert (ring.owner("a", "page"), ring.partition_leader("a", ORDERS, Partition(0)), ring.zones) == (
        None,
        None,
        (),
    )


@given(st.lists(st.sets(st.integers(1, 12)), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_ring_made_from_an_earlier_one_names_the_same_owners_and_does_not_change_it(
    views: list[set[int]],
) -> None:
    ring, seen = Ring.of(()), []
    for number, view in enumerate(views):
        # The zone of some agents changes from view to view.
        agents = [an_agent(node_id, "abc"[(node_id + number * (node_id % 5 == 0)) % 3]) for node_id in view]
        ring = Ring.of(agents, before=ring)
        seen.append((ring, Ring.of(agents)))

    for made, whole in seen:
        assert (made.agents, made.zones) == (whole.agents, whole.zones)
        for page in PAGES[:40]:
            assert [made.owner(zone, page) for zone in "abc"] == [whole.owner(zone, page) for zone in "abc"]
            assert made.coordinator(page) == whole.coordinator(page)


def test_a_ring_made_from_one_without_suspects_has_them_again() -> None:
    agents = [an_agent(number) for number in range(1, 6)]
    left = Ring.of(agents).without({agents[0].node_id})

    ring = Ring.of(agents, before=left)

    assert [ring.owner("a", page) for page in PAGES[:200]] == [
        Ring.of(agents).owner("a", page) for page in PAGES[:200]
    ]


def test_zones_whose_agents_stay_keep_their_points() -> None:
    """A change costs only what has changed."""
    agents = [an_agent(number, "abc"[number % 3]) for number in range(1, 31)]
    before = Ring.of(agents)

    after = Ring.of(agents[:-1], before=before)
    restarted = Ring.of([*agents[:-1], an_agent(30, "a", incarnation=2)], before=before)

    assert [zone for zone in "abc" if after._by_zone[zone] is before._by_zone[zone]] == ["b", "c"]
    assert restarted._everywhere is before._everywhere
    assert restarted.agent(agents[-1].node_id) == an_agent(30, "a", incarnation=2)


def test_owners_are_the_same_in_every_version() -> None:
    """Agents of two versions run at the same time while a cluster is upgraded: they must name the same
    owners.
    """
    ring = Ring.of([an_agent(number, "ab"[number % 2]) for number in range(1, 10)])

    owners = [(ring.owner("a", page), ring.owner("b", page), ring.coordinator(page)) for page in PAGES[:12]]

    assert [tuple(owner.node_id for owner in three if owner) for three in owners] == OWNERS_BY_UHASHRING
