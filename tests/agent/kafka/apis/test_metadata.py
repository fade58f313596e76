"""Metadata of topics that cannot be found."""

from uuid import UUID

import psycopg
import pytest
from kio.schema.errors import ErrorCode
from psycopg.conninfo import conninfo_to_dict

from cache_ring.settings import CacheRingSettings
from sequencer.client import SequencerSettings
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, running
from tidelog.embedded.postgres import EmbeddedPostgres

NOTHING_MORE = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}
IMPATIENT = SequencerSettings(database_pool_timeout_s=0.3)


def cut_off(postgres: EmbeddedPostgres, database_url: str) -> None:
    name = conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )


async def test_no_list_of_topics_is_answered_while_the_database_is_away(
    postgres: EmbeddedPostgres, database_url: str
) -> None:
    """Clients that follow a pattern would take an empty list for the end of all their topics."""
    async with running(database_url, sequencer_settings=IMPATIENT) as agent:
        named, everything = await Wire.connect(agent.app.kafka_port), await Wire.connect(agent.app.kafka_port)
        cut_off(postgres, database_url)

        answer = await named.ask(a_metadata("orders"))
        await everything.send(request(3, 9, topics=None, **NOTHING_MORE))

        assert [topic.error_code for topic in answer.topics] == [ErrorCode.leader_not_available]
        assert await everything.is_closed_by_agent()
        named.close()
        everything.close()


async def test_no_answer_is_without_brokers(database_url: str) -> None:
    """librdkafka 2.16 would forget every address and never recover."""
    patient = CacheRingSettings(membership_lease_s=600.0, membership_renew_s=300.0, membership_margin_s=0.5)
    async with running(database_url, ring_settings=patient) as agent:
        client = await Wire.connect(agent.app.kafka_port)
        assert len((await client.ask(a_metadata("orders"))).brokers) == 1
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            # The agent slept past its lease.
            await connection.execute("UPDATE agents SET lease_until = clock_timestamp()")
        membership = agent.app._membership()
        assert membership is not None
        await membership.refresh()

        await client.send(a_metadata("orders"))

        assert await client.is_closed_by_agent()
        client.close()


@pytest.mark.parametrize("version", [10, 11, 12, 13])
@pytest.mark.asyncio(loop_scope="module")
async def test_an_id_that_no_topic_has_is_unknown_in_every_version_that_names_ids(
    agent: Running, version: int
) -> None:
    client = await Wire.connect(agent.app.kafka_port)
    asked = [{"topic_id": UUID(int=1), "name": None}]

    answer = await client.ask(request(3, version, topics=asked, **NOTHING_MORE))

    assert [(topic.error_code, topic.name or None) for topic in answer.topics] == [
        (ErrorCode.unknown_topic_id, None)
    ]
    client.close()
