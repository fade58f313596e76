"""A cancelled call ends, whenever the cancellation comes. A task that continues would keep an agent from
stopping.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sequencer.client import Sequencer, SequencerSettings

POOL_SIZE = 2


@pytest.fixture
async def narrow(database_url: str) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(database_url, SequencerSettings(database_pool_size=POOL_SIZE))
    yield opened
    await opened.close()


async def hold_a_connection(
    sequencer: Sequencer, until: asyncio.Event, has_one: asyncio.Event | None = None
) -> None:
    async with sequencer.database.connection():
        if has_one is not None:
            has_one.set()
        await until.wait()


@pytest.mark.parametrize("turns_later", range(6))
async def test_a_call_cancelled_as_its_connection_comes_free_is_cancelled(
    narrow: Sequencer, turns_later: int
) -> None:
    release, never = asyncio.Event(), asyncio.Event()
    have_one = [asyncio.Event() for _ in range(POOL_SIZE - 1)]  # one is left to writes
    holders = [asyncio.create_task(hold_a_connection(narrow, release, has_one)) for has_one in have_one]
    await asyncio.wait_for(asyncio.gather(*(has_one.wait() for has_one in have_one)), 60)
    waiting = asyncio.create_task(hold_a_connection(narrow, never))
    await asyncio.sleep(0.05)

    release.set()
    for _ in range(turns_later):
        await asyncio.sleep(0)
    waiting.cancel()

    await asyncio.wait({waiting}, timeout=60)
    assert waiting.cancelled()
    await asyncio.gather(*holders)
    assert await narrow.database.run("SELECT 1 AS one")
