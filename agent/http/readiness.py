"""Whether this agent should get traffic: `/ready`.

Promises an answer within `timeout_s` however long a check hangs, at most one round of checks at a time, and none more
often than every `cache_s`, so that a health checker gone wild costs nothing. A check fails by raising; its text is
the reason told.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`run` raises if the agent should not serve; the message names what to do. `why_late` says what it waits for, if
    that is known, where it takes too long."""

    name: str
    run: Callable[[], Awaitable[None]]
    why_late: Callable[[], object] = lambda: None


class NotReady(Exception):
    """What a check raises to say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """`failures` maps a check's name to its reason; ready when there are none."""

    failures: dict[str, str]

    @property
    def is_ready(self) -> bool:
        """Whether every check passed."""
        return not self.failures


class Readinesses:
    """Runs the checks and remembers the last outcome for a moment."""

    def __init__(self, checks: Sequence[Check], *, timeout_s: float, cache_s: float) -> None:
        self._checks = tuple(checks)
        self._timeout_s = timeout_s
        self._cache_s = cache_s
        self._one_round = asyncio.Lock()
        self._last: tuple[float, Readiness] | None = None

    async def current(self) -> Readiness:
        """The outcome of a round that is at most `cache_s` old."""
        async with self._one_round:
            if self._last is not None and time.monotonic() - self._last[0] < self._cache_s:
                return self._last[1]
            reasons = await asyncio.gather(*(self._reason(check) for check in self._checks))
            outcome = Readiness(
                failures={
                    check.name: reason
                    for check, reason in zip(self._checks, reasons, strict=True)
                    if reason is not None
                }
            )
            self._last = (time.monotonic(), outcome)
            return outcome

    async def _reason(self, check: Check) -> str | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await check.run()
        except TimeoutError:
            return str(check.why_late() or f"no answer within {self._timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - whatever a check raises is its reason, told to the health checker
            return str(error) or type(error).__name__
        return None
