"""`/ready`: whether this agent should get traffic.

Promises:
- It answers within `timeout_s`, however long a check takes.
- At most one round of checks runs at a time, and at most one every `cache_s`, so a health checker that asks
  too often costs nothing.

A check fails by raising. The error's text is the reason in the answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`run` raises if the agent should not serve. The message says what to do. `why_late` says what the check
    waits for, if that is known, when it takes too long.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    why_late: Callable[[], object] = lambda: None


class NotReady(Exception):
    """A check raises this to say why the agent is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """`failures` maps a check's name to its reason. The agent is ready if there are none."""

    failures: dict[str, str]

    @property
    def is_ready(self) -> bool:
        """True if every check passed."""
        return not self.failures


class Readinesses:
    """Runs the checks and keeps the last outcome for `cache_s`."""

    def __init__(self, checks: Sequence[Check], *, timeout_s: float, cache_s: float) -> None:
        self._checks = tuple(checks)
        self._timeout_s = timeout_s
        self._cache_s = cache_s
        self._one_round = asyncio.Lock()
        self._last: tuple[float, Readiness] | None = None

    async def current(self) -> Readiness:
        """Returns the outcome of a round that is at most `cache_s` old."""
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
        except Exception as error:  # noqa: BLE001 - any error is a reason in the answer
            return str(error) or type(error).__name__
        return None
