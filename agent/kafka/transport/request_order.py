"""Turns on a connection: the order in which requests that run at the same time take effect
(docs/design/failure-rules.md#order-on-a-connection).

Promises:
- `my_turn` returns for a request only after every earlier one of the connection took its turn or ended.
- A request that ends without its turn passes it on, so no later one waits for ever.
"""

import asyncio


class Turn:
    """One request's place. Created in request order."""

    __slots__ = ("_earlier", "_passed", "is_over")

    def __init__(self, earlier: "Turn | None") -> None:
        self._earlier = earlier
        self._passed: asyncio.Future[None] | None = None
        """Made at the first waiter: most requests come one at a time."""
        self.is_over = False

    @property
    def is_next(self) -> bool:
        """True if the turn needs no wait."""
        return self._earlier is None or self._earlier.is_over

    async def my_turn(self) -> None:
        """Waits for all earlier requests. What the caller awaits before `done` holds up all later ones."""
        if self._earlier is not None and not self._earlier.is_over:
            await asyncio.shield(self._earlier.passed())

    def done(self) -> None:
        """Lets the next request go as soon as all earlier ones went."""
        if self.is_over:
            return
        if self._earlier is None or self._earlier.is_over:
            self._pass_on()
        else:
            self._earlier.passed().add_done_callback(self._pass_on)

    def passed(self) -> asyncio.Future[None]:
        """Returns a future that is done when this turn is over."""
        if self._passed is None:
            self._passed = asyncio.get_running_loop().create_future()
        return self._passed

    def _pass_on(self, _: asyncio.Future[None] | None = None) -> None:
        self.is_over = True
        self._earlier = None
        if self._passed is not None and not self._passed.done():
            self._passed.set_result(None)


class Turns:
    """Hands out the places of one connection."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Turn | None = None

    def next(self) -> Turn:
        self._last = Turn(None if self._last is None or self._last.is_over else self._last)
        return self._last
