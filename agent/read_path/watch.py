"""How a waiting fetch hears of news: which of its partitions there is more to know of.

Promises that what is told between two looks is named by the second, so that a fetch of a thousand partitions that one
commit wakes looks at the partitions of that commit alone."""

import asyncio

from sequencer.commits.coordinates import PartitionKey


class Watch:
    """Of one fetch."""

    __slots__ = ("_event", "_news", "is_over")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._news: set[PartitionKey] = set()
        self.is_over = False
        """Whether the fetch is to answer now, with what there is."""

    def tell(self, key: PartitionKey) -> None:
        self._news.add(key)
        self._event.set()

    def end_wait(self) -> None:
        """The fetch shall wait no longer."""
        self.is_over = True
        self._event.set()

    def take(self) -> set[PartitionKey]:
        """The partitions told of since the last call."""
        news, self._news = self._news, set()
        self._event.clear()
        return news

    async def wait(self, longest_s: float) -> bool:
        """Until there is news or the wait is to end; False if neither came in time."""
        if self.is_over:
            return True
        try:
            async with asyncio.timeout(max(0.0, longest_s)):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
