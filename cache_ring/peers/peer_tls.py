"""TLS between agents, as `cache_ring` uses it. `agent/security/tls/peers.py` implements it."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

TLS_RECORD: Final = 0x16
"""The first byte of a TLS handshake. The proof of a peer begins with a letter."""


class PeerTls(Protocol):
    @property
    def is_required(self) -> bool:
        """True if connections without TLS are turned away."""
        ...

    def accept(self, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.BufferedProtocol:
        """Returns the protocol of a connection that was just accepted. It calls `protocol` once the other
        side has shown a certificate of the cluster's CA.
        """
        ...

    async def connect(self, host: str, port: int, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Connects `protocol`, and returns once both certificates are verified. Raises OSError."""
        ...

    def close(self) -> None:
        """Ends the handshakes that are under way."""
        ...
