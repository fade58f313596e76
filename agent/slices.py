"""Long work on the event loop in slices, between which others get their turn."""

import asyncio
import time
from typing import Final

_SLICE_S: Final = 0.002


class Slices:
    """Of one piece of work."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def look(self) -> None:
        """Ends the slice if it has taken long enough. Call it about every 50 µs of work."""
        if time.perf_counter() - self._began_s > _SLICE_S:
            await asyncio.sleep(0)
            self._began_s = time.perf_counter()
