"""What clients may do with an authorizer, and that no API forgets to ask it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.groups.settings import GroupSettings
from agent.kafka.authorization import CHECKS
from agent.kafka.served import APIS
from agent.security.acls.settings import AuthorizationSettings
from agent.security.principal import Principal
from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.acl import Acl, Operation, PatternType, ResourceType
from tests.agent.auditing import events_of
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.kafka.apis.groups_by_hand import assigned, consume
from tests.agent.kafka.apis.streams_by_hand import a_word_count, beat
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, running, until_answered
from tests.sequencer.builders import an_acl

pytestmark = pytest.mark.asyncio(loop_scope="module")

NONE = ErrorCode.none
TOPIC_REFUSED = ErrorCode.topic_authorization_failed
GROUP_REFUSED = ErrorCode.group_authorization_failed
AUTHORIZATION = AuthorizationSettings(authorizer=True, super_users="User:root", acl_poll_s=0.1)
GROUPS = GroupSettings(group_streams_initial_rebalance_delay_ms=0, group_lease_renew_s=0.1)
ONE_ADDRESS = "balancer.example:9092"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents(module_database_url: str) -> AsyncIterator[tuple[Running, Running]]:
    """Two behind one address, with an authorizer."""
    shared: dict[str, Any] = {
        "one_address": ONE_ADDRESS,
        "group_settings": GROUPS,
        "authorization": AUTHORIZATION,
    }
    async with (
        running(module_database_url, zone="a", **shared) as first,
        running(module_database_url, zone="b", **shared) as second,
    ):

        async def know_each_other() -> bool:
            return first.agents_seen == second.agents_seen == 2

        await until_answered(know_each_other)
        yield first, second


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sequencer(module_database_url: str) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(module_database_url, SequencerSettings())
    yield opened
    await opened.close()


async def connected(agent: Running, name: str) -> Wire:
    """A connection of this user, as if it had authenticated."""
    wire = await Wire.connect(agent.app.kafka_port)
    port = wire.writer.get_extra_info("sockname")[1]
    listener = agent.app._reached.listener
    assert listener is not None

    async def is_seen() -> bool:
        found = [state for state in listener.clients() if state.peer.endswith(f":{port}")]
        for state in found:
            state.principal = Principal(name)
        return bool(found)

    await until_answered(is_seen)
    return wire


def acl(operation: Operation, kind: ResourceType, name: str, user: str, *, prefixed: bool = False) -> Acl:
    return replace(
        an_acl(name),
        operation=operation,
        resource_type=kind,
        principal=f"User:{user}",
        pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
    )


async def allow(sequencer: Sequencer, agents: Sequence[Running], *acls: Acl) -> None:
    await sequencer.acls.add(acls, 1_000)
    for agent in agents:
        assembly = agent.app._reached.assembly
        assert assembly is not None
        await assembly.parts.acls.refresh()


async def test_every_served_api_says_what_it_checks() -> None:
    assert {api.key for api in APIS} <= CHECKS.keys()
    assert {api.name for api in APIS if not CHECKS[api.key]} <= {
        "ApiVersions",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
        "SaslAuthenticate",
        "SaslHandshake",
    }


async def test_a_refused_topic_does_not_disturb_the_others(
    agents: tuple[Running, Running], sequencer: Sequencer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog")
    root = await connected(agents[0], "root")
    for name in ("mine", "theirs"):
        await create(root, name)
    await allow(sequencer, agents, acl(Operation.WRITE, ResourceType.TOPIC, "mine", "alice"))
    alice = await connected(agents[0], "alice")
    batch = a_batch(b"v")

    alone = await alice.ask(a_produce("mine", {0: batch}))
    both = await alice.ask(
        request(
            0,
            9,
            transactional_id=None,
            acks=-1,
            timeout=a_produce("mine", {}).timeout,
            topic_data=[
                {"name": name, "partition_data": [{"index": 0, "records": batch}]}
                for name in ("theirs", "mine", "unknown")
            ],
        )
    )

    assert alone.responses[0].partition_responses[0].error_code is NONE
    found = {one.name: one.partition_responses[0] for one in both.responses}
    assert {name: one.error_code for name, one in found.items()} == {
        "theirs": TOPIC_REFUSED,
        "mine": NONE,
        "unknown": TOPIC_REFUSED,
    }
    assert found["mine"].base_offset == 1
    refused = {one["resources"][0]["name"]: one for one in events_of(caplog, "access denied")}
    assert refused.keys() == {"theirs", "unknown"}
    assert refused["theirs"]["principal"] == "User:alice"
    assert refused["theirs"]["address"].startswith("127.0.0.1:")
    assert (refused["theirs"]["request"], refused["theirs"]["operation"]) == ("Produce", "WRITE")

    await alice.send(a_produce("theirs", {0: batch}, acks=0))
    assert await alice.is_closed_by_agent()
    root.close()


async def test_a_change_at_one_agent_decides_at_the_other_within_a_second(
    agents: tuple[Running, Running],
) -> None:
    root, bob = await connected(agents[0], "root"), await connected(agents[1], "bob")
    await create(root, "shared")

    async def sees() -> ErrorCode:
        found = await bob.ask(a_metadata("shared", create=False))
        return ErrorCode(found.topics[0].error_code)

    assert await sees() is TOPIC_REFUSED
    entry = {
        "resource_type": 2,
        "resource_name": "shared",
        "resource_pattern_type": 3,
        "principal": "User:bob",
        "host": "*",
        "operation": 8,
        "permission_type": 3,
    }
    created = await root.ask(request(30, 3, creations=[entry, {**entry, "operation": 99}]))
    assert [one.error_code for one in created.results] == [NONE, ErrorCode.invalid_request]

    async def sees_it() -> bool:
        return await sees() is NONE

    await until_answered(sees_it, 5)
    root.close()
    bob.close()


async def test_a_forwarded_request_is_decided_for_the_client_who_sent_it(
    agents: tuple[Running, Running], sequencer: Sequencer
) -> None:
    """Groups of both agents: half of the requests are carried out by the other agent."""
    await allow(sequencer, agents, acl(Operation.READ, ResourceType.GROUP, "team-", "carol", prefixed=True))
    carol, anonymous = await connected(agents[0], "carol"), await Wire.connect(agents[0].app.kafka_port)
    for number in range(8):
        beat_of_none = request(
            12, 4, group_id=f"team-{number}", generation_id=1, member_id="m", group_instance_id=None
        )
        assert (await carol.ask(beat_of_none)).error_code is ErrorCode.unknown_member_id
        assert (await anonymous.ask(beat_of_none)).error_code is GROUP_REFUSED
    assert agents[0].metric("tidelog_forwarded_total", outcome="answered") > 0
    carol.close()
    anonymous.close()


async def test_a_transaction_with_a_refused_topic_says_which_others_do_not_exist(
    agents: tuple[Running, Running], sequencer: Sequencer
) -> None:
    """Found by the comparison with Apache Kafka (seed 355020405)."""
    root = await connected(agents[0], "root")
    await create(root, "txn-mine")
    await allow(
        sequencer,
        agents,
        acl(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x", "gina"),
        acl(Operation.WRITE, ResourceType.TOPIC, "txn-", "gina", prefixed=True),
    )
    gina = await connected(agents[0], "gina")

    added = await gina.ask(
        request(
            24,
            3,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[
                {"name": name, "partitions": (0,)} for name in ("txn-mine", "txn-none", "theirs-too")
            ],
        )
    )

    assert {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in added.results_by_topic_v3_and_below
    } == {
        "txn-mine": ErrorCode.operation_not_attempted,
        "txn-none": ErrorCode.unknown_topic_or_partition,
        "theirs-too": TOPIC_REFUSED,
    }
    root.close()
    gina.close()


async def test_topics_are_created_on_demand_only_for_those_who_may(
    agents: tuple[Running, Running], sequencer: Sequencer
) -> None:
    await allow(
        sequencer,
        agents,
        acl(Operation.DESCRIBE, ResourceType.TOPIC, "demand-", "dora", prefixed=True),
        acl(Operation.CREATE, ResourceType.TOPIC, "demand-yes", "dora"),
    )
    dora = await connected(agents[0], "dora")

    found = (await dora.ask(a_metadata("demand-yes", "demand-no", "other"))).topics

    assert {topic.name: topic.error_code for topic in found} == {
        "demand-yes": NONE,
        "demand-no": TOPIC_REFUSED,
        "other": TOPIC_REFUSED,
    }
    dora.close()


async def test_a_regular_expression_matches_only_topics_that_the_member_may_describe(
    agents: tuple[Running, Running], sequencer: Sequencer
) -> None:
    root = await connected(agents[0], "root")
    for name in ("re-open", "re-secret"):
        await create(root, name)
    await allow(
        sequencer,
        agents,
        acl(Operation.READ, ResourceType.GROUP, "re", "erin"),
        acl(Operation.DESCRIBE, ResourceType.TOPIC, "re-open", "erin"),
    )
    erin = await connected(agents[0], "erin")
    joined = await consume(erin, "re", 0, subscribed_topic_names=None, subscribed_topic_regex="re-.*")
    ids = {topic.name: topic.topic_id for topic in (await root.ask(a_metadata("re-open", version=12))).topics}

    async def has_it() -> bool:
        beaten = joined if assigned(joined) else await consume(erin, "re", joined.member_epoch)
        return bool(assigned(beaten)) and (assigned(beaten) or {}).keys() == {ids["re-open"]}

    assert joined.error_code is NONE
    await until_answered(has_it)
    by_name = await consume(erin, "re", 0, member_id="other", subscribed_topic_names=("re-secret",))
    assert by_name.error_code is TOPIC_REFUSED
    root.close()
    erin.close()


async def test_internal_topics_are_created_only_if_the_member_may(
    agents: tuple[Running, Running], sequencer: Sequencer
) -> None:
    root = await connected(agents[0], "root")
    await create(root, "words-lines")
    await allow(
        sequencer,
        agents,
        acl(Operation.READ, ResourceType.GROUP, "words", "fred"),
        acl(Operation.DESCRIBE, ResourceType.TOPIC, "words-", "fred", prefixed=True),
    )
    fred = await connected(agents[0], "fred")

    joined = await beat(fred, "words", "a", 0, topology=a_word_count("words"))
    told = await beat(fred, "words", "a", joined.member_epoch)

    assert (joined.error_code, told.error_code) == (NONE, NONE)
    [status] = told.status
    assert "not authorized to CREATE" in status.status_detail
    found = (await root.ask(a_metadata("words-counts", create=False))).topics
    assert [topic.error_code for topic in found] == [ErrorCode.unknown_topic_or_partition]
    root.close()
    fred.close()


async def test_without_an_authorizer_everything_is_allowed_and_there_are_no_acls(
    database_url: str,
) -> None:
    async with running(database_url) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        disabled = ErrorCode.security_disabled
        any_acl = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        described = await wire.ask(request(29, 3, **any_acl))
        deleted = await wire.ask(request(31, 3, filters=[any_acl]))
        assert (described.error_code, deleted.filter_results[0].error_code) == (disabled, disabled)
        assert (await wire.ask(a_metadata("orders"))).topics[0].error_code is NONE
        wire.close()


@pytest.mark.superuser
async def test_an_agent_whose_acls_cannot_be_read_does_not_serve(database_url: str) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    await sequencer.database.run("ALTER TABLE acls RENAME TO away")
    async with running(database_url, wait_started=False, authorization=AUTHORIZATION) as agent:

        async def has_joined() -> bool:
            return agent.agents_seen == 1

        await until_answered(has_joined)
        assert not agent.app.started.is_set()
        await sequencer.database.run("ALTER TABLE away RENAME TO acls")
        await asyncio.wait_for(agent.app.started.wait(), 30)
    await sequencer.close()
