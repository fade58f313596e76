"""Bytes in flight stay within their budget. Every waiter gets its turn or leaves no trace."""

import asyncio
import random

import pytest

from cache_ring.pages.byte_budget import ByteBudget


async def hold(budget: ByteBudget, size_bytes: int, pauses: int = 1_000_000) -> None:
    async with budget.taken(size_bytes):
        for _ in range(pauses):
            await asyncio.sleep(0)


async def settle(rounds: int = 3) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def test_bytes_given_back_while_a_waiter_is_being_cancelled_are_not_lost() -> None:
    """A lost connection cancels at once the fetch that holds bytes and the one that waits for them."""
    budget = ByteBudget(100)
    holder = asyncio.create_task(hold(budget, 100))
    await settle()
    waiter = asyncio.create_task(hold(budget, 50))
    await settle()

    holder.cancel()
    waiter.cancel()
    ended = await asyncio.gather(holder, waiter, return_exceptions=True)

    assert [type(end) for end in ended] == [asyncio.CancelledError, asyncio.CancelledError]
    assert budget.taken_bytes == 0
    assert budget.try_take(100) == 100


async def test_a_waiter_behind_one_that_is_cancelled_gets_its_turn() -> None:
    budget = ByteBudget(100)
    holder = asyncio.create_task(hold(budget, 60))
    await settle()
    large, small = asyncio.create_task(hold(budget, 100)), asyncio.create_task(hold(budget, 40, pauses=1))
    await settle()

    large.cancel()
    await asyncio.wait_for(small, timeout=60)

    holder.cancel()
    await asyncio.gather(holder, large, return_exceptions=True)
    assert budget.taken_bytes == 0


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_taken_once_all_have_come_and_gone(seed: int) -> None:
    randomness = random.Random(seed)
    budget = ByteBudget(100)
    tasks = [
        asyncio.create_task(hold(budget, randomness.randint(1, 150), pauses=randomness.randint(0, 5)))
        for _ in range(60)
    ]

    for task in randomness.sample(tasks, 30):
        await settle(randomness.randint(0, 2))
        assert budget.taken_bytes <= budget.limit_bytes
        task.cancel()
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)

    assert {type(end) for end in ended} <= {type(None), asyncio.CancelledError}
    assert budget.taken_bytes == 0


async def test_a_piece_larger_than_a_lowered_limit_is_let_through_alone() -> None:
    budget = ByteBudget(100)
    holder = asyncio.create_task(hold(budget, 100))
    await settle()
    waiter = asyncio.create_task(hold(budget, 80, pauses=5))
    await settle()

    budget.limit_bytes = 10
    holder.cancel()
    await asyncio.wait_for(waiter, timeout=60)

    assert budget.taken_bytes == 0


async def test_a_limit_that_is_raised_admits_waiters_at_once() -> None:
    budget = ByteBudget(100)
    budget.limit_bytes = 10
    tasks = [asyncio.create_task(hold(budget, 10)) for _ in range(4)]
    await settle()
    assert budget.taken_bytes == 10

    budget.limit_bytes = 30

    assert budget.taken_bytes == 30
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.taken_bytes == 0


async def test_a_piece_taken_under_a_low_limit_counts_in_full() -> None:
    budget = ByteBudget(100)
    budget.limit_bytes = 10

    assert budget.try_take(80) == 80

    budget.limit_bytes = 100
    assert budget.try_take(30) is None
    assert budget.try_take(20) == 20


async def test_a_piece_larger_than_the_budget_counts_for_all_of_it() -> None:
    budget = ByteBudget(100)

    assert budget.try_take(1_000) == 100
    assert budget.try_take(1) is None
