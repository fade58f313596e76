"""Doubt about what is visible in Postgres: a commit that no standby may have, and the barrier that settles it
(docs/design/ownership.md#durability).

A commit that waits for its synchronous standby is visible to others only afterwards. Two events make it
visible before: Postgres gives up the wait (a cancelled or terminated backend), or is restarted after a crash.

Promises:
- In doubt, nothing that is read is handed out before the standby has confirmed a write (a barrier). The
  standby then has all earlier commits, too. One barrier serves all who wait.
- Other clients learn of the doubt by a number that they read with every coordinate. A window remains: others
  may read the commit until this client has seen that the wait was given up and has raised the number, about a
  millisecond. If this process dies in that moment, no other client learns of the doubt.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import LiteralString

import psycopg

from sequencer.database.errors import CommitOutcomeUnknown, SequencerUnavailable, describe_address
from sequencer.database.options import CheckedConnection
from sequencer.settings import SequencerSettings

log = logging.getLogger("tidelog")

# Transactional, so that it commits, and its commit waits for the standby.
_BARRIER: LiteralString = "SELECT pg_logical_emit_message(true, 'tidelog', '')"
_RAISE: LiteralString = (
    "UPDATE doubts SET number = number + 1"
    " FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby RETURNING number"
)


class Doubts:
    """`fresh` makes a checked connection outside the pool, so that a barrier never waits behind what waits
    for it."""

    def __init__(
        self,
        database_url: str,
        settings: SequencerSettings,
        fresh: Callable[[], AbstractAsyncContextManager[CheckedConnection]],
    ) -> None:
        self._url = database_url
        self._settings = settings
        self._fresh = fresh
        self._raised = 0
        self._settled = 0
        """How many of the raised doubts a confirmed barrier has ended."""
        self._highest_number = 0
        """The highest number read from the table."""
        self._barrier: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def is_in_doubt(self) -> bool:
        return self._raised != self._settled

    def raise_for_this_client(self) -> None:
        """Postgres was restarted: every client sees that by itself."""
        self._raised += 1

    def raise_for_all(self) -> None:
        """Postgres gave up the wait of one of this client's commits."""
        self._raised += 1
        log.warning("a commit may be on no standby: what is read waits until one confirms a write")
        task = asyncio.create_task(self._tell_others())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def settle_number(self, number: int) -> None:
        """`number` was read from the table by the same statement as an answer. Returns once the answer may be
        handed out. Raises SequencerUnavailable."""
        if number > self._highest_number:
            self._highest_number = number
            self._raised += 1
        await self.settle()

    async def settle(self, within_s: float | None = None) -> None:
        """Returns when there is no doubt. Raises SequencerUnavailable, by default as the pool does."""
        if not self.is_in_doubt:
            return
        try:
            async with asyncio.timeout(
                self._settings.database_pool_timeout_s if within_s is None else within_s
            ):
                while self.is_in_doubt:
                    if self._barrier is None or self._barrier.done():
                        self._barrier = asyncio.create_task(self._write_barrier())
                    await asyncio.shield(self._barrier)
        except TimeoutError as error:
            raise SequencerUnavailable(
                f"the standby of Postgres at {describe_address(self._url)} has not confirmed that it has "
                "every commit,"
                " since the wait of one was cut short or Postgres was restarted; nothing new is read "
                "until it does"
            ) from error
        except (psycopg.Error, CommitOutcomeUnknown) as error:
            raise SequencerUnavailable.cannot_connect(self._url, error) from error

    async def close(self) -> None:
        tasks = {*self._telling, *([] if self._barrier is None else [self._barrier])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_barrier(self) -> None:
        """A transaction that changes no row, and whose commit waits for the standby."""
        raised = self._raised
        async with self._fresh() as connection:
            await connection.execute(_BARRIER)
            if not connection.wait_was_cut:
                self._settled = raised

    async def _tell_others(self) -> None:
        try:
            async with asyncio.timeout(self._settings.database_answer_timeout_s), self._fresh() as connection:
                [row] = await (await connection.execute(_RAISE)).fetchall()
                self._highest_number = max(self._highest_number, row.number)
        except (psycopg.Error, SequencerUnavailable, CommitOutcomeUnknown, TimeoutError, OSError) as error:
            log.warning(
                "cannot tell other agents that a commit may be on no standby", extra={"error": str(error)}
            )
