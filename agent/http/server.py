"""The HTTP listener inside the agent's event loop.

Promises:
- Requests are answered once `start` has returned.
- The agent keeps its signal handlers, which uvicorn would replace.
- `stop` ends within `shutdown_timeout_s`, whatever a client does.
- Connections are bounded (`agent/http/connections.py`).
- With TLS, handshakes are bounded, and new certificate files take effect (`agent/security/`).
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from agent.http.connections import HttpConnections
from agent.security.tls.acceptor import TlsAcceptor
from agent.security.tls.contexts import KeptContext


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTls:
    acceptor: TlsAcceptor
    context: KeptContext


def _secured(tls: HttpTls, connections: HttpConnections, **of_uvicorn: Any) -> asyncio.BaseProtocol:
    """Makes a connection behind TLS."""
    return tls.acceptor.accept(tls.context, lambda _: connections.connection(**of_uvicorn))


class HttpServer:
    """One listener. Call `start`, then `stop`."""

    def __init__(
        self,
        app: FastAPI,
        listening: socket.socket,
        *,
        tls: HttpTls | None = None,
        max_connections: int = 256,
        idle_timeout_s: float = 30.0,
        shutdown_timeout_s: float = 5.0,
    ) -> None:
        self._listening = listening
        self._tls = tls
        self._connections = HttpConnections(max_connections, idle_timeout_s)
        made = self._connections.connection if tls is None else partial(_secured, tls, self._connections)
        self._server = _Server(
            uvicorn.Config(
                self._connections.bounded(app, lambda: len(self._server.server_state.tasks)),
                http=cast(Any, made),
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=math.ceil(idle_timeout_s),
                timeout_graceful_shutdown=math.ceil(shutdown_timeout_s),
                h11_max_incomplete_event_size=65_536,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]), name="http")
        try:
            while not self._server.started:
                if self._serving.done():
                    await self._serving
                    raise RuntimeError("the HTTP server ended while it started")
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            # If the caller closes the socket while this still listens, the event loop does not hear the next
            # socket with the same number.
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops accepting, lets requests finish within the time allowed, and closes."""
        self._server.should_exit = True
        if self._tls is not None:
            self._tls.acceptor.close()
        if self._serving is not None:
            await self._serving
