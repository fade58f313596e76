"""Checks Postgres from time to time for what no statement would show (docs/design/ownership.md#one-primary).

All pooled connections may lead to an old primary that still answers: only a new connection shows where the
address leads now. Settings may be weakened while nothing is written.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable

import psycopg

from sequencer.database.errors import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.settings import SequencerSettings

log = logging.getLogger("tidelog")

_AWAY = (psycopg.Error, SequencerUnavailable, CommitOutcomeUnknown, TimeoutError, OSError)


class Confirmation:
    """Finds out if Postgres is still the primary. One connection answers for many callers."""

    def __init__(self, check_address: Callable[[], Awaitable[None]], gap_s: float) -> None:
        self._check_address = check_address
        self._gap_s = gap_s
        self._one_at_a_time = asyncio.Lock()
        self._tried_s = self._looked_s = -math.inf

    async def get(self) -> None:
        """Returns once a connection that was made after this call was checked. Raises
        SequencerUnavailable."""
        asked_s = time.monotonic()
        async with self._one_at_a_time:
            if self._looked_s >= asked_s:
                return
            await asyncio.sleep(max(0.0, self._tried_s + self._gap_s - time.monotonic()))
            self._tried_s = began_s = time.monotonic()
            try:
                await self._check_address()
            except (psycopg.Error, CommitOutcomeUnknown, TimeoutError, OSError) as error:
                raise SequencerUnavailable(
                    f"it is not known which Postgres is the primary ({error})"
                ) from error
            self._looked_s = began_s


async def watch(
    settings: SequencerSettings,
    check_address: Callable[[], Awaitable[None]],
    check_settings: Callable[[], Awaitable[None]],
) -> None:
    """Checks until cancelled. Jitter keeps agents that started together from checking together."""
    afresh_at_s, is_away = _later(settings.database_recheck_s), False
    while True:
        await asyncio.sleep(settings.database_durability_check_s * random.uniform(0.8, 1.2))
        try:
            if time.monotonic() >= afresh_at_s:
                afresh_at_s = _later(settings.database_recheck_s)
                await check_address()
            await check_settings()
            is_away = False
        except _AWAY as error:
            if not is_away:
                log.warning(
                    "cannot check the address and the settings of Postgres", extra={"error": str(error)}
                )
            is_away = True


def _later(after_s: float) -> float:
    return time.monotonic() + after_s * random.uniform(0.8, 1.2)
