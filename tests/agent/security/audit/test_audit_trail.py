"""What a running agent audits: logins, refusals and changes by Kafka and HTTP, with what came of each."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from agent.security.acls.settings import AuthorizationSettings
from agent.security.sasl.settings import SaslSettings
from tests.agent.auditing import events_of
from tests.agent.kafka.apis.administrative_requests import alter, create, delete, grow
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, running, until_answered
from tests.agent.security.logins.by_hand import authenticate, handshake, log_in, plain
from tests.agent.security.logins.users import add_user

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSWORD = "correct-horse"
TIMEOUT = i32Timedelta.parse(timedelta(seconds=30))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    for user in ("root", "ann"):
        await add_user(module_database_url, user, PASSWORD)
    async with running(
        module_database_url,
        sasl_settings=SaslSettings(
            sasl_mechanisms="PLAIN,SCRAM-SHA-512", sasl_failed_delay_ms=10, http_authentication=True
        ),
        authorization=AuthorizationSettings(authorizer=True, super_users="User:root", acl_poll_s=0.1),
    ) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def root(agent: Running) -> AsyncIterator[Wire]:
    wire = await connected(agent, "root")
    yield wire
    wire.close()


async def connected(agent: Running, user: str) -> Wire:
    wire = await Wire.connect(agent.app.kafka_port)
    assert (await log_in(wire, user, PASSWORD)).error_code is ErrorCode.none
    return wire


def outcomes(event: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in event["resources"]}


async def test_a_login_says_who_from_where_and_how(agent: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wire = await Wire.connect(agent.app.kafka_port)
    port = wire.writer.get_extra_info("sockname")[1]
    await log_in(wire, "ann", PASSWORD, "SCRAM-SHA-512")
    wire.close()

    [event] = events_of(caplog, "login")
    assert event["principal"] == "User:ann"
    assert event["address"] == f"127.0.0.1:{port}"
    assert (event["mechanism"], event["listener"]) == ("SCRAM-SHA-512", "SASL_PLAINTEXT")
    assert event["client_id"] == "test"
    assert event["outcome"] == "success"
    assert event["agent"] >= 0


async def test_a_renewed_session_is_a_login_that_says_so(
    agent: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("agent.security.sasl.session.LEAST_REAUTH_PAUSE_S", 0.0)
    wire = await connected(agent, "ann")
    await wire.ask(handshake())
    await wire.ask(authenticate(plain("ann", PASSWORD)))
    wire.close()

    assert [event.get("reason") for event in events_of(caplog, "login")] == [None, "the session is renewed"]


async def test_a_failed_login_says_whom_it_claimed_and_has_no_password(
    agent: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wire = await Wire.connect(agent.app.kafka_port)
    await log_in(wire, "mallory", "wrong-battery")
    wire.close()

    [event] = events_of(caplog, "login failed")
    assert (event["principal"], event["mechanism"], event["outcome"]) == ("User:mallory", "PLAIN", "failure")
    assert event["reason"]
    assert "wrong-battery" not in caplog.text


async def test_a_refusal_says_operation_and_resource_and_what_is_allowed_is_no_event(
    agent: Running, root: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await create(root, "private")
    ann = await connected(agent, "ann")
    caplog.clear()
    caplog.set_level(logging.INFO)

    await ann.ask(a_produce("private", {0: a_batch(b"v")}))
    await root.ask(a_produce("private", {0: a_batch(b"v")}))
    ann.close()

    [event] = events_of(caplog)
    assert (event["event"], event["principal"]) == ("access denied", "User:ann")
    assert (event["request"], event["operation"]) == ("Produce", "WRITE")
    assert event["resources"] == [{"type": "TOPIC", "name": "private", "outcome": "DENIED"}]


async def test_topics_are_audited_with_what_changed_and_what_came_of_it(
    root: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    configs = [{"name": "retention.ms", "value": "1000"}, {"name": "api.secret", "value": "hunter2"}]
    await create(root, "changed", num_partitions=2, configs=configs[:1])
    await create(root, "changed-not", configs=configs)
    await create(root, "looked-at", validate_only=True)
    await grow(root, "changed", 3)
    await alter(root, "changed", ("retention.ms", 0, "2000"), ("segment.ms", 1, None))
    await delete(root, 6, name="changed")
    await delete(root, 6, name="changed")

    events = events_of(caplog, "change", "change refused")
    assert [(event["request"], event["outcome"]) for event in events] == [
        ("CreateTopics", "success"),
        ("CreateTopics", "failure"),
        ("CreatePartitions", "success"),
        ("IncrementalAlterConfigs", "success"),
        ("DeleteTopics", "success"),
        ("DeleteTopics", "failure"),
    ]
    assert events[0]["resources"] == [
        {
            "type": "TOPIC",
            "name": "changed",
            "outcome": "NONE",
            "change": {"partitions": "2", "retention.ms": "1000"},
        }
    ]
    assert events[1]["resources"][0]["change"]["api.secret"] == "(hidden)"
    assert events[2]["resources"][0]["change"] == {"partitions": "3"}
    assert events[3]["resources"][0]["change"] == {"retention.ms": "2000", "segment.ms": None}
    assert outcomes(events[5]) == {"changed": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert "hunter2" not in str(events)


async def test_users_acls_quotas_and_offsets_are_audited_without_secrets(
    root: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await create(root, "kept")
    caplog.clear()
    caplog.set_level(logging.INFO)
    salted = b"salted-password-of-64-bytes!" + b"x" * 36
    await root.ask(
        request(
            51,
            0,
            deletions=[],
            upsertions=[
                {
                    "name": "bob",
                    "mechanism": 2,
                    "iterations": 4_096,
                    "salt": b"the-salt",
                    "salted_password": salted,
                }
            ],
        )
    )
    acl = {"resource_type": 2, "resource_name": "kept", "resource_pattern_type": 3}
    grant = {"principal": "User:bob", "host": "*", "operation": 3, "permission_type": 3}
    await root.ask(request(30, 3, creations=[acl | grant]))
    await root.ask(
        request(
            31,
            3,
            filters=[
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": "kept",
                    "pattern_type_filter": 3,
                    "principal_filter": None,
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ],
        )
    )
    quota = {
        "entity": [{"entity_type": "user", "entity_name": "bob"}],
        "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
    }
    await root.ask(request(49, 1, entries=[quota], validate_only=False))
    partition = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1}
    await root.ask(
        request(
            8,
            8,
            group_id="reset",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": "kept", "partitions": [{**partition, "committed_metadata": ""}]}],
        )
    )
    cut = {"partition_index": 0, "offset": 0}
    await root.ask(request(21, 2, topics=[{"name": "kept", "partitions": [cut]}], timeout=TIMEOUT))
    await root.ask(
        request(47, 0, group_id="reset", topics=[{"name": "kept", "partitions": [{"partition_index": 0}]}])
    )
    await root.ask(request(42, 2, groups_names=("reset", "no-such-group")))

    events = {event["request"]: event for event in events_of(caplog, "change", "offsets altered")}
    assert list(events) == [
        "AlterUserScramCredentials",
        "CreateAcls",
        "DeleteAcls",
        "AlterClientQuotas",
        "OffsetCommit",
        "DeleteRecords",
        "OffsetDelete",
        "DeleteGroups",
    ]
    [user] = events["AlterUserScramCredentials"]["resources"]
    assert (user["name"], user["change"]) == ("bob", {"SCRAM-SHA-512": "iterations=4096"})
    assert events["CreateAcls"]["resources"][0]["change"] == {
        "resource_type": "TOPIC",
        "pattern": "LITERAL",
        "principal": "User:bob",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    assert events["DeleteAcls"]["resources"][0]["change"]["removed"] == "1"
    assert events["AlterClientQuotas"]["resources"][0]["name"] == "user=bob"
    assert events["OffsetCommit"]["event"] == "offsets altered"
    assert events["OffsetCommit"]["resources"] == [
        {"type": "GROUP_OFFSET", "name": "reset/kept-0", "outcome": "NONE", "change": {"offset": "7"}}
    ]
    assert outcomes(events["DeleteRecords"]) == {"kept-0": "NONE"}
    assert events["DeleteGroups"]["outcome"] == "partial"
    for secret in ("salted-password", "the-salt"):
        assert secret not in caplog.text


async def test_a_request_that_ends_without_an_answer_is_audited_as_unknown(
    agent: Running, root: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    assembly = agent.app._reached.assembly
    assert assembly is not None
    entered = asyncio.Event()

    async def hang(*_: object) -> Any:
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(assembly.parts.topics, "delete", hang)
    await root.send(request(20, 5, topic_names=("private",), timeout=TIMEOUT))
    await asyncio.wait_for(entered.wait(), 20)
    root.reset()

    async def is_audited() -> bool:
        return bool(events_of(caplog, "change"))

    await until_answered(is_audited)
    [event] = events_of(caplog, "change")
    assert (event["outcome"], outcomes(event)) == ("unknown", {"private": "UNKNOWN"})


async def test_a_topic_that_is_created_on_demand_is_audited(
    root: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await root.ask(a_metadata("on-demand"))

    [event] = events_of(caplog, "change")
    assert (event["request"], event["reason"]) == ("Metadata", "created on demand")
    assert outcomes(event) == {"on-demand": "NONE"}


async def test_the_http_side_is_audited(agent: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def login(user: str, password: str = PASSWORD) -> dict[str, str]:
        proof = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {proof}"}

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.app.http_port}") as client:
        root = login("root")
        await client.post("/v1/topics", json={"name": "by-http", "partitions": 2}, headers=root)
        await client.post("/v1/topics", json={"name": "by-http"}, headers=root)
        await client.patch("/v1/topics/by-http", json={"set": {"retention.ms": "5"}}, headers=root)
        await client.delete("/v1/topics/by-http", headers=root)
        await client.post("/v1/topics", json={"name": "no"}, headers=login("ann"))
        await client.get("/v1/topics", headers=login("root", "wrong-battery"))

    events = events_of(caplog)
    assert [(one["event"], one.get("request"), one["principal"]) for one in events] == [
        ("login", None, "User:root"),
        ("change", "POST /v1/topics", "User:root"),
        ("change refused", "POST /v1/topics", "User:root"),
        ("change", "PATCH /v1/topics/{name}", "User:root"),
        ("change", "DELETE /v1/topics/{name}", "User:root"),
        ("login", None, "User:ann"),
        ("access denied", "POST /v1/topics", "User:ann"),
        ("change refused", "POST /v1/topics", "User:ann"),
        ("login failed", None, "User:root"),
    ]
    assert {one["listener"] for one in events} == {"HTTP"}
    assert events[1]["resources"][0]["change"] == {"partitions": "2"}
    assert "wrong-battery" not in caplog.text


async def test_successful_produces_and_fetches_make_no_event(
    agent: Running, root: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await create(root, "hot")
    caplog.clear()
    caplog.set_level(logging.INFO)
    before = agent.metric("tidelog_audit_events_total", event="access allowed")

    for _ in range(10):
        await root.ask(a_produce("hot", {0: a_batch(b"v")}))

    assert events_of(caplog) == []
    assert agent.metric("tidelog_audit_events_total", event="access allowed") == before


async def test_a_partition_that_is_named_again_to_be_refused_hides_no_change(
    root: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await create(root, "emptied")
    await root.ask(a_produce("emptied", {0: a_batch(b"v")}))
    caplog.clear()
    caplog.set_level(logging.INFO)
    asked = [
        {"name": "emptied", "partitions": [{"partition_index": 0, "offset": offset}]} for offset in (1, 99)
    ]

    await root.ask(request(21, 2, topics=asked, timeout=TIMEOUT))

    [event] = events_of(caplog)
    assert (event["event"], outcomes(event)) == ("change", {"emptied-0": "NONE"})
