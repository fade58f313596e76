"""How a waiting fetch hears of news: the partitions of which more is known.

Promise: `take` names every partition with news since the last `take`. A fetch of a thousand partitions that
one commit wakes looks only at the partitions of that commit.
"""

import asyncio

from sequencer.commits.coordinates import PartitionKey


class Watch:
    """The watch of one fetch."""

    __slots__ = ("_event", "_news", "is_over")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._news: set[PartitionKey] = set()
        self.is_over = False
        """True if the fetch must answer now, with what there is."""

    def tell(self, key: PartitionKey) -> None:
        self._news.add(key)
        self._event.set()

    def end_wait(self) -> None:
        """Ends the wait of the fetch."""
        self.is_over = True
        self._event.set()

    def take(self) -> set[PartitionKey]:
        """Returns the partitions with news since the last call."""
        news, self._news = self._news, set()
        self._event.clear()
        return news

    async def wait(self, longest_s: float) -> bool:
        """Waits until there is news or the wait must end. False: neither came in time."""
        if self.is_over:
            return True
        try:
            async with asyncio.timeout(max(0.0, longest_s)):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
