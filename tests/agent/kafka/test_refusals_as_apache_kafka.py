"""Random requests under random ACLs, to a Tidelog agent and to Apache Kafka with its StandardAuthorizer. Both
refuse the same.

The client is User:ANONYMOUS in both. Compared are all error codes of the answers by topic, partition, group
and transactional id, which of these the answers name, and the fields of authorized operations.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from kafka.record import MemoryRecordsBuilder
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from agent.security.acls.settings import AuthorizationSettings
from agent.security.principal import ANONYMOUS, Principal
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, running, until_answered
from tests.support.apache_kafka import kafka_with_acls
from tests.support.java import Java
from tests.support.seeds import seeds

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROUNDS = 40
_TOPICS = ("ta", "tab", "tb")
_ALL_TOPICS = (*_TOPICS, "tx", "taxi")
_GROUPS = ("ga", "gab", "gx")
_IDS = ("xa", "xab")
_TYPES = {2: _ALL_TOPICS, 3: _GROUPS, 4: ("kafka-cluster",), 5: _IDS}
_AUTHORIZATION = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
_TIMEOUT = i32Timedelta.parse(timedelta(seconds=20))


@dataclass(kw_only=True)
class System:
    """One of the two: connections of an administrator and of a client, and the ids of its topics."""

    name: str
    port: int
    admin: Wire
    client: Wire
    ids: dict[str, UUID]

    async def verdicts(self, asked: Any) -> list[str]:
        try:
            answer = await self.client.ask(asked)
        except asyncio.IncompleteReadError:
            self.client = await Wire.connect(self.port)
            return ["hung up"]
        return sorted(map(str, _verdicts(answer, self)))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tidelog(module_database_url: str, kafka_addresses: tuple[str, str]) -> AsyncIterator[System]:
    """Begins once Kafka runs: its start blocks the event loop for longer than an agent's lease."""
    assert kafka_addresses
    authorization = AuthorizationSettings(authorizer=True, super_users="User:admin")
    async with running(module_database_url, authorization=authorization, default_partitions=1) as agent:
        admin = await Wire.connect(agent.app.kafka_port)
        await until_answered(lambda: _become_admin(agent))
        client = await Wire.connect(agent.app.kafka_port)
        yield await _prepared("tidelog", agent.app.kafka_port, admin, client)


async def _become_admin(agent: Running) -> bool:
    """Gives every connection so far another principal, as authentication will."""
    assert agent.app._reached.listener is not None
    states = list(agent.app._reached.listener.clients())
    for state in states:
        assert state.principal == ANONYMOUS
        state.principal = Principal("admin")
    return bool(states)


@pytest.fixture(scope="module")
def kafka_addresses(tmp_path_factory: pytest.TempPathFactory, java: Java) -> Iterator[tuple[str, str]]:
    with ExitStack() as opened:
        yield opened.enter_context(kafka_with_acls(tmp_path_factory.mktemp("kafka"), java))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def kafka(kafka_addresses: tuple[str, str]) -> AsyncIterator[System]:
    port, inside_port = (int(one.rpartition(":")[2]) for one in kafka_addresses)
    admin, client = await Wire.connect(inside_port), await Wire.connect(port)
    yield await _prepared("kafka", port, admin, client)


async def _prepared(name: str, port: int, admin: Wire, client: Wire) -> System:
    """Creates the topics, with a record each, and makes the coordinators of groups and transactions work."""
    asked = [
        {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for topic in _TOPICS
    ]
    await admin.ask(request(19, 7, topics=asked, timeout=_TIMEOUT, validate_only=False))
    ids: dict[str, UUID] = {}

    async def has_leaders() -> bool:
        found = await admin.ask(a_metadata(*_TOPICS, version=12, create=False))
        ids.update({topic.name: topic.topic_id for topic in found.topics})
        return all(topic.error_code is ErrorCode.none for topic in found.topics)

    await until_answered(has_leaders, 60)

    async def coordinates() -> bool:
        keys = ((0, _GROUPS), (1, _IDS))
        answers = [
            await admin.ask(request(10, 4, key_type=kind, coordinator_keys=names)) for kind, names in keys
        ]
        if any(one.error_code is not ErrorCode.none for answer in answers for one in answer.coordinators):
            return False
        committed = [
            await admin.ask(_offset_commit(group, {"ta": 1, "tb": 1}, 8, {})) for group in _GROUPS[:2]
        ]
        initialized = [
            await admin.ask(
                request(
                    22,
                    4,
                    transactional_id=name,
                    transaction_timeout=_TIMEOUT,
                    producer_id=-1,
                    producer_epoch=-1,
                )
            )
            for name in _IDS[:1]
        ]
        return not any(
            partition.error_code is not ErrorCode.none
            for one in committed
            for topic in one.topics
            for partition in topic.partitions
        ) and all(one.error_code is ErrorCode.none for one in initialized)

    await until_answered(coordinates, 60)
    return System(name=name, port=port, admin=admin, client=client, ids=ids)


# --- ACLs


def _acls(chosen: random.Random) -> list[dict[str, Any]]:
    acls = []
    for _ in range(chosen.choice((0, 2, 5, 9, 14))):
        kind = chosen.choice((2, 2, 2, 3, 4, 5))
        is_prefix = kind != 4 and chosen.random() < 0.3
        name = chosen.choice(_TYPES[kind])
        if is_prefix:
            name = name[: chosen.randint(1, len(name))]
        elif kind != 4 and chosen.random() < 0.2:
            name = "*"
        acls.append(
            {
                "resource_type": kind,
                "resource_name": name,
                "resource_pattern_type": 4 if is_prefix else 3,
                "principal": chosen.choice(("User:ANONYMOUS", "User:ANONYMOUS", "User:*", "User:other")),
                "host": chosen.choice(("*", "*", "127.0.0.1", "10.0.0.1")),
                "operation": chosen.choice((2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12)),
                "permission_type": 2 if chosen.random() < 0.2 else 3,
            }
        )
    return acls


_ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


async def _set(system: System, acls: Sequence[dict[str, Any]]) -> None:
    """Replaces all ACLs, and waits until they decide."""
    await system.admin.ask(request(31, 3, filters=[_ANY_ACL]))
    if acls:
        created = await system.admin.ask(request(30, 3, creations=list(acls)))
        assert all(one.error_code is ErrorCode.none for one in created.results)
    expected = {tuple(acl.values()) for acl in acls}

    own = ("principal", "host", "operation", "permission_type")

    async def are_there() -> bool:
        answer = await system.admin.ask(request(29, 3, **_ANY_ACL))
        found = {
            (one.resource_type, one.resource_name, one.pattern_type, *(getattr(acl, name) for name in own))
            for one in answer.resources
            for acl in one.acls
        }
        return found == expected

    await until_answered(are_there)


# --- requests, as functions of the system's topic ids


def _offset_commit(group: str, topics: dict[str, int], version: int, ids: dict[str, UUID]) -> Any:
    return request(
        8,
        version,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            {
                "name": name,
                "topic_id": ids.get(name),
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                ],
            }
            for name, offset in topics.items()
        ],
    )


_UNKNOWN = {name: uuid4() for name in (*_ALL_TOPICS, "")}
Made = Callable[[dict[str, UUID]], Any]
_numbers = itertools.count(1)


_ONLY_REFUSALS = {
    "transactional Produce": "its transaction was never begun, for which the codes differ",
    "AddPartitionsToTxn of brokers": "a verification of what does not exist has another code",
    "Metadata that creates": "Kafka creates the topic after its answer",
}
"""Requests of which only refusals are compared, and why."""


def _transactional_batch() -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 16)
    builder.set_producer_state(987_654, 0, 0, True)
    builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=b"v")
    builder.close()
    return bytes(builder.buffer())


def _some(chosen: random.Random, names: Sequence[str]) -> list[str]:
    return chosen.sample(names, chosen.randint(1, len(names)))


def _produce(version: int, topics: Sequence[str], known: dict[str, UUID]) -> Any:
    batch = a_batch(b"v", timestamp_ms=time.time_ns() // 1_000_000)
    return request(
        0,
        version,
        transactional_id=None,
        acks=-1,
        timeout=_TIMEOUT,
        topic_data=[
            {
                "name": topic,
                "topic_id": known.get(topic, _UNKNOWN[topic]),
                "partition_data": [{"index": 0, "records": batch}],
            }
            for topic in topics
        ],
    )


def _fetch(version: int, topics: Sequence[str], known: dict[str, UUID]) -> Any:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    return request(
        1,
        version,
        cluster_id=None,
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        forgotten_topics_data=(),
        rack_id="",
        topics=[
            {"topic": topic, "topic_id": known.get(topic, _UNKNOWN[topic]), "partitions": [partition]}
            for topic in topics
        ],
    )


def _requests(chosen: random.Random) -> Iterator[tuple[str, Made]]:
    """One request of each API."""
    topics, group, name = _some(chosen, _ALL_TOPICS), chosen.choice(_GROUPS), chosen.choice(_IDS)
    groups, ids = _some(chosen, _GROUPS), _some(chosen, _IDS)
    existing = _some(chosen, _TOPICS)
    flag = chosen.random() < 0.5

    def made(api: int, version: int, **values: Any) -> Made:
        return lambda _: request(api, version, **values)

    yield "Produce", partial(_produce, chosen.choice((3, 9, 11, 12)), topics)
    yield "Produce by id", partial(_produce, 13, existing)
    yield (
        "transactional Produce",
        made(
            0,
            chosen.choice((3, 9, 11)),
            transactional_id=name,
            acks=-1,
            timeout=_TIMEOUT,
            topic_data=[
                {"name": topic, "partition_data": [{"index": 0, "records": _transactional_batch()}]}
                for topic in topics
            ],
        ),
    )
    yield "Fetch", partial(_fetch, chosen.choice((4, 7, 11, 12)), topics)
    yield "Fetch by id", partial(_fetch, chosen.choice((13, 15, 17)), topics)
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    yield (
        "ListOffsets",
        made(
            2,
            chosen.choice((1, 5, 9)),
            replica_id=-1,
            isolation_level=0,
            timeout=_TIMEOUT,
            topics=[{"name": topic, "partitions": asked} for topic in topics],
        ),
    )
    flags = {
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": flag,
        "include_cluster_authorized_operations": flag,
    }
    for version in (chosen.choice((4, 7)), chosen.choice((8, 9, 10)), chosen.choice((11, 12, 13))):
        named = [{"name": topic, "topic_id": None} for topic in topics]
        yield "Metadata", made(3, version, topics=chosen.choice((named, named, None)), **flags)
    fresh = f"{chosen.choice(('ta', 'tn', 'tx'))}-{next(_numbers)}"
    yield "Metadata that creates", made(3, 1, topics=[{"name": fresh}])
    yield (
        "Metadata by id",
        lambda known: request(
            3,
            12,
            topics=[{"name": None, "topic_id": known.get(topic, _UNKNOWN[topic])} for topic in topics],
            **flags,
        ),
    )
    yield (
        "OffsetCommit",
        lambda known: _offset_commit(group, dict.fromkeys(topics, 1), chosen.choice((2, 8, 9)), known),
    )
    indexes = [{"name": topic, "partition_indexes": (0,)} for topic in topics]
    yield (
        "OffsetFetch",
        made(
            9,
            chosen.choice((2, 5, 7)),
            group_id=group,
            topics=chosen.choice((indexes, None)),
            require_stable=False,
        ),
    )
    yield "OffsetFetch", made(9, 1, group_id=group, topics=indexes)
    asked_groups = [
        {"group_id": one, "member_id": None, "member_epoch": -1, "topics": chosen.choice((indexes, None))}
        for one in groups
    ]
    yield "OffsetFetch", made(9, chosen.choice((8, 9)), groups=asked_groups, require_stable=False)
    yield "FindCoordinator", made(10, 4, key_type=0, coordinator_keys=tuple(groups))
    yield "FindCoordinator", made(10, chosen.choice((5, 6)), key_type=1, coordinator_keys=tuple(ids))
    yield "FindCoordinator", made(10, 3, key_type=0, key=group)
    yield (
        "JoinGroup",
        made(
            11,
            7,
            group_id=group,
            session_timeout=i32Timedelta.parse(timedelta(seconds=10)),
            rebalance_timeout=i32Timedelta.parse(timedelta(seconds=10)),
            member_id="unknown",
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        ),
    )
    member = {"group_id": group, "generation_id": 5, "member_id": "unknown", "group_instance_id": None}
    yield "Heartbeat", made(12, chosen.choice((0, 3, 4)), **member)
    yield (
        "LeaveGroup",
        made(13, 4, group_id=group, members=[{"member_id": "unknown", "group_instance_id": None}]),
    )
    yield "LeaveGroup", made(13, 1, group_id=group, member_id="unknown")
    yield "SyncGroup", made(14, 5, protocol_type="consumer", protocol_name="range", assignments=(), **member)
    yield (
        "DescribeGroups",
        made(15, chosen.choice((4, 5, 6)), groups=tuple(groups), include_authorized_operations=flag),
    )
    yield "ListGroups", made(16, chosen.choice((0, 3)), states_filter=())
    yield "DeleteGroups", made(42, 2, groups_names=("gx", "gone"))
    yield (
        "OffsetDelete",
        made(
            47,
            0,
            group_id=group,
            topics=[{"name": topic, "partitions": [{"partition_index": 0}]} for topic in topics],
        ),
    )
    yield (
        "ConsumerGroupHeartbeat",
        made(
            68,
            1,
            group_id="gx",
            member_id="member",
            member_epoch=7,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=_TIMEOUT,
            subscribed_topic_names=tuple(topics),
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[],
        ),
    )
    yield "ConsumerGroupDescribe", made(69, 1, group_ids=tuple(groups), include_authorized_operations=flag)
    new = f"{chosen.choice(('ta', 'tn', 'tx'))}-{next(_numbers)}"
    blank = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    yield (
        "CreateTopics",
        made(
            19,
            chosen.choice((5, 7)),
            topics=[{"name": one, **blank} for one in (new, *topics)],
            timeout=_TIMEOUT,
            validate_only=flag,
        ),
    )
    yield "DeleteTopics", made(20, chosen.choice((1, 5)), topic_names=(new, "tx", "taxi"), timeout=_TIMEOUT)
    yield (
        "DeleteTopics",
        made(
            20,
            6,
            topics=[{"name": "tx", "topic_id": None}, {"name": None, "topic_id": _UNKNOWN[""]}],
            timeout=_TIMEOUT,
        ),
    )
    yield (
        "InitProducerId",
        made(
            22,
            chosen.choice((0, 4, 5)),
            transactional_id=chosen.choice((name, None)),
            transaction_timeout=_TIMEOUT,
            producer_id=-1,
            producer_epoch=-1,
        ),
    )
    resources: list[dict[str, Any]] = [
        *({"resource_type": 2, "resource_name": topic} for topic in topics),
        {"resource_type": 32, "resource_name": group},
        {"resource_type": 4, "resource_name": ""},
    ]
    asked_configs = [{**one, "configuration_keys": ("retention.ms",)} for one in resources]
    yield (
        "DescribeConfigs",
        made(
            32,
            chosen.choice((1, 4)),
            resources=asked_configs,
            include_synonyms=False,
            include_documentation=False,
        ),
    )
    yield (
        "AlterConfigs",
        made(
            33,
            2,
            resources=[
                {**one, "configs": [{"name": "retention.ms", "value": "1000000"}]}
                for one in resources
                if one["resource_type"] == 2
            ],
            validate_only=True,
        ),
    )
    yield (
        "IncrementalAlterConfigs",
        made(
            44,
            1,
            resources=[
                {**one, "configs": [{"name": config, "config_operation": 0, "value": "50000"}]}
                for one in resources
                if (
                    config := {2: "retention.ms", 32: "consumer.session.timeout.ms"}.get(one["resource_type"])
                )
            ],
            validate_only=True,
        ),
    )
    yield "ListConfigResources", made(74, 1, resource_types=(2,))
    yield (
        "CreatePartitions",
        made(
            37,
            3,
            topics=[{"name": topic, "count": 2, "assignments": None} for topic in topics],
            timeout=_TIMEOUT,
            validate_only=True,
        ),
    )
    yield "DescribeCluster", made(60, 1, include_cluster_authorized_operations=flag, endpoint_type=1)
    yield (
        "AlterPartitionReassignments",
        made(
            45,
            1,
            timeout=_TIMEOUT,
            allow_replication_factor_change=True,
            topics=[
                {"name": topic, "partitions": [{"partition_index": 0, "replicas": None}]} for topic in topics
            ],
        ),
    )
    yield "ListPartitionReassignments", made(46, 0, timeout=_TIMEOUT, topics=None)
    yield (
        "DeleteRecords",
        made(
            21,
            2,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]} for topic in topics],
            timeout=_TIMEOUT,
        ),
    )
    yield "DescribeLogDirs", made(35, 4, topics=[])
    yield (
        "DescribeProducers",
        made(61, 0, topics=[{"name": topic, "partition_indexes": (0,)} for topic in topics]),
    )
    yield (
        "DescribeTopicPartitions",
        made(75, 0, topics=[{"name": topic} for topic in topics], response_partition_limit=100, cursor=None),
    )
    yield (
        "DescribeTransactions",
        made(65, 0, transactional_ids=("xaz", "xb")),
    )  # kio cannot read the start of one that exists
    yield (
        "ElectLeaders",
        made(
            43,
            2,
            election_type=0,
            topic_partitions=[{"topic": topic, "partitions": (0,)} for topic in existing],
            timeout=_TIMEOUT,
        ),
    )
    added = [{"name": topic, "partitions": (0,)} for topic in topics]
    yield (
        "AddPartitionsToTxn",
        made(
            24,
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=987_654,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=added,
        ),
    )
    yield (
        "AddPartitionsToTxn of brokers",
        made(
            24,
            5,
            transactions=[
                {
                    "transactional_id": name,
                    "producer_id": 987_654,
                    "producer_epoch": 0,
                    "verify_only": True,
                    "topics": added,
                }
            ],
        ),
    )
    producer = {"transactional_id": name, "producer_id": 987_654, "producer_epoch": 0}
    yield "AddOffsetsToTxn", made(25, 3, group_id=group, **producer)
    yield "EndTxn", made(26, 3, committed=True, **producer)
    yield (
        "WriteTxnMarkers",
        made(
            27,
            1,
            markers=[
                {
                    "producer_id": 987_654,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "coordinator_epoch": 0,
                    "topics": [{"name": topic, "partition_indexes": (0,)} for topic in existing],
                }
            ],
        ),
    )
    yield (
        "TxnOffsetCommit",
        made(
            28,
            3,
            group_id=group,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 1,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
                for topic in topics
            ],
            **producer,
        ),
    )
    yield "ListTransactions", made(66, 1, state_filters=(), producer_id_filters=(), duration_filter=-1)
    yield (
        "OffsetForLeaderEpoch",
        made(
            23,
            chosen.choice((3, 4)),
            replica_id=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
                for topic in topics
            ],
        ),
    )
    yield "DescribeAcls", made(29, 3, **_ANY_ACL)
    yield "CreateAcls", made(30, 3, creations=[])
    yield "DeleteAcls", made(31, 3, filters=[{**_ANY_ACL, "resource_name_filter": "none"}])


# --- answers

_NAMES = {
    "name",
    "topic",
    "topic_name",
    "group_id",
    "key",
    "transactional_id",
    "resource_name",
    "resource_type",
    "partition_index",
    "partition",
    "partition_id",
    "index",
}


_OF_NO_INTEREST = {"active_producers", "configs", "config_resources"}


def _verdicts(answer: Any, system: System, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """What an answer says about permission: its error codes and authorized operations, and of what."""
    names = {UUID(int=0): "", None: ""} | {topic_id: name for name, topic_id in system.ids.items()}
    own: list[Any] = []
    for field in fields(answer):
        value = getattr(answer, field.name)
        if field.name in _NAMES:
            own.append(str(value or ""))
        elif field.name == "topic_id" and not getattr(answer, "name", None):
            own.append(names.get(value, "unknown id"))
    path = (*path, *own)
    for field in fields(answer):
        value = getattr(answer, field.name)
        if field.name.endswith("error_code"):
            yield (*path, field.name, ErrorCode(value).name)
        elif field.name.endswith("authorized_operations"):
            yield (*path, field.name, int(value))
        elif isinstance(value, tuple) and field.name not in _OF_NO_INTEREST:
            for entry in value:
                if is_dataclass(entry) and not str(getattr(entry, "name", "")).startswith("__"):
                    yield (*path, field.name, "entry", *own)
                    yield from _verdicts(entry, system, (*path, field.name))


async def test_refusals_equal_those_of_apache_kafka(tidelog: System, kafka: System) -> None:
    compared, refused = 0, 0
    different: list[str] = []
    for seed in seeds(1):
        chosen = random.Random(seed)
        for number in range(_ROUNDS):
            acls = _acls(chosen)
            for system in (tidelog, kafka):
                await _set(system, acls)
            for api, made in _requests(chosen):
                state = chosen.getstate()
                said = []
                for system in (tidelog, kafka):
                    chosen.setstate(state)
                    said.append(await system.verdicts(made(system.ids)))
                compared += 1
                refused += "authorization_failed" in str(said)
                if api in _ONLY_REFUSALS:
                    said = [[line for line in one if "authorization" in line] for one in said]
                if said[0] != said[1]:
                    only = [sorted(set(said[one]) - set(said[1 - one])) for one in (0, 1)]
                    different.append(f"{seed} round {number} {api}: {only[0]} instead of {only[1]} {acls}")
    assert not different, "\n".join(different[:20])
    assert compared > 2_000
    assert refused > compared // 5
