"""An agent whose database does not own the bucket: it hangs up, commits nothing and says why. It serves again
once its database owns the bucket.
"""

import asyncio
import contextlib
import logging
from urllib.parse import urlsplit

import pytest

from agent.health import OwnershipWatch
from sequencer.client import Sequencer
from sequencer.cluster.ownership import Confirmed, OwnershipLost
from sequencer.cluster.ownership_rules import Lost
from storage.segments.keys import ownership_key
from storage.stores.memory_store import MemoryStore
from tests.agent.running import Wire, a_batch, a_produce, partitions_of, running, until_answered
from tests.agent.test_app import until_not_ready, until_ready
from tests.sequencer.cluster.ownership import CLUSTER, a_copy
from tests.support.waiting import until

RATCHET_S = 60.0


def store_of(database_url: str) -> MemoryStore:
    """The store that agents of this database use."""
    return MemoryStore.named(urlsplit(database_url).path.strip("/"))


async def high_watermark(sequencer: Sequencer) -> int:
    rows = await sequencer.database.run(
        "SELECT coalesce(sum(high_watermark), 0)::bigint AS records FROM partitions"
    )
    return int(rows[0].records)


async def until_hung_up(wire: Wire) -> None:
    async with asyncio.timeout(60):
        with contextlib.suppress(OSError, EOFError):
            await wire.receive_frame()


@pytest.mark.superuser
async def test_an_agent_hangs_up_and_says_why_until_its_database_owns_the_bucket_again(
    unowned: Sequencer, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(database_url)
    await unowned.topics.create("orders", 1, {})
    async with running(database_url) as agent:
        await unowned.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S)
        wire = await Wire.connect(agent.app.kafka_port)
        [before] = partitions_of(await wire.ask(a_produce("orders", {0: a_batch(b"a")})))
        assert before.base_offset == 0

        async with a_copy(unowned, database_url) as copy:
            await copy.ownership.take_over(store, CLUSTER)
        await unowned.database.run("UPDATE ownership SET confirmed_at = confirmed_at - interval '1 minute'")
        found = await unowned.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S)
        assert isinstance(found, Lost)

        await until_not_ready(agent, "another database owns the bucket")
        await until_not_ready(agent, "tidelog recover --take-over")
        await until_hung_up(wire)
        assert await high_watermark(unowned) == 1
        said = [record for record in caplog.records if "agent stops serving" in record.getMessage()]
        assert [record.levelno for record in said] == [logging.ERROR]

        await unowned.ownership.take_over(store, CLUSTER)

        await until_ready(agent)

        async def answers() -> bool:
            with contextlib.suppress(OSError, EOFError):  # it accepts connections a moment after it is ready
                again = await Wire.connect(agent.app.kafka_port)
                [after] = partitions_of(await again.ask(a_produce("orders", {0: a_batch(b"c")})))
                return bool(after.base_offset >= 1)
            return False

        await until_answered(answers)


@pytest.mark.superuser
async def test_an_agent_that_starts_on_a_copy_reads_the_object_and_does_not_serve(
    unowned: Sequencer, database_url: str
) -> None:
    """Also an agent without the role jobs, before any agent on the copy has ratcheted."""
    store = store_of(database_url)
    await unowned.store_identity.bind(store, CLUSTER, "here")
    await unowned.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S)
    async with a_copy(unowned, database_url) as copy:
        await unowned.ownership.take_over(store, CLUSTER)
        written = await store.get(ownership_key(CLUSTER))
        [row] = await copy.database.run("SELECT current_database() AS name")
        url = database_url.replace(urlsplit(database_url).path, f"/{row.name}", 1)

        async with running(
            url, f"memory://{urlsplit(database_url).path.strip('/')}", wait_started=False
        ) as agent:
            await until_not_ready(agent, "another database owns the bucket")

            assert not agent.app.started.is_set()
            assert await store.get(ownership_key(CLUSTER)) == written
            with pytest.raises(OwnershipLost):
                await copy.ownership.demand()
            await copy.ownership.take_over(store, CLUSTER)
            await until(agent.app.started.is_set)


async def test_an_agent_of_a_database_that_is_being_recovered_waits_for_it(
    sequencer: Sequencer, database_url: str
) -> None:
    async with running(database_url) as agent:
        await sequencer.ownership.stop("the database is being recovered")
        await until_not_ready(agent, "the database is being recovered")

        await sequencer.ownership.resume()

        await until_ready(agent)


@pytest.mark.superuser
async def test_agents_without_the_role_jobs_notice_that_their_database_is_a_copy(
    unowned: Sequencer, database_url: str
) -> None:
    """An agent that started before the original's next ratchet found nothing wrong."""
    store = store_of(database_url)
    await unowned.store_identity.bind(store, CLUSTER, "here")
    await unowned.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S)
    async with a_copy(unowned, database_url) as copy:
        await copy.database.run("UPDATE ownership SET ratchet_s = 0.2")
        [row] = await copy.database.run("SELECT current_database() AS name")
        url = database_url.replace(urlsplit(database_url).path, f"/{row.name}", 1)
        async with running(url, f"memory://{urlsplit(database_url).path.strip('/')}") as agent:
            await until_ready(agent)

            await unowned.database.run(
                "UPDATE ownership SET confirmed_at = confirmed_at - interval '1 minute'"
            )
            assert await unowned.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S) == Confirmed()

            await until_not_ready(agent, "another database owns the bucket")


@pytest.mark.superuser
async def test_after_a_change_of_primary_an_agent_waits_until_it_owns_the_bucket_for_certain(
    unowned: Sequencer, database_url: str
) -> None:
    store = store_of(database_url)
    await unowned.store_identity.bind(store, CLUSTER, "here")
    await unowned.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S)
    async with a_copy(unowned, database_url) as restored:
        await unowned.ownership.take_over(store, CLUSTER)
        watch = OwnershipWatch(restored.ownership, store, CLUSTER)
        watch.doubt()
        looking = asyncio.create_task(watch.run())
        try:

            async def has_lost() -> bool:
                return (await restored.ownership.state()).lost_because is not None

            await until_answered(has_lost)
            assert watch.is_doubted

            await restored.ownership.take_over(store, CLUSTER)
            await until(lambda: not watch.is_doubted)
        finally:
            looking.cancel()
            await asyncio.wait({looking})
