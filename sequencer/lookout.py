"""Looks at Postgres now and then, for what no statement would show (DESIGN §10).

Pooled connections may all lead to an old primary that is well: only a new connection shows where the address leads by
now. Settings may be weakened while nothing is written.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

import psycopg

from sequencer.database_errors import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.settings import SequencerSettings

log = logging.getLogger(__name__)

_AWAY = (psycopg.Error, SequencerUnavailable, CommitOutcomeUnknown, TimeoutError, OSError)


async def watch(
    settings: SequencerSettings,
    look_afresh: Callable[[], Awaitable[None]],
    look_at_settings: Callable[[], Awaitable[None]],
) -> None:
    """Until cancelled. With jitter: agents that started together do not look together."""
    afresh_at_s, is_away = _later(settings.database_recheck_s), False
    while True:
        await asyncio.sleep(settings.database_durability_check_s * random.uniform(0.8, 1.2))
        try:
            if time.monotonic() >= afresh_at_s:
                afresh_at_s = _later(settings.database_recheck_s)
                await look_afresh()
            await look_at_settings()
            is_away = False
        except _AWAY as error:
            if not is_away:
                log.warning("Postgres cannot be looked at", extra={"error": str(error)})
            is_away = True


def _later(after_s: float) -> float:
    return time.monotonic() + after_s * random.uniform(0.8, 1.2)
