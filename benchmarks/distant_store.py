"""A store that is further away: passes each request on to an S3 endpoint after a delay.

`python -m benchmarks.distant_store LISTEN_PORT ENDPOINT_PORT DELAY_MS [BYTES_PER_S]`; `distant` starts it as
a child. A request that follows an answer on its connection is held for the delay. With a bandwidth, all
connections share it, in turns of 4 KiB, for each direction. Without one, bytes are not slowed down.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.endpoints import Endpoint
from tests.support.child import child, free_port, wait_until_open

_READ_BYTES = 1 << 18
_PIECE_BYTES = 1 << 12
_SHORTEST_SLEEP_S = 0.002
_BURST_S = 0.05
"""What a late wake-up may make up for."""
_START_TIMEOUT_S = 15.0


@contextmanager
def distant(
    endpoint: Endpoint, delay_ms: float, directory: Path, bytes_per_s: float | None = None
) -> Iterator[Endpoint]:
    """The endpoint at this distance and bandwidth. Without both, returns the endpoint itself."""
    if not delay_ms and bytes_per_s is None:
        yield endpoint
        return
    port, log_file = free_port(), directory / "distant.log"
    near = urlsplit(endpoint.url)
    command = [sys.executable, "-m", "benchmarks.distant_store", str(port), str(near.port), str(delay_ms)]
    command += [] if bytes_per_s is None else [str(bytes_per_s)]
    with child(command, log_file, {}) as process:
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)
        url = endpoint.store_url.replace(endpoint.url, f"http://127.0.0.1:{port}")
        yield replace(endpoint, name=f"{endpoint.name}, {delay_ms:g} ms away", store_url=url)


class _Bandwidth:
    """What all connections may send in one direction. They take turns, one piece each."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._turn = asyncio.Lock()
        self._free_s = 0.0

    async def passed(self, size_bytes: int) -> None:
        async with self._turn:
            now_s = asyncio.get_running_loop().time()
            self._free_s = max(self._free_s, now_s - _BURST_S) + size_bytes / self._bytes_per_s
            if self._free_s - now_s > _SHORTEST_SLEEP_S:
                await asyncio.sleep(self._free_s - now_s)


async def _write(writer: asyncio.StreamWriter, data: bytes, bandwidth: _Bandwidth | None) -> None:
    for start in range(0, len(data), _PIECE_BYTES if bandwidth else len(data)):
        piece = data[start : start + _PIECE_BYTES] if bandwidth else data
        if bandwidth is not None:
            await bandwidth.passed(len(piece))
        writer.write(piece)
        await writer.drain()


async def _serve(
    listen_port: int, endpoint_port: int, delay_s: float, bytes_per_s: float | None = None
) -> None:
    to_store = None if bytes_per_s is None else _Bandwidth(bytes_per_s)
    from_store = None if bytes_per_s is None else _Bandwidth(bytes_per_s)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", endpoint_port)
        answered = asyncio.Event()
        answered.set()

        async def requests() -> None:
            while data := await reader.read(_READ_BYTES):
                if answered.is_set():
                    answered.clear()
                    await asyncio.sleep(delay_s)
                await _write(far_writer, data, to_store)

        async def answers() -> None:
            while data := await far_reader.read(_READ_BYTES):
                answered.set()
                await _write(writer, data, from_store)

        tasks = [asyncio.ensure_future(requests()), asyncio.ensure_future(answers())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(OSError):
                await asyncio.gather(*tasks, return_exceptions=True)
            far_writer.close()
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", listen_port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(
        _serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000, *map(float, sys.argv[4:]))
    )
