"""Behind one address, a client logs in once, at the agent that it came to."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.security.principal import Principal
from agent.security.sasl.settings import SaslSettings
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, running
from tests.agent.security.logins.by_hand import log_in
from tests.agent.security.logins.users import add_user
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GROUPS = tuple(f"group {number}" for number in range(20))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents(module_database_url: str) -> AsyncIterator[tuple[Running, Running]]:
    await add_user(module_database_url, "ann", "secret")
    sasl, address = SaslSettings(sasl_mechanisms="PLAIN"), "balancer.example:9092"
    async with (
        running(module_database_url, one_address=address, zone="a", sasl_settings=sasl) as first,
        running(module_database_url, one_address=address, zone="b", sasl_settings=sasl) as second,
    ):
        await until(lambda: first.agents_seen == second.agents_seen == 2)
        yield first, second


async def test_the_coordinator_knows_the_user_of_a_forwarded_request(agents: tuple[Running, Running]) -> None:
    first, second = agents
    wire = await Wire.connect(first.app.kafka_port)
    assert (await log_in(wire, "ann", "secret")).error_code == ErrorCode.none

    for group in GROUPS:
        described = await wire.ask(request(15, 5, groups=(group,), include_authorized_operations=False))
        assert described.groups[0].group_id == group

    assert second.app._reached.listener is not None
    forwarded = [
        connection.state
        for connection in second.app._reached.listener._connections
        if connection.state.forwarded_by is not None
    ]
    assert forwarded
    assert {(state.principal, state.sasl) for state in forwarded} == {(Principal("ann"), None)}
    wire.close()
