"""Clients share a bound in turns."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.fair_limit import FairLimit
from tests.support.waiting import until


async def test_clients_take_turns_however_many_pieces_one_waits_with() -> None:
    limit, order = FairLimit(1), list[str]()
    await limit.take("first")

    async def work(client: str) -> None:
        async with limit.turn(client):
            order.append(client)

    async with asyncio.TaskGroup() as tasks:
        for client in "AAAAAABBC":
            tasks.create_task(work(client))
        await until(lambda: limit.waiting == 9)
        limit.give_back()

    assert order == list("ABCABAAAA")


async def test_the_client_charged_least_goes_next() -> None:
    limit, order = FairLimit(1), list[str]()
    await limit.take("other")
    limit.charge("costly", 10.0)

    async def work(client: str, cost: float) -> None:
        async with limit.turn(client):
            order.append(client)
            limit.charge(client, cost)

    async with asyncio.TaskGroup() as tasks:
        for client, cost in [("costly", 0.0), ("cheap", 3.0), ("cheap", 3.0), ("cheap", 5.0), ("cheap", 1.0)]:
            tasks.create_task(work(client, cost))
        await until(lambda: limit.waiting == 5)
        limit.give_back()

    assert order == ["cheap", "cheap", "cheap", "costly", "cheap"]


async def test_a_late_client_has_no_credit_for_what_it_did_not_use() -> None:
    limit, order = FairLimit(1), list[str]()
    await limit.take("other")
    limit.charge("old", 10.0)

    async def work(client: str) -> None:
        async with limit.turn(client):
            order.append(client)
            limit.charge(client, 1.0)
            if len(order) == 1:
                tasks.create_task(work("late"))
                tasks.create_task(work("late"))
                await until(lambda: limit.waiting == 4)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(work("old"))
        await until(lambda: limit.waiting == 3)
        limit.give_back()

    assert order == ["old", "late", "old", "late", "old"]


async def test_a_piece_larger_than_the_limit_goes_alone() -> None:
    limit = FairLimit(10)
    await limit.take("a", 100)

    small = asyncio.create_task(limit.take("b", 1))
    await until(lambda: limit.waiting == 1)
    assert not small.done()
    limit.give_back(100)
    await small

    large = asyncio.create_task(limit.take("a", 100))
    await until(lambda: limit.waiting == 1)
    limit.give_back(1)
    await large
    assert limit.taken == 100


async def test_a_piece_that_does_not_fit_is_not_overtaken_for_ever() -> None:
    limit = FairLimit(10)
    await limit.take("small", 6)
    large = asyncio.create_task(limit.take("large", 8))
    await until(lambda: limit.waiting == 1)
    small = asyncio.create_task(limit.take("small", 4))
    await until(lambda: limit.waiting == 2)

    limit.give_back(6)
    await large

    assert not small.done()
    limit.give_back(8)
    await small


async def test_a_cancelled_waiter_delays_no_other() -> None:
    limit = FairLimit(10)
    await limit.take("a", 6)
    large = asyncio.create_task(limit.take("b", 10))
    await until(lambda: limit.waiting == 1)
    small = asyncio.create_task(limit.take("c", 4))
    await until(lambda: limit.waiting == 2)

    large.cancel()
    await small

    limit.give_back(6)
    limit.give_back(4)
    assert (limit.taken, limit.waiting) == (0, 0)


async def test_a_waiter_cancelled_at_its_turn_passes_it_on() -> None:
    limit = FairLimit(1)
    await limit.take("a")
    unlucky = asyncio.create_task(limit.take("b"))
    last = asyncio.create_task(limit.take("c"))
    await until(lambda: limit.waiting == 2)

    limit.give_back()
    unlucky.cancel()
    await last

    with pytest.raises(asyncio.CancelledError):
        await unlucky
    limit.give_back()
    assert (limit.taken, limit.waiting) == (0, 0)


async def test_clients_that_are_gone_are_forgotten_even_if_the_queue_is_never_empty() -> None:
    limit = FairLimit(1)
    await limit.take(-1)
    for client in range(3_000):
        waits = asyncio.create_task(limit.take(client))
        await asyncio.sleep(0)
        limit.give_back()
        await waits

    assert len(limit._charged) <= 1_010


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()), max_size=30))
def test_the_limit_holds_and_all_is_given_back(pieces: list[tuple[int, int, bool]]) -> None:
    async def run() -> None:
        limit = FairLimit(10)

        async def use(client: int, size: int) -> None:
            async with limit.turn(client, size):
                assert limit.taken == size or limit.taken <= 10
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(use(client, size)) for client, size, _ in pieces]
        await asyncio.sleep(0)
        for task, (_, _, is_cancelled) in zip(tasks, pieces, strict=True):
            if is_cancelled:
                task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError)
        assert (limit.taken, limit.waiting) == (0, 0)

    asyncio.run(run())
