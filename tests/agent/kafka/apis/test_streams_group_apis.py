"""The APIs of streams groups by hand (KIP-1071): the life of a group, its offsets, and what is refused."""

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode
from kio.schema.streams_group_heartbeat.v0 import request as schema
from kio.static.primitive import i16

from agent.groups.settings import GroupSettings
from tests.agent.auditing import events_of
from tests.agent.kafka.apis.administrative_requests import alter, create
from tests.agent.kafka.apis.administrative_requests import describe as describe_configs
from tests.agent.kafka.apis.groups_by_hand import a_join, commit, consume, delete, describe, fetch, offsets
from tests.agent.kafka.apis.groups_by_hand import beat as classic_beat
from tests.agent.kafka.apis.streams_by_hand import (
    a_subtopology,
    a_topic_info,
    a_topology,
    a_word_count,
    active,
    beat,
    describe_streams,
    some_tasks,
)
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, running, until_answered

pytestmark = pytest.mark.asyncio(loop_scope="module")

NONE = ErrorCode.none
SETTINGS = GroupSettings(group_streams_initial_rebalance_delay_ms=0, group_lease_renew_s=0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with running(module_database_url, group_settings=SETTINGS) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


async def a_group(wire: Wire, name: str, partitions: int = 2) -> Any:
    """A group with one member, `a`, that has all tasks."""
    await create(wire, f"{name}-lines", num_partitions=partitions)
    joined = await beat(wire, name, "a", 0, topology=a_word_count(name))
    assert [status.status_code for status in joined.status] == [3]
    return await beat(wire, name, "a", joined.member_epoch)


async def test_a_streams_group_lives_from_its_first_member_to_its_deletion(wire: Wire) -> None:
    first = await a_group(wire, "life")
    assert active(first) == {"0": (0, 1), "1": (0, 1)}
    assert (first.heartbeat_interval, first.status) == (timedelta(seconds=5), ())
    created = (await wire.ask(a_metadata("life-counts", "life-words", version=12))).topics
    assert [len(topic.partitions) for topic in created] == [2, 2]
    configs = {one.name: one.value for one in (await describe_configs(wire, "life-counts")).configs}
    assert configs["cleanup.policy"] == "compact"

    other = await beat(wire, "life", "b", 0, topology=a_word_count("life"))
    assert active(other) == {}
    told = await beat(wire, "life", "a", first.member_epoch, **_has(first))
    confirmed = await beat(wire, "life", "a", told.member_epoch, **_has(told))
    taken = await beat(wire, "life", "b", other.member_epoch)
    assert sum(map(len, (active(told) or {}).values())) == 2
    assert confirmed.member_epoch == taken.member_epoch
    assert sum(map(len, (active(taken) or {}).values())) == 2

    left = [await beat(wire, "life", member, -1) for member in "ab"]
    assert [answer.error_code for answer in left] == [NONE, NONE]
    assert await delete(wire, "life") == [("life", NONE)]
    assert (await describe_streams(wire, "life")).error_code is ErrorCode.group_id_not_found


def _has(answer: Any) -> dict[str, Any]:
    tasks = {f"t{part}": numbers for part, numbers in (active(answer) or {}).items()}
    return {"active_tasks": some_tasks(**tasks), "standby_tasks": (), "warmup_tasks": ()}


async def test_members_commit_and_fetch_offsets_with_their_epochs(wire: Wire) -> None:
    member = await a_group(wire, "offsets")
    topic = (await wire.ask(a_metadata("offsets-lines", version=12))).topics[0]
    epoch = {"member_id": "a", "generation_id_or_member_epoch": member.member_epoch}

    assert await commit(wire, "offsets", topic, 7, **epoch) is NONE
    assert (
        await commit(wire, "offsets", topic, 8, **(epoch | {"generation_id_or_member_epoch": 99}))
        is ErrorCode.stale_member_epoch
    )
    assert await commit(wire, "offsets", topic, 9) is ErrorCode.unknown_member_id
    found = offsets(await fetch(wire, "offsets", topic, 0, member_id="a", member_epoch=member.member_epoch))
    assert [offset for offset, _, _ in found.values()] == [7]


async def test_a_streams_group_is_listed_and_described(wire: Wire) -> None:
    await a_group(wire, "shown")

    listed = (await wire.ask(request(16, 5, states_filter=(), types_filter=("streams",)))).groups
    shown = await describe_streams(wire, "shown")

    assert ("shown", "streams", "streams", "Stable") in [
        (one.group_id, one.protocol_type, one.group_type, one.group_state) for one in listed
    ]
    assert (shown.error_code, shown.group_state) == (NONE, "Stable")
    [member] = shown.members
    assert (member.member_id, member.process_id) == ("a", "process of a")
    assert {tasks.subtopology_id: tasks.partitions for tasks in member.assignment.active_tasks} == {
        "0": (0, 1),
        "1": (0, 1),
    }
    [changelog] = shown.topology.subtopologies[1].state_changelog_topics
    assert (changelog.name, changelog.partitions) == ("shown-counts", 2)
    assert shown.authorized_operations > 0
    assert (await describe(wire, "shown")).error_code is ErrorCode.group_id_not_found
    assert await delete(wire, "shown") == [("shown", ErrorCode.non_empty_group)]


async def test_members_of_other_protocols_do_not_get_into_a_streams_group(wire: Wire) -> None:
    await a_group(wire, "streams-only")
    await consume(wire, "consumers-only", 0)

    joined = await wire.ask(a_join("streams-only"))
    consumed = await consume(wire, "streams-only", 0)
    streamed = await beat(wire, "consumers-only", "a", 0, topology=a_word_count("streams-only"))

    assert joined.error_code is ErrorCode.inconsistent_group_protocol
    assert await classic_beat(wire, "streams-only", "a", 1) is ErrorCode.unknown_member_id
    assert (consumed.error_code, streamed.error_code) == (ErrorCode.group_id_not_found,) * 2
    assert "not a streams group" in streamed.error_message


async def test_configs_of_a_group_count(wire: Wire) -> None:
    member = await a_group(wire, "configured", partitions=1)
    group = {"resource_type": 32}
    other = await beat(wire, "configured", "b", 0, topology=a_word_count("configured"))
    assert other.standby_tasks == ()

    for config, value in (("streams.heartbeat.interval.ms", "6000"), ("streams.num.standby.replicas", "1")):
        assert (await alter(wire, "configured", (config, 0, value), resource=group)).error_code is NONE

    async def has_copies() -> bool:
        nonlocal member
        member = await beat(wire, "configured", "a", member.member_epoch, **_has(member))
        told = await beat(wire, "configured", "b", 0, topology=a_word_count("configured"))
        assert told.error_code is NONE
        copies = len(told.standby_tasks) + len(member.standby_tasks or ())
        return told.heartbeat_interval == timedelta(seconds=6) and copies == 1

    await until_answered(has_copies)


JOIN: dict[str, Any] = {"topology": a_word_count("refused")}


@pytest.mark.parametrize(
    ("epoch", "values", "code", "says"),
    [
        (0, {}, ErrorCode.invalid_request, "Topology must be"),
        (0, JOIN | {"process_id": None}, ErrorCode.invalid_request, "ProcessId"),
        (0, JOIN | {"rebalance_timeout": timedelta(milliseconds=-1)}, ErrorCode.invalid_request, "Rebalance"),
        (0, JOIN | {"active_tasks": None}, ErrorCode.invalid_request, "ActiveTasks must be empty"),
        (0, JOIN | {"standby_tasks": some_tasks(t0=[1])}, ErrorCode.invalid_request, "StandbyTasks must be"),
        (0, JOIN | {"instance_id": "static"}, ErrorCode.invalid_request, "no static members"),
        (0, JOIN | {"rack_id": "x" * 2_000}, ErrorCode.invalid_request, "1024 characters"),
        (0, JOIN | {"member_id": " "}, ErrorCode.invalid_request, "MemberId"),
        (-2, {}, ErrorCode.invalid_request, "MemberEpoch"),
        (1, JOIN, ErrorCode.invalid_request, "Topology must be null"),
        (1, {"active_tasks": ()}, ErrorCode.invalid_request, "all be null"),
        (1, {}, ErrorCode.group_id_not_found, "not found"),
        (
            0,
            {"topology": a_topology(a_subtopology("0", source_topic_regex=(".*",)))},
            ErrorCode.streams_invalid_topology,
            "regular expression",
        ),
        (
            0,
            {
                "topology": a_topology(
                    a_subtopology(
                        "0",
                        "lines",
                        copartition_groups=(schema.CopartitionGroup(source_topics=(i16(5),)),),
                    )
                )
            },
            ErrorCode.streams_invalid_topology,
            "names topic 5 of 1",
        ),
        (
            0,
            {"topology": a_topology(a_subtopology("0", *(f"t{number}" for number in range(2_001))))},
            ErrorCode.streams_invalid_topology,
            "TIDELOG_GROUP_STREAMS_MAX_TOPICS",
        ),
        (
            0,
            {
                "topology": a_topology(
                    a_subtopology("0", repartition_source_topics=(a_topic_info("r", 2**31 - 1),))
                )
            },
            ErrorCode.streams_invalid_topology,
            "TIDELOG_MAX_PARTITIONS_PER_TOPIC",
        ),
    ],
)
async def test_a_request_that_cannot_be_is_refused_with_a_reason(
    wire: Wire, epoch: int, values: dict[str, Any], code: ErrorCode, says: str
) -> None:
    member_id = values.get("member_id", "a")
    given = {name: value for name, value in values.items() if name != "member_id"}

    answer = await beat(wire, "refused", member_id, epoch, **given)

    assert answer.error_code is code
    assert says in answer.error_message
    assert (await describe_streams(wire, "refused")).error_code is ErrorCode.group_id_not_found


async def test_topics_created_for_a_group_are_audited(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await a_group(wire, "audited")

    made = [event for event in events_of(caplog, "change") if event["request"] == "StreamsGroupHeartbeat"]

    assert {event["reason"] for event in made} == {"created for streams group audited"}
    resources = [one for event in made for one in event["resources"]]
    assert {one["name"] for one in resources} == {"audited-counts", "audited-words"}
    assert {one["change"]["partitions"] for one in resources} == {"2"}


async def test_a_topic_that_cannot_be_created_is_named_with_the_reason(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog")
    await create(wire, "strange-lines")
    topology = a_word_count("strange", {"no.such.config": "1"})

    joined = await beat(wire, "strange", "a", 0, topology=topology)
    told = await beat(wire, "strange", "a", joined.member_epoch)

    [status] = told.status
    assert status.status_code == 3
    assert "strange-counts cannot be created" in status.status_detail
    assert "no.such.config" in status.status_detail
    [line] = [line for line in caplog.records if line.getMessage().startswith("internal topics")]
    assert line.levelno == logging.WARNING
    assert line.__dict__["topics"] == "strange-words (1)"
    assert line.__dict__["refused"].startswith("strange-counts: ")


async def test_a_topology_with_more_tasks_than_allowed_gets_none(wire: Wire) -> None:
    await create(wire, "wide-lines", num_partitions=1)
    topics = [a_topic_info(f"wide-{number}", 10_000) for number in range(3)]
    parts = [a_subtopology(topic.name, "wide-lines", repartition_source_topics=(topic,)) for topic in topics]

    joined = await beat(wire, "wide", "a", 0, topology=a_topology(*parts))

    [status] = joined.status
    assert (status.status_code, active(joined)) == (2, {})
    assert "TIDELOG_GROUP_STREAMS_MAX_TASKS" in status.status_detail


async def test_api_versions_names_the_feature_and_the_apis(wire: Wire) -> None:
    answer = await wire.ask(request(18, 4, client_software_name="test", client_software_version="1"))

    assert {88, 89} <= {api.api_key for api in answer.api_keys}
    assert {one.name: one.max_version_level for one in answer.finalized_features} == {
        "transaction.version": 2,
        "streams.version": 1,
    }
