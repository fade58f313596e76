"""Uploads to a store that stalls and fails on demand: retries, the hedged second attempt, timeouts, their
tokens.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.outcomes import LastOutcomes
from agent.write_path.uploader import Uploader, UploadFailed
from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import StoreUnavailable
from tests.support.virtual_time import run_virtually
from tests.support.waiting import until

KEY = ObjectKey("a/segment")
FOREVER_S = 60.0
UNTIL_JOINED = -1.0
"""Trouble that ends when the next PUT begins."""


class StoreAway(MemoryStore):
    """Keeps neither the bytes that it was given nor its errors."""

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        del key, chunks
        raise StoreUnavailable("away")


class TroubledStore(MemoryStore):
    """A memory store whose n-th PUT first waits, and then fails if it should."""

    def __init__(self, *troubles: float | Exception) -> None:
        super().__init__()
        self._troubles = list(troubles)
        self.puts_begun = 0

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        number, self.puts_begun = self.puts_begun, self.puts_begun + 1
        trouble = self._troubles[number] if number < len(self._troubles) else 0.0
        if isinstance(trouble, Exception):
            raise trouble
        if trouble == UNTIL_JOINED:
            await until(lambda: self.puts_begun > number + 1)
        else:
            await asyncio.sleep(trouble)
        await super().put(key, chunks)


def an_uploader(
    store: MemoryStore, clock: Callable[[], float] = time.monotonic, **settings: float
) -> tuple[Uploader, Metrics, list[int]]:
    metrics = Metrics()
    tokens = count(1)
    spent: list[int] = []
    given: dict[str, Any] = {"upload_backoff_s": 0.001, "hedge_after_min_s": 0.05, **settings}
    uploader = Uploader(
        store,
        AgentSettings(**given),
        metrics,
        clock,
        on_put=lambda: spent.append(next(tokens)),
        outcomes=LastOutcomes("uploads to the object store", 10.0),
    )
    return uploader, metrics, spent


def puts(metrics: Metrics, kind: str) -> float:
    return metrics.registry.get_sample_value("tidelog_puts_total", {"kind": kind}) or 0.0


async def test_an_upload_is_tried_again_until_the_store_takes_it() -> None:
    store = TroubledStore(StoreUnavailable("away"), StoreUnavailable("away"))
    uploader, metrics, spent = an_uploader(store)

    await uploader.upload(KEY, b"bytes")

    assert await store.get(KEY) == b"bytes"
    assert (puts(metrics, "first"), puts(metrics, "retry"), len(spent)) == (1, 2, 3)


async def test_an_upload_that_fails_for_good_says_why() -> None:
    store = TroubledStore(*[StoreUnavailable("it burns")] * 9)
    uploader, _, spent = an_uploader(store, upload_attempts=3)

    with pytest.raises(UploadFailed, match="it burns"):
        await uploader.upload(KEY, b"bytes")

    assert len(spent) == 3


async def test_a_failed_upload_releases_its_bytes_at_once() -> None:
    uploader, _, _ = an_uploader(StoreAway())
    data = bytes(1000)
    held = sys.getrefcount(data)
    gc.disable()
    try:
        with pytest.raises(UploadFailed):
            await uploader.upload(KEY, data)
        await asyncio.sleep(0)  # the event loop's last callback has the error, too
        assert sys.getrefcount(data) == held, (
            "only a search for cycles would free it, and nothing says when that comes"
        )
    finally:
        gc.enable()


async def test_an_upload_that_stalls_is_joined_by_a_second_one_and_the_first_success_counts() -> None:
    store = TroubledStore(FOREVER_S)
    uploader, metrics, spent = an_uploader(store, upload_timeout_s=4.0)

    await asyncio.wait_for(uploader.upload(KEY, b"bytes"), 60)

    assert await store.get(KEY) == b"bytes"
    assert (puts(metrics, "first"), puts(metrics, "hedge"), len(spent)) == (1, 1, 2)


async def test_a_hedge_that_fails_does_not_fail_the_attempt_it_joined() -> None:
    store = TroubledStore(UNTIL_JOINED, StoreUnavailable("away"))
    uploader, metrics, _ = an_uploader(store, upload_timeout_s=2.0)

    await uploader.upload(KEY, b"bytes")

    assert (puts(metrics, "first"), puts(metrics, "hedge"), puts(metrics, "retry")) == (1, 1, 0)


async def test_an_attempt_and_its_hedge_that_both_stall_are_given_up_after_the_timeout() -> None:
    store = TroubledStore(FOREVER_S, FOREVER_S)
    uploader, metrics, _ = an_uploader(store, upload_timeout_s=0.8)

    await asyncio.wait_for(uploader.upload(KEY, b"bytes"), 60)

    assert (puts(metrics, "first"), puts(metrics, "hedge"), puts(metrics, "retry")) == (1, 1, 1)


async def test_cancelling_an_upload_leaves_no_attempt_behind() -> None:
    uploader, _, _ = an_uploader(TroubledStore(FOREVER_S, FOREVER_S), upload_timeout_s=FOREVER_S)
    upload = asyncio.create_task(uploader.upload(KEY, b"bytes"))
    await asyncio.sleep(0)
    before = asyncio.all_tasks()

    upload.cancel()
    await asyncio.gather(upload, return_exceptions=True)

    assert asyncio.all_tasks() <= before - {upload}
    assert len(asyncio.all_tasks()) == 1


def test_hedges_wait_for_the_p99_of_recent_uploads() -> None:
    async def main() -> None:
        store = TroubledStore(*[0.5] * 20, *[0.4] * 20, 0.49, 0.51)
        uploader, metrics, _ = an_uploader(store, asyncio.get_running_loop().time, hedge_after_min_s=0.001)

        for _ in range(41):
            await uploader.upload(KEY, b"bytes")
        hedges_within = puts(metrics, "hedge")
        await uploader.upload(KEY, b"bytes")

        assert (hedges_within, puts(metrics, "hedge")) == (0, 1)

    run_virtually(main)
