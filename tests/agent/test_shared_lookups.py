"""One statement, sent after all of them came, answers many concurrent requests."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from agent.shared_lookups import SharedLookups
from sequencer.client import Sequencer
from sequencer.commits.coordinates import PartitionBounds, PartitionKey
from sequencer.database.database import SequencerUnavailable
from sequencer.database.errors import TooManyWait
from sequencer.database.fair_queue import ASKED_BY, THE_AGENT, Asker
from storage.identifiers import Partition
from tests.sequencer.builders import reserved
from tests.sequencer.housekeeping.housekeeping import records_of
from tests.support.waiting import until


@dataclass
class Gate:
    """Statements that the test releases one by one. Each answers with its own number."""

    asked: list[list[str]] = field(default_factory=list)
    askers: list[Asker] = field(default_factory=list)
    passing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    error: Exception | None = None

    async def ask(self, keys: list[str]) -> Mapping[str, int]:
        self.asked.append(keys)
        self.askers.append(ASKED_BY.get())
        number = len(self.asked)
        await self.passing.acquire()
        if self.error is not None:
            raise self.error
        return dict.fromkeys((key for key in keys if key != "nowhere"), number)

    def shared(self, *, most_keys: int = 100, most_waiting: int = 100) -> SharedLookups[str, int]:
        return SharedLookups(self.ask, most_keys=most_keys, most_waiting=most_waiting)


async def asking(shared: SharedLookups[str, int], asker: Asker, *keys: str) -> dict[str, int]:
    ASKED_BY.set(asker)
    return await shared.get(keys)


def client(number: int, host: str = "host") -> Asker:
    return Asker(host, number)


async def test_a_thousand_concurrent_requests_read_a_partitions_offsets_once(
    sequencer: Sequencer,
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    key: PartitionKey = (topic.topic_id, Partition(0))
    shared: SharedLookups[PartitionKey, PartitionBounds] = SharedLookups(
        sequencer.coordinates.bounds, most_keys=100, most_waiting=1000
    )

    answers = await asyncio.gather(*(shared.get([key]) for _ in range(1000)))

    assert all(answer[key].high_watermark == 0 for answer in answers)
    assert shared.statements <= 2
    await sequencer.commits.commit([await reserved(sequencer, [records_of(topic)])])
    assert (await shared.get([key]))[key].high_watermark > 0, "later requests see what was committed"


async def test_a_request_that_comes_while_a_statement_runs_waits_for_the_next_one() -> None:
    gate = Gate()
    shared = gate.shared()
    early = asyncio.create_task(shared.get(["a"]))
    await until(lambda: gate.asked)

    late = [asyncio.create_task(shared.get(keys)) for keys in (["a", "b"], ["b"], ["nowhere"])]
    await asyncio.sleep(0)
    gate.passing.release()
    gate.passing.release()

    assert await early == {"a": 1}
    assert await asyncio.gather(*late) == [{"a": 2, "b": 2}, {"b": 2}, {}]
    assert gate.asked == [["a"], ["a", "b", "nowhere"]]


async def test_a_request_of_many_keys_lets_others_go_between_its_parts() -> None:
    gate = Gate()
    shared = gate.shared(most_keys=2)
    large = asyncio.create_task(asking(shared, client(1, "greedy"), *"abcdefgh"))
    await until(lambda: gate.asked)
    small = asyncio.create_task(asking(shared, client(2, "modest"), "x"))
    await asyncio.sleep(0)

    for _ in range(8):
        gate.passing.release()

    assert await small == {"x": 2}
    assert (await large).keys() == set("abcdefgh")
    assert all(len(keys) < 4 for keys in gate.asked)


async def test_past_the_bound_the_client_with_most_waiting_is_refused() -> None:
    gate = Gate()
    shared = gate.shared(most_waiting=5)
    first = asyncio.create_task(shared.get(["a"]))
    await until(lambda: gate.asked)
    greedy = [asyncio.create_task(asking(shared, client(0, "greedy"), "b")) for _ in range(5)]
    await asyncio.sleep(0)
    modest = asyncio.create_task(asking(shared, client(9, "modest"), "c"))
    await asyncio.sleep(0)
    assert shared.used_share(client(0, "greedy")) > shared.used_share(client(9, "modest"))

    gate.passing.release()
    gate.passing.release()

    answers = await asyncio.gather(*greedy, return_exceptions=True)
    assert [type(answer) for answer in answers].count(TooManyWait) == 1
    assert await modest == {"c": 2}
    assert await first == {"a": 1}


async def test_a_failed_statement_fails_for_all_waiting_requests_and_the_next_runs() -> None:
    gate = Gate(error=SequencerUnavailable("away"))
    shared = gate.shared()
    waiting = [asyncio.create_task(shared.get(["a"]))]
    await until(lambda: gate.asked)
    waiting += [asyncio.create_task(shared.get(["b"])) for _ in range(3)]
    await asyncio.sleep(0)

    gate.passing.release()

    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["away"] * 4
    assert len(gate.asked) == 1
    gate.error = None
    gate.passing.release()
    assert await shared.get(["a"]) == {"a": 2}


async def test_a_client_that_hangs_up_cancels_only_its_own_question() -> None:
    gate = Gate()
    shared = gate.shared()
    first = asyncio.create_task(asking(shared, client(1), "a"))
    await until(lambda: gate.asked)
    gone, there = (
        asyncio.create_task(asking(shared, client(number), key)) for number, key in ((2, "b"), (3, "c"))
    )
    await asyncio.sleep(0)

    first.cancel()
    gone.cancel()
    await asyncio.wait([first, gone])
    gate.passing.release()
    gate.passing.release()

    assert await there == {"c": 2}
    assert gate.asked == [["a"], ["c"]]
    assert gate.askers == [THE_AGENT, THE_AGENT], "what is asked for all is not held against the first"


async def test_an_unexpected_error_reaches_the_caller() -> None:
    gate = Gate(error=ZeroDivisionError())
    shared = gate.shared()
    gate.passing.release()

    with pytest.raises(ZeroDivisionError):
        await shared.get(["a"])
