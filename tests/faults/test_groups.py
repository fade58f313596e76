"""Coordinators killed and frozen under consuming groups: offsets never go backwards, nothing is left unread,
members of the new protocol stay who they are, and an agent that slept through its lease answers for no group.
"""

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.agent.kafka.apis.groups_by_hand import (
    a_commit,
    a_heartbeat,
    a_join,
    beat,
    commit,
    fetch,
    member,
    offsets,
    sync,
)
from tests.agent.read_path.wire import request
from tests.agent.running import Wire, a_metadata, until_answered
from tests.faults.conftest import LEASES, create_topic
from tests.faults.group_load import GroupLoad, GroupLoadSettings
from tidelog.devstack.stack import AgentProcess, Stack

PARTITIONS = 6
KILLS = 2
QUICK_GROUPS: Mapping[str, str] = {
    **LEASES,
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "500",
    "TIDELOG_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
}

pytestmark = pytest.mark.faults


def coordinator_of(stack: Stack, group_id: str) -> int:
    """The index of the agent that all agents name, asked until they agree."""
    until = time.monotonic() + 30.0
    while True:
        named = {asyncio.run(_coordinator_port(agent, group_id)) for agent in stack.agents}
        if len(named) == 1 and (port := named.pop()) is not None:
            return next(
                number for number, agent in enumerate(stack.agents) if agent.address.kafka_port == port
            )
        assert time.monotonic() < until, "the agents do not agree on a coordinator"
        time.sleep(0.1)


async def _coordinator_port(agent: AgentProcess, group_id: str) -> int | None:
    """None: the agent does not serve now."""
    try:
        wire = await Wire.connect(agent.address.kafka_port)
        found = await wire.ask(request(10, 6, key_type=0, coordinator_keys=(group_id,)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    wire.close()
    return found.coordinators[0].port  # type: ignore[no-any-return]


@contextlib.contextmanager
def a_group_at_work(stack: Stack, protocol: str) -> Iterator[GroupLoad]:
    """A stable group; when the block ends, everything is read, and no offset went backwards."""
    settings = GroupLoadSettings(
        servers=stack.addresses.bootstrap,
        database_url=stack.addresses.database_url,
        topic=create_topic(stack.addresses.bootstrap, PARTITIONS),
        partitions=PARTITIONS,
        group_id=f"group-{uuid.uuid4().hex[:8]}",
        protocol=protocol,
    )
    with GroupLoad(settings) as load:
        load.wait_until_shared(90.0)
        load.wait_until(lambda: len(load.members()) == settings.members, 60.0, "the group is stable")
        load.wait_for_progress(200, 60.0)
        yield load
        load.finish(60.0)
        print(load.summary(), flush=True)
    assert load.seen.backwards == []
    assert load.seen.fatal == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_killed_coordinator_costs_a_pause(new_stack: Callable[..., Stack], protocol: str) -> None:
    stack = new_stack(agents=3, store="local", agent_environment=QUICK_GROUPS)
    with a_group_at_work(stack, protocol) as load:
        told, claimed = dict(load.seen.assignments), load.coordinator_epoch()
        for kills in range(1, KILLS + 1):
            _kill_coordinator(stack, load)
            if protocol == "consumer":
                assert load.seen.assignments == told, "partitions moved"
            else:
                # At most one rejoin for the death, and one as the agent comes back and takes its groups
                # again. On a busy machine the group changes hands more often: an agent may lose its short
                # lease.
                most = max(2 * kills, load.coordinator_epoch() - claimed)
                assert all(load.seen.assignments[number] - count <= most for number, count in told.items()), (
                    load.summary()
                )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_coordinator_that_drains_and_a_database_that_restarts_cost_a_pause(
    new_stack: Callable[..., Stack], protocol: str
) -> None:
    stack = new_stack(agents=2, store="local", agent_environment=QUICK_GROUPS)
    with a_group_at_work(stack, protocol) as load:
        members = load.members()
        victim = coordinator_of(stack, load.settings.group_id)
        stack.agents[victim].signal(signal.SIGTERM)
        assert stack.agents[victim].join(60.0)
        load.wait_for_progress(300, 60.0)
        stack.restart(victim)

        stack.postgres.stop()
        time.sleep(2.0)  # longer than a heartbeat's pause
        stack.postgres.start()

        load.wait_for_progress(300, 60.0)
        _assert_stayed(load, members)


def _kill_coordinator(stack: Stack, load: GroupLoad) -> None:
    protocol, members = load.settings.protocol, load.members()
    victim = coordinator_of(stack, load.settings.group_id)
    began_s = time.monotonic()

    stack.kill(victim)

    load.wait_for_progress(300, 60.0)
    print(f"{protocol}: killed {victim}, 300 records later {time.monotonic() - began_s:.1f} s", flush=True)
    stack.restart(victim)
    load.wait_for_progress(300, 60.0)
    _assert_stayed(load, members)


def _assert_stayed(load: GroupLoad, members: Mapping[str, int]) -> None:
    """The group has as many members as before; in the new protocol they are the same ones, with their
    epochs.
    """
    after = load.members()
    assert len(after) == len(members)
    if load.settings.protocol == "consumer":
        assert after.keys() == members.keys(), "a member was lost"
        assert all(after[member_id] >= epoch for member_id, epoch in members.items())


@pytest.mark.timeout(600)
def test_a_coordinator_that_slept_through_its_lease_answers_for_no_group(
    new_stack: Callable[..., Stack],
) -> None:
    """Requests that waited in its socket while it was frozen belong to an old generation."""
    stack = new_stack(agents=2, store="local", agent_environment=QUICK_GROUPS)
    for number in range(3):
        group_id = f"sleeper-{number}"
        sleeper = coordinator_of(stack, group_id)
        asyncio.run(_outlive(stack.agents[sleeper], stack.agents[1 - sleeper], group_id))
        stack.agents[sleeper].wait_ready(60.0)


async def _outlive(sleeper: AgentProcess, other: AgentProcess, group_id: str) -> None:
    old, new = await Wire.connect(sleeper.address.kafka_port), await Wire.connect(other.address.kafka_port)
    topic = (await new.ask(a_metadata("slept-through", version=12))).topics[0]
    past = await member(old, group_id)
    assert await _committed(old, group_id, topic, 5, past) is ErrorCode.none
    sleeper.signal(signal.SIGSTOP)
    try:
        await until_answered(lambda: _is_named(other, group_id), timeout_s=60.0)
        assert await beat(new, group_id, past.member_id, past.generation_id) is ErrorCode.none
        other_topics = [{"name": "range", "metadata": b"other topics"}]
        present = await new.ask(a_join(group_id, past.member_id, protocols=other_topics))
        assert (present.error_code, present.generation_id) == (ErrorCode.none, past.generation_id + 1)
        assert (await sync(new, group_id, present)).error_code is ErrorCode.none
        assert await _committed(new, group_id, topic, 10, present) is ErrorCode.none
        sent = [
            await old.send(a_heartbeat(group_id, past.member_id, past.generation_id)),
            await old.send(a_commit(group_id, topic, 6, **_fence(past))),
        ]
    finally:
        sleeper.signal(signal.SIGCONT)
    codes = await _codes(old, sent)
    assert set(codes) <= {ErrorCode.not_coordinator}, codes
    # Once awake, the sleeper joins the ring, which may give it the group back.
    found = await _offsets_at_either((other, sleeper), group_id, topic)
    assert found == {("slept-through", 0): (10, "note", ErrorCode.none)}
    old.close()
    new.close()


async def _offsets_at_either(agents: Sequence[AgentProcess], group_id: str, topic: Any) -> dict[Any, Any]:
    """Of the group's coordinator, as soon as one of the agents is."""
    found: dict[Any, Any] = {}

    async def is_answered() -> bool:
        for agent in agents:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # it does not serve yet
                wire = await Wire.connect(agent.address.kafka_port)
                found.update(offsets(await fetch(wire, group_id, topic, 0)))
                wire.close()
        return bool(found)

    await until_answered(is_answered, timeout_s=60.0)
    return found


async def _is_named(agent: AgentProcess, group_id: str) -> bool:
    return await _coordinator_port(agent, group_id) == agent.address.kafka_port


async def _committed(wire: Wire, group_id: str, topic: Any, offset: int, joined: Any) -> ErrorCode:
    return await commit(wire, group_id, topic, offset, **_fence(joined))


def _fence(joined: Any) -> dict[str, Any]:
    return {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}


async def _codes(wire: Wire, sent: Sequence[Any]) -> list[ErrorCode]:
    """The answers, until the agent hangs up: its lease is over."""
    codes = []
    try:
        for one in sent:
            answer = await wire.receive(one)
            codes.append(
                answer.topics[0].partitions[0].error_code if hasattr(answer, "topics") else answer.error_code
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    print(f"answers after the sleep: {[code.name for code in codes]}", flush=True)
    return codes
