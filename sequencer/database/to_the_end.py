"""Runs statements to their end, even if their callers are cancelled, for as long as they wait for a standby.

Promises:
- A caller that is cancelled leaves its statement to end in the background, which gives the connection back by
  itself: psycopg would send Postgres a request to cancel, which ends a commit's wait for its standby, too.
- A connection without an answer in time is cut, unless Postgres says that it waits for a standby: that wait
  may take as long as it needs. Either way the connection counts towards the bound of its pool.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, LiteralString, TypeVar

import psycopg

from sequencer.database.errors import SequencerUnavailable
from sequencer.database.options import CheckedConnection
from sequencer.settings import SequencerSettings

_Result = TypeVar("_Result")

_WAITS_FOR_A_STANDBY: LiteralString = (
    "SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s::integer AND wait_event = 'SyncRep'"
)


class ToTheEnd:
    """`fresh` makes a connection to ask what others wait for."""

    def __init__(
        self,
        settings: SequencerSettings,
        fresh: Callable[[], AbstractAsyncContextManager[CheckedConnection]],
        no_answer: Callable[[], Exception],
    ) -> None:
        self._settings = settings
        self._fresh = fresh
        self._no_answer = no_answer
        self._running: set[asyncio.Task[Any]] = set()
        self._abandoned: set[CheckedConnection] = set()
        """Connections of calls whose callers were cancelled."""

    async def run(self, ending: Coroutine[Any, Any, _Result], connection: CheckedConnection) -> _Result:
        """Returns what `ending` returns. `ending` uses this connection and gives it back."""
        task = self._start(ending)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._abandon(task, connection)
            raise

    def leave(self, ending: Coroutine[Any, Any, None], connection: CheckedConnection) -> None:
        """As `run`, for a caller that was cancelled already."""
        self._abandon(self._start(ending), connection)

    def _start(self, ending: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = asyncio.create_task(ending)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _abandon(self, task: asyncio.Task[Any], connection: CheckedConnection) -> None:
        def ended(task: asyncio.Task[Any]) -> None:
            self._abandoned.discard(connection)
            if not task.cancelled():
                task.exception()  # mark it as seen: no caller is left

        self._abandoned.add(connection)
        task.add_done_callback(ended)

    def close(self) -> None:
        """Cuts the connections of cancelled callers. Their statements go on in Postgres."""
        for connection in tuple(self._abandoned):
            connection.cut(SequencerUnavailable("the client of Postgres was closed"))

    def timer(self, connection: CheckedConnection) -> "AnswerTimer":
        """Cuts the connection when its answer is overdue, until it is stopped."""

        async def cut() -> None:
            if not await self._waits_for_a_standby(connection.info.backend_pid) and not timer.is_stopped:
                connection.cut(self._no_answer())

        timer = AnswerTimer(self._settings.database_answer_timeout_s, cut)
        return timer

    async def _waits_for_a_standby(self, backend_pid: int) -> bool:
        """True if Postgres says so; False if it says no, or does not answer."""
        with suppress(psycopg.Error, SequencerUnavailable, TimeoutError, OSError):
            async with asyncio.timeout(self._settings.database_connect_timeout_s), self._fresh() as asking:
                cursor = await asking.execute(_WAITS_FOR_A_STANDBY, {"pid": backend_pid})
                return bool(await cursor.fetchall())
        return False


class AnswerTimer:
    """Calls back again and again, `after_s` seconds after the last call has ended, until it is stopped."""

    def __init__(self, after_s: float, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._after_s = after_s
        self._call = call
        self.is_stopped = False
        self._calling: asyncio.Task[None] | None = None
        self._handle = asyncio.get_running_loop().call_later(after_s, self._due)

    def stop(self) -> None:
        self.is_stopped = True
        self._handle.cancel()

    def _due(self) -> None:
        self._calling = asyncio.create_task(self._call())
        self._calling.add_done_callback(self._again)

    def _again(self, _: asyncio.Task[None]) -> None:
        if not self.is_stopped:
            self._handle = asyncio.get_running_loop().call_later(self._after_s, self._due)
