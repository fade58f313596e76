"""Strangers at a port: `python -m tests.faults.strangers HOST PORT STRANGERS SECONDS`.

Each sends as much as it can, in one of several protocols, and reconnects as soon as it is disconnected.
Prints a line when all have connected once, and at the end the number of connections.
"""

import asyncio
import contextlib
import os
import sys

from cache_ring.peers.page_protocol import PREFACE as PAGES
from cache_ring.peers.peer_proof import PREFACE as HELLO
from cache_ring.ring.probe_protocol import PREFACE as PROBES

_FRAME = (1 << 20).to_bytes(4, "big") + os.urandom(1 << 20)
_OPENINGS = (
    PAGES,
    PROBES,
    b"TIDELOG KAFKA 1\n\xff\xff",
    HELLO + bytes(48),  # knows no secret
    HELLO + os.urandom(48),
    HELLO,  # and then goes on slowly
    b"GET / HTTP/1.1\r\n",
    b"",
)
_PAUSE_S = 0.05


async def strange(host: str, port: int, number: int, came: list[int]) -> None:
    """Until cancelled."""
    opening = _OPENINGS[number % len(_OPENINGS)]
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            came[number] += 1
            try:
                writer.write(opening)
                if opening in (b"", HELLO):
                    await reader.read()  # waits for what may come, for as long as it may stay
                while True:
                    writer.write(_FRAME)
                    await writer.drain()
            finally:
                writer.transport.abort()
        await asyncio.sleep(_PAUSE_S)


async def attack(host: str, port: int, strangers: int, seconds: float) -> None:
    came = [0] * strangers
    tasks = [asyncio.create_task(strange(host, port, number, came)) for number in range(strangers)]
    while not all(came):  # noqa: ASYNC110 - five hundred tasks count here
        await asyncio.sleep(0.05)
    print("all have come", flush=True)
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(sum(came), flush=True)


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
