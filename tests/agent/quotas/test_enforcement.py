"""Quotas of running agents."""

import asyncio
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from agent.quotas.settings import QuotaSettings
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, running, until_answered

NONE = ErrorCode.none
QUICK = QuotaSettings(quota_poll_s=0.1)


async def alter(
    wire: Wire, entity: dict[str, str | None], validate_only: bool = False, **quotas: Any
) -> ErrorCode:
    ops = [{"key": key, "value": float(value or 0), "remove": value is None} for key, value in quotas.items()]
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    asked = request(49, 1, entries=[{"entity": parts, "ops": ops}], validate_only=validate_only)
    return ErrorCode((await wire.ask(asked)).entries[0].error_code)


async def described(wire: Wire, strict: bool = False, **kinds: Any) -> dict[Any, dict[str, float]]:
    components = [
        {"entity_type": kind.replace("_", "-"), "match_type": match, "match": name}
        for kind, (match, name) in kinds.items()
    ]
    answer = await wire.ask(request(48, 1, components=components, strict=strict))
    assert answer.error_code is NONE
    return {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries
    }


async def test_altered_quotas_are_described(database_url: str) -> None:
    async with running(database_url) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        assert (
            await alter(wire, {"user": "a", "client-id": None}, producer_byte_rate=10, request_percentage=1.5)
            is NONE
        )
        assert await alter(wire, {"ip": "10.0.0.1"}, connection_creation_rate=3) is NONE
        assert await alter(wire, {"user": "b"}, True, producer_byte_rate=10) is NONE
        assert await alter(wire, {"user": "b"}, connection_creation_rate=10) is ErrorCode.invalid_request
        both = frozenset({("user", "a"), ("client-id", None)})

        assert await described(wire) == {
            both: {"producer_byte_rate": 10.0, "request_percentage": 1.5},
            frozenset({("ip", "10.0.0.1")}): {"connection_creation_rate": 3.0},
        }
        assert list(await described(wire, user=(2, None))) == [both]
        assert await described(wire, True, user=(0, "a")) == {}
        assert list(await described(wire, True, user=(0, "a"), client_id=(1, None))) == [both]

        assert await alter(wire, {"user": "a", "client-id": None}, producer_byte_rate=None) is NONE
        assert (await described(wire))[both] == {"request_percentage": 1.5}
        assert await alter(wire, {"user": "a", "client-id": None}, request_percentage=None) is NONE
        assert both not in await described(wire)
        wire.close()


async def test_more_entities_than_the_bound_are_refused(database_url: str) -> None:
    async with running(database_url, quotas=QuotaSettings(max_client_quotas=1)) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        assert await alter(wire, {"user": "a"}, producer_byte_rate=10) is NONE
        assert await alter(wire, {"user": "b"}, producer_byte_rate=10) is ErrorCode.policy_violation
        assert await alter(wire, {"user": "a"}, producer_byte_rate=None) is NONE
        assert await alter(wire, {"user": "b"}, producer_byte_rate=10) is NONE
        wire.close()


async def test_producer_over_its_quota_is_muted_and_others_are_served(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire, other = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
        await create(wire, "t")
        assert await alter(wire, {"client-id": "slow"}, producer_byte_rate=10_000) is NONE
        first = await wire.ask(a_produce("t", {0: a_batch(b"x" * 25_000)}), client_id="slow")
        assert 1_000 < first.throttle_time.total_seconds() * 1_000 < 3_000

        began_s = time.monotonic()
        sent = await wire.send(a_metadata("t", create=False), client_id="slow")
        assert (
            await other.ask(a_produce("t", {0: a_batch(b"x" * 25_000)}))
        ).throttle_time.total_seconds() == 0
        second = asyncio.create_task(wire.receive(sent))
        await asyncio.wait([second], timeout=0.5)
        assert not second.done(), "a muted connection is not read"
        await second
        assert time.monotonic() - began_s >= first.throttle_time.total_seconds() - 0.1
        assert agent.metric("tidelog_quota_throttle_seconds_total", quota="producer_byte_rate") > 1
        wire.close()
        other.close()


async def test_quota_of_request_time_slows_a_client(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        assert await alter(wire, {"client-id": "busy"}, request_percentage=0.01) is NONE
        for _ in range(5):
            await wire.ask(a_metadata("t", create=False), client_id="busy")
        assert agent.metric("tidelog_quota_throttle_seconds_total", quota="request_percentage") > 0
        wire.close()


async def test_topics_over_the_quota_of_mutations_are_refused(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        assert await alter(wire, {"user": "ANONYMOUS"}, controller_mutation_rate=1) is NONE
        assert ErrorCode((await create(wire, "a", num_partitions=20)).error_code) is NONE
        assert ErrorCode((await create(wire, "b")).error_code) is ErrorCode.throttling_quota_exceeded
        assert await alter(wire, {"user": "ANONYMOUS"}, controller_mutation_rate=None) is NONE
        assert ErrorCode((await create(wire, "b")).error_code) is NONE
        wire.close()


async def test_connections_over_the_rate_of_their_address_are_refused(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        assert await alter(wire, {"ip": "127.0.0.1"}, connection_creation_rate=1) is NONE
        made = [await Wire.connect(agent.app.kafka_port) for _ in range(6)]
        assert await made[-1].is_closed_by_agent()
        await wire.ask(a_metadata("t", create=False))
        for one in (wire, *made):
            one.close()


async def test_one_address_has_a_bounded_number_of_connections(database_url: str) -> None:
    async with running(database_url, quotas=QuotaSettings(max_connections_per_ip=1)) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata("t", create=False))
        assert await (await Wire.connect(agent.app.kafka_port)).is_closed_by_agent()
        await wire.ask(a_metadata("t", create=False))
        wire.close()


async def test_an_address_may_have_a_bound_of_its_own(database_url: str) -> None:
    settings = QuotaSettings(
        max_connections_per_ip=0, max_connections_per_ip_overrides="127.0.0.1:2, [::1]:9"
    )
    async with running(database_url, quotas=settings) as agent:
        made = [await Wire.connect(agent.app.kafka_port) for _ in range(3)]
        assert await made[2].is_closed_by_agent()
        for wire in made[:2]:
            await wire.ask(a_metadata("t", create=False))
            wire.close()


@pytest.mark.parametrize("text", ["127.0.0.1", "localhost:3", "127.0.0.1:-1", "127.0.0.1:many", ":5"])
def test_what_is_no_bound_of_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"say 10\.0\.0\.1:200"):
        QuotaSettings(max_connections_per_ip_overrides=text)


async def test_connections_over_the_rate_of_the_agent_are_refused(database_url: str) -> None:
    async with running(database_url, quotas=QuotaSettings(max_connection_creation_rate=1)) as agent:
        made = await asyncio.gather(*(Wire.connect(agent.app.kafka_port) for _ in range(8)))
        asked = (wire.ask(a_metadata("t", create=False)) for wire in made)
        refused = [
            isinstance(found, OSError | EOFError)
            for found in await asyncio.gather(*asked, return_exceptions=True)
        ]
        assert 0 < refused.count(True) < len(made)
        for wire in made:
            wire.close()


async def produced_bytes(port: int, topic: str, until_s: float) -> int:
    """Produces one request after the other until the loop time."""
    loop, wire, total = asyncio.get_running_loop(), await Wire.connect(port), 0
    while loop.time() < until_s:
        answer = await wire.ask(a_produce(topic, {0: a_batch(b"x" * 5_000)}), client_id="shared")
        total += 5_000 * (answer.throttle_time.total_seconds() >= 0)
    wire.close()
    return total


async def knows_quota(agent: Running) -> None:
    assembly = agent.app._reached.assembly
    assert assembly is not None
    quotas = assembly.parts.quotas

    async def is_on() -> bool:
        return quotas.is_on

    await until_answered(is_on)


async def test_two_agents_share_one_quota(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as one, running(database_url, quotas=QUICK) as two:
        wire = await Wire.connect(one.app.kafka_port)
        await create(wire, "t")

        async def see_each_other() -> bool:
            return one.agents_seen == two.agents_seen == 2

        await until_answered(see_each_other)
        assert await alter(wire, {"client-id": "shared"}, producer_byte_rate=50_000) is NONE
        await asyncio.gather(*map(knows_quota, (one, two)))
        until_s = asyncio.get_running_loop().time() + 6
        sent = await asyncio.gather(
            *(produced_bytes(agent.app.kafka_port, "t", until_s) for agent in (one, two))
        )
        # Each agent alone would let 300 KB pass. A burst of a second and the requests under way may be added.
        assert sum(sent) <= 6 * 50_000 * 1.1 + 50_000 + 20_000
        assert min(sent) > 0
        wire.close()


async def test_quota_as_large_as_kafkas_largest_is_described(database_url: str) -> None:
    async with running(database_url) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        assert await alter(wire, {"user": "a"}, request_percentage=1e19) is NONE
        assert list((await described(wire)).values()) == [{"request_percentage": 1e19}]
        wire.close()
