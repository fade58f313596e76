"""How a waiting fetch hears of news: which of its partitions there is more to know of.

Promises that what is told between two looks is named by the second, so that a fetch of a thousand partitions that one
commit wakes looks at the partitions of that commit alone."""

import asyncio

from sequencer.coordinates import PartitionKey


class Watch:
    """Of one fetch."""

    __slots__ = ("_event", "_news")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._news: set[PartitionKey] = set()

    def tell(self, key: PartitionKey) -> None:
        self._news.add(key)
        self._event.set()

    def take(self) -> set[PartitionKey]:
        """The partitions told of since the last call."""
        news, self._news = self._news, set()
        self._event.clear()
        return news

    async def wait(self, longest_s: float) -> bool:
        """Until there is news; False if none came in time."""
        try:
            async with asyncio.timeout(max(0.0, longest_s)):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
