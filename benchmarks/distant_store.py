"""A store that is further away: passes each request on to an S3 endpoint after a delay.

`python -m benchmarks.distant_store LISTEN_PORT ENDPOINT_PORT DELAY_MS`; `distant` starts it as a child. A
request that follows an answer on its connection is held for the delay. Bytes themselves are not slowed down.
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
_START_TIMEOUT_S = 15.0


@contextmanager
def distant(endpoint: Endpoint, delay_ms: float, directory: Path) -> Iterator[Endpoint]:
    """The endpoint at this distance. Returns the endpoint itself if the distance is 0."""
    if not delay_ms:
        yield endpoint
        return
    port, log_file = free_port(), directory / "distant.log"
    near = urlsplit(endpoint.url)
    command = [sys.executable, "-m", "benchmarks.distant_store", str(port), str(near.port), str(delay_ms)]
    with child(command, log_file, {}) as process:
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)
        url = endpoint.store_url.replace(endpoint.url, f"http://127.0.0.1:{port}")
        yield replace(endpoint, name=f"{endpoint.name}, {delay_ms:g} ms away", store_url=url)


async def _serve(listen_port: int, endpoint_port: int, delay_s: float) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", endpoint_port)
        answered = asyncio.Event()
        answered.set()

        async def requests() -> None:
            while data := await reader.read(_READ_BYTES):
                if answered.is_set():
                    answered.clear()
                    await asyncio.sleep(delay_s)
                far_writer.write(data)
                await far_writer.drain()

        async def answers() -> None:
            while data := await far_reader.read(_READ_BYTES):
                answered.set()
                writer.write(data)
                await writer.drain()

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

    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
