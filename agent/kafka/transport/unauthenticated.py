"""Connections of SASL listeners whose clients have not authenticated: how many, and what memory they take.

Promises:
- There are at most `sasl_max_unauthenticated`. A new one closes the one that has waited longest: an honest
  client needs milliseconds, one that only holds a place loses it.
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
        self._waiting: dict[_Closable, None] = {}
        """In the order in which they came."""

    def __len__(self) -> int:
        return len(self._waiting)

    def memory_of(self, size_bytes: int) -> MemoryBudget:
        return self._small if size_bytes <= SMALL_FRAME_BYTES else self._large

    def enter(self, connection: _Closable) -> None:
        if len(self._waiting) >= self._most:
            self.displace()
        self._waiting[connection] = None
        self._metrics.unauthenticated.set(len(self._waiting))

    def leave(self, connection: _Closable) -> None:
        """Its client has authenticated, or it has ended. May be called again."""
        self._waiting.pop(connection, None)
        self._metrics.unauthenticated.set(len(self._waiting))

    def displace(self) -> bool:
        """Closes the one that has waited longest. False: there is none."""
        first = next(iter(self._waiting), None)
        if first is None:
            return False
        del self._waiting[first]
        first.close("unauthenticated_displaced")
        return True
