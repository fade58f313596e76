"""Calls in threads are bounded and fair, and end before their thread is free."""

import asyncio
import threading

import pytest

from storage.threads import Threads
from tests.support.waiting import until


async def test_no_more_calls_run_at_once_than_there_are_threads() -> None:
    threads, gate, inside = Threads("test", 2), threading.Event(), set[int]()

    def call(number: int) -> int:
        inside.add(number)
        gate.wait(60)
        return number

    calls = [asyncio.create_task(threads.run(call, number)) for number in range(5)]
    await until(lambda: len(inside) == 2)
    assert threads.waiting == 3
    gate.set()

    assert await asyncio.gather(*calls) == [0, 1, 2, 3, 4]
    threads.close()


async def test_an_abandoned_call_keeps_its_thread_until_it_ends() -> None:
    threads, gate, begun = Threads("test", 1), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        gate.wait(60)

    left = asyncio.create_task(threads.run(call))
    await until(begun.is_set)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    next_call = asyncio.create_task(threads.run(lambda: "next"))
    await until(lambda: threads.waiting == 1)
    gate.set()

    assert await next_call == "next"
    threads.close()


@pytest.mark.parametrize("cancelled", ["not", "while it runs", "while it waits"])
async def test_a_calls_resources_are_freed_once_it_ended_or_can_no_longer_begin(
    cancelled: str,
) -> None:
    threads, gate, begun = Threads("test", 1), threading.Event(), threading.Event()
    ends: list[bool] = []

    def call() -> None:
        begun.set()
        gate.wait(60)

    first = asyncio.create_task(threads.run(call)) if cancelled == "while it waits" else None
    held = asyncio.create_task(threads.run_for("client", call, lambda: ends.append(gate.is_set())))
    await until(begun.is_set)
    if cancelled != "not":
        held.cancel()
        await asyncio.wait([held])
    assert ends == ([False] if cancelled == "while it waits" else [])
    gate.set()
    await until(lambda: not threads.running)
    await asyncio.gather(*filter(None, [first, held]), return_exceptions=True)

    assert ends == ([False] if cancelled == "while it waits" else [True])
    threads.close()


async def test_a_call_cancelled_while_it_waits_never_runs() -> None:
    threads, gate, ran = Threads("test", 1), threading.Event(), list[str]()
    first = asyncio.create_task(threads.run(gate.wait, 60))
    await until(lambda: threads.waiting == 0)
    waiting = asyncio.create_task(threads.run(ran.append, "waiting"))
    await until(lambda: threads.waiting == 1)

    waiting.cancel()
    gate.set()
    await first
    await threads.run(ran.append, "last")

    assert ran == ["last"]
    threads.close()


async def test_an_error_of_a_call_is_raised_to_its_caller() -> None:
    threads = Threads("test", 1)

    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)

    assert await threads.run(lambda: "the thread is free") == "the thread is free"
    threads.close()
