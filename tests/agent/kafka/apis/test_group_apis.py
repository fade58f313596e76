"""The APIs of groups by hand, in every version served: the life of a group, and the refusals of each API with
their codes.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.groups.settings import GroupSettings
from tests.agent.kafka.apis.groups_by_hand import (
    a_join,
    assigned,
    beat,
    commit,
    consume,
    delete,
    describe,
    describe_consumer,
    fetch,
    join,
    leave,
    member,
    offsets,
    sync,
)
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, running
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NONE = ErrorCode.none
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with running(module_database_url, group_settings=SETTINGS, default_partitions=3) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


@pytest_asyncio.fixture(loop_scope="module")
async def topic(wire: Wire) -> Any:
    return (await wire.ask(a_metadata("orders", version=12))).topics[0]


# --- a life in the classic protocol


@pytest.mark.parametrize("version", range(10))
async def test_join_in_every_version(wire: Wire, version: int) -> None:
    joined = await join(wire, f"join-{version}", version=version)

    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (NONE, 1, "range")
    assert joined.leader == joined.member_id
    assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, b"subscription")]
    assert getattr(joined, "protocol_type", "consumer") == "consumer"


@pytest.mark.parametrize("version", range(6))
async def test_sync_heartbeat_and_leave_in_every_version(wire: Wire, version: int) -> None:
    group_id = f"sync-{version}"
    joined = await join(wire, group_id)

    synced = await sync(wire, group_id, joined, version=version)
    alive = await beat(wire, group_id, joined.member_id, 1, version=min(version, 4))
    left = await leave(wire, group_id, joined.member_id, version=version)
    gone = await beat(wire, group_id, joined.member_id, 1, version=min(version, 4))

    assert (synced.error_code, synced.assignment) == (NONE, b"its part")
    assert (alive, left.error_code, gone) == (NONE, NONE, ErrorCode.unknown_member_id)
    assert [one.error_code for one in getattr(left, "members", ())] == ([NONE] if version >= 3 else [])


async def test_a_first_join_gets_its_member_id_from_v4_on(wire: Wire) -> None:
    told = await wire.ask(a_join("told", version=4))
    known = await wire.ask(a_join("told", told.member_id, version=4))

    assert told.error_code is ErrorCode.member_id_required
    assert told.member_id.startswith("test-")
    assert (known.error_code, known.member_id) == (NONE, told.member_id)


async def test_a_second_member_waits_for_the_first_to_join_again(agent: Running, wire: Wire) -> None:
    ann = await member(wire, "two")
    other = await Wire.connect(agent.app.kafka_port)

    waiting = await other.send(a_join("two", version=3))
    await until_rebalancing(wire, "two", ann)
    again = await join(wire, "two", ann.member_id)
    bob = await other.receive(waiting)

    assert (again.generation_id, bob.generation_id, bob.leader) == (2, 2, ann.member_id)
    assert {one.member_id for one in again.members} == {ann.member_id, bob.member_id}
    assert bob.members == ()
    other.close()


async def until_rebalancing(wire: Wire, group_id: str, joined: Any) -> None:
    async with asyncio.timeout(60):
        while await beat(wire, group_id, joined.member_id, joined.generation_id) is NONE:
            pass


async def test_requests_behind_a_waiting_join_on_one_connection_are_answered_after_it(agent: Running) -> None:
    """As in Kafka. The connection does not count as idle meanwhile."""
    wire = await Wire.connect(agent.app.kafka_port)
    ann = await member(wire, "behind")
    other = await Wire.connect(agent.app.kafka_port)

    joining = await other.send(a_join("behind", version=3))
    listing = await other.send(request(18, 0))
    await until_rebalancing(wire, "behind", ann)
    await join(wire, "behind", ann.member_id)

    assert (await other.receive(joining)).error_code is NONE
    assert (await other.receive(listing)).error_code is NONE
    wire.close()
    other.close()


async def test_a_member_that_hangs_up_as_it_leaves_has_left(agent: Running, wire: Wire) -> None:
    leaving = await Wire.connect(agent.app.kafka_port)
    joined = await member(leaving, "hung-up")

    await leaving.send(request(13, 0, group_id="hung-up", member_id=joined.member_id))
    leaving.close()

    async with asyncio.timeout(60):
        while (await describe(wire, "hung-up")).group_state != "Empty":
            pass


# --- what joining refuses


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"session_timeout": timedelta(milliseconds=50)}, ErrorCode.invalid_session_timeout),
        ({"session_timeout": timedelta(days=1)}, ErrorCode.invalid_session_timeout),
        ({"protocols": []}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "a\0b"}, ErrorCode.inconsistent_group_protocol),
        ({"member_id": "nobody"}, ErrorCode.unknown_member_id),
        ({"group_instance_id": ""}, ErrorCode.invalid_request),
        ({"group_instance_id": "a\0b"}, ErrorCode.invalid_request),
        ({"group_instance_id": "x" * 1000}, ErrorCode.invalid_request),
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"group_id": "a\0b"}, ErrorCode.invalid_group_id),
        ({"group_id": "x" * 2000}, ErrorCode.invalid_group_id),
    ],
)
async def test_joins_that_are_refused(wire: Wire, values: dict[str, Any], code: ErrorCode) -> None:
    given = {"group_id": "refusing", "member_id": "", **values}

    refused = await wire.ask(a_join(**given))

    assert (refused.error_code, refused.generation_id, refused.members) == (code, -1, ())
    assert refused.member_id == given["member_id"]


@pytest.mark.parametrize("version", [0, 6, 7, 9])
async def test_a_refused_join_names_no_protocol(wire: Wire, version: int) -> None:
    refused = await wire.ask(a_join("nobody-home", "nobody", version=version))

    assert refused.error_code is ErrorCode.unknown_member_id
    assert refused.protocol_name == (None if version >= 7 else "")


async def test_another_protocol_than_the_members_is_refused(wire: Wire) -> None:
    await member(wire, "agreed")

    connect = await wire.ask(a_join("agreed", version=3, protocol_type="connect"))
    sticky = await wire.ask(a_join("agreed", version=3, protocols=[{"name": "sticky", "metadata": b""}]))

    assert {connect.error_code, sticky.error_code} == {ErrorCode.inconsistent_group_protocol}


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"member_id": "nobody"}, ErrorCode.unknown_member_id),
        ({"generation_id": 7}, ErrorCode.illegal_generation),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": None}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": None}, ErrorCode.inconsistent_group_protocol),
    ],
)
async def test_syncs_that_are_refused(wire: Wire, values: dict[str, Any], code: ErrorCode) -> None:
    group_id = f"sync-{values}"
    joined = await join(wire, group_id)

    assert (await sync(wire, group_id, joined, **values)).error_code is code
    assert (await sync(wire, "no-such-group", joined)).error_code is ErrorCode.unknown_member_id
    assert (await sync(wire, "", joined)).error_code is ErrorCode.invalid_group_id


async def test_heartbeats_and_leaves_that_are_refused(wire: Wire) -> None:
    joined = await member(wire, "beating")

    assert await beat(wire, "beating", joined.member_id, 9) is ErrorCode.illegal_generation
    assert await beat(wire, "beating", "nobody", 1) is ErrorCode.unknown_member_id
    assert await beat(wire, "no-such-group", joined.member_id, 1) is ErrorCode.unknown_member_id
    assert await beat(wire, "", joined.member_id, 1) is ErrorCode.invalid_group_id
    for group_id in ("beating", "no-such-group"):
        left = await leave(wire, group_id, "nobody")
        assert (left.error_code, left.members[0].error_code) == (NONE, ErrorCode.unknown_member_id)
        assert (await leave(wire, group_id, "nobody", version=2)).error_code is ErrorCode.unknown_member_id
    assert (await leave(wire, "", "nobody")).error_code is ErrorCode.invalid_group_id


async def test_a_static_members_older_twin_is_fenced(wire: Wire) -> None:
    first = await member(wire, "static", group_instance_id="one")

    second = await wire.ask(a_join("static", group_instance_id="one"))
    fenced = await wire.ask(a_join("static", first.member_id, group_instance_id="one"))
    removed = await leave(wire, "static", "", instance_id="one")

    assert (second.error_code, second.generation_id) == (NONE, 1)
    assert fenced.error_code is ErrorCode.fenced_instance_id
    assert removed.members[0].error_code is NONE


async def test_any_text_and_bytes_of_a_client_are_kept(wire: Wire) -> None:
    """NUL, emoji, right-to-left and a megabyte: Postgres must take all that Kafka takes."""
    names = [{"name": "a\0b", "metadata": b"\x00\xff" * 500_000}, {"name": "😀\u202e", "metadata": b""}]
    asked = a_join("any text", version=3, protocols=names)

    joined = await wire.receive(await wire.send(asked, client_id="c\0l😀" * 100))
    synced = await sync(wire, "any text", joined, protocol_name="a\0b", assignments=[])
    described = await describe(wire, "any text")

    assert (joined.error_code, joined.protocol_name) == (NONE, "a\0b")
    assert (synced.error_code, described.group_state) == (NONE, "Stable")
    assert described.members[0].member_metadata == b"\x00\xff" * 500_000
    assert described.members[0].client_id.startswith("c\ufffdl😀")


# --- offsets


@pytest.mark.parametrize("version", range(2, 11))
async def test_commit_in_every_version(wire: Wire, topic: Any, version: int) -> None:
    group_id = f"commits-{version}"

    assert await commit(wire, group_id, topic, 5, version=version) is NONE
    assert await commit(wire, group_id, topic, 2, version=version, metadata=None) is NONE

    assert offsets(await fetch(wire, group_id, topic, 0)) == {("orders", 0): (2, "", NONE)}


@pytest.mark.parametrize("version", range(1, 11))
async def test_fetch_in_every_version(wire: Wire, topic: Any, version: int) -> None:
    group_id = f"fetches-{version}"
    key = "orders" if version < 10 else topic.topic_id
    await commit(wire, group_id, topic, 5, partition=1, metadata="a\0note")

    named = await fetch(wire, group_id, topic, 1, 2, 99, version=version)

    assert getattr(named, "error_code", NONE) is NONE
    nothing = (-1, "", NONE)
    assert offsets(named) == {(key, 1): (5, "a\0note", NONE), (key, 2): nothing, (key, 99): nothing}
    if version >= 5:
        assert [part.committed_leader_epoch for part in named.topics[0].partitions] == [3, -1, -1]
    if version >= 2:
        everything = await fetch(wire, group_id, topic, version=version, topics=None)
        assert offsets(everything) == {(key, 1): (5, "a\0note", NONE)}


@pytest.mark.parametrize("version", [1, 2, 7, 8, 9])
async def test_unknown_groups_and_topics_have_no_offset_and_no_error(wire: Wire, version: int) -> None:
    gone = type("Topic", (), {"name": "never-made", "topic_id": UUID(int=7)})

    for group_id in ("no-such-group", "", "a\0b"):
        answer = await fetch(wire, group_id, gone, 0, version=version)
        assert getattr(answer, "error_code", NONE) is NONE
        assert offsets(answer) == {("never-made", 0): (-1, "", NONE)}


async def test_unknown_topic_ids_are_errors(wire: Wire) -> None:
    gone = type("Topic", (), {"name": "", "topic_id": UUID(int=7)})
    none = type("Topic", (), {"name": "", "topic_id": None})

    for unknown in (gone, none):
        fetched = await fetch(wire, "by-id", unknown, 0, version=10)
        assert [code for _, _, code in offsets(fetched).values()] == [ErrorCode.unknown_topic_id]
        assert await commit(wire, "by-id", unknown, version=10) is ErrorCode.unknown_topic_id


async def test_commits_that_are_refused_partition_by_partition(wire: Wire, topic: Any) -> None:
    gone = type("Topic", (), {"name": "never-made", "topic_id": UUID(int=7)})
    unknown = ErrorCode.unknown_topic_or_partition

    assert await commit(wire, "partly", gone) is unknown
    assert await commit(wire, "partly", topic, partition=3) is unknown
    assert await commit(wire, "partly", topic, partition=-1) is unknown
    assert await commit(wire, "partly", topic, metadata="x" * 4097) is ErrorCode.offset_metadata_too_large
    assert await commit(wire, "partly", topic, metadata="x" * 4096) is NONE


@pytest.mark.parametrize("version", [8, 9])
async def test_commits_that_are_refused_by_their_group(wire: Wire, topic: Any, version: int) -> None:
    joined = await member(wire, f"fenced-{version}")

    async def code(group_id: str, member_id: str, generation: int) -> ErrorCode:
        fence: dict[str, Any] = {"member_id": member_id, "generation_id_or_member_epoch": generation}
        return await commit(wire, group_id, topic, version=version, **fence)

    assert await code(f"fenced-{version}", joined.member_id, 1) is NONE
    assert await code(f"fenced-{version}", joined.member_id, 2) is ErrorCode.illegal_generation
    assert await code(f"fenced-{version}", "nobody", 1) is ErrorCode.unknown_member_id
    assert await code(f"fenced-{version}", "", -1) is ErrorCode.unknown_member_id
    missing = ErrorCode.group_id_not_found if version == 9 else ErrorCode.illegal_generation
    assert await code("no-such-group", "nobody", 1) is missing
    assert await code("", "", -1) is ErrorCode.invalid_group_id


async def test_a_partition_named_twice_keeps_the_last_offset(wire: Wire, topic: Any) -> None:
    part = {"partition_index": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    named = [
        {"name": "orders", "partitions": [{**part, "committed_offset": 1}, {**part, "committed_offset": 2}]},
        {"name": "orders", "partitions": [{**part, "committed_offset": 3}]},
    ]
    everything = {"member_id": "", "group_instance_id": None, "generation_id_or_member_epoch": -1}

    answer = await wire.ask(request(8, 9, group_id="twice", topics=named, **everything))

    assert [[one.error_code for one in asked.partitions] for asked in answer.topics] == [[NONE, NONE], [NONE]]
    assert offsets(await fetch(wire, "twice", topic, 0)) == {("orders", 0): (3, "", NONE)}


async def test_pipelined_commits_are_applied_in_order(wire: Wire, topic: Any) -> None:
    part = {"partition_index": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    everything = {"member_id": "", "group_instance_id": None, "generation_id_or_member_epoch": -1}
    sent = []
    for offset in range(50):
        named = [{"name": "orders", "partitions": [{**part, "committed_offset": offset}]}]
        sent.append(await wire.send(request(8, 9, group_id="pipelined", topics=named, **everything)))

    for one in sent:
        assert (await wire.receive(one)).topics[0].partitions[0].error_code is NONE

    assert offsets(await fetch(wire, "pipelined", topic, 0)) == {("orders", 0): (49, "", NONE)}


async def test_many_groups_are_fetched_at_once(wire: Wire, topic: Any) -> None:
    for number in range(3):
        await commit(wire, f"many-{number}", topic, number)
    named = [{"name": "orders", "partition_indexes": (0,)}]
    asked = [
        {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": topics}
        for group_id, topics in (
            ("many-0", named),
            ("many-1", None),
            ("none", named),
            ("", named),
            ("many-2", named),
        )
    ]

    answer = await wire.ask(request(9, 9, groups=asked, require_stable=False))

    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("many-0", NONE),
        ("many-1", NONE),
        ("none", NONE),
        ("", NONE),
        ("many-2", NONE),
    ]
    assert [found for group in answer.groups for found, _, _ in offsets(group).values()] == [0, 1, -1, -1, 2]


async def test_offsets_are_forgotten_unless_a_member_reads_the_topic(wire: Wire, topic: Any) -> None:
    async def forget(group_id: str, *partitions: int) -> Any:
        parts = [{"partition_index": number} for number in partitions]
        named = [{"name": "orders", "partitions": parts}]
        return await wire.ask(request(47, 0, group_id=group_id, topics=named))

    await commit(wire, "forgetting", topic, 5)

    forgotten = await forget("forgetting", 0, 1, 9)

    assert [one.error_code for one in forgotten.topics[0].partitions] == [
        NONE,
        NONE,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert offsets(await fetch(wire, "forgetting", topic, 0)) == {("orders", 0): (-1, "", NONE)}
    assert (await forget("no-such-group", 0)).error_code is ErrorCode.group_id_not_found
    assert (await forget("", 0)).error_code is ErrorCode.invalid_group_id
    await join(wire, "forgetting-connect", protocol_type="connect")
    assert (await forget("forgetting-connect", 0)).error_code is ErrorCode.non_empty_group
    assert (await consume(wire, "forgetting-new", 0)).error_code is NONE
    reads = await forget("forgetting-new", 0)
    assert [one.error_code for one in reads.topics[0].partitions] == [ErrorCode.group_subscribed_to_topic]


# --- administration


@pytest.mark.parametrize("version", range(7))
async def test_describe_in_every_version(wire: Wire, version: int) -> None:
    joined = await member(wire, f"described-{version}")

    found = await describe(wire, f"described-{version}", version=version)
    missing = await describe(wire, "no-such-group", version=version)
    empty = await describe(wire, "", version=version)

    assert (found.error_code, found.group_state, found.protocol_type) == (NONE, "Stable", "consumer")
    [one] = found.members
    assert (one.member_id, one.client_id, one.client_host) == (joined.member_id, "test", "/127.0.0.1")
    assert (one.member_metadata, one.member_assignment, found.protocol_data) == (
        b"subscription",
        b"its part",
        "range",
    )
    assert (missing.group_state, empty.group_state) == ("Dead", "Dead")
    assert missing.error_code is (ErrorCode.group_id_not_found if version >= 6 else NONE)
    if version >= 6:
        assert missing.error_message == "Group no-such-group not found."


@pytest.mark.parametrize("version", range(6))
async def test_list_in_every_version(wire: Wire, topic: Any, version: int) -> None:
    await member(wire, f"listed-{version}")
    await commit(wire, f"listed-simple-{version}", topic)
    await consume(wire, f"listed-new-{version}", 0)

    async def listed(*states: str, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
        answer = await wire.ask(request(16, version, states_filter=states, types_filter=kinds))
        assert answer.error_code is NONE
        return {
            group.group_id.rpartition("-")[0]: group
            for group in answer.groups
            if group.group_id[-1] == f"{version}"
        }

    everything = await listed()

    mine = {name: everything[name] for name in ("listed", "listed-simple", "listed-new")}
    assert [group.protocol_type for group in mine.values()] == ["consumer", "", "consumer"]
    if version >= 4:
        assert [group.group_state for group in mine.values()] == ["Stable", "Empty", "Stable"]
        assert {"listed-simple"} <= (await listed("EMPTY")).keys()
        assert "listed-simple" not in await listed("stable", "PreparingRebalance")
        assert await listed("no such state") == {}
    if version >= 5:
        assert [group.group_type for group in mine.values()] == ["classic", "classic", "consumer"]
        assert "listed" not in await listed(kinds=("Consumer",))
        assert await listed(kinds=("share",)) == {}


@pytest.mark.parametrize("version", range(3))
async def test_delete_in_every_version(wire: Wire, topic: Any, version: int) -> None:
    await commit(wire, f"deleted-{version}", topic)
    await member(wire, f"kept-{version}")
    names = (f"deleted-{version}", f"kept-{version}", "no-such-group", "", f"kept-{version}")

    assert await delete(wire, *names, version=version) == [
        (f"deleted-{version}", NONE),
        (f"kept-{version}", ErrorCode.non_empty_group),
        ("no-such-group", ErrorCode.group_id_not_found),
        ("", ErrorCode.group_id_not_found),
    ]
    assert offsets(await fetch(wire, f"deleted-{version}", topic, 0)) == {("orders", 0): (-1, "", NONE)}


# --- the new protocol


@pytest.mark.parametrize("version", range(2))
async def test_a_life_in_the_new_protocol(wire: Wire, topic: Any, version: int) -> None:
    group_id = f"consumers-{version}"

    joined = await consume(wire, group_id, 0, version=version)
    who = {"member_id": joined.member_id, "version": version}
    owned = [{"topic_id": topic.topic_id, "partitions": (0, 1, 2)}]
    stays = await consume(wire, group_id, joined.member_epoch, topic_partitions=owned, **who)
    fence = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.member_epoch}
    committed = await commit(wire, group_id, topic, 5, **fence)
    stale = await commit(wire, group_id, topic, 9, **{**fence, "generation_id_or_member_epoch": 0})
    described = await describe_consumer(wire, group_id, version=version)
    left = await consume(wire, group_id, -1, **who)

    assert (joined.error_code, assigned(joined)) == (NONE, {topic.topic_id: (0, 1, 2)})
    assert joined.heartbeat_interval == timedelta(seconds=5)
    assert (stays.error_code, stays.member_epoch, stays.assignment) == (NONE, joined.member_epoch, None)
    assert (committed, stale) == (NONE, ErrorCode.stale_member_epoch)
    assert (described.error_code, described.group_state, described.assignor_name) == (
        NONE,
        "Stable",
        "uniform",
    )
    [one] = described.members
    assert (one.member_id, one.client_host, one.subscribed_topic_names) == (
        joined.member_id,
        "/127.0.0.1",
        ("orders",),
    )
    assert [(part.topic_name, part.partitions) for part in one.assignment.topic_partitions] == [
        ("orders", (0, 1, 2))
    ]
    assert getattr(one, "member_type", 1) == 1
    assert (left.error_code, left.member_epoch) == (NONE, -1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        (
            {"rebalance_timeout": timedelta(milliseconds=-1)},
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"epoch": -2}, "InstanceId can't be null."),
        ({"epoch": -3}, "MemberEpoch is invalid."),
        ({"member_id": "a\0b"}, "MemberId must be at most 1024 bytes, none of them NUL."),
        ({"instance_id": "a\0b"}, "InstanceId must be at most 900 bytes, none of them NUL."),
    ],
)
async def test_heartbeats_that_are_wrong_in_themselves(
    wire: Wire, values: dict[str, Any], message: str
) -> None:
    given = {"group_id": "wrong", "epoch": 0, **values}

    refused = await consume(wire, **given)

    assert (refused.error_code, refused.error_message) == (ErrorCode.invalid_request, message)
    assert (refused.member_id, refused.member_epoch, refused.assignment) == (None, 0, None)


async def test_a_member_may_subscribe_to_nothing(wire: Wire) -> None:
    joined = await consume(wire, "idle-consumers", 0, subscribed_topic_names=())

    assert (joined.error_code, assigned(joined)) == (NONE, {})


async def test_heartbeats_that_the_group_refuses(wire: Wire) -> None:
    joined = await consume(wire, "refusing-new", 0)

    async def code(epoch: int, **values: Any) -> ErrorCode:
        answer = await consume(wire, "refusing-new", epoch, **values)
        return answer.error_code  # type: ignore[no-any-return]

    assert await code(joined.member_epoch + 5) is ErrorCode.fenced_member_epoch
    assert await code(joined.member_epoch, member_id="bob") is ErrorCode.unknown_member_id
    assert await code(0, server_assignor="random") is ErrorCode.unsupported_assignor
    assert await code(0, subscribed_topic_regex="(") is ErrorCode.invalid_regular_expression
    missing = await consume(wire, "no-such-group", 3)
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.group_id_not_found,
        "Group no-such-group not found.",
    )


async def test_groups_are_described_in_the_words_of_their_protocol(wire: Wire) -> None:
    await member(wire, "classic-one")
    await consume(wire, "new-one", 0)

    classic = await describe_consumer(wire, "classic-one")
    new = await describe(wire, "new-one")
    missing = await describe_consumer(wire, "no-such-group")
    empty = await describe_consumer(wire, "")

    not_found = ErrorCode.group_id_not_found
    assert (classic.error_code, classic.error_message) == (
        not_found,
        "Group classic-one is not a consumer group.",
    )
    assert (new.error_code, new.error_message) == (not_found, "Group new-one is not a classic group.")
    assert (missing.error_code, missing.error_message) == (not_found, "Group no-such-group not found.")
    assert empty.error_code is ErrorCode.invalid_group_id


# --- bounds and metrics


async def test_a_waiting_join_survives_the_idle_timeout(module_database_url: str) -> None:
    settings = GroupSettings(group_initial_rebalance_delay_ms=3_500)
    async with running(
        module_database_url, zone="idle-join", group_settings=settings, idle_timeout_s=1.0
    ) as patient:
        wire = await Wire.connect(patient.app.kafka_port)
        found = await wire.ask(request(10, 6, key_type=0, coordinator_keys=tuple(map(str, range(100)))))
        mine = [one.key for one in found.coordinators if one.port == patient.app.kafka_port]

        answer = await wire.ask(a_join(mine[0], version=3))

        assert (answer.error_code, answer.generation_id) == (NONE, 1)
        wire.close()


async def test_groups_and_rebalances_are_counted(agent: Running, wire: Wire) -> None:
    before = agent.metric("tidelog_group_rebalances_total", protocol="classic")
    await member(wire, "counted")

    assert agent.metric("tidelog_groups", protocol="classic", state="Stable") > 0
    await until(lambda: agent.metric("tidelog_group_rebalances_total", protocol="classic") > before)
    assert agent.metric("tidelog_offset_commits_per_statement_count") > 0
