"""A client of one tenant tries to reach another tenant by every API: by its names, by the cluster's names of
what it has, by topic ids, by ids of producers, and by lists.
"""

import random
from collections.abc import AsyncIterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from typing import Any, Final, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
import pytest_asyncio
from kio.index import load_request_schema
from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v13.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.list_transactions.v1.request import ListTransactionsRequest
from kio.schema.metadata.v1.request import MetadataRequest
from kio.schema.types import BrokerId, TopicName, TransactionalId
from kio.schema.types import ProducerId as KafkaProducerId
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from agent.kafka.api import Api
from agent.kafka.served import APIS
from agent.tenants.api_names import API_NAMES
from sequencer.commits.producers import ProducerIdentity
from sequencer.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from sequencer.security.quotas import Entity
from storage.identifiers import ProducerId
from tests.agent.kafka.apis.produce.test_produced_transactions import begin, code_of
from tests.agent.read_path.wire import request
from tests.agent.running import Running, a_metadata, until_answered
from tests.agent.security.logins.users import produced
from tests.agent.tenants.two_tenants import connected, login_of, opened, tenants_agent

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOPIC = "beta-marker-topic"
LISTED = "beta-listed-topic"
"""The other tenant's, too. The hostile client never says this name, only the topic's id."""
RECORD = "beta-marker-record"
QUOTA: Final[Entity] = frozenset({("user", f"beta~{TOPIC}"), ("client-id", f"beta~{LISTED}")})
LISTED_TRANSACTIONS = 1_000
"""The least that the setting allows."""
NO_IDENTITY = ProducerIdentity(producer_id=ProducerId(-1), producer_epoch=-1)
NOT_TRIED = {17, 36}
"""A login's messages, which this connection has behind it."""
TRIED = [api for api in APIS if api.key in API_NAMES and api.key not in NOT_TRIED]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with tenants_agent(module_database_url, list_transactions_limit=LISTED_TRANSACTIONS) as started:
        for topic in (TOPIC, LISTED):
            await produced(started.bootstrap, topic, login_of("beta"), value=RECORD)
        async with opened(module_database_url) as sequencer:
            acl = Acl(
                resource_type=ResourceType.TOPIC,
                pattern_type=PatternType.LITERAL,
                name=f"beta~{TOPIC}",
                principal="User:beta~bob",
                host="*",
                operation=Operation.READ,
                permission=Permission.ALLOW,
            )
            await sequencer.acls.add([acl], 100)
            await sequencer.client_quotas.alter({QUOTA: {"producer_byte_rate": 1e9}}, 10)
        yield started


async def topic_id(agent: Running) -> UUID:
    assembly = agent.app._reached.assembly
    assert assembly is not None
    return (await assembly.parts.topics.by_name([f"beta~{LISTED}"]))[f"beta~{LISTED}"].topic_id


def made(hint: Any, name: str, of_topic: UUID, chance: random.Random, by_name: str) -> Any:
    """Returns a value for a field: names and ids of the other tenant wherever one fits."""
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return (made(parts[0], name, of_topic, chance, by_name),)
    if parts:  # optional
        wanted = next(one for one in parts if one is not type(None))
        return None if chance.random() < 0.3 else made(wanted, name, of_topic, chance, by_name)
    if is_dataclass(hint):
        return filled(hint, of_topic, chance, by_name)
    if hint is UUID:
        return of_topic
    if hint is bytes:
        return b""
    if name == "entity_type":
        return hint(chance.choice(("user", "client-id", "ip")))
    if isinstance(hint, type) and issubclass(hint, float):
        return hint(1.0)
    if isinstance(hint, type) and issubclass(hint, str):
        return hint(f"User:{by_name}") if "principal" in name else hint(by_name)
    if isinstance(hint, type) and issubclass(hint, bool):
        return chance.random() < 0.5
    if isinstance(hint, type) and issubclass(hint, int):
        return hint(chance.choice((0, 1, 2)))
    return MISSING


def filled(schema: Any, of_topic: UUID, chance: random.Random, by_name: str) -> Any:
    hints, values = get_type_hints(schema), {}
    for field in fields(schema):
        value = made(hints[field.name], field.name, of_topic, chance, by_name)
        if value is MISSING:
            value = timedelta(milliseconds=10)
            kind = next(
                one for one in (hints[field.name], *get_args(hints[field.name])) if hasattr(one, "parse")
            )
            value = kind.parse(value)
        values[field.name] = value
    return schema(**values)


@pytest.mark.parametrize("api", TRIED, ids=lambda api: api.name)
async def test_no_answer_has_what_belongs_to_another_tenant(agent: Running, api: Api) -> None:
    of_topic = await topic_id(agent)
    chance, answered = random.Random(api.key), 0
    for version in api.versions:
        if not api.serves(version):
            continue
        for by_name in (TOPIC, f"beta~{TOPIC}", f"acme~{TOPIC}", ".*", "*", f"../beta~{TOPIC}"):
            schema = load_request_schema(api.key, version)
            try:
                request = filled(schema, of_topic, chance, by_name)
            except (TypeError, ValueError, StopIteration):
                continue  # kio makes no such request
            wire = await connected(agent.app.kafka_port, "acme")
            try:
                await wire.send(request)
                if api.key == 0:
                    continue
                answer = await wire.receive_frame()
            except (ConnectionError, EOFError):
                continue  # a request that the agent refuses to read
            finally:
                wire.close()
            answered += 1
            assert RECORD.encode() not in answer
            # What the client said may come back. A name of the other tenant in the cluster may not.
            assert b"beta~" not in answer.replace(by_name.encode(), b"")
            assert LISTED.encode() not in answer

    assert answered or api.name == "Produce"
    async with opened_of(agent) as sequencer:  # what is the other's is still there
        assert len(await sequencer.topics.by_name([f"beta~{TOPIC}", f"beta~{LISTED}"])) == 2
        assert len(await sequencer.acls.matching(acls_of_beta(), 10)) == 1
        assert (await sequencer.client_quotas.all())[QUOTA] == {"producer_byte_rate": 1e9}
        assert len(await sequencer.user_credentials.of(["beta~alice", "beta~bob"])) == 2


def opened_of(agent: Running) -> Any:
    return opened(agent.app._settings.database_url.get_secret_value())


def acls_of_beta() -> AclFilter:
    return AclFilter(within="beta~")


async def test_a_fetch_by_the_id_of_another_tenants_topic_finds_no_topic(agent: Running) -> None:
    of_topic = await topic_id(agent)
    partition = FetchPartition(
        partition=i32(0), fetch_offset=i64(0), partition_max_bytes=i32(1 << 20), current_leader_epoch=i32(-1)
    )
    request = FetchRequest(
        replica_id=BrokerId(-1),
        max_wait=i32Timedelta.parse(timedelta(milliseconds=10)),
        min_bytes=i32(0),
        max_bytes=i32(1 << 20),
        isolation_level=i8(0),
        session_id=i32(0),
        session_epoch=i32(-1),
        topics=(FetchTopic(topic_id=of_topic, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    codes = {}
    for tenant in ("acme", "beta"):
        wire = await connected(agent.app.kafka_port, tenant)
        answer = await wire.ask(request)
        codes[tenant] = answer.responses[0].partitions[0].error_code.name
        wire.close()

    assert codes == {"acme": "unknown_topic_id", "beta": "none"}


async def test_a_guessed_producer_id_reaches_no_transaction_of_another_tenant(agent: Running) -> None:
    wires = {tenant: await connected(agent.app.kafka_port, tenant) for tenant in ("acme", "beta")}
    identities = {tenant: await begin(wire, "one") for tenant, wire in wires.items()}
    acme, of_beta = wires["acme"], identities["beta"]
    await acme.ask(a_metadata("own"))

    added = await acme.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TransactionalId("one"),
            v3_and_below_producer_id=KafkaProducerId(of_beta.producer_id),
            v3_and_below_producer_epoch=i16(of_beta.producer_epoch),
            v3_and_below_topics=(AddPartitionsToTxnTopic(name=TopicName("own"), partitions=(i32(0),)),),
        )
    )
    ended = await acme.ask(
        request(
            26,
            3,
            transactional_id="one",
            producer_id=of_beta.producer_id,
            producer_epoch=of_beta.producer_epoch,
            committed=False,
        )
    )
    codes = [
        ErrorCode(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code),
        ErrorCode(ended.error_code),
        await code_of(acme, "own", "one", of_beta),
    ]
    for wire in wires.values():
        wire.close()

    assert codes == [ErrorCode.invalid_producer_id_mapping] * 3


async def test_transactions_of_others_use_up_none_of_a_tenants_list(agent: Running) -> None:
    async with opened_of(agent) as sequencer:
        for number in range(LISTED_TRANSACTIONS + 1):
            await sequencer.transactions.initialize(f"acme~{number:04}", 60_000, NO_IDENTITY)
        await sequencer.transactions.initialize("beta~mine", 60_000, NO_IDENTITY)

    wire = await connected(agent.app.kafka_port, "beta")
    answer = await wire.ask(
        ListTransactionsRequest(state_filters=(), producer_id_filters=(), duration_filter=i64(-1))
    )
    wire.close()

    assert "mine" in {one.transactional_id for one in answer.transaction_states}


async def test_a_deleted_tenants_connections_are_served_nothing(
    agent: Running, module_database_url: str
) -> None:
    async with opened(module_database_url) as sequencer:
        await sequencer.database.write("UPDATE tenants SET deleted_at = now() WHERE name = 'acme'")
        await sequencer.database.write("UPDATE tenant_changes SET changes = changes + 1")
    assembly = agent.app._reached.assembly
    assert assembly is not None

    async def is_gone() -> bool:
        return assembly.tenants.get("acme") is None

    await until_answered(is_gone)
    wire = await connected(agent.app.kafka_port, "acme")
    await wire.send(MetadataRequest(topics=None))

    assert await wire.is_closed_by_agent()
