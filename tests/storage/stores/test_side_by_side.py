"""Concurrent requests: one that fails ends the others, and keeps nothing alive."""

import asyncio
import gc
import weakref

import pytest

from storage.stores.side_by_side import side_by_side


class _Page:
    """Something that was read."""


async def test_results_come_in_the_order_of_the_calls() -> None:
    async def later(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await side_by_side(later(turns) for turns in (3, 0, 2)) == [3, 0, 2]
    assert await side_by_side([]) == []


async def test_when_one_fails_the_others_have_ended_and_its_error_is_raised_as_it_is() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        await side_by_side([waits(), fails(), waits()])
    assert ended == [True, True]


async def test_a_cancelled_caller_leaves_none_running() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    caller = asyncio.create_task(side_by_side([waits()]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_a_failure_keeps_nothing_that_was_read_alive() -> None:
    read: list[weakref.ref[_Page]] = []

    async def reads() -> _Page:
        page = _Page()
        read.append(weakref.ref(page))
        return page

    async def fails() -> _Page:
        raise ValueError("gone")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="gone"):
            await side_by_side([reads(), fails()])
        await asyncio.sleep(0)
        assert [page() for page in read] == [None]
    finally:
        gc.enable()
