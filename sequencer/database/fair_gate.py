"""A gate with a bounded number of places, taken in fair turns (`fair_queue.py`)."""

import asyncio

from sequencer.database.errors import TooManyWait
from sequencer.database.fair_queue import Asker, FairQueue


class FairGate:
    """`places` may be inside at a time, `most_waiting` may wait."""

    def __init__(self, places: int, most_waiting: int) -> None:
        self._free = places
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(most_waiting)

    async def enter(self, asker: Asker) -> None:
        """Call `leave` afterwards. Raises TooManyWait."""
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused = self._queue.add(asker, place)
        if refused is not None and not refused.done():
            refused.set_exception(TooManyWait())
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:
                self.leave()  # it got a place in the same moment
            self._queue.remove(asker, place)
            raise

    def leave(self) -> None:
        while self._queue:
            place = self._queue.next()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def used_share(self, asker: Asker) -> float:
        """Returns which share of its fair part of the queue this asker uses; 1.0 is all of it."""
        return self._queue.used_share(asker)
