"""One producer's batches split between two agents, in every order: a partition's leader moved with requests
in flight.

Two write paths use one Postgres. A gate at each one's store lets a test say which of them continues. A batch
is one record, so in the end every batch must be at the offset that equals its sequence.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.write_path.appended_batches import Appended
from agent.write_path.outcomes import WriteFailed, WriteFailure, WriteOutcome
from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Duplicate
from sequencer.topics.topics import Topic
from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey, ProducerId
from storage.stores.memory_store import MemoryStore
from tests.agent.write_path.wired import Writer, outcomes_of, writing

IN_FLIGHT = 5
SEEDS = 25
STEPS = 60


class GatedStore(MemoryStore):
    """Uploads wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        await self.gate.wait()
        await super().put(key, chunks)


@dataclass(kw_only=True)
class Agent:
    writer: Writer
    gate: asyncio.Event


@asynccontextmanager
async def two_agents(sequencer: Sequencer) -> AsyncIterator[tuple[Agent, Agent]]:
    stores = GatedStore(), GatedStore()
    settings: dict[str, Any] = {"hedge_after_min_s": 60.0, "linger_ms": 1}
    async with (
        writing(sequencer, stores[0], **settings) as first,
        writing(sequencer, stores[1], **settings) as second,
    ):
        yield Agent(writer=first, gate=stores[0].gate), Agent(writer=second, gate=stores[1].gate)


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 1, {})


@pytest.fixture
async def producer_id(sequencer: Sequencer, topic: Topic) -> ProducerId:
    """Assigned after the topic was created, as to a producer that starts."""
    assert topic.partition_count
    return (await sequencer.producers.initialize()).producer_id


def offset_of(outcome: WriteOutcome | None) -> int | None:
    """None: the client should try again. Anything but that or an offset fails the test."""
    if isinstance(outcome, Assigned | Duplicate):
        return outcome.base_offset
    assert isinstance(outcome, WriteFailed), f"a client would take this for the end: {outcome}"
    return None


@pytest.mark.parametrize("moved_after", range(IN_FLIGHT + 1))
async def test_a_new_producers_batches_may_be_split_anywhere(
    sequencer: Sequencer, topic: Topic, producer_id: ProducerId, moved_after: int
) -> None:
    """The old leader is slow. What the new one gets first must wait, and everything repeated is known."""
    async with two_agents(sequencer) as (old, new):
        old.gate.clear()
        early, late = range(moved_after), range(moved_after, IN_FLIGHT)
        at_old = old.writer.append(topic, *early, producer_id=producer_id)
        too_soon = await outcomes_of(new.writer.append(topic, *late, producer_id=producer_id))
        old.gate.set()
        first = await outcomes_of(at_old)
        again = await outcomes_of(new.writer.append(topic, *range(IN_FLIGHT), producer_id=producer_id))

        assert [offset_of(outcome) for outcome in first] == list(early)
        assert [offset_of(outcome) for outcome in again] == list(range(IN_FLIGHT))
        if moved_after > 0:
            assert {outcome.failure for outcome in too_soon if isinstance(outcome, WriteFailed)} <= {
                WriteFailure.NOT_WRITTEN
            }
            assert [offset_of(outcome) for outcome in too_soon] == [None] * len(late)
        assert await new.writer.high_watermark(topic) == IN_FLIGHT


async def test_batches_that_a_paused_agent_commits_late_are_written_once(
    sequencer: Sequencer, topic: Topic, producer_id: ProducerId
) -> None:
    """After more than twice as many batches as are remembered, each of the paused agent's is still known as a
    repeat.
    """
    async with two_agents(sequencer) as (paused, other):
        paused.gate.clear()
        held = paused.writer.append(topic, *range(IN_FLIGHT), producer_id=producer_id)
        await outcomes_of(other.writer.append(topic, *range(30), producer_id=producer_id))
        paused.gate.set()
        late = await outcomes_of(held)

        assert [type(outcome).__name__ for outcome in late] == ["WrittenBefore"] * IN_FLIGHT
        assert await other.writer.high_watermark(topic) == 30


async def test_ten_in_flight_at_two_agents_are_all_answered_with_their_first_offsets(
    sequencer: Sequencer, topic: Topic, producer_id: ProducerId
) -> None:
    """Five at the old leader, which dies between commit and answer. Five at the new one, written by then."""
    async with two_agents(sequencer) as (old, new):
        await outcomes_of(old.writer.append(topic, *range(5), producer_id=producer_id))
        await outcomes_of(new.writer.append(topic, *range(5, 10), producer_id=producer_id))

        again = await outcomes_of(new.writer.append(topic, *range(5), producer_id=producer_id))

        assert [offset_of(outcome) for outcome in again] == [0, 1, 2, 3, 4]


@dataclass(kw_only=True)
class JavaLikeClient:
    """Sends new batches to the present leader without waiting for those in flight elsewhere. Sends again what
    failed or was lost with a connection, one at a time, in order.
    """

    topic: Topic
    producer_id: ProducerId
    agents: tuple[Agent, Agent]
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    leader: int = 0
    in_flight: dict[int, tuple[int, Appended]] = field(default_factory=dict)
    to_send_again: set[int] = field(default_factory=set)
    offsets: dict[int, int] = field(default_factory=dict)

    def send_new(self) -> None:
        if (
            sum(agent == self.leader for agent, _ in self.in_flight.values()) < IN_FLIGHT
            and not self.to_send_again
        ):
            self._send(next(self.numbers))

    def send_again(self) -> None:
        if self.to_send_again and min(self.to_send_again) <= min(
            self.in_flight, default=min(self.to_send_again)
        ):
            number = min(self.to_send_again)
            self.to_send_again.remove(number)
            self._send(number)

    def _send(self, number: int) -> None:
        [outcome] = self.agents[self.leader].writer.append(self.topic, number, producer_id=self.producer_id)
        self.in_flight[number] = (self.leader, outcome)

    def hang_up(self, agent: int) -> None:
        """Requests in flight go on there, but the client does not hear of them."""
        lost = [number for number, (where, _) in self.in_flight.items() if where == agent]
        for number in lost:
            del self.in_flight[number]
        self.to_send_again.update(lost)

    def hear(self) -> None:
        for number, (_, appended) in sorted(self.in_flight.items()):
            if appended.is_done:
                del self.in_flight[number]
                offset = offset_of(appended.outcomes[0])
                if offset is None:
                    self.to_send_again.add(number)
                else:
                    self.offsets[number] = offset


async def test_whatever_the_order_each_batch_is_written_once_and_in_turn(sequencer: Sequencer) -> None:
    async with two_agents(sequencer) as agents:
        for seed in range(SEEDS):
            topic = await sequencer.topics.create(f"seed-{seed}", 1, {})
            producer_id = (await sequencer.producers.initialize()).producer_id
            client = JavaLikeClient(topic=topic, producer_id=producer_id, agents=agents)
            await _play(client, random.Random(seed))

            sent = next(client.numbers)
            assert client.offsets == {number: number for number in range(sent)}, f"seed {seed}"
            assert await agents[0].writer.high_watermark(topic) == sent, f"seed {seed}"

        assert sum(agent.writer.metric("tidelog_sequence_gaps_total") for agent in agents) > 0


async def _play(client: JavaLikeClient, chance: random.Random) -> None:
    """Takes random steps. Then both agents continue until everything is answered."""
    for _ in range(STEPS):
        agent = chance.randrange(2)
        match chance.choices(
            ("new", "again", "move", "hang up", "close", "open", "wait"), (30, 20, 6, 6, 8, 12, 18)
        )[0]:
            case "new":
                client.send_new()
            case "again":
                client.send_again()
            case "move":
                client.leader = 1 - client.leader
            case "hang up":
                client.hang_up(agent)
            case "close":
                client.agents[agent].gate.clear()
            case "open":
                client.agents[agent].gate.set()
            case "wait":
                await asyncio.sleep(chance.choice((0, 0.002, 0.01)))
        client.hear()
    for each in client.agents:
        each.gate.set()
    async with asyncio.timeout(60):
        while client.in_flight or client.to_send_again:
            client.send_again()
            await asyncio.sleep(0.002)
            client.hear()
