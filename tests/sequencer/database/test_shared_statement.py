"""Calls that share a statement: who is answered what, and when."""

import asyncio
from collections.abc import Sequence

import pytest

from sequencer.database.errors import CommitOutcomeUnknown, SequencerUnavailable, TooManyWait
from sequencer.database.fair_queue import ASKED_BY, THE_AGENT, Asker
from sequencer.database.shared_statement import SharedStatement


class Statements:
    """Notes which calls shared a statement. Each statement waits until it is let go."""

    def __init__(self, *, at_once: int = 1) -> None:
        self.seen: list[list[int]] = []
        self.go_on = asyncio.Event()
        self.fails: dict[int, Exception] = {}
        self.asked_by: list[Asker] = []
        self.shared = SharedStatement(self.run, most=4, at_once=at_once)

    async def run(self, calls: Sequence[int]) -> list[int]:
        self.seen.append(list(calls))
        self.asked_by.append(ASKED_BY.get())
        await self.go_on.wait()
        for call in calls:
            if call in self.fails:
                raise self.fails[call]
        return [10 * call for call in calls]

    async def ask(self, *calls: int) -> "list[asyncio.Task[int]]":
        """The first alone, then the others at the same time."""
        asked = []
        for call in calls:
            asked.append(asyncio.create_task(self.shared.answer_to(call)))
            if len(asked) == 1:
                await a_moment()
        await a_moment()
        return asked


async def a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_waits_while_a_statement_runs_shares_the_next_one() -> None:
    statements = Statements()
    asked = await statements.ask(1, 2, 3, 4, 5, 6)
    assert statements.seen == [[1]]
    statements.go_on.set()

    assert await asyncio.gather(*asked) == [10, 20, 30, 40, 50, 60]
    assert statements.seen == [[1], [2, 3, 4, 5], [6]]


async def test_as_many_statements_run_at_once_as_allowed() -> None:
    statements = Statements(at_once=2)
    asked = await statements.ask(1, 2) + await statements.ask(3)
    assert statements.seen == [[1], [2]]
    statements.go_on.set()

    assert await asyncio.gather(*asked) == [10, 20, 30]


async def test_a_call_after_all_were_answered_begins_anew() -> None:
    statements = Statements()
    statements.go_on.set()

    assert [await statements.shared.answer_to(call) for call in (1, 2)] == [10, 20]
    assert statements.seen == [[1], [2]]


async def test_a_bad_call_fails_alone() -> None:
    statements = Statements()
    statements.fails[3] = ValueError("bad")
    asked = await statements.ask(1, 2, 3, 4)
    statements.go_on.set()

    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert [str(answer) for answer in answers] == ["10", "20", "bad", "40"]
    assert statements.seen == [[1], [2, 3, 4], [2], [3], [4]]


@pytest.mark.parametrize(
    "error", [SequencerUnavailable("away"), CommitOutcomeUnknown("who knows", connection_lost=True)]
)
async def test_all_are_told_that_postgres_is_away_and_nothing_is_repeated(error: Exception) -> None:
    statements = Statements()
    statements.fails[2] = error
    asked = await statements.ask(1, 2, 3)
    statements.go_on.set()

    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert answers == [10, error, error]
    assert statements.seen == [[1], [2, 3]]


async def test_a_cancelled_call_disturbs_no_other() -> None:
    statements = Statements()
    first, second, third = await statements.ask(1, 2, 3)
    await a_moment()
    first.cancel()
    second.cancel()
    await a_moment()
    statements.go_on.set()

    assert await third == 30
    assert statements.seen == [[1], [3]]


async def test_a_full_queue_refuses_the_busiest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.database.shared_statement._MOST_WAITING", 3)
    statements = Statements()
    ASKED_BY.set(Asker("busy", 1))
    busy = await statements.ask(1, 2, 3, 4)
    ASKED_BY.set(Asker("other", 2))
    [other] = await statements.ask(5)
    statements.go_on.set()

    answers = await asyncio.gather(*busy, other, return_exceptions=True)

    assert [type(answer) for answer in answers] == [int, int, int, TooManyWait, int]
    assert statements.seen[1][:2] in ([2, 5], [5, 2])
    assert set(statements.asked_by) == {THE_AGENT}
