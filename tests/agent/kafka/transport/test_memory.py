"""The budget for requests in memory: never exceeded, served in the order of arrival, given back once all have
released.
"""

import asyncio

import pytest

from agent.kafka.transport.memory import MemoryBudget


async def test_a_request_waits_until_another_one_has_gone() -> None:
    budget = MemoryBudget(100)
    first = await budget.reserve(70)

    second = asyncio.create_task(budget.reserve(50))
    await asyncio.sleep(0)
    assert budget.waiters == 1
    first.release()

    assert (await second).size_bytes == 50
    assert budget.used_bytes == 50


async def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    budget = MemoryBudget(100)
    first = await budget.reserve(60)
    large = asyncio.create_task(budget.reserve(100))
    await asyncio.sleep(0)

    assert budget.try_reserve(10) is None
    first.release()
    (await large).release()

    assert budget.used_bytes == 0


async def test_a_request_that_stops_waiting_takes_nothing_and_delays_no_other() -> None:
    budget = MemoryBudget(100)
    first = await budget.reserve(60)
    large = asyncio.create_task(budget.reserve(100))
    small = asyncio.create_task(budget.reserve(40))
    await asyncio.sleep(0)

    large.cancel()
    (await small).release()
    first.release()

    assert budget.used_bytes == 0
    assert budget.waiters == 0


async def test_cancellation_at_the_moment_of_being_served_gives_the_bytes_back() -> None:
    budget = MemoryBudget(100)
    first = await budget.reserve(100)
    waiting = asyncio.create_task(budget.reserve(80))
    await asyncio.sleep(0)

    first.release()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert budget.used_bytes == 0


async def test_bytes_are_given_back_when_the_last_holder_releases() -> None:
    budget = MemoryBudget(100)
    reservation = await budget.reserve(10)

    reservation.retain()
    reservation.release()
    assert budget.used_bytes == 10
    reservation.release()

    assert budget.used_bytes == 0
    with pytest.raises(ValueError, match="more often"):
        reservation.release()


async def test_a_request_larger_than_the_budget_is_an_error_not_a_wait() -> None:
    with pytest.raises(ValueError, match="whole budget"):
        await MemoryBudget(100).reserve(101)


async def test_a_reservation_grows_only_into_what_is_free_and_gives_all_of_it_back() -> None:
    budget = MemoryBudget(100)
    first, second = await budget.reserve(40), await budget.reserve(30)

    assert first.try_grow(30)
    assert not second.try_grow(1)
    assert (first.size_bytes, budget.used_bytes) == (40, 100)

    first.release()
    second.release()
    assert budget.used_bytes == 0
