"""What clients meet that are over their quota, and how they leave."""

import asyncio
from datetime import timedelta

import pytest

from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.entities import QuotaKind
from agent.quotas.settings import QuotaSettings
from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.settings import SequencerSettings
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.quotas.test_enforcement import NONE, QUICK, alter
from tests.agent.read_path.wire import a_fetch
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, running, until_answered
from tests.support.postgres import Address


async def test_fetch_over_its_quota_is_answered_empty_and_gets_all_records_in_the_end(
    database_url: str,
) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire, other = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
        topic = await create(wire, "t")
        for _ in range(3):
            await wire.ask(a_produce("t", {0: a_batch(b"x" * 20_000)}))
        assert await alter(wire, {"client-id": "reader"}, consumer_byte_rate=30_000) is NONE

        offset, pauses, empty = 0, 0, 0
        while offset < 3:
            asked = a_fetch(11, topic, offset, max_wait=timedelta(milliseconds=100))
            first, second = await asyncio.gather(
                wire.ask(asked, client_id="reader"), other.ask(asked, client_id="reader")
            )
            found = [one for answer in (first, second) for one in answer.responses]
            empty += 2 - len(found)
            pauses += any(answer.throttle_time.total_seconds() > 0 for answer in (first, second))
            assert first.error_code is second.error_code is NONE
            offset += any(one.partitions[0].records for one in found)
        assert pauses
        assert empty
        assert agent.metric("tidelog_quota_throttle_seconds_total", quota="consumer_byte_rate") > 0
        wire.close()
        other.close()


async def test_produce_without_acks_counts_and_mutes(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await create(wire, "t")
        assert await alter(wire, {"client-id": "slow"}, producer_byte_rate=10_000) is NONE
        await wire.send(a_produce("t", {0: a_batch(b"x" * 25_000)}, acks=0), client_id="slow")
        answer = asyncio.create_task(wire.ask(a_metadata("t", create=False), client_id="slow"))
        await asyncio.wait([answer], timeout=0.5)
        assert not answer.done()
        assert (await answer).topics[0].error_code is NONE
        wire.close()


async def test_pipelined_requests_over_the_quota_are_all_answered(database_url: str) -> None:
    """One after the other is taken when the last one is paid."""
    async with running(database_url, quotas=QUICK) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await create(wire, "t")
        assert await alter(wire, {"client-id": "slow"}, producer_byte_rate=20_000) is NONE
        began_s = asyncio.get_running_loop().time()
        sent = [
            await wire.send(a_produce("t", {0: a_batch(b"x" * 1_000)}), client_id="slow") for _ in range(80)
        ]
        for one in sent:
            await wire.receive(one)
        assert asyncio.get_running_loop().time() - began_s > 2, "80 KB at 20 KB/s, and a second saved up"
        wire.close()


async def test_muted_connection_with_half_a_frame_holds_no_memory(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await create(wire, "t")
        assert await alter(wire, {"client-id": "slow"}, producer_byte_rate=1_000) is NONE
        await wire.ask(a_produce("t", {0: a_batch(b"x" * 25_000)}), client_id="slow")
        wire.writer.write((200_000).to_bytes(4, "big") + bytes(100_000))
        await wire.writer.drain()
        await asyncio.sleep(0.3)
        assert _reserved(agent) == 0
        wire.close()


async def test_client_that_closes_while_muted_is_forgotten_and_others_are_served(database_url: str) -> None:
    async with running(database_url, quotas=QUICK) as agent:
        wire, other = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
        await create(other, "t")
        assert await alter(other, {"client-id": "slow"}, producer_byte_rate=10_000) is NONE
        await wire.ask(a_produce("t", {0: a_batch(b"x" * 25_000)}), client_id="slow")
        wire.close()
        await other.ask(a_produce("t", {0: a_batch(b"x")}))

        async def is_gone() -> bool:
            assert agent.app._reached.listener is not None
            return len(list(agent.app._reached.listener.clients())) == 1

        await until_answered(is_gone)
        assert _reserved(agent) == 0
        other.close()


def _reserved(agent: Running) -> float:
    assert agent.app._reached.listener is not None
    return agent.app._reached.listener._shared.memory.used_bytes


async def test_million_client_ids_are_tracked_in_bounded_memory(database_url: str) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    quotas = ClientQuotas(sequencer.quota_use, _Two(), QuotaSettings(quota_clients=1_000), lambda: 0.0)
    entity = frozenset({("client-id", None)})
    await sequencer.client_quotas.alter({entity: {"producer_byte_rate": 10.0}}, 10)
    await quotas.refresh()
    for number in range(1_000_000):
        quotas.charge(QuotaKind.PRODUCE, "", f"c{number}", 1.0)
    assert sum(map(len, quotas._uses.values())) == quotas._tracked <= 1_000
    assert len(quotas._found) <= 1_000
    await quotas.report()
    await sequencer.close()


async def test_shares_stay_while_postgres_is_away(database_url: str, address: Address) -> None:
    sequencer = await Sequencer.open(address.url, SequencerSettings())
    quotas = ClientQuotas(sequencer.quota_use, _Two(), QuotaSettings(), lambda: 5.0)
    entity = frozenset({("client-id", None)})
    await sequencer.client_quotas.alter({entity: {"producer_byte_rate": 10.0}}, 10)
    await quotas.refresh()
    for _ in range(3):
        assert quotas.charge(QuotaKind.PRODUCE, "", "c", 100.0) > 0
        await quotas.report()
    assert quotas.rate(QuotaKind.PRODUCE, "", "c") == 10.0, "no other agent wants any"

    address.lead_to("postgresql:///gone?host=/nonexistent")
    Address.cut(database_url)
    for _ in range(3):
        with pytest.raises(SequencerUnavailable):
            await quotas.report()
    assert quotas.rate(QuotaKind.PRODUCE, "", "c") == 10.0
    assert quotas.charge(QuotaKind.PRODUCE, "", "c", 100.0) > 0
    await sequencer.close()


class _Two:
    def node_id(self) -> int | None:
        return 1

    def count(self) -> int:
        return 2
