"""TLS between agents, on the peer port: both sides show a certificate of the same CA, then prove that they
know the cluster's secret (`cache_ring/peers/peer_proof.py`), now over an encrypted connection.

A running cluster switches without a pause. Each step waits until all agents have made the one before:
- `accepted`: this agent takes connections with and without TLS, and opens them without.
- `preferred`: it takes both, and opens them with TLS.
- `required`: with TLS alone.
"""

import asyncio
from collections.abc import Callable

from agent.security.tls.acceptor import TlsAcceptor
from agent.security.tls.contexts import KeptContext
from agent.security.tls.failure import HandshakeFailed
from agent.security.tls.transport import TlsTransport, receive_buffer


class TlsOfPeers:
    def __init__(
        self, acceptor: TlsAcceptor, accepting: KeptContext, opening: KeptContext | None, *, is_required: bool
    ) -> None:
        """`opening`: the context for connections to others. None: this agent opens them without TLS."""
        self._acceptor = acceptor
        self._accepting = accepting
        self._opening = opening
        self._received = receive_buffer()
        self.is_required = is_required

    def accept(self, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.BufferedProtocol:
        return self._acceptor.accept(self._accepting, lambda _: protocol())

    async def connect(self, host: str, port: int, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """The caller sets the timeout."""
        loop = asyncio.get_running_loop()
        if self._opening is None:
            transport, _ = await loop.create_connection(lambda: protocol, host, port)
            return transport
        opening = _Opening(protocol, loop.create_future())
        tls = TlsTransport(self._opening.context, opening, self._received, server_side=False)
        await loop.create_connection(lambda: tls, host, port)
        try:
            await opening.done
        except BaseException:
            tls.abort()
            raise
        return tls

    def close(self) -> None:
        self._acceptor.close()


class _Opening:
    """One connection that this agent opens."""

    def __init__(self, protocol: asyncio.BaseProtocol, done: asyncio.Future[None]) -> None:
        self._protocol = protocol
        self.done = done

    def began(self, connection: TlsTransport) -> None: ...

    def secured(self, connection: TlsTransport) -> asyncio.BaseProtocol:
        del connection
        if self.done.done():
            raise HandshakeFailed("hung_up", "the caller has given up")
        self.done.set_result(None)
        return self._protocol

    def failed(self, connection: TlsTransport, failure: HandshakeFailed) -> None:
        del connection
        if not self.done.done():
            self.done.set_exception(failure)
