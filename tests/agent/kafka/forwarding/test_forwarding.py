"""One-address mode: requests about groups reach their coordinator through any agent, in one hop, and never
hang.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.groups.settings import GroupSettings
from agent.kafka.forwarding.forward_protocol import ACCEPTED, PREFACE, Hello, encode_hello
from agent.security.principal import ANONYMOUS
from cache_ring.peers.peer_connection import open_peer_stream
from cache_ring.ring.ring import Ring
from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from storage.identifiers import NodeId
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, running, until_answered
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADDRESS = "balancer.example:9092"
TOPIC = "committed-to"
GROUPS = GroupSettings(group_initial_rebalance_delay_ms=200)
_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents(module_database_url: str) -> AsyncIterator[tuple[Running, Running]]:
    """One in zone a, one in zone b, that know each other, and a topic."""
    async with (
        running(module_database_url, one_address=ADDRESS, group_settings=GROUPS, zone="a") as first,
        running(module_database_url, one_address=ADDRESS, group_settings=GROUPS, zone="b") as second,
    ):
        await until(lambda: first.agents_seen == second.agents_seen == 2)
        wire = await Wire.connect(first.app.kafka_port)
        await wire.ask(a_metadata(TOPIC))
        wire.close()
        yield first, second


@pytest_asyncio.fixture(loop_scope="module")
async def wires(agents: tuple[Running, Running]) -> AsyncIterator[tuple[Wire, Wire]]:
    """A client's connection to each."""
    connected = await Wire.connect(agents[0].app.kafka_port), await Wire.connect(agents[1].app.kafka_port)
    yield connected
    for wire in connected:
        wire.close()


def a_commit(group: str, offset: int) -> Any:
    place = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_metadata": "",
        "committed_leader_epoch": -1,
    }
    partitions = [place]
    topics = [{"name": TOPIC, "partitions": partitions}]
    return request(
        8,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=topics,
    )


def an_offset_fetch(*groups: str) -> Any:
    asked = [{"group_id": group, "topics": None, "member_id": None, "member_epoch": -1} for group in groups]
    return request(9, 9, groups=asked, require_stable=False)


def a_join(group: str, member_id: str = "") -> Any:
    return request(
        11, 7, group_id=group, session_timeout=timedelta(seconds=30), rebalance_timeout=timedelta(seconds=60),
        member_id=member_id, group_instance_id=None, protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"}],
    )  # fmt: skip


def a_heartbeat(group: str) -> Any:
    return request(12, 3, group_id=group, generation_id=1, member_id="nobody", group_instance_id=None)


def committed(response: Any) -> dict[str, int]:
    return {
        group.group_id: group.topics[0].partitions[0].committed_offset
        for group in response.groups
        if group.topics
    }


def commit_code(response: Any) -> ErrorCode:
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code


def forwarded(*agents: Running) -> float:
    return sum(agent.metric("tidelog_forwarded_total", outcome="answered") for agent in agents)


def a_group_of(agent: Running) -> str:
    """Returns the name of a new group that belongs to this agent."""
    membership = agent.app._membership()
    assert membership is not None
    assert membership.self_ is not None
    names = (f"group-{number}" for number in _numbers)
    return next(name for name in names if membership.ring.coordinator(f"group/{name}") == membership.self_)


async def test_what_was_committed_through_one_agent_is_fetched_through_the_other(
    agents: tuple[Running, Running], wires: tuple[Wire, Wire]
) -> None:
    before = forwarded(*agents)
    for number in range(8):
        answer = await wires[number % 2].ask(a_commit(f"simple-{number}", number))
        assert commit_code(answer) is ErrorCode.none
    for number in range(8):
        fetched = await wires[(number + 1) % 2].ask(an_offset_fetch(f"simple-{number}"))
        assert committed(fetched) == {f"simple-{number}": number}

    # Each group was named once through either agent, and belongs to one of them.
    assert forwarded(*agents) == before + 8


async def test_a_request_for_many_groups_is_split_and_answered_in_its_order(
    agents: tuple[Running, Running], wires: tuple[Wire, Wire]
) -> None:
    names = [f"many-{number}" for number in range(12)]
    for number, name in enumerate(names):
        assert commit_code(await wires[0].ask(a_commit(name, number))) is ErrorCode.none
    before = forwarded(*agents)

    for wire in wires:
        fetched = await wire.ask(an_offset_fetch(*names))
        described = await wire.ask(request(15, 5, groups=tuple(names), include_authorized_operations=False))
        listed = await wire.ask(request(16, 5, states_filter=(), types_filter=()))

        assert [group.group_id for group in fetched.groups] == names
        assert committed(fetched) == {name: number for number, name in enumerate(names)}
        assert [(group.group_id, group.error_code, group.group_state) for group in described.groups] == [
            (name, ErrorCode.none, "Empty") for name in names
        ]
        assert {group.group_id for group in listed.groups} >= set(names)
    deleted = await wires[1].ask(request(42, 2, groups_names=(*names, "never-was")))

    # One other agent, two requests through each agent, one through one.
    assert forwarded(*agents) == before + 5
    assert [(result.group_id, result.error_code) for result in deleted.results] == [
        *((name, ErrorCode.none) for name in names),
        ("never-was", ErrorCode.group_id_not_found),
    ]


async def test_a_waiting_member_delays_no_other_client(
    agents: tuple[Running, Running], wires: tuple[Wire, Wire]
) -> None:
    group = a_group_of(agents[1])
    named = (await wires[0].ask(a_join(group))).member_id
    waiting = await wires[0].send(a_join(group, named))
    other = await Wire.connect(agents[0].app.kafka_port)

    beaten = await other.ask(a_heartbeat(group))
    other.close()
    joined = await wires[0].receive(waiting)

    assert beaten.error_code is ErrorCode.unknown_member_id
    assert (joined.error_code, joined.member_id, joined.leader) == (ErrorCode.none, named, named)


async def test_forwarded_requests_keep_the_order_of_their_connection(
    agents: tuple[Running, Running], wires: tuple[Wire, Wire]
) -> None:
    """All are sent at once to an agent that is not the coordinator."""
    for number in range(10):
        group = a_group_of(agents[1])
        commits = [
            await wires[0].send(a_commit(group, number)),
            await wires[0].send(a_commit(group, number + 1)),
        ]
        fetch = await wires[0].send(an_offset_fetch(group))
        deletion = await wires[0].send(request(42, 2, groups_names=(group,)))
        listing = await wires[0].send(request(16, 5, states_filter=(), types_filter=()))

        assert [commit_code(await wires[0].receive(sent)) for sent in commits] == [ErrorCode.none] * 2
        assert committed(await wires[0].receive(fetch)) == {group: number + 1}
        assert (await wires[0].receive(deletion)).results[0].error_code is ErrorCode.none
        assert group not in {listed.group_id for listed in (await wires[0].receive(listing)).groups}


async def test_a_forwarded_member_that_waits_for_others_can_leave(
    agents: tuple[Running, Running], wires: tuple[Wire, Wire]
) -> None:
    group = a_group_of(agents[1])
    stays = await Wire.connect(agents[1].app.kafka_port)
    first = a_join(group, (await stays.ask(a_join(group))).member_id)
    assert (
        await stays.ask(first)
    ).error_code is ErrorCode.none  # it does not take part in the next rebalance
    named = (await wires[0].ask(a_join(group))).member_id
    leaving = [{"member_id": named, "group_instance_id": None, "reason": None}]

    join = await wires[0].send(a_join(group, named))
    leave = await wires[0].send(request(13, 5, group_id=group, members=leaving))

    assert (await wires[0].receive(join)).error_code is not ErrorCode.none
    assert (await wires[0].receive(leave)).members[0].error_code is ErrorCode.none
    stays.close()


async def test_the_coordinator_sees_the_client_and_not_the_agent_that_it_came_to(
    agents: tuple[Running, Running], wires: tuple[Wire, Wire]
) -> None:
    group = a_group_of(agents[1])
    join = a_join(group)
    named = (await wires[0].ask(join, "me,tidelog_zone=z")).member_id
    await wires[0].ask(a_join(group, named), "me,tidelog_zone=z")

    [described] = (
        await wires[1].ask(request(15, 5, groups=(group,), include_authorized_operations=False))
    ).groups

    assert {member.client_id for member in described.members} >= {"me,tidelog_zone=z"}
    assert {member.client_host for member in described.members} == {"/127.0.0.1"}
    clients = [client for agent in agents for client in agent.app._reached.clients()]
    assert all(client.forwarded_by is None for client in clients)
    assert agents[1].metric("tidelog_forwarded_connections") >= 1


async def test_a_forwarded_request_is_served_or_refused_and_never_forwarded_again(
    agents: tuple[Running, Running],
) -> None:
    """Sent as by an agent with another view of the ring: to one that is not the group's coordinator."""
    group = a_group_of(agents[0])
    before = forwarded(*agents)

    wire = await forwarding_to(agents[1])
    beaten = await wire.ask(a_heartbeat(group))
    refused = await wire.ask(a_commit(group, 7))
    served = await wire.ask(a_commit(a_group_of(agents[1]), 7))
    wire.close()

    assert beaten.error_code is commit_code(refused) is ErrorCode.not_coordinator
    assert commit_code(served) is ErrorCode.none
    assert forwarded(*agents) == before


async def test_a_client_whose_agents_disagree_is_refused_and_served_once_they_agree(
    agents: tuple[Running, Running], wires: tuple[Wire, Wire]
) -> None:
    group = a_group_of(agents[0])
    membership = agents[0].app._membership()
    assert membership is not None
    in_truth = membership.ring
    # The first agent believes for a moment that there is only the second.
    membership._route_by(Ring.of(agent for agent in in_truth.agents if agent != membership.self_))
    refused = await wires[0].ask(a_commit(group, 1))
    codes = [commit_code(refused)]

    async def is_served() -> bool:
        codes.append(commit_code(await wires[0].ask(a_commit(group, 2))))
        return codes[-1] is ErrorCode.none

    await until_answered(is_served)

    assert set(codes) <= {ErrorCode.not_coordinator, ErrorCode.none}


async def test_agents_whose_secret_is_renewed_go_on_forwarding(
    agents: tuple[Running, Running], module_database_url: str
) -> None:
    memberships = [agent.app._membership() for agent in agents]
    sequencer = await Sequencer.open(module_database_url, SequencerSettings())
    for _ in range(2):
        before = [membership.peer_secrets() for membership in memberships if membership]
        await sequencer.agents.renew_peer_secret()
        async with asyncio.timeout(60):
            while any(membership.peer_secrets() in before for membership in memberships if membership):
                fresh = await Wire.connect(agents[0].app.kafka_port)
                assert commit_code(await fresh.ask(a_commit(a_group_of(agents[1]), 3))) is ErrorCode.none
                fresh.close()
    await sequencer.close()

    fresh = await Wire.connect(agents[0].app.kafka_port)
    lost = agents[0].metric("tidelog_forwarded_total", outcome="lost")
    assert commit_code(await fresh.ask(a_commit(a_group_of(agents[1]), 4))) is ErrorCode.none
    assert agents[0].metric("tidelog_forwarded_total", outcome="lost") == lost
    fresh.close()


async def test_an_agent_takes_no_more_forwarded_connections_than_its_setting(
    module_database_url: str,
) -> None:
    async with running(module_database_url, max_forwarded_connections=1) as agent:
        await until(lambda: agent.agents_seen >= 1)
        first = await forwarding_to(agent)
        assert (await first.ask(a_heartbeat("x"))).error_code

        with pytest.raises(asyncio.IncompleteReadError):
            await forwarding_to(agent)

        first.close()
        await until(lambda: agent.metric("tidelog_forwarded_connections") == 0)
        (await forwarding_to(agent)).close()


@pytest.mark.parametrize(
    "opening", [PREFACE + b"\x00\x03abc", PREFACE + b"\xff\xff" + b"\x00" * 65_535, b"TIDELOG NOISE 1\n"]
)
async def test_a_bad_hello_closes_only_its_connection(
    agents: tuple[Running, Running], opening: bytes
) -> None:
    reader, writer = await a_peer_stream(agents[1])
    writer.write(opening)

    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    wire = await forwarding_to(agents[1])
    assert (await wire.ask(a_metadata())).brokers
    wire.close()


async def a_peer_stream(agent: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to its peer port, proven."""
    membership = agent.app._membership()
    assert membership is not None
    assert membership.self_ is not None
    address = membership.self_.address
    return await open_peer_stream(address.peer_host, address.peer_port, membership.peer_secrets)


async def forwarding_to(agent: Running) -> Wire:
    """A connection as another agent opens it. Raises IncompleteReadError if it is not accepted."""
    reader, writer = await a_peer_stream(agent)
    writer.write(
        PREFACE + encode_hello(Hello(node_id=NodeId(99), zone="q", client="10.1.2.3:4", principal=ANONYMOUS))
    )
    async with asyncio.timeout(60):
        assert await reader.readexactly(len(ACCEPTED)) == ACCEPTED
    return Wire(reader, writer)
