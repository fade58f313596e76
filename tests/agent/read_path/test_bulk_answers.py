"""Answers to bulk have a part of the budget for answers, and wait for that part among themselves."""

import asyncio

from agent.read_path.fetch_answer import FetchAnswer
from cache_ring.pages.byte_budget import ByteBudget


async def test_bulk_that_waits_for_its_part_keeps_no_other_answer_waiting() -> None:
    whole, part = ByteBudget(100), ByteBudget(40)
    first, second, other = FetchAnswer(whole), FetchAnswer(whole), FetchAnswer(whole)
    await first.take(30, part)
    waiting = asyncio.create_task(second.take(30, part))
    await asyncio.sleep(0)

    await asyncio.wait_for(other.take(60), 10)

    assert (part.taken_bytes, whole.taken_bytes) == (30, 90)
    first.release()
    first.release()
    await asyncio.wait_for(waiting, 10)
    second.release()
    other.release()
    assert (part.taken_bytes, whole.taken_bytes) == (0, 0)


async def test_bulk_that_stops_waiting_for_the_whole_gives_its_part_back() -> None:
    whole, part = ByteBudget(100), ByteBudget(40)
    held, answer = FetchAnswer(whole), FetchAnswer(whole)
    await held.take(90)
    waiting = asyncio.create_task(answer.take(30, part))
    await asyncio.sleep(0)
    assert part.taken_bytes == 30

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    answer.release_unless_kept()

    assert (part.taken_bytes, whole.taken_bytes) == (0, 90)
