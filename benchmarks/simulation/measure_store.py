"""What the object store takes, through the client that agents use: latency by size, and the store's own
CPU.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.endpoints import Endpoint
from benchmarks.simulation.calibration import StoreCost
from benchmarks.simulation.exact_cpu import cpu_times, spent_s
from benchmarks.simulation.fitting import fit
from benchmarks.simulation.latency import Latency
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectStore
from storage.stores.open_store import open_store

_SIZES = (65_536, 1 << 20, 4 << 20)
_TIMES = 60
_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    size_bytes: int
    took_s: list[float]
    store_cpu_s: float
    """Each."""


def measure_store(endpoint: Endpoint) -> StoreCost:
    return asyncio.run(_measure(endpoint))


async def _measure(endpoint: Endpoint) -> StoreCost:
    store = await open_store(endpoint.store_url, endpoint.settings())
    try:
        puts = [await _puts(store, endpoint, size) for size in _SIZES]
        gets = [await _gets(store, endpoint, size) for size in _SIZES]
    finally:
        await store.close()
    put, put_speed = _latency(puts)
    get, get_speed = _latency(gets)
    put_cpu = fit([(1, one.size_bytes) for one in puts], [one.store_cpu_s for one in puts])
    get_cpu = fit([(1, one.size_bytes) for one in gets], [one.store_cpu_s for one in gets])
    return StoreCost(
        put=put,
        put_bytes_per_s=put_speed,
        get=get,
        get_bytes_per_s=get_speed,
        cpu_per_put_s=put_cpu[0],
        cpu_per_put_byte_s=put_cpu[1],
        cpu_per_get_s=get_cpu[0],
        cpu_per_get_byte_s=get_cpu[1],
    )


async def _puts(store: ObjectStore, endpoint: Endpoint, size_bytes: int) -> _Requests:
    body = os.urandom(size_bytes)
    return await _times(endpoint, size_bytes, lambda number: store.put(_key(size_bytes, number), [body]))


async def _gets(store: ObjectStore, endpoint: Endpoint, size_bytes: int) -> _Requests:
    return await _times(endpoint, size_bytes, lambda number: store.get(_key(size_bytes, number)))


async def _times(
    endpoint: Endpoint, size_bytes: int, request: Callable[[int], Awaitable[object]]
) -> _Requests:
    await request(0)
    before, took_s = cpu_times(endpoint.pid), []
    for number in range(_TIMES):
        began_s = time.perf_counter()
        await request(number)
        took_s.append(time.perf_counter() - began_s)
        await asyncio.sleep(_PAUSE_S)
    store_cpu_s = spent_s(before, cpu_times(endpoint.pid)) / _TIMES
    return _Requests(size_bytes=size_bytes, took_s=took_s, store_cpu_s=store_cpu_s)


def _latency(requests: list[_Requests]) -> tuple[Latency, float]:
    """At no size, and the bytes per second on top; the spread is that of all sizes, relative to their
    median.
    """
    medians = [float(np.median(one.took_s)) for one in requests]
    fixed_s, per_byte_s = fit([(1, one.size_bytes) for one in requests], medians)
    beyond = [took - median for one, median in zip(requests, medians, strict=True) for took in one.took_s]
    p50_s = max(fixed_s, 1e-4)
    return Latency(p50_s=p50_s, p99_s=p50_s + max(0.0, float(np.quantile(beyond, 0.99)))), 1 / max(
        per_byte_s, 1e-12
    )


def _key(size_bytes: int, number: int) -> ObjectKey:
    return ObjectKey(f"model/{size_bytes}/{number}")
