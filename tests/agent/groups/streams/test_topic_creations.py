"""When a streams group tries to create internal topics."""

from itertools import pairwise

from agent.groups.streams.topology import Topology, topology_of
from tests.agent.groups.streams.streams_world import (
    HEARTBEAT_MS,
    SETTINGS,
    World,
    a_heartbeat,
    a_part,
    a_topic,
)

MINUTES_5 = 300_000
PATIENT = SETTINGS.model_copy(
    update={"group_streams_session_timeout_ms": 10**9, "group_streams_topics_created_at_once": 3}
)


def with_stores(count: int, epoch: int = 0) -> Topology:
    stores = tuple(a_topic(f"store{number}") for number in range(count))
    return topology_of(epoch, [a_part("0", "lines", changelogs=stores)])


def pauses(world: World) -> list[int]:
    times = [time_ms for time_ms, _ in world.attempts]
    return [after - before for before, after in pairwise(times)]


def pass_attempts(world: World, count: int) -> None:
    for _ in range(count):
        due_ms = world.group._group._creations.due_ms
        assert due_ms is not None
        world.pass_time(due_ms - world.now_ms)


def test_refused_topics_are_tried_less_and_less_often() -> None:
    world = World(PATIENT, lines=1)
    world.refuses = {"store0": "no"}
    world.ask(a_heartbeat("a", 0, topology=with_stores(1)))

    pass_attempts(world, 11)

    doubled = [HEARTBEAT_MS * 2**number for number in range(9)]
    assert pauses(world) == [*doubled, MINUTES_5, MINUTES_5]


def test_another_reason_ends_the_long_pauses() -> None:
    world = World(PATIENT, lines=1)
    world.refuses = {"store0": "no"}
    world.ask(a_heartbeat("a", 0, topology=with_stores(1)))
    pass_attempts(world, 4)

    world.refuses = {"store0": "not yet"}
    pass_attempts(world, 2)

    assert pauses(world)[-2:] == [HEARTBEAT_MS * 16, HEARTBEAT_MS]


def test_new_topics_do_not_wait_for_a_long_pause() -> None:
    world = World(PATIENT, lines=1)
    world.refuses = {"store0": "no"}
    world.ask(a_heartbeat("a", 0, topology=with_stores(1)))
    pass_attempts(world, 8)

    world.ask(a_heartbeat("b", 0, topology=with_stores(2, epoch=1)))
    assert world.created == []
    world.pass_time(HEARTBEAT_MS)

    assert world.attempts[-1][1] == world.created == ["store1"]


def test_a_topic_that_was_created_and_deleted_is_soon_created_again() -> None:
    world = World(PATIENT, lines=1)
    world.refuses = {"store0": "no"}
    world.ask(a_heartbeat("a", 0, topology=with_stores(2)))
    pass_attempts(world, 8)

    del world.topics["store1"]
    world.look_again()
    world.pass_time(HEARTBEAT_MS)

    assert world.created == ["store1", "store1"]


def test_many_topics_are_created_in_attempts_that_follow_at_once() -> None:
    world = World(PATIENT, lines=1)
    world.refuses = {"store1": "no"}

    world.ask(a_heartbeat("a", 0, topology=with_stores(8)))
    assert len(world.attempts) == 1
    pass_attempts(world, 2)

    assert world.attempts == [
        (0, ["store0", "store1", "store2"]),
        (0, ["store3", "store4", "store5"]),
        (0, ["store6", "store7"]),
    ]
    pass_attempts(world, 1)
    assert world.attempts[3:] == [(HEARTBEAT_MS, ["store1"])]
