"""A request that only validates says what the real one says about the limits of a tenant."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sequencer.tenants.tenant_limits import TenantLimits
from tests.agent.kafka.apis.administrative_requests import TIMEOUT, alter
from tests.agent.read_path.wire import request
from tests.agent.running import Wire
from tests.agent.tenants.two_tenants import connected, opened, tenants_agent

pytestmark = pytest.mark.asyncio

NONE, REFUSED = ErrorCode.none, ErrorCode.policy_violation


async def created(wire: Wire, *topics: tuple[str, int, dict[str, str]]) -> list[list[ErrorCode]]:
    """Returns the codes of the request that only validates, and of the real one."""
    asked = [
        {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": (),
            "configs": [{"name": key, "value": value} for key, value in config.items()],
        }
        for name, partitions, config in topics
    ]
    return [
        [ErrorCode(one.error_code) for one in answer.topics]
        for answer in await both(wire, 19, 7, topics=asked, timeout=TIMEOUT)
    ]


async def grown(wire: Wire, **totals: int) -> list[list[ErrorCode]]:
    asked = [{"name": name, "count": total, "assignments": None} for name, total in totals.items()]
    return [
        [ErrorCode(one.error_code) for one in answer.results]
        for answer in await both(wire, 37, 3, topics=asked, timeout=TIMEOUT)
    ]


async def both(wire: Wire, api: int, version: int, **values: Any) -> list[Any]:
    return [await wire.ask(request(api, version, validate_only=only, **values)) for only in (True, False)]


async def test_a_request_that_only_validates_says_what_the_real_one_says(database_url: str) -> None:
    limits = TenantLimits(topics=2, partitions=5, retention_ms=1_000)
    async with tenants_agent(database_url) as agent:
        async with opened(database_url) as sequencer:
            await sequencer.tenants.change("acme", limits=limits)
            await sequencer.topics.create("acme~old", 1, {})
        wire = await connected(agent.app.kafka_port, "acme")

        for partitions, config in (
            (9, {}),
            (1, {"retention.ms": "2000"}),
            (1, {"cleanup.policy": "compact"}),
        ):
            assert await created(wire, ("a", partitions, config)) == [[REFUSED]] * 2
        # Two that pass one by one, and not together.
        assert await created(wire, ("a", 2, {}), ("b", 1, {})) == [[NONE, REFUSED]] * 2
        assert await grown(wire, a=4, old=3) == [[NONE, REFUSED]] * 2
        assert await grown(wire, old=2) == [[REFUSED]] * 2
        for only in (True, False):
            altered = await alter(wire, "a", ("retention.ms", 0, "2000"), validate_only=only)
            assert ErrorCode(altered.error_code) is REFUSED
        wire.close()


async def test_the_answer_of_a_creation_has_the_retention_that_the_limit_sets(database_url: str) -> None:
    async with tenants_agent(database_url) as agent:
        async with opened(database_url) as sequencer:
            await sequencer.tenants.change("acme", limits=TenantLimits(retention_ms=1_000))
        wire = await connected(agent.app.kafka_port, "acme")
        topic = {
            "name": "a",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": (),
            "configs": [],
        }
        answers = await both(wire, 19, 7, topics=[topic], timeout=TIMEOUT)
        wire.close()

    for answer in answers:
        [created_topic] = answer.topics
        assert {one.name: one.value for one in created_topic.configs}["retention.ms"] == "1000"
