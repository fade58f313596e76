"""One agent per module over the session's Postgres and a store in memory. Tests that harm an agent start
their own.
"""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import pytest_asyncio

from tests.agent.running import Running, running
from tests.support.postgres import OWNER, TEMPLATE
from tidelog.embedded.postgres import EmbeddedPostgres


@pytest.fixture(scope="module")
def module_database_url(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database for this module only."""
    name = request.node.name.removesuffix(".py").replace("/", "_")
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        yield postgres.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with running(module_database_url) as started:
        yield started
