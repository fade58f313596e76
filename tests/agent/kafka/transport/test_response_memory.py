"""Large answers in memory: bounded, and shared by hosts."""

import asyncio

from agent.kafka.transport.response_memory import ResponseMemory
from tests.support.waiting import until


async def test_a_host_that_takes_no_answers_leaves_half_of_the_memory_to_the_others() -> None:
    memory = ResponseMemory(100)
    slow = [asyncio.create_task(memory.take("slow", connection, 20)) for connection in range(10)]
    await until(lambda: memory.waiting == 8)

    async with asyncio.timeout(60):
        await memory.take("other", 0, 40)
    assert (memory.taken_bytes, memory.waiting) == (80, 8)

    for task in slow:
        if not task.done():
            task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    for host, size_bytes in (("slow", 20), ("slow", 20), ("other", 40)):
        memory.give_back(host, size_bytes)
    assert (memory.taken_bytes, memory.waiting) == (0, 0)


async def test_an_answer_larger_than_the_limit_is_made_alone() -> None:
    memory = ResponseMemory(100)
    await memory.take("one", 0, 1_000)
    waits = asyncio.create_task(memory.take("other", 0, 1))
    await until(lambda: memory.waiting == 1)

    memory.give_back("one", 1_000)

    async with asyncio.timeout(60):
        await waits
    assert memory.taken_bytes == 1


async def test_a_wait_that_is_cancelled_takes_nothing() -> None:
    memory = ResponseMemory(100)
    await memory.take("one", 0, 30)
    await memory.take("other", 0, 50)
    waits = [asyncio.create_task(memory.take("one", 0, size)) for size in (30, 20)]
    await until(lambda: memory.waiting == 2)

    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    memory.give_back("one", 30)
    memory.give_back("other", 50)

    assert (memory.taken_bytes, memory.waiting, memory._hosts) == (0, 0, {})
