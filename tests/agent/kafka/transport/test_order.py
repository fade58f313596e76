"""Order on a connection: a request sees the effects of those before it, and a long poll delays no other
(docs/design/failure-rules.md#order-on-a-connection).

Requests are sent at once, by hand. Each pair is tried several times, because without order the second one is
often lucky.
"""

import random
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.groups.settings import GroupSettings
from tests.agent.kafka.apis.administrative_requests import TIMEOUT, create
from tests.agent.kafka.apis.groups_by_hand import a_commit, a_join, fetch, join, member, offsets
from tests.agent.read_path.wire import a_fetch, a_list_offsets, request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, running
from tests.support.seeds import seeds
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 10
LONG = timedelta(seconds=100)
"""Longer than a test waits for an answer."""
LATEST, EARLIEST = -1, -2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    """Its groups begin without a delay."""
    async with running(
        module_database_url, group_settings=GroupSettings(group_initial_rebalance_delay_ms=0)
    ) as started:  # fmt: skip
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


async def pipelined(wire: Wire, *requests: Any) -> Sequence[Any]:
    """Returns the answers to requests that are sent before the first is answered."""
    sent = [await wire.send(one) for one in requests]
    return [await wire.receive(one) for one in sent]


def an_offset_fetch(group_id: str, topic: Any) -> Any:
    named = [{"name": topic.name, "partition_indexes": (0,)}]
    group = {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": named}
    return request(9, 9, groups=[group], require_stable=False)


def fetched_offset(answer: Any) -> int:
    return answer.groups[0].topics[0].partitions[0].committed_offset  # type: ignore[no-any-return]


def a_leave(group_id: str, member_id: str) -> Any:
    return request(
        13,
        5,
        group_id=group_id,
        members=[{"member_id": member_id, "group_instance_id": None, "reason": None}],
    )


def listed_offset(answer: Any) -> int:
    return answer.topics[0].partitions[0].offset  # type: ignore[no-any-return]


def a_creation(name: str) -> Any:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": []}
    return request(19, 7, topics=[topic], timeout=TIMEOUT, validate_only=False)


async def test_committed_offsets_are_fetched_behind_their_commit(wire: Wire) -> None:
    topic = await create(wire, "committed-and-fetched")

    found = [
        fetched_offset(
            (await pipelined(wire, a_commit("order", topic, number), an_offset_fetch("order", topic)))[1]
        )
        for number in range(ROUNDS)
    ]

    assert found == list(range(ROUNDS))


async def test_a_member_commits_before_it_leaves(wire: Wire) -> None:
    topic = await create(wire, "committed-and-left")
    for number in range(ROUNDS):
        group_id = f"leaver-{number}"
        joined = await member(wire, group_id)
        commit = a_commit(
            group_id,
            topic,
            number,
            generation_id_or_member_epoch=joined.generation_id,
            member_id=joined.member_id,
        )

        committed, left = await pipelined(wire, commit, a_leave(group_id, joined.member_id))

        assert committed.topics[0].partitions[0].error_code is ErrorCode.none
        assert left.members[0].error_code is ErrorCode.none
        assert fetched_offset(await wire.ask(an_offset_fetch(group_id, topic))) == number


async def test_the_log_starts_behind_deleted_records(wire: Wire) -> None:
    topic = await create(wire, "deleted-and-listed")
    await wire.ask(a_produce(topic.name, {0: a_batch(*[b"x"] * (ROUNDS + 1))}))
    starts = []
    for number in range(1, ROUNDS + 1):
        topics = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": number}]}]
        deletion = request(21, 2, topics=topics, timeout=TIMEOUT)
        _, listed = await pipelined(wire, deletion, a_list_offsets(7, topic.name, EARLIEST))
        starts.append(listed_offset(listed))

    assert starts == list(range(1, ROUNDS + 1))


async def test_changed_configs_are_described(wire: Wire) -> None:
    topic = await create(wire, "altered-and-described")
    described = []
    for number in range(ROUNDS):
        configs = [{"name": "retention.ms", "config_operation": 0, "value": str(number + 1)}]
        resource = {"resource_type": 2, "resource_name": topic.name, "configs": configs}
        asked = {"resource_type": 2, "resource_name": topic.name, "configuration_keys": ("retention.ms",)}
        _, answer = await pipelined(
            wire,
            request(44, 1, resources=[resource], validate_only=False),
            request(32, 4, resources=[asked], include_synonyms=False, include_documentation=False),
        )
        described.append(int(answer.results[0].configs[0].value))

    assert described == list(range(1, ROUNDS + 1))


async def test_a_topic_is_known_behind_its_creation_has_its_partitions_and_is_gone_behind_its_deletion(
    wire: Wire,
) -> None:
    for number in range(ROUNDS):
        name = f"created-{number}"
        growth = [{"name": name, "count": 3, "assignments": None}]

        created, one, produced, _, three, _, none = await pipelined(
            wire,
            a_creation(name),
            a_metadata(name, create=False),
            a_produce(name, {0: a_batch(b"x")}),
            request(37, 3, topics=growth, timeout=TIMEOUT, validate_only=False),
            a_metadata(name, create=False),
            request(20, 5, topic_names=(name,), timeout=TIMEOUT),
            a_metadata(name, create=False),
        )

        assert created.topics[0].error_code is ErrorCode.none
        assert len(one.topics[0].partitions) == 1
        assert partitions_of(produced)[0].base_offset == 0
        assert len(three.topics[0].partitions) == 3
        assert none.topics[0].error_code is ErrorCode.unknown_topic_or_partition


async def test_the_log_ends_behind_what_was_produced(wire: Wire) -> None:
    topic = await create(wire, "produced-and-listed")
    ends = []
    for _ in range(ROUNDS):
        produce, listing = a_produce(topic.name, {0: a_batch(b"x")}), a_list_offsets(7, topic.name, LATEST)
        _, listed = await pipelined(wire, produce, listing)
        ends.append(listed_offset(listed))

    assert ends == list(range(1, ROUNDS + 1))


async def test_produced_records_are_fetched_even_if_the_fetch_may_not_wait(wire: Wire) -> None:
    topic = await create(wire, "produced-and-fetched")
    for number in range(ROUNDS):
        _, fetched = await pipelined(
            wire, a_produce(topic.name, {0: a_batch(b"x")}), a_fetch(12, topic, number, max_wait=timedelta(0))
        )
        assert fetched.responses[0].partitions[0].records


async def test_a_deleted_group_is_not_listed_and_a_deleted_offset_not_fetched(wire: Wire) -> None:
    topic = await create(wire, "forgotten")
    for number in range(ROUNDS):
        group_id = f"forgotten-{number}"
        named = [{"name": topic.name, "partitions": [{"partition_index": 0}]}]

        _, _, fetched, _, _, listed = await pipelined(
            wire,
            a_commit(group_id, topic, 7),
            request(47, 0, group_id=group_id, topics=named),
            an_offset_fetch(group_id, topic),
            a_commit(group_id, topic, 8),
            request(42, 2, groups_names=(group_id,)),
            request(16, 5, states_filter=(), types_filter=()),
        )

        assert fetched_offset(fetched) == -1
        assert group_id not in {group.group_id for group in listed.groups}


@pytest.mark.parametrize("seed", seeds(2))
async def test_requests_that_are_pipelined_are_answered_as_if_they_were_sent_one_by_one(
    wire: Wire, seed: int
) -> None:
    """No read sees less or more than what was written before it."""
    chance = random.Random(seed)
    topic, group_id = await create(wire, f"any-order-{seed}"), f"any-order-{seed}"
    produced = committed = 0
    expected, sent = [], []
    for _ in range(100):
        match chance.choice(("produce", "commit", "list", "fetch offset")):
            case "produce":
                sent.append(await wire.send(a_produce(topic.name, {0: a_batch(b"x")})))
                expected.append(produced)
                produced += 1
            case "commit":
                committed += 1
                sent.append(await wire.send(a_commit(group_id, topic, committed)))
                expected.append(0)
            case "list":
                sent.append(await wire.send(a_list_offsets(7, topic.name, LATEST)))
                expected.append(produced)
            case "fetch offset":
                sent.append(await wire.send(an_offset_fetch(group_id, topic)))
                expected.append(committed or -1)

    answers = [await wire.receive(one) for one in sent]

    assert [told(answer) for answer in answers] == expected


def told(answer: Any) -> int:
    """Returns the number in an answer: an offset, or the code of a commit."""
    if hasattr(answer, "groups"):
        return fetched_offset(answer)
    if hasattr(answer, "responses"):
        return partitions_of(answer)[0].base_offset  # type: ignore[no-any-return]
    [partition] = answer.topics[0].partitions
    number: int = partition.offset if hasattr(partition, "offset") else partition.error_code.value
    return number


async def test_a_clients_last_requests_are_carried_out_in_order_after_it_hangs_up(
    agent: Running, wire: Wire
) -> None:
    topic = await create(wire, "last-words")
    for number in range(ROUNDS):
        group_id, leaver = f"last-words-{number}", await Wire.connect(agent.app.kafka_port)
        joined = await member(leaver, group_id)
        for offset in (1, 2, 3):
            await leaver.send(
                a_commit(
                    group_id,
                    topic,
                    offset,
                    generation_id_or_member_epoch=joined.generation_id,
                    member_id=joined.member_id,
                )
            )
        left_before = agent.metric("tidelog_requests_total", api="LeaveGroup")
        await leaver.send(a_leave(group_id, joined.member_id))

        leaver.close()

        await until(partial(_has_more_leaves, agent, left_before))
        again = await join(wire, group_id)  # otherwise it would wait for the other member
        assert len(again.members) == 1
        assert offsets(await fetch(wire, group_id, topic, 0))[topic.name, 0][0] == 3
        await wire.ask(a_leave(group_id, again.member_id))


# --- long polls


async def test_an_answer_behind_a_waiting_fetch_does_not_wait_for_it(wire: Wire) -> None:
    topic = (await wire.ask(a_metadata("long-poll", version=12))).topics[0]

    fetched, metadata = await pipelined(wire, a_fetch(12, topic, 0, max_wait=LONG), a_metadata())

    assert fetched.error_code is ErrorCode.none
    assert metadata.brokers


async def test_the_last_push_of_a_closing_consumer_does_not_wait_for_its_fetch(wire: Wire) -> None:
    topic = (await wire.ask(a_metadata("closing", version=12))).topics[0]
    asked = await wire.ask(request(71, 0, client_instance_id=None))
    last = {
        "client_instance_id": asked.client_instance_id,
        "subscription_id": asked.subscription_id,
        "terminating": True,
        "compression_type": 0,
        "metrics": b"",
    }

    fetched, pushed = await pipelined(wire, a_fetch(12, topic, 0, max_wait=LONG), request(72, 0, **last))

    assert fetched.error_code is ErrorCode.none
    assert pushed.error_code is ErrorCode.none


async def test_a_client_that_stops_sending_gets_the_answer_to_its_waiting_fetch(agent: Running) -> None:
    wire = await Wire.connect(agent.app.kafka_port)
    topic = (await wire.ask(a_metadata("half-closed", version=12))).topics[0]
    sent = await wire.send(a_fetch(12, topic, 0, max_wait=LONG))

    wire.writer.write_eof()

    assert (await wire.receive(sent)).error_code is ErrorCode.none
    assert await wire.is_closed_by_agent()


async def test_news_for_a_fetch_end_the_wait_of_those_in_front_and_of_no_other(
    agent: Running, wire: Wire
) -> None:
    topics = [
        (await wire.ask(a_metadata(f"pipelined-{number}", version=12))).topics[0] for number in range(3)
    ]
    producer = await Wire.connect(agent.app.kafka_port)
    sent = [await wire.send(a_fetch(12, topic, 0, max_wait=LONG)) for topic in topics]

    await producer.ask(a_produce(topics[1].name, {0: a_batch(b"second")}))
    first, second = await wire.receive(sent[0]), await wire.receive(sent[1])
    await producer.ask(a_produce(topics[2].name, {0: a_batch(b"third")}))
    third = await wire.receive(sent[2])
    producer.close()

    records = [bool(fetched.responses[0].partitions[0].records) for fetched in (first, second, third)]
    assert records == [False, True, True]


async def test_a_member_that_waits_for_others_can_leave(wire: Wire, agent: Running) -> None:
    """JoinGroup waits for a member that does not come. The request behind it takes effect and so ends the
    wait.
    """
    stays = await Wire.connect(agent.app.kafka_port)
    await member(stays, "one-stays", session_timeout=LONG, rebalance_timeout=LONG)
    named = await wire.ask(a_join("one-stays", session_timeout=LONG, rebalance_timeout=LONG))

    joined, left = await pipelined(
        wire,
        a_join("one-stays", named.member_id, session_timeout=LONG, rebalance_timeout=LONG),
        a_leave("one-stays", named.member_id),
    )
    stays.close()

    assert joined.error_code is not ErrorCode.none
    assert left.members[0].error_code is ErrorCode.none


def _has_more_leaves(agent: Running, before: float) -> bool:
    return agent.metric("tidelog_requests_total", api="LeaveGroup") > before
