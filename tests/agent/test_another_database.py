"""An agent whose database's address leads to another database while it runs: a wrong DNS entry, another
cluster's server. If another Postgres has the same store (a failover, a restored backup), the agent uses it.
Otherwise it sends no statement to it.
"""

import asyncio
import itertools
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode

from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer, SequencerSettings
from storage.stores.memory_store import MemoryStore
from tests.agent.running import Running, Wire, a_batch, a_memory_store, a_produce, partitions_of, running
from tests.agent.test_app import until_not_ready, until_ready
from tests.support.postgres import Address
from tests.support.waiting import until

IMPATIENT = SequencerSettings(database_pool_timeout_s=0.5, database_connect_timeout_s=2)
PRODUCERS = 4
EVERYTHING = (
    "SELECT (SELECT count(*) FROM segments) AS segments, (SELECT count(*) FROM agents) AS agents,"
    " (SELECT sum(high_watermark) FROM partitions) AS records"
)


@dataclass
class Producers:
    """Producers that write until they are stopped, whatever the answers are. `acknowledged` has each value's
    offset.
    """

    agent: Running
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    refused: int = 0
    wanted: bool = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(self._write(number))

    async def _write(self, producer: int) -> None:
        wire: Wire | None = None
        for number in itertools.count():
            if not self.wanted:
                break
            value = b"%d of %d" % (number, producer)
            try:
                wire = wire or await Wire.connect(self.agent.app.kafka_port)
                answer = await wire.ask(a_produce("orders", {0: a_batch(value)}, timeout_s=0.5))
            except (OSError, asyncio.IncompleteReadError):
                wire, self.refused = None, self.refused + 1
                await asyncio.sleep(0.05)
                continue
            [partition] = partitions_of(answer)
            if partition.error_code is ErrorCode.none:
                self.acknowledged[value] = partition.base_offset
            else:
                self.refused += 1

    async def until_acknowledged(self, more: int) -> None:
        enough = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= enough)

    async def until_refused(self, more: int) -> None:
        enough = self.refused + more
        await until(lambda: self.refused >= enough)


def all_of(bootstrap: str) -> dict[bytes, int]:
    """Returns every record's offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    partition = TopicPartition("orders", 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=30)
    consumer.assign([partition])
    found: dict[bytes, int] = {}
    while not found or max(found.values()) + 1 < end:
        messages = consumer.consume(end - len(found), timeout=15)
        assert messages, "the rest did not come"
        for message in messages:
            assert message.error() is None
            found[message.value() or b""] = message.offset() or 0
    consumer.close()
    return found


@pytest.mark.parametrize("lease_s", [60.0, 2.0], ids=["its lease holds", "its lease runs out"])
async def test_an_agent_acknowledges_nothing_on_another_database_and_then_serves_again(
    lease_s: float, sequencer: Sequencer, address: Address, database_url: str, other_database_url: str
) -> None:
    await sequencer.topics.create("orders", 1, {})
    other = await Sequencer.open(other_database_url, SequencerSettings())
    await other.store_identity.bind(MemoryStore(), "tidelog", "memory://theirs")
    await other.topics.create("orders", 1, {})
    ring = CacheRingSettings(membership_lease_s=lease_s, membership_renew_s=0.2, membership_margin_s=0.5)

    async with running(
        address.url, a_memory_store(), ring_settings=ring, sequencer_settings=IMPATIENT, topic_cache_s=0.1
    ) as agent:
        producers = Producers(agent)
        writing = asyncio.create_task(producers.run())
        for _ in range(2):
            await producers.until_acknowledged(50)

            address.lead_to(other_database_url)
            address.cut(database_url)

            await until_not_ready(agent, "not the one that this process began with")
            await producers.until_refused(4 * PRODUCERS)
            [theirs] = await other.database.run(EVERYTHING)
            assert (theirs.segments, theirs.agents, theirs.records) == (0, 0, 0)
            address.lead_to(database_url)
            await until_ready(agent)
        await producers.until_acknowledged(50)
        producers.wanted = False
        await writing
        found = await asyncio.to_thread(all_of, agent.bootstrap)
    await other.close()

    assert {value: found.get(value) for value in producers.acknowledged} == producers.acknowledged
