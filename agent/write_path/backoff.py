"""Pauses between attempts: doubled each time up to a cap, with full jitter."""

import asyncio
import random

LONGEST_PAUSE_S = 2.0


class Backoff:
    def __init__(self, first_s: float, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    async def wait(self) -> None:
        pause_s = random.uniform(self._next_s / 2, self._next_s)
        self._next_s = min(self._longest_s, self._next_s * 2)
        await asyncio.sleep(pause_s)
