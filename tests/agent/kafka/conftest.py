"""One connection per test, to the module's agent."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.agent.running import Running, Wire


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()
