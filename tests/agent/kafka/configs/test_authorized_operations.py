"""The operations that a client may carry out, if it asks (KIP-430): all, because there is no authorizer.

Apache Kafka 4.1 without an authorizer answers the same numbers.
"""

from typing import Any

import pytest

from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.kafka.apis.groups_by_hand import consume
from tests.agent.read_path.wire import request
from tests.agent.running import Wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOPIC, GROUP, CLUSTER = 3576, 3400, 8096
NOT_ASKED = -(2**31)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("version", range(8, 14))
async def test_metadata_reports_all_operations_where_asked(wire: Wire, version: int, asked: bool) -> None:
    await create(wire, "allowed")
    topics = [{"name": "allowed", "topic_id": None}]
    flags = {"include_topic_authorized_operations": asked, "include_cluster_authorized_operations": asked}

    answer = await wire.ask(request(3, version, topics=topics, allow_auto_topic_creation=False, **flags))

    assert answer.topics[0].topic_authorized_operations == (TOPIC if asked else NOT_ASKED)
    if version <= 10:
        assert answer.cluster_authorized_operations == (CLUSTER if asked else NOT_ASKED)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster_reports_all_operations_where_asked(
    wire: Wire, version: int, asked: bool
) -> None:
    flags = {"include_cluster_authorized_operations": asked, "include_fenced_brokers": False}

    answer = await wire.ask(request(60, version, endpoint_type=1, **flags))

    assert answer.cluster_authorized_operations == (CLUSTER if asked else NOT_ASKED)


async def test_describe_topic_partitions_reports_all_operations_unasked(wire: Wire) -> None:
    await create(wire, "allowed-unasked")
    topics = [{"name": "allowed-unasked"}, {"name": "missing"}]

    answer = await wire.ask(request(75, 0, topics=topics, response_partition_limit=9, cursor=None))

    assert [topic.topic_authorized_operations for topic in answer.topics] == [TOPIC, TOPIC]


@pytest.mark.parametrize("asked", [True, False])
async def test_groups_report_all_operations_where_asked(wire: Wire, asked: bool) -> None:
    await create(wire, "orders")
    assert (await consume(wire, f"allowed-{asked}", 0)).error_code == 0

    async def told(api_key: int, version: int, **groups: Any) -> int:
        answer = await wire.ask(request(api_key, version, **groups, include_authorized_operations=asked))
        return int(answer.groups[0].authorized_operations)

    expected = GROUP if asked else NOT_ASKED
    assert await told(69, 1, group_ids=(f"allowed-{asked}",)) == expected
    for version in range(3, 6):
        assert await told(15, version, groups=(f"allowed-{asked}",)) == expected  # Dead, and no error
    assert await told(15, 6, groups=(f"allowed-{asked}",)) == NOT_ASKED
