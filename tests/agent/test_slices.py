"""Long work in slices: other tasks go on, however much work there is at once."""

import asyncio
import time

from agent.slices import Slices


async def work(ms: int) -> None:
    slices = Slices()
    for _ in range(20 * ms):
        ends_s = time.perf_counter() + 0.000_05
        while time.perf_counter() < ends_s:
            pass
        await slices.look()


async def test_the_loop_works_on_one_slice_in_each_of_its_rounds() -> None:
    """Fifty answers of 10 ms at once: each has five slices."""
    rounds = 0

    async def others() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    async with asyncio.TaskGroup() as tasks:
        for _ in range(50):
            tasks.create_task(work(ms=10))
    counting.cancel()

    assert rounds > 50 * 4


async def test_work_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_others() -> None:
    tasks = [asyncio.create_task(work(ms=10)) for _ in range(10)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    for task in tasks[::2]:
        task.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait(tasks)

    assert [task.cancelled() for task in tasks] == [True, False] * 5
