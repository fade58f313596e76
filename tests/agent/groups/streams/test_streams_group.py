"""What a streams group answers: first targets, hand-overs, statuses, refusals, other protocols."""

from dataclasses import replace
from typing import Any

import pytest

from agent.groups.events import (
    Answered,
    CommitFence,
    Endpoint,
    GroupFault,
    GroupState,
    Join,
    JoinAnswer,
    OfferedProtocol,
    StatusCode,
    StreamsHeartbeatAnswer,
    Tasks,
    Token,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.group import Group
from agent.groups.settings import GroupSettings
from agent.groups.streams.topology import topology_of
from storage.identifiers import Partition
from tests.agent.groups.streams.streams_world import (
    REBALANCE_MS,
    SESSION_MS,
    SETTINGS,
    WORD_COUNT,
    Client,
    World,
    a_heartbeat,
    a_part,
)


def codes(answer: StreamsHeartbeatAnswer) -> list[StatusCode]:
    return [status.code for status in answer.statuses]


def a_client(world: World, name: str, **values: Any) -> Client:
    return Client(world=world, member_id=name, process_id=f"process of {name}", **values)


def tasks_of(answer: StreamsHeartbeatAnswer) -> dict[str, list[int]]:
    assert answer.tasks is not None
    return {part: sorted(numbers) for part, numbers in answer.tasks.active.items()}


def test_the_first_member_makes_the_group_create_the_topics_then_gets_all_tasks() -> None:
    world = World(lines=2)

    first = world.ask(a_heartbeat("a", 0))
    second = world.ask(a_heartbeat("a", first.member_epoch))

    assert (first.tasks, codes(first)) == (Tasks(), [StatusCode.MISSING_INTERNAL_TOPICS])
    assert world.created == ["counts", "words"]
    assert {name: shape.partition_count for name, shape in world.topics.items()} == {
        "lines": 2,
        "words": 2,
        "counts": 2,
    }
    assert (tasks_of(second), codes(second)) == ({"0": [0, 1], "1": [0, 1]}, [])
    assert world.group.state is GroupState.STABLE


def test_an_empty_group_waits_for_more_members_before_it_assigns() -> None:
    settings = SETTINGS.model_copy(update={"group_streams_initial_rebalance_delay_ms": 3_000})
    world = World(settings, lines=2, words=2, counts=2)

    first = world.ask(a_heartbeat("a", 0))
    world.restart()  # the next coordinator waits, too
    other = world.ask(a_heartbeat("b", 0))
    world.pass_time(3_000)
    a, b = (
        world.ask(a_heartbeat(name, answer.member_epoch)) for name, answer in (("a", first), ("b", other))
    )

    assert codes(first) == codes(other) == [StatusCode.ASSIGNMENT_DELAYED]
    assert (first.tasks, first.member_epoch) == (Tasks(), 1)
    assert sum(map(len, tasks_of(a).values())) == sum(map(len, tasks_of(b).values())) == 2


def test_a_task_is_handed_over_after_its_owner_confirmed() -> None:
    world = World(lines=1, words=1, counts=1)
    a, b = a_client(world, "a"), a_client(world, "b")
    a.step()
    b.step()
    assert (len(a.active), len(b.active)) == (2, 0)

    a.step()  # it must give one task up
    b.step()
    assert (len(a.active), len(b.active)) == (1, 0)
    a.step()  # it confirms
    b.step()

    assert (len(a.active), len(b.active)) == (1, 1)


def test_a_member_that_never_gives_its_tasks_up_is_fenced() -> None:
    world = World(lines=1, words=1, counts=1)
    a, b = a_client(world, "a"), a_client(world, "b")
    a.step()
    b.step()
    for _ in range(REBALANCE_MS // 1_000 + 1):
        world.pass_time(1_000)
        a.beat()  # and never gives it up
        b.step()

    assert a.answer is not None
    assert a.answer.fault is GroupFault.UNKNOWN_MEMBER
    assert len(b.active) == 2


def test_a_silent_member_loses_its_tasks_and_a_copy_takes_over() -> None:
    world = World(lines=1, words=1, counts=1)
    a, b = a_client(world, "a"), a_client(world, "b")
    for _ in range(4):
        a.step()
        b.step()
    assert a.told.standby or b.told.standby
    for _ in range(SESSION_MS // 1_000):
        world.pass_time(1_000)
        b.step()

    assert len(b.active) == 2
    assert not b.told.standby


@pytest.mark.parametrize(
    ("epoch", "owned", "fault"),
    [
        (7, None, GroupFault.FENCED_MEMBER_EPOCH),
        (1, None, GroupFault.FENCED_MEMBER_EPOCH),
        (1, Tasks(active={"0": frozenset({Partition(0)})}), None),
        (1, Tasks(active={"9": frozenset({Partition(0)})}), GroupFault.FENCED_MEMBER_EPOCH),
    ],
)
def test_only_the_epoch_or_a_lost_answers_epoch_is_taken(
    epoch: int, owned: Tasks | None, fault: GroupFault | None
) -> None:
    world = World(lines=1, words=1, counts=1)
    world.ask(a_heartbeat("a", 0))
    world.ask(a_heartbeat("b", 0))
    world.ask(a_heartbeat("b", -1))
    given = world.ask(a_heartbeat("a", 1, owned=Tasks()))
    assert given.member_epoch == 3

    assert world.ask(a_heartbeat("a", epoch, owned=owned)).fault is fault


def test_commits_of_an_epoch_are_taken_while_the_member_has_lost_nothing_since() -> None:
    world = World(lines=1, words=1, counts=1)
    a, b = a_client(world, "a"), a_client(world, "b")
    a.step()
    b.step()
    check = world.group.check_commit
    assert isinstance(check("a", None, 1, 0), CommitFence)
    assert check("a", None, 2, 0) is GroupFault.STALE_MEMBER_EPOCH
    assert check("nobody", None, 1, 0) is GroupFault.UNKNOWN_MEMBER
    b.leave()
    a.step()
    assert a.epoch == 3
    assert check("a", None, 1, 0) == CommitFence(member_id="a", member_epoch=3)
    c = a_client(world, "c")
    for _ in range(3):
        c.step()
        a.step()

    assert check("a", None, 1, 0) is GroupFault.STALE_MEMBER_EPOCH


def test_members_learn_why_there_are_no_tasks() -> None:
    world = World()

    missing = world.ask(a_heartbeat("a", 0))
    world.make_topic("lines", 2)
    world.refuses = {"counts": "no such config"}
    world.look_again()
    refused = world.ask(a_heartbeat("a", missing.member_epoch))

    assert codes(missing) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert codes(refused) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert "counts cannot be created: no such config" in refused.statuses[0].detail
    assert world.group.state is GroupState.NOT_READY
    world.refuses = {}
    world.pass_time(1_000)  # it tries again
    assert codes(world.ask(a_heartbeat("a", refused.member_epoch))) == []


def test_tasks_are_given_up_when_a_topic_is_gone_and_given_again_when_it_is_back() -> None:
    world = World(lines=1, words=1, counts=1)
    a = a_client(world, "a")
    a.step()
    del world.topics["lines"]
    world.look_again()
    a.step()
    a.step()
    assert a.active == frozenset()

    world.make_topic("lines", 1)
    world.look_again()
    a.step()

    assert len(a.active) == 2


def test_all_members_are_told_to_stop_when_one_asks_until_the_group_is_empty() -> None:
    world = World(lines=1, words=1, counts=1)
    a, b = a_client(world, "a"), a_client(world, "b")
    a.step()
    b.step()
    a.beat(asks_for_shutdown=True)
    a.hear()
    world.restart()
    b.beat()
    assert b.answer is not None
    assert codes(b.answer) == [StatusCode.SHUTDOWN_APPLICATION]
    b.hear()
    a.leave()
    b.leave()

    assert codes(world.ask(a_heartbeat("c", 0))) == []


OTHER = topology_of(0, [a_part("0", "lines")])


@pytest.mark.parametrize(
    ("epoch", "fault"),
    [
        (4, GroupFault.TOPOLOGY_FENCED),
        (5, GroupFault.INVALID_TOPOLOGY_EPOCH),
        (6, None),
        (7, GroupFault.INVALID_TOPOLOGY_EPOCH),
    ],
)
def test_another_topology_needs_the_next_epoch_while_there_are_members(
    epoch: int, fault: GroupFault | None
) -> None:
    world = World(lines=1, words=1, counts=1)
    joined = world.ask(a_heartbeat("a", 0, topology=replace(WORD_COUNT, epoch=5)))

    answer = world.ask(a_heartbeat("b", 0, topology=replace(OTHER, epoch=epoch)))
    told = world.ask(a_heartbeat("a", joined.member_epoch, owned=Tasks()))

    assert answer.fault is fault
    assert codes(told) == ([] if fault else [StatusCode.STALE_TOPOLOGY])
    assert not fault or answer.message


def test_an_empty_group_takes_any_topology() -> None:
    world = World(lines=1, words=1, counts=1)
    a = a_client(world, "a")
    a.step()
    a.leave()

    answer = world.ask(a_heartbeat("b", 0, topology=OTHER))

    assert tasks_of(answer) == {"0": [0]}


def test_endpoints_are_told_once_until_something_changes() -> None:
    world = World(lines=1, words=1, counts=1)
    joined = world.ask(a_heartbeat("a", 0, endpoint=Endpoint(host="host", port=80)))

    same = world.ask(a_heartbeat("a", joined.member_epoch, endpoint_epoch=joined.endpoint_epoch))
    world.restart()
    restarted = world.ask(a_heartbeat("a", joined.member_epoch, endpoint_epoch=joined.endpoint_epoch))
    world.ask(a_heartbeat("b", 0))
    world.ask(a_heartbeat("a", joined.member_epoch, owned=Tasks(), endpoint_epoch=joined.endpoint_epoch))
    other = world.ask(a_heartbeat("b", 0, endpoint_epoch=joined.endpoint_epoch))

    assert joined.endpoints is not None
    assert joined.endpoints[0].active == {"lines": frozenset({0}), "words": frozenset({0})}
    assert same.endpoints is None
    assert restarted.endpoints is None
    assert other.endpoints is not None


def test_a_full_group_refuses_more_members() -> None:
    world = World(SETTINGS.model_copy(update={"group_max_size": 1}), lines=1, words=1, counts=1)
    world.ask(a_heartbeat("a", 0))

    assert world.ask(a_heartbeat("b", 0)).fault is GroupFault.GROUP_FULL
    assert world.ask(a_heartbeat("a", 0)).fault is None


def test_more_standby_copies_come_when_the_config_says_so() -> None:
    world = World(lines=1, words=1, counts=1)
    clients = [a_client(world, name) for name in "abc"]
    for _ in range(4):
        for client in clients:
            client.step()
    assert sum(len(client.told.standby.get("1", ())) for client in clients) == 1

    world.group.configure(SETTINGS.model_copy(update={"group_streams_num_standby_replicas": 2}))
    for client in clients:
        client.step()

    assert sum(len(client.told.standby.get("1", ())) for client in clients) == 2


# --- groups of other protocols


def a_join() -> Join:
    return Join(
        token=Token(1),
        member_id="",
        instance_id=None,
        client_id="c",
        client_host="/",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(OfferedProtocol(name="range", metadata=b""),),
        requires_known_member_id=True,
        can_skip_assignment=False,
    )


def a_group() -> Group:
    return Group(GroupSettings(group_initial_rebalance_delay_ms=0), lambda: "new", None, 0)


def fault_of(answered: list[Answered]) -> GroupFault | None:
    [one] = answered
    assert isinstance(one.answer, JoinAnswer | StreamsHeartbeatAnswer)
    return one.answer.fault


def test_a_group_changes_its_protocol_only_without_members() -> None:
    group, seen = a_group(), TopicsSeen(topics={}, asked=TopicsWanted(names=frozenset({"lines"})))
    group.handle(a_heartbeat("a", 0, topology=OTHER), 0)
    assert fault_of(group.handle(seen, 0)) is None
    assert group.kind == "streams"

    assert fault_of(group.handle(a_join(), 0)) is GroupFault.INCONSISTENT_PROTOCOL
    group.handle(a_heartbeat("a", -1), 0)
    before = group.generation
    assert fault_of(group.handle(a_join(), 0)) is GroupFault.MEMBER_ID_REQUIRED
    assert (group.kind, group.generation) == ("classic", before)

    assert fault_of(group.handle(a_heartbeat("b", 0, topology=OTHER), 0)) is None
    assert (group.kind, group.generation) == ("streams", before + 1)


def test_a_heartbeat_of_a_streams_member_to_a_group_of_another_type_finds_no_group() -> None:
    group = a_group()

    [answered] = group.handle(a_heartbeat("a", 3), 0)

    assert isinstance(answered.answer, StreamsHeartbeatAnswer)
    assert answered.answer.fault is GroupFault.GROUP_NOT_FOUND
    assert group.kind == "classic"
