"""The budget for requests in memory: never exceeded, served in the order of arrival, given back once all have
released.
"""

import asyncio

import pytest

from agent.kafka.transport.memory import MemoryBudget, Reservation


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


async def test_who_waits_for_a_part_keeps_no_other_waiting() -> None:
    budget = MemoryBudget(100)
    part = MemoryBudget(50, whole=budget)
    held = await part.reserve(40)
    waiting = asyncio.create_task(part.reserve(20))
    await asyncio.sleep(0)

    other = budget.try_reserve(60)

    assert other is not None
    assert (part.used_bytes, budget.used_bytes, part.waiters) == (40, 100, 1)
    held.release()
    await asyncio.wait_for(waiting, 10)
    assert (part.used_bytes, budget.used_bytes) == (20, 80)


async def test_a_part_waits_for_the_whole_and_behind_those_who_wait_for_it() -> None:
    budget = MemoryBudget(100)
    part = MemoryBudget(50, whole=budget)
    held = await budget.reserve(90)
    first, second = asyncio.create_task(budget.reserve(80)), asyncio.create_task(part.reserve(10))
    await asyncio.sleep(0)
    assert not second.done(), "it would overtake the first for ever"

    held.release()

    for each in (first, second):
        (await asyncio.wait_for(each, 10)).release()
    assert (part.used_bytes, budget.used_bytes) == (0, 0)


async def test_a_request_larger_than_the_part_goes_alone() -> None:
    budget = MemoryBudget(100)
    part = MemoryBudget(10, whole=budget)
    small = await part.reserve(5)
    large = asyncio.create_task(part.reserve(60))
    await asyncio.sleep(0)
    assert not large.done()

    small.release()

    (await asyncio.wait_for(large, 10)).release()
    assert budget.used_bytes == 0


async def test_a_reservation_counts_where_it_was_moved_to() -> None:
    budget = MemoryBudget(100)
    part = MemoryBudget(50, whole=budget)
    moved = await budget.reserve(70)

    moved.count_in(part)
    assert (part.used_bytes, budget.used_bytes) == (70, 70), "beyond the part's limit: the bytes are held"
    assert part.try_reserve(1) is None
    assert moved.try_grow(10)
    moved.count_in(budget)
    assert (part.used_bytes, budget.used_bytes) == (0, 80)
    moved.count_in(part)

    moved.release()
    assert (part.used_bytes, budget.used_bytes) == (0, 0)


def test_a_whole_is_as_full_as_its_room_without_the_parts_says() -> None:
    budget = MemoryBudget(100)
    part = MemoryBudget(50, whole=budget)

    assert part.try_reserve(50)
    assert (budget.share, part.share) == (0.0, 1.0)
    assert budget.try_reserve(25)
    assert budget.share == 0.5


def wanted(reservation: Reservation) -> bool:
    return reservation.is_wanted


async def test_a_reservation_is_wanted_while_others_wait_for_its_bytes() -> None:
    whole = MemoryBudget(100)
    part = MemoryBudget(50, whole=whole)
    of_part, of_whole = await part.reserve(50), await whole.reserve(50)
    assert not wanted(of_part)

    in_part = asyncio.create_task(part.reserve(10))
    await asyncio.sleep(0)
    assert wanted(of_part)
    assert not wanted(of_whole)
    in_part.cancel()
    await asyncio.gather(in_part, return_exceptions=True)
    assert not wanted(of_part)

    in_whole = asyncio.create_task(whole.reserve(10))
    await asyncio.sleep(0)
    assert wanted(of_part)
    assert wanted(of_whole)
    of_part.release()
    (await in_whole).release()
