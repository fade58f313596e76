"""Classic groups beyond what transcripts can show: conversions, documents, overflow, hostile bytes."""

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.groups.classic.classic import ClassicGroup, restored_member, stored_member
from agent.groups.classic.classic_members import ClassicMember, subscribed_topics
from agent.groups.classic.classic_rounds import LAST_GENERATION
from agent.groups.events import (
    Answered,
    CommitFence,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupFault,
    GroupState,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    LeavingMember,
    OfferedProtocol,
    Sync,
    SyncAnswer,
    Token,
)
from agent.groups.settings import GroupSettings
from sequencer.groups.stored_groups import GroupChange, StoredGroup, StoredMember
from tests.agent.groups.subscriptions import subscription
from tests.agent.groups.transcript import written

SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=0)


def a_member(name: str, **changes: Any) -> ClassicMember:
    values: dict[str, object] = {
        "member_id": name,
        "instance_id": None,
        "client_id": name,
        "client_host": "/10.0.0.1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 30_000,
        "protocols": (OfferedProtocol(name="range", metadata=subscription("orders")),),
        "assignment": b"",
    }
    return ClassicMember(**(values | changes))  # type: ignore[arg-type]


def a_join(token: int, member_id: str = "", instance_id: str | None = None) -> Join:
    return Join(
        token=Token(token),
        member_id=member_id,
        instance_id=instance_id,
        client_id="c",
        client_host="/10.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=(OfferedProtocol(name="range", metadata=subscription("orders")),),
        requires_known_member_id=False,
        can_skip_assignment=True,
    )


def a_sync(token: int, member_id: str, generation: int) -> Sync:
    return Sync(
        token=Token(token),
        member_id=member_id,
        instance_id=None,
        generation=generation,
        protocol_type=None,
        protocol_name=None,
        assignments={},
    )


def a_group(stored: StoredGroup | None = None) -> ClassicGroup:
    ids = count(1)
    return ClassicGroup(SETTINGS, lambda: str(next(ids)), stored, 0)


def converted(*members: ClassicMember, stored: set[str], begin_rebalance: bool) -> ClassicGroup:
    return ClassicGroup.converted(
        SETTINGS,
        lambda: "1",
        members=members,
        generation=7,
        protocol_type="consumer",
        stored_member_ids=stored,
        begin_rebalance=begin_rebalance,
        now_ms=0,
    )


def changed(group: ClassicGroup) -> GroupChange:
    change = group.take_changes()
    assert change is not None
    return change


def test_a_converted_group_writes_its_members_and_deletes_the_others() -> None:
    group = converted(
        a_member("ann", assignment=b"0"), a_member("bob"), stored={"ann", "new"}, begin_rebalance=False
    )

    change = changed(group)

    assert (group.state, group.generation, group.protocol_name) == (GroupState.STABLE, 7, "range")
    assert {name: member is None for name, member in change.members.items()} == {
        "new": True,
        "ann": False,
        "bob": False,
    }
    assert group.stored_member_ids == {"ann", "bob"}
    assert group.take_changes() is None


def test_a_converted_group_that_rebalances_reports_it_to_its_members_and_can_be_taken_over() -> None:
    group = converted(a_member("ann"), a_member("bob"), stored=set(), begin_rebalance=True)
    heartbeat = Heartbeat(token=Token(1), member_id="ann", instance_id=None, generation=7)

    [told] = group.handle(heartbeat, 1)
    taken_over = a_group(written("g", None, changed(group)))

    assert told.answer.fault is GroupFault.REBALANCE_IN_PROGRESS
    assert taken_over.state is GroupState.PREPARING_REBALANCE
    assert taken_over.members == group.members


def test_a_group_converted_without_members_is_empty_above_its_epoch() -> None:
    group = converted(stored={"ann"}, begin_rebalance=True)

    change = changed(group)

    assert (change.state, change.generation, change.is_empty, change.members) == (
        "Empty",
        7,
        True,
        {"ann": None},
    )


def test_a_dismissed_group_answers_every_waiting_request_once() -> None:
    group = a_group()
    group.handle(a_join(1), 0)
    group.handle(a_join(2), 0)
    group.handle(a_join(3, member_id="c-1"), 0)
    group.handle(a_sync(4, "c-2", 2), 0)

    dismissed = group.dismiss(GroupFault.NOT_COORDINATOR)

    assert dismissed == [Answered(token=Token(4), answer=SyncAnswer(fault=GroupFault.NOT_COORDINATOR))]
    assert group.state is GroupState.DEAD
    assert group.members.keys() == {"c-1", "c-2"}
    assert group.next_deadline_ms() is None
    [told] = group.handle(a_join(5), 0)
    assert told.answer == JoinAnswer(fault=GroupFault.COORDINATOR_UNAVAILABLE)
    [told] = group.handle(
        Leave(token=Token(6), members=(LeavingMember(member_id="c-1", instance_id=None),)), 0
    )
    assert told.answer == LeaveAnswer(fault=GroupFault.COORDINATOR_UNAVAILABLE)
    assert group.check_commit("c-1", None, 2, 0) is GroupFault.COORDINATOR_UNAVAILABLE
    assert group.check_delete() is GroupFault.GROUP_NOT_FOUND


def test_a_dismissed_group_answers_those_that_joined() -> None:
    group = a_group()
    group.handle(a_join(1), 0)
    group.handle(a_join(2), 0)

    dismissed = group.dismiss(GroupFault.REBALANCE_IN_PROGRESS)

    assert dismissed == [
        Answered(token=Token(2), answer=JoinAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS, member_id="c-2"))
    ]


def test_after_the_last_generation_comes_the_first() -> None:
    stored = StoredGroup(
        group_id="g",
        kind="classic",
        generation=LAST_GENERATION,
        state="Stable",
        protocol_type="consumer",
        document={"protocol_name": "range", "leader": "ann"},
        members={"ann": stored_member(a_member("ann"), LAST_GENERATION)},
    )
    group = a_group(stored)

    [joined] = group.handle(a_join(1, member_id="ann"), 1)

    assert joined.answer.generation == 1  # type: ignore[union-attr]
    assert group.check_commit("ann", None, LAST_GENERATION, 1) is GroupFault.ILLEGAL_GENERATION


def test_heartbeats_and_joins_that_change_nothing_write_nothing() -> None:
    group = converted(a_member("ann"), a_member("bob"), stored=set(), begin_rebalance=False)
    changed(group)

    group.handle(a_join(1, member_id="bob"), 1)
    group.handle(Heartbeat(token=Token(2), member_id="ann", instance_id=None, generation=7), 2)
    group.handle(a_sync(3, "bob", 7), 3)
    assert group.check_commit("ann", None, 7, 4) == CommitFence(generation=7)

    assert group.take_changes() is None


def test_members_of_the_new_protocol_are_not_served_here() -> None:
    heartbeat = ConsumerHeartbeat(
        token=Token(1),
        member_id="m",
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="/10.0.0.1",
        rebalance_timeout_ms=1_000,
        subscribed_topics=("orders",),
        subscribed_regex=None,
        assignor=None,
        owned=None,
    )

    [told] = a_group().handle(heartbeat, 0)

    assert told.answer == ConsumerHeartbeatAnswer(fault=GroupFault.GROUP_NOT_FOUND)


def test_offsets_of_other_protocol_types_are_deleted_only_in_empty_groups() -> None:
    group = ClassicGroup.converted(
        SETTINGS,
        lambda: "1",
        members=[a_member("worker")],
        generation=1,
        protocol_type="connect",
        stored_member_ids=(),
        begin_rebalance=False,
        now_ms=0,
    )

    assert group.check_offset_delete() is GroupFault.GROUP_NOT_EMPTY
    assert not group.subscribed("orders")
    assert a_group().check_offset_delete() is None


@pytest.mark.parametrize("rebalance_timeout_ms", [-1, 0])
def test_time_advances_whatever_rebalance_timeout_a_member_asks_for(rebalance_timeout_ms: int) -> None:
    group = converted(
        a_member("ann", instance_id="box", rebalance_timeout_ms=rebalance_timeout_ms),
        stored=set(),
        begin_rebalance=True,
    )

    for now_ms in range(1, 20):
        group.tick(now_ms)
    group.tick(10_000)

    assert group.state is GroupState.EMPTY


@given(
    metadata=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
    texts=st.lists(st.text(max_size=5), min_size=4, max_size=4),
    instance=st.none() | st.text(max_size=5),
)
def test_a_member_is_read_back_as_it_was_written(
    metadata: bytes, assignment: bytes, texts: list[str], instance: str | None
) -> None:
    member = ClassicMember(
        member_id=texts[0],
        instance_id=instance,
        client_id=texts[1],
        client_host=texts[2],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=(OfferedProtocol(name=texts[3], metadata=metadata),),
        assignment=assignment,
    )

    stored = stored_member(member, 3)
    kept = StoredMember(epoch=stored.epoch, document=json.loads(json.dumps(stored.document)))

    assert restored_member(member.member_id, kept) == member
    assert stored.epoch == 3


@given(st.binary(max_size=40))
def test_hostile_subscriptions_are_read_or_not_but_never_trusted(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)

    assert topics is None or all(isinstance(topic, str) for topic in topics)


def test_a_subscription_is_read_whatever_its_version() -> None:
    newer = b"\x00\x07" + subscription("orders+clicks")[2:] + b"what later versions append"

    assert subscribed_topics(newer) == frozenset({"orders", "clicks"})
    assert subscribed_topics(b"") is None
    assert subscribed_topics(b"\x00\x00" + b"\xff" * 8) is None, "null topics"
    assert subscribed_topics(b"\x00\x00\x80\x00\x00\x00") is None, "a negative number of topics"
