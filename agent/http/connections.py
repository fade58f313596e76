"""The open connections of the HTTP side, and the bound on them.

Promises:
- At most `max_connections` and `_SPARE` are open. One more ends the connection that has waited longest for
  its client, of the host that has most such connections. So idle clients keep no other host out.
- Above `max_connections` only `/live` and `/ready` are answered, others get 503. So an orchestrator does not
  restart an agent, or take it out of service, because its HTTP side is busy.
- A client that does not send its whole request, or takes nothing of its answer, is disconnected after one to
  two `idle_timeout_s`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent.client_network import network_of
from agent.http.errors import problem

_SPARE: Final = 32
_ALWAYS_ANSWERED: Final = frozenset({"/live", "/ready"})


class HttpConnections:
    def __init__(self, max_connections: int, idle_timeout_s: float) -> None:
        self._max_connections = max_connections
        self._idle_timeout_s = idle_timeout_s
        self._open: dict[HttpConnection, asyncio.TimerHandle] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self._open)

    def connection(self, **of_uvicorn: Any) -> "HttpConnection":
        """Makes the protocol of a connection that was just accepted."""
        return HttpConnection(self, **of_uvicorn)

    def bounded(self, app: ASGIApp, running: Callable[[], int]) -> ASGIApp:
        """Returns the application with the bound. `running`: how many requests are being answered, also those
        whose clients are gone.
        """

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            is_full = len(self._open) > self._max_connections or running() > self._max_connections
            if is_full and scope.get("path") not in _ALWAYS_ANSWERED:
                response = problem(503, "too_many_connections", "This agent's HTTP side is busy. Try again.")
                response.headers["connection"] = "close"
                await response(scope, receive, send)
                return
            await app(scope, receive, send)

        return answer

    # --- events of connections

    def began(self, connection: "HttpConnection") -> None:
        if len(self._open) >= self._max_connections:
            self._displace_one()
        if len(self._open) >= self._max_connections + _SPARE:
            connection.transport.abort()
            return
        self._look_later(connection, connection.turns)

    def ended(self, connection: "HttpConnection") -> None:
        timer = self._open.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _displace_one(self) -> None:
        waiting = [one for one in self._open if one.waits_for_client]
        if waiting:
            of_network = Counter(one.network for one in waiting)
            busiest = max(of_network.values())
            self._end(next(one for one in waiting if of_network[one.network] == busiest))

    def _look_later(self, connection: "HttpConnection", turns: int) -> None:
        loop = asyncio.get_running_loop()
        self._open[connection] = loop.call_later(self._idle_timeout_s, self._look, connection, turns)

    def _look(self, connection: "HttpConnection", turns: int) -> None:
        """`turns`: those of the connection at the last look."""
        if connection.waits_for_client and connection.turns == turns:
            self._end(connection)
        else:
            self._look_later(connection, connection.turns)

    def _end(self, connection: "HttpConnection") -> None:
        self.ended(connection)
        connection.transport.abort()


class HttpConnection(H11Protocol):
    """uvicorn's connection, which also knows whether it waits for its client."""

    def __init__(self, kept: HttpConnections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._kept = kept
        self.turns = 0
        """Grows when a request or its body is complete, when it is answered, and when the client takes a part
        of an answer.
        """

    @property
    def network(self) -> str:
        return "" if self.client is None else network_of(self.client[0])

    @property
    def waits_for_client(self) -> bool:
        """True if the client has to send or to take something before the connection goes on."""
        is_sending = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused
        return is_sending or self.flow.write_paused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._kept.began(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept.ended(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.conn.their_state
        super().data_received(data)
        self.turns += self.conn.their_state is not before

    def on_response_complete(self) -> None:
        self.turns += 1
        super().on_response_complete()

    def resume_writing(self) -> None:
        self.turns += 1
        super().resume_writing()
