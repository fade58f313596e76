"""Turns: requests of a connection pass in order. One that ends without its turn delays no other."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.transport.request_order import Turns


@given(plans=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=10))
def test_turns_are_taken_in_order_and_passed_on_by_requests_that_fail(plans: list[tuple[int, bool]]) -> None:
    """A plan: the steps that a request takes before its turn, and whether it fails before it."""

    async def scenario() -> None:
        turns = Turns()
        passed: list[int] = []

        async def request(number: int, steps: int, fails: bool) -> None:
            turn = places[number]
            try:
                for _ in range(steps):
                    await asyncio.sleep(0)
                if not fails:
                    await turn.my_turn()
                    passed.append(number)
            finally:
                turn.done()

        places = [turns.next() for _ in plans]
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number, (steps, fails) in enumerate(plans):
                tasks.create_task(request(number, steps, fails))
        assert passed == [number for number, (_, fails) in enumerate(plans) if not fails]

    asyncio.run(scenario())


async def test_a_request_cancelled_in_its_wait_does_not_cancel_the_one_before() -> None:
    turns = Turns()
    first, second, third = turns.next(), turns.next(), turns.next()
    waiting = asyncio.create_task(second.my_turn())
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    second.done()
    last = asyncio.create_task(third.my_turn())
    await asyncio.sleep(0)
    assert not last.done()
    first.done()

    await asyncio.wait_for(last, 60)
