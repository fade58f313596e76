"""The object store alone: 8 MiB objects put and got through the client that agents use, several at a time."""

import asyncio
import os
import time
from dataclasses import dataclass

from benchmarks.endpoints import Endpoint
from storage.identifiers import ObjectKey
from storage.open_store import open_store

OBJECT_BYTES = 8 << 20
OBJECTS = 48
AT_A_TIME = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RawThroughput:
    """Bytes per second."""

    put: float
    get: float


def measure(endpoint: Endpoint) -> RawThroughput:
    return asyncio.run(_measure(endpoint))


async def _measure(endpoint: Endpoint) -> RawThroughput:
    store = await open_store(endpoint.store_url, endpoint.settings())
    keys = [ObjectKey(f"raw/{number}") for number in range(OBJECTS)]
    body = os.urandom(OBJECT_BYTES)
    turns = asyncio.Semaphore(AT_A_TIME)

    async def put(key: ObjectKey) -> None:
        async with turns:
            await store.put(key, [body])

    async def get(key: ObjectKey) -> None:
        async with turns:
            assert len(await store.get(key)) == OBJECT_BYTES

    try:
        await put(keys[0])  # opens connections
        started = time.perf_counter()
        await asyncio.gather(*map(put, keys))
        half = time.perf_counter()
        await asyncio.gather(*map(get, keys))
        ended = time.perf_counter()
        await store.delete(keys)
    finally:
        await store.close()
    return RawThroughput(put=OBJECTS * OBJECT_BYTES / (half - started), get=OBJECTS * OBJECT_BYTES / (ended - half))
