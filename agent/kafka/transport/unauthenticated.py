"""Connections of SASL listeners whose clients have not authenticated: how many, and what memory they take.

Promises:
- There are at most `sasl_max_unauthenticated`. A new one closes another: of the host that has most, the one
  that has waited longest. So hosts do not take each other's places, and an honest client, which needs
  milliseconds, loses its place last.
- They take nothing from the memory of authenticated clients' requests. Frames of up to 16 KiB, as honest
  clients send, never wait for memory. Larger ones share `sasl_large_frames_bytes`.
"""

from typing import Final, Protocol

from agent.kafka.transport.memory import MemoryBudget
from agent.metrics import Metrics
from agent.security.sasl.settings import SaslSettings

SMALL_FRAME_BYTES: Final = 16_384


class _Closable(Protocol):
    def close(self, reason: str) -> None: ...


def small_frames_bytes(settings: SaslSettings) -> int:
    """Returns what one small frame of each such connection takes."""
    return SMALL_FRAME_BYTES * settings.sasl_max_unauthenticated


class Unauthenticated:
    def __init__(self, settings: SaslSettings, metrics: Metrics) -> None:
        self._most = settings.sasl_max_unauthenticated
        self._metrics = metrics
        # One more, because a connection that is displaced ends a little later.
        self._small = MemoryBudget(2 * small_frames_bytes(settings))
        self._large = MemoryBudget(max(settings.sasl_large_frames_bytes, settings.sasl_max_receive_bytes))
        self._waiting: dict[str, dict[_Closable, None]] = {}
        """Those of each host, in the order in which they came."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def memory_of(self, size_bytes: int) -> MemoryBudget:
        return self._small if size_bytes <= SMALL_FRAME_BYTES else self._large

    def enter(self, connection: _Closable, host: str) -> None:
        if self._count >= self._most:
            self.displace()
        self._waiting.setdefault(host, {})[connection] = None
        self._note(1)

    def leave(self, connection: _Closable, host: str) -> None:
        """Its client has authenticated, or it has ended. May be called again."""
        of_host = self._waiting.get(host, {})
        if connection in of_host:
            del of_host[connection]
            if not of_host:
                del self._waiting[host]
            self._note(-1)

    def displace(self) -> bool:
        """Closes one. False: there is none."""
        if not self._waiting:
            return False
        host = max(self._waiting, key=lambda one: len(self._waiting[one]))
        first = next(iter(self._waiting[host]))
        self.leave(first, host)
        first.close("unauthenticated_displaced")
        return True

    def _note(self, change: int) -> None:
        self._count += change
        self._metrics.unauthenticated.set(self._count)
