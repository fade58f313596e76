"""CreateTopics, CreatePartitions and DeleteTopics by hand, in every version served, code by code."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from kio.schema.errors import ErrorCode

from tests.agent.kafka.apis.administrative_requests import TIMEOUT, create, delete, grow
from tests.agent.read_path.wire import request
from tests.agent.running import Wire, a_metadata, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(wire: Wire, version: int) -> None:
    configs = [{"name": "retention.ms", "value": "1000"}]

    created = await create(wire, f"created-{version}", version=version, num_partitions=4, configs=configs)
    again = await create(wire, f"created-{version}", version=version)

    assert created.error_code is ErrorCode.none
    assert again.error_code is ErrorCode.topic_already_exists
    found = await wire.ask(a_metadata(f"created-{version}", version=12))
    assert len(found.topics[0].partitions) == 4
    if version >= 5:
        shown = {config.name: (config.value, config.config_source) for config in created.configs}
        assert shown["retention.ms"] == ("1000", 1)
        assert shown["cleanup.policy"] == ("delete", 5)
        assert (created.num_partitions, created.replication_factor) == (4, 1)
    if version >= 7:
        assert created.topic_id == found.topics[0].topic_id


@pytest.mark.parametrize("factor", [-1, 1, 3, 32_767])
async def test_any_replication_factor_is_accepted_and_counts_are_left_to_the_agent(
    wire: Wire, factor: int
) -> None:
    name = f"replicated-{factor}"

    created = await create(wire, name, num_partitions=-1, replication_factor=factor)

    assert (created.error_code, created.num_partitions) == (ErrorCode.none, 1)


async def test_a_manual_assignment_determines_the_number_of_partitions(wire: Wire) -> None:
    me = (await wire.ask(a_metadata(version=9))).brokers[0].node_id
    assigned = [{"partition_index": number, "broker_ids": (me,)} for number in (1, 0)]

    created = await create(wire, "by-hand", num_partitions=-1, replication_factor=-1, assignments=assigned)

    assert (created.error_code, created.num_partitions) == (ErrorCode.none, 2)


def _assigned(*partitions: tuple[int, tuple[int, ...]]) -> dict[str, Any]:
    return {
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in partitions],
    }


INVALID = ErrorCode.invalid_config


def _configured(*configs: tuple[str, str]) -> dict[str, Any]:
    return {"configs": [{"name": name, "value": value} for name, value in configs]}


@pytest.mark.parametrize(
    ("values", "code", "reason"),
    [
        ({"name": "no/good"}, ErrorCode.invalid_topic_exception, "illegal"),
        ({"name": ".."}, ErrorCode.invalid_topic_exception, "illegal"),
        ({"num_partitions": 0}, ErrorCode.invalid_partitions, "larger than 0"),
        ({"num_partitions": -2}, ErrorCode.invalid_partitions, "larger than 0"),
        ({"num_partitions": 10_001}, ErrorCode.invalid_partitions, "10000"),
        ({"replication_factor": 0}, ErrorCode.invalid_replication_factor, "larger than 0"),
        ({"replication_factor": -2}, ErrorCode.invalid_replication_factor, "larger than 0"),
        ({"configs": [{"name": "cleanup.policy", "value": "squash"}]}, ErrorCode.invalid_config, "compact"),
        (_configured(("cleanup.policy", "compact"), ("tidelog.history", "log")), INVALID, "tidelog.history"),
        (
            _configured(("cleanup.policy", "delete,compact"), ("remote.storage.enable", "true")),
            INVALID,
            "Remote log storage only supports topics with cleanup.policy=delete",
        ),
        (
            _configured(("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")),
            INVALID,
            "min.compaction.lag.ms (5) > max.compaction.lag.ms (4)",
        ),
        ({"configs": [{"name": "no.such", "value": "1"}]}, ErrorCode.invalid_config, "no.such"),
        (
            {"configs": [{"name": "leader.replication.throttled.replicas", "value": "*"}]},
            ErrorCode.invalid_config,
            "object store",
        ),
        ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.invalid_config, "Null value"),
        ({**_assigned((0, (1,))), "num_partitions": 1}, ErrorCode.invalid_request, "numPartitions"),
        ({**_assigned((0, (1,))), "replication_factor": 1}, ErrorCode.invalid_request, "replicationFactor"),
        (_assigned((1, (1,))), ErrorCode.invalid_replica_assignment, "consecutive"),
        (_assigned((0, ())), ErrorCode.invalid_replica_assignment, "empty replica list"),
        (_assigned((0, (1, 1))), ErrorCode.invalid_replica_assignment, "more than once"),
        (_assigned((0, (99,))), ErrorCode.invalid_replica_assignment, "no such broker"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_create_topics_refuses_with_a_reason(
    wire: Wire, values: dict[str, Any], code: ErrorCode, reason: str, validate_only: bool
) -> None:
    answer = await create(wire, **{"name": "refused", **values}, validate_only=validate_only)

    assert answer.error_code is code
    assert reason in answer.error_message


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_name_that_differs_in_dots_and_underscores_alone_is_refused(
    wire: Wire, validate_only: bool
) -> None:
    await create(wire, "my.metric_name")

    answer = await create(wire, "my_metric.name", validate_only=validate_only)

    assert answer.error_code is ErrorCode.invalid_topic_exception
    assert "collides with existing topic: my.metric_name" in answer.error_message


@pytest.mark.parametrize("validate_only", [False, True])
async def test_an_existing_topic_is_reported_before_other_errors(wire: Wire, validate_only: bool) -> None:
    await create(wire, "there_already")
    wrong: list[dict[str, Any]] = [
        {"configs": [{"name": "no.such", "value": "1"}]},
        {"configs": [{"name": "retention.ms", "value": None}]},
        {"num_partitions": 0},
        {"replication_factor": 0},
        _assigned((0, (99,))),
    ]

    answers = [await create(wire, "there_already", validate_only=validate_only, **values) for values in wrong]

    assert {answer.error_code for answer in answers} == {ErrorCode.topic_already_exists}
    assert {answer.error_message for answer in answers} == {"Topic 'there_already' already exists."}


async def test_a_topic_named_twice_in_a_request_is_refused(wire: Wire) -> None:
    topic = {"name": "twice", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}

    answer = await wire.ask(request(19, 7, topics=[topic, topic], timeout=TIMEOUT, validate_only=False))

    assert [(found.name, found.error_code) for found in answer.topics] == [
        ("twice", ErrorCode.invalid_request)
    ]


async def test_validate_only_creates_nothing(wire: Wire) -> None:
    answer = await create(wire, "not-really", validate_only=True)

    assert answer.error_code is ErrorCode.none
    found = await wire.ask(a_metadata("not-really", create=False))
    assert found.topics[0].error_code is ErrorCode.unknown_topic_or_partition


async def test_a_timeout_of_zero_names_no_time(wire: Wire) -> None:
    topic = {
        "name": "patient",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }

    answer = await wire.ask(request(19, 7, topics=[topic], timeout=timedelta(0), validate_only=False))

    assert answer.topics[0].error_code is ErrorCode.none


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics(wire: Wire, version: int) -> None:
    await create(wire, f"doomed-{version}")

    gone = await delete(wire, version, name=f"doomed-{version}")
    again = await delete(wire, version, name=f"doomed-{version}")

    assert [gone.error_code, again.error_code] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


async def test_delete_topics_by_id(wire: Wire) -> None:
    topic = await create(wire, "doomed-by-id")

    gone = await delete(wire, 6, topic_id=topic.topic_id)
    again = await create(wire, "doomed-by-id")
    stale = await delete(wire, 6, topic_id=topic.topic_id)

    assert (gone.error_code, gone.name) == (ErrorCode.none, "doomed-by-id")
    assert again.topic_id != topic.topic_id
    assert stale.error_code is ErrorCode.unknown_topic_id
    assert (await delete(wire, 6, topic_id=uuid4())).error_code is ErrorCode.unknown_topic_id


async def test_delete_topics_refuses_what_is_named_twice_by_both_or_by_neither(wire: Wire) -> None:
    topic = await create(wire, "still-here")
    by_name, by_id = {"name": "still-here", "topic_id": None}, {"name": None, "topic_id": topic.topic_id}

    async def refused(*topics: dict[str, Any]) -> tuple[str | None, UUID | None, str]:
        answer = await wire.ask(request(20, 6, topics=list(topics), timeout=TIMEOUT))
        [found] = answer.responses
        assert found.error_code is ErrorCode.invalid_request
        return found.name, found.topic_id, found.error_message

    assert await refused(by_name, by_name) == ("still-here", None, "Duplicate topic name.")
    assert await refused(by_id, by_id) == (None, topic.topic_id, "Duplicate topic id.")
    both_ways = "The provided topic name maps to an ID that was already supplied."
    assert await refused(by_name, by_id) == ("still-here", topic.topic_id, both_ways)
    with_both = {"name": "still-here", "topic_id": topic.topic_id}
    assert (await refused(with_both))[2] == "You may not specify both topic name and topic id."
    assert (await refused({"name": None, "topic_id": None}))[2] == "Neither topic name nor id were specified."
    found = await wire.ask(a_metadata("still-here", create=False))
    assert found.topics[0].error_code is ErrorCode.none


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(wire: Wire, version: int) -> None:
    name = f"grown-{version}"
    await create(wire, name, num_partitions=2)
    me = (await wire.ask(a_metadata(version=9))).brokers[0].node_id

    answers = [
        await grow(wire, name, 3, version=version, validate_only=True),
        await grow(wire, name, 4, version=version),
        await grow(wire, name, 4, version=version),
        await grow(wire, name, 3, version=version),
        await grow(wire, "nowhere", 4, version=version),
        await grow(wire, name, 20_000, version=version),
        await grow(wire, name, 5, version=version, topic={"assignments": [{"broker_ids": (99,)}]}),
        await grow(wire, name, 6, version=version, topic={"assignments": [{"broker_ids": (me,)}]}),
        await grow(wire, name, 5, version=version, topic={"assignments": [{"broker_ids": (me,)}]}),
    ]

    assert [answer.error_code for answer in answers] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_partitions,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.none,
    ]
    assert "already has 4" in answers[2].error_message
    assert "would not be an increase" in answers[3].error_message
    assert len((await wire.ask(a_metadata(name))).topics[0].partitions) == 5


async def test_create_partitions_refuses_a_topic_named_twice(wire: Wire) -> None:
    await create(wire, "grown-twice")
    topic = {"name": "grown-twice", "count": 3, "assignments": None}

    answer = await wire.ask(request(37, 3, topics=[topic, topic], timeout=TIMEOUT, validate_only=False))

    assert [(found.name, found.error_code) for found in answer.results] == [
        ("grown-twice", ErrorCode.invalid_request)
    ]


async def test_a_topic_created_again_has_a_new_id_and_the_old_id_is_unknown(wire: Wire) -> None:
    first = await create(wire, "reborn")
    await delete(wire, 6, name="reborn")
    second = await create(wire, "reborn")

    asked = [{"name": None, "topic_id": first.topic_id}, {"name": None, "topic_id": second.topic_id}]
    answer = await wire.ask(request(3, 12, topics=asked, include_topic_authorized_operations=False))

    assert first.topic_id not in (second.topic_id, UUID(int=0))
    assert {(found.topic_id, found.error_code) for found in answer.topics} == {
        (first.topic_id, ErrorCode.unknown_topic_id),
        (second.topic_id, ErrorCode.none),
    }


async def test_a_request_whose_time_is_over_says_so(module_database_url: str, wire: Wire) -> None:
    """The request's own time, or the longest that the agent allows."""
    await create(wire, "held-fast")
    doomed = [{"name": "held-fast", "topic_id": None}]
    async with running(module_database_url, zone="h", max_admin_timeout_s=0.2) as hasty:
        other = await Wire.connect(hasty.app.kafka_port)
        async with await psycopg.AsyncConnection.connect(module_database_url) as holder:
            await holder.execute("SELECT 1 FROM topics WHERE name = 'held-fast' FOR UPDATE")
            short = await wire.ask(request(20, 6, topics=doomed, timeout=timedelta(milliseconds=200)))
            capped = await other.ask(request(20, 6, topics=doomed, timeout=timedelta(hours=1)))
            unnamed = await other.ask(request(20, 6, topics=doomed, timeout=timedelta(0)))
        other.close()

    in_time = await delete(wire, 6, name="held-fast")

    for late in (short, capped, unnamed):
        assert late.responses[0].error_code is ErrorCode.request_timed_out
        assert "timeout" in late.responses[0].error_message
    assert in_time.error_code is ErrorCode.none
