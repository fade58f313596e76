"""The page cache: bounded, least recently used pages go first, one load per page. Failures and cancellations
concern only their load.
"""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_ring.pages.byte_budget import ByteBudget
from cache_ring.pages.page_cache import PageCache


class Loader:
    """Loads on demand, and counts."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> bytes:
        self.started += 1
        try:
            return await asyncio.shield(self.result)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def settle() -> None:
    """Lets every task continue that can."""
    for _ in range(5):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40))))
def test_no_more_than_the_budget_is_kept(puts: list[tuple[int, int]]) -> None:
    cache: PageCache[int] = PageCache(100)

    for key, size in puts:
        cache.put(key, bytes(size))

    kept = {key: page for key in range(10) if (page := cache.get(key)) is not None}
    assert cache.kept_bytes == sum(len(page) for page in kept.values()) <= 100


def test_the_least_recently_used_page_goes_first() -> None:
    cache: PageCache[str] = PageCache(20)
    cache.put("old", bytes(10))
    cache.put("new", bytes(10))
    cache.get("old")

    cache.put("newest", bytes(10))

    assert ("old" in cache, "new" in cache, "newest" in cache) == (True, False, True)


async def test_a_page_asked_for_by_many_is_loaded_once() -> None:
    cache: PageCache[str] = PageCache(100)
    load = Loader()

    waiters = [asyncio.create_task(cache.get_or_load("page", load)) for _ in range(20)]
    await settle()
    load.result.set_result(b"bytes")

    assert await asyncio.gather(*waiters) == [b"bytes"] * 20
    assert (load.started, await cache.get_or_load("page", load), load.started) == (1, b"bytes", 1)


async def test_a_cancelled_waiter_cancels_no_load_that_others_wait_for() -> None:
    cache: PageCache[str] = PageCache(100)
    load = Loader()
    first, second = (asyncio.create_task(cache.get_or_load("page", load)) for _ in range(2))
    await settle()

    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    load.result.set_result(b"bytes")

    assert await second == b"bytes"


async def test_a_load_ends_when_its_last_waiter_is_gone() -> None:
    cache: PageCache[str] = PageCache(100)
    load = Loader()
    waiters = [asyncio.create_task(cache.get_or_load("page", load)) for _ in range(2)]
    await settle()

    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    await settle()
    again = asyncio.create_task(cache.get_or_load("page", load))
    await settle()
    load.result.set_result(b"bytes")

    assert (await again, load.cancelled, load.started) == (b"bytes", 1, 2)


async def test_a_failed_load_fails_its_waiters_and_is_dropped() -> None:
    cache: PageCache[str] = PageCache(100)
    failing, working = Loader(), Loader()
    waiters = [asyncio.create_task(cache.get_or_load("page", failing)) for _ in range(2)]
    await settle()
    failing.result.set_exception(OSError("away"))
    working.result.set_result(b"bytes")

    assert [type(error) for error in await asyncio.gather(*waiters, return_exceptions=True)] == [
        OSError,
        OSError,
    ]
    assert await cache.get_or_load("page", working) == b"bytes"


async def test_a_page_larger_than_the_budget_is_served_and_not_kept() -> None:
    cache: PageCache[str] = PageCache(3)
    load = Loader()
    load.result.set_result(b"bytes")

    assert await cache.get_or_load("page", load) == b"bytes"
    assert ("page" in cache, cache.kept_bytes) == (False, 0)


async def test_closing_ends_every_load() -> None:
    cache: PageCache[str] = PageCache(100)
    load = Loader()
    waiter = asyncio.create_task(cache.get_or_load("page", load))
    await settle()

    await cache.close()

    assert load.cancelled == 1
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_a_byte_budget_is_never_exceeded_and_serves_in_order_of_arrival() -> None:
    budget = ByteBudget(100)
    order: list[int] = []
    most = 0

    async def use(number: int, size: int) -> None:
        nonlocal most
        async with budget.taken(size):
            order.append(number)
            most = max(most, budget.taken_bytes)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(number, size) for number, size in enumerate([60, 60, 10, 500, 10, 90])))

    assert order == list(range(6))
    assert (most, budget.taken_bytes) == (100, 0)


async def test_a_cancelled_waiter_for_a_byte_budget_leaves_it_to_the_next() -> None:
    budget = ByteBudget(10)
    taken = await budget.take(10)
    impatient, patient = asyncio.create_task(budget.take(10)), asyncio.create_task(budget.take(5))
    await settle()

    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    budget.give_back(taken)

    assert await patient == 5
    budget.give_back(5)
    assert budget.taken_bytes == 0


async def test_bytes_given_back_while_their_waiter_is_being_cancelled_go_to_the_next() -> None:
    budget = ByteBudget(10)
    taken = await budget.take(10)
    cancelled, patient = asyncio.create_task(budget.take(10)), asyncio.create_task(budget.take(10))
    await settle()

    cancelled.cancel()
    budget.give_back(taken)

    assert await patient == 10
    assert budget.taken_bytes == 10
    budget.give_back(10)
    await asyncio.gather(cancelled, return_exceptions=True)
    assert budget.taken_bytes == 0


async def test_what_is_dropped_does_not_come_back_by_a_load_that_had_begun() -> None:
    cache: PageCache[str] = PageCache(100)
    cache.put("old", b"1")
    cache.put("new", b"2")
    loader = Loader()
    waiting = asyncio.create_task(cache.get_or_load("old too", loader))
    await settle()

    cache.drop_all(lambda key: key.startswith("old"))
    loader.result.set_result(b"3")

    assert await waiting == b"3"
    await settle()
    assert (cache.get("old"), cache.get("old too"), cache.get("new")) == (None, None, b"2")
    assert cache.kept_bytes == 1
