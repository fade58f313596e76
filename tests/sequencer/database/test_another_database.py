"""If an address later leads to another database, no statement goes there until it leads back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import psycopg
import pytest

from sequencer.client import Sequencer, SequencerSettings
from sequencer.commits.commits import Assigned
from sequencer.database.database import SequencerUnavailable
from storage.identifiers import Offset
from storage.stores.memory_store import MemoryStore
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.housekeeping.housekeeping import records_of
from tests.support.postgres import OWNER, Address
from tidelog.embedded.postgres import EmbeddedPostgres

Asked = TypeVar("Asked")

HERE, THERE = "memory://here", "memory://there"


@pytest.fixture
async def wanderer(address: Address) -> AsyncIterator[Sequencer]:
    """A client of the address, kept to the first database."""
    opened = await Sequencer.open(address.url, SequencerSettings())
    await opened.store_identity.bind(MemoryStore(), "tidelog", HERE)
    yield opened
    await opened.close()


async def until_asked(ask: Callable[[], Awaitable[Asked]]) -> Asked:
    """Each connection that was made while the address led elsewhere is refused once."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(SequencerUnavailable):
                return await ask()


async def test_nothing_is_asked_of_another_database_until_the_address_leads_back(
    wanderer: Sequencer, address: Address, database_url: str, other_database_url: str
) -> None:
    topic = await wanderer.topics.create("orders", 1, {})
    segment = await reserved(wanderer, [records_of(topic)])
    other = await Sequencer.open(other_database_url, SequencerSettings())
    await other.store_identity.bind(MemoryStore(), "tidelog", THERE)
    await other.topics.create("orders", 1, {})

    address.lead_to(other_database_url)
    address.cut(database_url)

    for asked in (wanderer.topics.list, wanderer.cluster.health, lambda: wanderer.commits.commit([segment])):
        for _ in range(2):
            with pytest.raises(SequencerUnavailable, match="not the one that this process began with"):
                await asked()
    address.lead_to(database_url)
    [answer] = await until_asked(lambda: wanderer.commits.commit([segment]))
    assert accepted(answer).outcomes == (Assigned(base_offset=Offset(0)),)
    assert wanderer.database.generation == 0, "it was the same all the time"
    assert await other.database.run("SELECT 1 FROM segments") == []
    await other.close()


@pytest.mark.superuser
@pytest.mark.parametrize(
    "prepare", ["DROP TABLE cluster", "ALTER TABLE cluster DROP COLUMN store_id", "SELECT 1"]
)
async def test_a_database_that_knows_no_store_is_another_one(
    wanderer: Sequencer, address: Address, database_url: str, other_database_url: str, prepare: str
) -> None:
    with psycopg.connect(other_database_url, autocommit=True) as connection:
        connection.execute(prepare.encode())

    address.lead_to(other_database_url)
    address.cut(database_url)

    with pytest.raises(SequencerUnavailable, match="TIDELOG_DATABASE_URL lead back"):
        await wanderer.topics.list()


async def test_connections_made_before_the_database_was_known_are_looked_at_again(
    wanderer: Sequencer, address: Address, database_url: str, other_database_url: str
) -> None:
    [known] = await wanderer.database.run("SELECT store_id FROM cluster")
    address.lead_to(other_database_url)
    late = await Sequencer.open(address.url, SequencerSettings(database_pool_size=2))
    await asyncio.gather(*(late.topics.list() for _ in range(8)))
    address.lead_to(database_url)

    late.database.keep_to(known.store_id)

    with pytest.raises(SequencerUnavailable, match="not the one that this process began with"):
        await late.topics.list()
    assert await until_asked(late.topics.list) == []
    await late.close()


async def test_a_restored_backup_of_the_same_database_is_asked_as_before(
    sequencer: Sequencer, database_url: str, postgres: EmbeddedPostgres
) -> None:
    await sequencer.store_identity.bind(MemoryStore(), "tidelog", HERE)
    await sequencer.topics.create("orders", 1, {})
    name = database_url.split("?")[0].rsplit("/", 1)[1]

    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        Address.cut(database_url)
        connection.execute(f"ALTER DATABASE {name} RENAME TO {name}_lost")
        connection.execute(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE {name}_lost STRATEGY FILE_COPY")
        connection.execute(f"DROP DATABASE {name}_lost")

    assert [topic.name for topic in await sequencer.topics.list()] == ["orders"]
