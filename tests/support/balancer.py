"""A TCP load balancer as serverless platforms put before containers: connections go to its targets in turn.

Test equipment: it does not read the bytes, and skips a target that does not accept.
"""

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pytest

_CHUNK_BYTES = 65_536
_PATIENCE_S = 30.0


class Balancer:
    """Listens on a free port, in its own thread. `targets` may be set at any time."""

    def __init__(self) -> None:
        self.targets: Sequence[tuple[str, int]] = ()
        self.connections: Counter[tuple[str, int]] = Counter()
        """The number of connections that each target has accepted."""
        self.port = 0
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="balancer", daemon=True)
        self._listening = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def skip_a_turn(self) -> None:
        """Chooses targets so that clients with equally many connections do not all share one target."""
        next(self._turn)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(_PATIENCE_S), "the balancer does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        async def listen() -> asyncio.Server:
            return await asyncio.start_server(self._serve, "127.0.0.1", 0)

        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(listen())
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in self.targets:
                target = self.targets[next(self._turn) % len(self.targets)]
                with contextlib.suppress(OSError):
                    target_reader, target_writer = await asyncio.open_connection(*target)
                    break
            else:
                return
            self.connections[target] += 1
            try:
                await _first_of(_pipe(reader, target_writer), _pipe(target_reader, writer))
            finally:
                target_writer.close()
        except asyncio.CancelledError:
            pass  # the balancer stops; Python 3.11 reports a cancelled connection as an error
        finally:
            writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


async def _first_of(*waits: Coroutine[Any, Any, None]) -> None:
    """When one side closes, closes the other side."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def balancer() -> Iterator[Balancer]:
    with Balancer() as listening:
        yield listening
