"""The audit trail as a topic: what is in it, who may write it, and what happens to it when things break."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg
import pytest
from kio.schema.errors import ErrorCode

from agent.security.acls.settings import AuthorizationSettings
from agent.security.audit.settings import AuditSettings
from sequencer.topics.topics import AUDIT_TOPIC
from storage.encryption.settings import EncryptionSettings
from tests.agent.kafka.apis.administrative_requests import alter, create, delete
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, running, until_answered
from tests.agent.security.logins.users import as_user
from tests.agent.tenants.two_tenants import PASSWORD, connected, tenants_agent

pytestmark = pytest.mark.asyncio

TO_TOPIC = AuditSettings(audit_topic=True)
COLLIDING = "__tidelog.audit"


def _consume(bootstrap: str, login: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "auditors",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        **login,
    }
    consumer = confluent_kafka.Consumer(settings)
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(AUDIT_TOPIC, 0, 0)])
        for _ in range(300):
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return found
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            found.append((key.decode(), json.loads(value)))
    finally:
        consumer.close()
    return found


async def events_in(agent: Running, **login: Any) -> list[dict[str, Any]]:
    """Returns the topic's events, each once."""
    records = await asyncio.to_thread(_consume, agent.bootstrap, login)
    assert all(key == event["id"] for key, event in records)
    return [event for _, event in dict(records).items()]


async def until_created_is_in(agent: Running, *names: str) -> list[dict[str, Any]]:
    """Waits until the creations of these topics are in the audit topic. Returns all of its events."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        found[:] = await events_in(agent)
        return set(names) <= created_in(found)

    await until_answered(are_there, 60)
    return found


def created_in(events: list[dict[str, Any]]) -> set[str]:
    return {one["name"] for event in events if event["event"] == "change" for one in event["resources"]}


async def a_wire(agent: Running) -> Wire:
    return await Wire.connect(agent.app.kafka_port)


async def test_two_agents_write_one_topic_and_each_event_has_its_agent(database_url: str) -> None:
    async with (
        running(database_url, audit=TO_TOPIC, zone="a") as first,
        running(database_url, audit=TO_TOPIC, zone="b") as second,
    ):
        for agent, name in ((first, "by-first"), (second, "by-second")):
            await create(await a_wire(agent), name)

        found = await until_created_is_in(first, "by-first", "by-second")

    by_topic = {event["resources"][0]["name"]: event for event in found}
    assert by_topic["by-first"]["agent"] != by_topic["by-second"]["agent"]
    assert by_topic["by-first"]["principal"] == "User:ANONYMOUS"


async def test_no_client_writes_the_topic_and_clients_see_that_it_is_internal(database_url: str) -> None:
    async with running(database_url, audit=TO_TOPIC) as agent:
        wire = await a_wire(agent)

        async def exists() -> bool:
            asked = await wire.ask(a_metadata(AUDIT_TOPIC))
            return bool(asked.topics[0].error_code is ErrorCode.none)

        await until_answered(exists)
        small = await wire.ask(a_produce(AUDIT_TOPIC, {0: a_batch(b"forged")}))
        wide = await wire.ask(a_produce(AUDIT_TOPIC, {0: a_batch(b"forged"), 1: a_batch(b"forged")}))
        producer = await wire.ask(
            request(22, 4, transactional_id="forger", transaction_timeout=a_produce("t", {}).timeout)
        )
        added = await wire.ask(
            request(
                24,
                3,
                v3_and_below_transactional_id="forger",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[{"name": AUDIT_TOPIC, "partitions": (0,)}],
            )
        )
        listed = (await wire.ask(a_metadata(AUDIT_TOPIC))).topics[0]
        await create(wire, "last")
        found = await until_created_is_in(agent, "last")

    refused = ErrorCode.topic_authorization_failed
    assert small.responses[0].partition_responses[0].error_code is refused
    assert wide.responses[0].partition_responses[0].error_code is refused
    [partition] = added.results_by_topic_v3_and_below[0].results_by_partition
    assert partition.partition_error_code is refused
    assert listed.is_internal
    denied = [event for event in found if event["event"] == "access denied"]
    assert len(denied) == 2  # the two produce requests


async def test_the_topic_is_the_operators_alone_and_reading_it_needs_an_acl(database_url: str) -> None:
    async with tenants_agent(database_url, audit=TO_TOPIC) as agent:
        tenant = await connected(agent.app.kafka_port, "acme")
        stranger = await connected(agent.app.kafka_port, None, "root")
        await create(tenant, "of-acme")
        tenants_own = await tenant.ask(a_metadata(AUDIT_TOPIC, create=False))
        all_of_tenant = await tenant.ask(replace(a_metadata("x", create=False), topics=None))
        await create(stranger, "of-operator")

        login = as_user("SCRAM-SHA-256", "root", PASSWORD)

        async def are_there() -> bool:
            return {"acme~of-acme", "of-operator"} <= created_in(await events_in(agent, **login))

        await until_answered(are_there, 60)
        events = await events_in(agent, **login)

    assert tenants_own.topics[0].error_code is not ErrorCode.none
    assert AUDIT_TOPIC not in {topic.name for topic in all_of_tenant.topics}
    of_tenant = next(event for event in events if "of-acme" in str(event.get("resources")))
    assert (of_tenant["tenant"], of_tenant["principal"]) == ("acme", "User:acme~alice")


async def test_a_user_without_an_acl_may_not_read_the_topic(database_url: str) -> None:
    async with running(
        database_url,
        audit=TO_TOPIC,
        authorization=AuthorizationSettings(authorizer=True, super_users="User:root"),
    ) as agent:
        wire = await a_wire(agent)
        found = await wire.ask(a_metadata(AUDIT_TOPIC, create=False))

    assert found.topics[0].error_code is ErrorCode.topic_authorization_failed


async def test_a_deleted_topic_is_made_again(database_url: str) -> None:
    async with running(database_url, audit=TO_TOPIC) as agent:
        wire = await a_wire(agent)
        await create(wire, "before")
        await until_created_is_in(agent, "before")

        assert (await delete(wire, 6, name=AUDIT_TOPIC)).error_code is ErrorCode.none
        await create(wire, "after")

        found = await until_created_is_in(agent, "after")

    assert "before" not in created_in(found)
    assert AUDIT_TOPIC in created_in(found)  # its deletion is in the new one


async def test_events_wait_while_the_store_is_away_and_requests_do_not(
    database_url: str, tmp_path: Path
) -> None:
    store, aside = tmp_path / "store", tmp_path / "aside"
    store.mkdir()
    async with running(
        database_url, f"file://{store}", audit=TO_TOPIC, upload_attempts=1, upload_timeout_s=1
    ) as agent:
        wire = await a_wire(agent)
        await create(wire, "before")
        await until_created_is_in(agent, "before")

        store.rename(aside)
        store.write_text("no directory")
        for number in range(20):
            assert (await create(wire, f"meanwhile-{number}")).error_code is ErrorCode.none
        store.unlink()
        aside.rename(store)

        await until_created_is_in(agent, *(f"meanwhile-{number}" for number in range(20)))


async def test_events_beyond_the_buffer_are_counted_in_the_topic(database_url: str, tmp_path: Path) -> None:
    store, aside = tmp_path / "store", tmp_path / "aside"
    store.mkdir()
    settings = AuditSettings(audit_topic=True, audit_buffer_bytes=65_536)
    async with running(
        database_url, f"file://{store}", audit=settings, upload_attempts=1, upload_timeout_s=1
    ) as agent:
        wire = await a_wire(agent)
        await create(wire, "before")
        await until_created_is_in(agent, "before")

        store.rename(aside)
        store.write_text("no directory")
        for _ in range(300):
            await alter(wire, "before", ("retention.ms", 0, "5000"))
        lost = agent.metric("tidelog_audit_events_lost_total", event="change", because="buffer")
        store.unlink()
        aside.rename(store)
        found: list[dict[str, Any]] = []

        async def says_so() -> bool:
            found[:] = await events_in(agent)
            return any(event["event"] == "events lost" for event in found)

        await until_answered(says_so, 60)

    assert lost > 0
    altered = sum(event.get("request") == "IncrementalAlterConfigs" for event in found)
    told = sum(event["lost"]["change"] for event in found if event["event"] == "events lost")
    assert altered + told == 300


async def test_a_stopping_agent_writes_what_waits(database_url: str, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    (tmp_path / "store").mkdir()
    async with running(database_url, store, audit=TO_TOPIC) as agent:
        await create(await a_wire(agent), "last-words")
        await agent.stop()

    async with running(database_url, store, audit=TO_TOPIC) as agent:
        assert "last-words" in created_in(await events_in(agent))


async def test_the_topic_may_be_encrypted(database_url: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("1:" + "ab" * 32 + "\n")
    encryption = EncryptionSettings(encryption_provider="file", encryption_key=str(key))
    async with running(database_url, audit=TO_TOPIC, encryption=encryption) as agent:
        wire = await a_wire(agent)
        await create(wire, "plain")
        await until_created_is_in(agent, "plain")
        changed = await alter(
            wire, AUDIT_TOPIC, ("tidelog.history", 0, "off"), ("tidelog.encryption", 0, "on")
        )
        assert changed.error_code is ErrorCode.none
        await create(wire, "sealed")

        await until_created_is_in(agent, "plain", "sealed")


async def test_a_topic_that_takes_the_name_stops_no_agent_and_no_client_makes_one(database_url: str) -> None:
    """An older cluster may have a topic whose name Kafka's rules take for the same one."""
    async with running(database_url) as agent:
        wire = await a_wire(agent)
        for name in (AUDIT_TOPIC, COLLIDING):
            for version in (5, 7):
                refused = await create(wire, name, version=version)
                assert refused.error_code is ErrorCode.invalid_topic_exception
            asked = await wire.ask(a_metadata(name))
            assert asked.topics[0].error_code is not ErrorCode.none
        await create(wire, "older")
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE topics SET name = %s WHERE name = 'older'", (COLLIDING,))

    async with running(database_url, audit=TO_TOPIC) as agent:
        wire = await a_wire(agent)
        await create(wire, "goes-on")
        await asyncio.sleep(0.5)
        assert (await create(wire, "still-goes-on")).error_code is ErrorCode.none
        assert (await delete(wire, 6, name=COLLIDING)).error_code is ErrorCode.none

        await until_created_is_in(agent, "goes-on", "still-goes-on")
