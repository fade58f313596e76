"""Retries past the errors of a failover."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable

Answer = TypeVar("Answer")


async def until_it_answers(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    async with asyncio.timeout(60):
        while True:
            with suppress(SequencerUnavailable, CommitOutcomeUnknown):
                return await ask()
            await asyncio.sleep(0.02)
