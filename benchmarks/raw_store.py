"""The object store alone, through the client that agents use: throughput of 8 MiB objects, latency of small
ones.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from benchmarks.endpoints import Endpoint
from benchmarks.figures import Figures, percentile
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectStore
from storage.stores.open_store import open_store

OBJECT_BYTES = 8 << 20
AT_A_TIME = 4
"""An agent under full load has two to four uploads in flight."""
SMALL_BYTES = 4_096
_OBJECTS = 32
_PUTS, _PAUSE_S = 50, 0.04


def throughput(endpoint: Endpoint, seconds: float) -> Figures:
    """Throughput of PUT and GET, `seconds` each, four objects at a time."""
    return asyncio.run(_with_store(endpoint, lambda store: _throughput(store, seconds)))


def put_latency(endpoint: Endpoint, size_bytes: int) -> Figures:
    """Latency of PUTs of one size, one after another with a pause between them."""
    return asyncio.run(_with_store(endpoint, lambda store: _latency(store, size_bytes)))


async def _with_store(endpoint: Endpoint, work: Callable[[ObjectStore], Awaitable[Figures]]) -> Figures:
    store = await open_store(endpoint.store_url, endpoint.settings())
    try:
        return await work(store)
    finally:
        await store.close()


async def _throughput(store: ObjectStore, seconds: float) -> Figures:
    keys = [ObjectKey(f"raw/{number}") for number in range(_OBJECTS)]
    body = os.urandom(OBJECT_BYTES)

    async def put(key: ObjectKey) -> None:
        await store.put(key, [body])

    async def get(key: ObjectKey) -> None:
        assert len(await store.get(key)) == OBJECT_BYTES

    for key in keys:
        await put(key)  # opens connections, and writes objects to read later
    put_rate = await _rate(put, keys, seconds)
    get_rate = await _rate(get, keys, seconds)
    await store.delete(keys)
    return {"raw_put_mb_per_s": put_rate, "raw_get_mb_per_s": get_rate}


async def _rate(work: Callable[[ObjectKey], Awaitable[None]], keys: list[ObjectKey], seconds: float) -> float:
    done = 0
    began_s = time.perf_counter()

    async def keep_working(first: int) -> None:
        nonlocal done
        turn = first
        while time.perf_counter() < began_s + seconds:
            await work(keys[turn % len(keys)])
            turn += AT_A_TIME
            done += 1

    await asyncio.gather(*(keep_working(first) for first in range(AT_A_TIME)))
    return done * OBJECT_BYTES / 1e6 / (time.perf_counter() - began_s)


async def _latency(store: ObjectStore, size_bytes: int) -> Figures:
    body = os.urandom(size_bytes)
    taken_ms = []
    for number in range(_PUTS + 1):
        began_s = time.perf_counter()
        await store.put(ObjectKey(f"raw-small/{number}"), [body])
        taken_ms.append((time.perf_counter() - began_s) * 1000)
        await asyncio.sleep(_PAUSE_S)
    del taken_ms[0]  # opens a connection
    return {"raw_put_p50_ms": percentile(taken_ms, 50), "raw_put_p99_ms": percentile(taken_ms, 99)}
