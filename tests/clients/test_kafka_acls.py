"""`kafka-acls` as it comes with Apache Kafka, and what its ACLs do to clients.

Clients are User:ANONYMOUS. An ACL that a database has from its start lets them change ACLs.
"""

import asyncio
from collections.abc import AsyncIterator

import confluent_kafka
import pytest_asyncio
from confluent_kafka import KafkaError, KafkaException

from agent.security.acls.settings import AuthorizationSettings
from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.running import Running, running
from tests.support.java import Java

_NOBODY = "User:nobody"


@pytest_asyncio.fixture
async def agent(database_url: str) -> AsyncIterator[Running]:
    """An agent with an authorizer, where anonymous clients may change ACLs."""
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    await sequencer.acls.add([_on_cluster(Operation.ALTER)], 10)
    await sequencer.close()
    authorization = AuthorizationSettings(authorizer=True, acl_poll_s=0.1)
    async with running(database_url, authorization=authorization) as started:
        yield started


def _on_cluster(operation: Operation) -> Acl:
    return Acl(
        resource_type=ResourceType.CLUSTER,
        pattern_type=PatternType.LITERAL,
        name=CLUSTER_NAME,
        principal="User:ANONYMOUS",
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )


def _produced(servers: str, topic: str) -> str | None:
    """The name of the error, if there is one."""
    failed: list[KafkaError | None] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "message.timeout.ms": 20_000})
    try:
        producer.produce(topic, b"v", on_delivery=lambda error, _: failed.append(error))
    except KafkaException as error:
        return str(error.args[0].name())
    assert producer.flush(30) == 0
    return None if failed[0] is None else str(failed[0].name())


def _consumed(servers: str, topic: str, group: str) -> str:
    """The first record's value, or the name of the error."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        return str(error.name()) if error else (message.value() or b"").decode()
    finally:
        consumer.close()


async def test_acls_of_the_command_decide_what_clients_may_do(java: Java, agent: Running) -> None:
    async def acls(*arguments: str) -> str:
        command = ("--bootstrap-server", agent.bootstrap, *arguments)
        return await asyncio.to_thread(java.tool, "AclCommand", *command)

    topic = ("--topic", "orders-", "--resource-pattern-type", "prefixed")
    who = ("--allow-principal", "User:ANONYMOUS")
    assert await asyncio.to_thread(_produced, agent.bootstrap, "orders-1") == "TOPIC_AUTHORIZATION_FAILED"

    await acls("--add", *who, "--producer", *topic)
    assert await asyncio.to_thread(_produced, agent.bootstrap, "orders-1") is None
    assert await asyncio.to_thread(_produced, agent.bootstrap, "payments") == "TOPIC_AUTHORIZATION_FAILED"
    assert (
        await asyncio.to_thread(_consumed, agent.bootstrap, "orders-1", "g") == "GROUP_AUTHORIZATION_FAILED"
    )

    await acls("--add", *who, "--consumer", *topic, "--group", "g")
    await acls("--add", "--deny-principal", _NOBODY, "--operation", "All", "--group", "g")
    listed = await acls("--list", "--topic", "orders-1", "--resource-pattern-type", "match")
    for operation in ("CREATE", "DESCRIBE", "READ", "WRITE"):
        assert f"(principal=User:ANONYMOUS, host=*, operation={operation}, permissionType=ALLOW)" in listed
    assert "name=g" not in listed
    assert f"(principal={_NOBODY}, host=*, operation=ALL, permissionType=DENY)" in await acls("--list")
    # The command's prefixed pattern is for the group, too: `g` and all that begin with it.
    assert await asyncio.to_thread(_consumed, agent.bootstrap, "orders-1", "g") == "v"

    await acls("--remove", "--force", *topic)
    assert "orders-" not in await acls("--list")
    assert await asyncio.to_thread(_produced, agent.bootstrap, "orders-1") == "TOPIC_AUTHORIZATION_FAILED"
