"""Turns on a connection: what must happen in request order, among requests that otherwise run concurrently (DESIGN §5).

Promises: `my_turn` returns for a request only after every earlier one of the connection took its turn or ended; a
request that ends without having taken its turn gives it away, so no later one waits for ever.
"""

import asyncio


class Turn:
    """One request's place. Created in request order."""

    __slots__ = ("_earlier", "_taken")

    def __init__(self, earlier: asyncio.Future[None] | None) -> None:
        self._earlier = earlier
        self._taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def my_turn(self) -> None:
        """Wait for all earlier requests. Nothing may be awaited between this and `done`."""
        if self._earlier is not None:
            await asyncio.shield(self._earlier)

    def done(self) -> None:
        """Let the next one go as soon as all earlier ones went."""
        if self._taken.done():
            return
        if self._earlier is None or self._earlier.done():
            self._taken.set_result(None)
            self._earlier = None
        else:
            self._earlier.add_done_callback(self._give_away)

    def _give_away(self, _: asyncio.Future[None]) -> None:
        if not self._taken.done():
            self._taken.set_result(None)

    @property
    def taken(self) -> asyncio.Future[None]:
        return self._taken


class Turns:
    """Hands out the places of one connection."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    def next(self) -> Turn:
        last = None if self._last is None or self._last.done() else self._last
        turn = Turn(last)
        self._last = turn.taken
        return turn
