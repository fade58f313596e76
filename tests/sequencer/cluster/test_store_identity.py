"""Agents detect a database and a store that do not belong together, however many start or die at once."""

import asyncio
import re

import pytest

from compactor.doctor import DoctorSettings, examine
from sequencer.client import Sequencer
from sequencer.cluster.store_identity import WrongStore
from sequencer.settings import SequencerSettings
from storage.identifiers import ObjectKey
from storage.segments.keys import identity_key
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore, StoreUnavailable
from tests.agent.read_path.a_log import ALog

HERE, THERE = "memory://here", "memory://there"


class _DiesAfterPut(MemoryStore):
    """Writes the object, and then its writer dies."""

    async def put(self, key: ObjectKey, chunks: object) -> None:
        await super().put(key, chunks)  # type: ignore[arg-type]
        raise StoreUnavailable("killed")


async def test_the_store_of_the_first_agent_is_the_databases(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    identity = sequencer.store_identity
    assert not await identity.check(store, "tidelog", HERE)

    await identity.bind(store, "tidelog", HERE)
    await identity.bind(store, "tidelog", "the same by another address")

    assert await identity.check(store, "tidelog", HERE)


async def test_another_store_is_refused_and_the_right_one_named(sequencer: Sequencer) -> None:
    await sequencer.store_identity.bind(MemoryStore(), "tidelog", HERE)
    other = MemoryStore()

    for refuses in (sequencer.store_identity.check, sequencer.store_identity.bind):
        with pytest.raises(WrongStore, match=re.escape(HERE)):
            await refuses(other, "tidelog", THERE)

    assert [info.key async for info in other.list("")] == [], "nothing is written there"


async def test_another_cluster_name_is_another_place(sequencer: Sequencer) -> None:
    store = MemoryStore()
    await sequencer.store_identity.bind(store, "tidelog", HERE)

    with pytest.raises(WrongStore, match="TIDELOG_CLUSTER"):
        await sequencer.store_identity.bind(store, "other", HERE)


async def test_the_store_of_another_database_is_refused(sequencer: Sequencer, database_url: str) -> None:
    store = MemoryStore()
    await sequencer.store_identity.bind(store, "tidelog", HERE)
    await sequencer.database.run(
        "UPDATE cluster SET cluster_id = 'another', store_id = NULL, store_name = NULL"
    )
    of_another = await Sequencer.open(database_url, SequencerSettings())

    with pytest.raises(WrongStore, match="another"):
        await of_another.store_identity.bind(store, "tidelog", HERE)
    await of_another.close()


async def test_of_two_databases_that_begin_in_one_store_at_once_at_most_one_gets_it(
    sequencer: Sequencer,
) -> None:
    class AnotherBegins(MemoryStore):
        async def put(self, key: ObjectKey, chunks: object) -> None:
            await super().put(key, chunks)  # type: ignore[arg-type]
            await super().put(identity_key("tidelog", "theirs"), [b'{"cluster_id": "another"}'])

    with pytest.raises(WrongStore, match="another"):
        await sequencer.store_identity.bind(AnotherBegins(), "tidelog", HERE)

    assert not await sequencer.store_identity.check(MemoryStore(), "tidelog", THERE)


async def test_a_database_that_names_objects_already_takes_no_store_without_them(
    sequencer: Sequencer,
) -> None:
    store = MemoryStore()
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a"])

    with pytest.raises(WrongStore, match=re.escape(THERE)):
        await sequencer.store_identity.bind(MemoryStore(), "tidelog", THERE)
    await sequencer.store_identity.bind(store, "tidelog", HERE)


async def test_of_agents_that_begin_at_once_with_two_stores_those_with_one_are_refused(
    database_url: str,
) -> None:
    agents = [await Sequencer.open(database_url, SequencerSettings()) for _ in range(6)]
    stores = [MemoryStore(), MemoryStore()]
    try:
        outcomes = await asyncio.gather(
            *(
                agent.store_identity.bind(stores[number % 2], "tidelog", (HERE, THERE)[number % 2])
                for number, agent in enumerate(agents)
            ),
            return_exceptions=True,
        )
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))

    refused = [isinstance(outcome, WrongStore) for outcome in outcomes]
    assert refused in ([False, True] * 3, [True, False] * 3), outcomes


async def test_who_died_between_the_object_and_the_row_is_followed_by_the_next_with_that_store(
    sequencer: Sequencer,
) -> None:
    with pytest.raises(StoreUnavailable):
        await sequencer.store_identity.bind(_DiesAfterPut.named("begun"), "tidelog", HERE)
    store = MemoryStore.named("begun")
    assert not await sequencer.store_identity.check(store, "tidelog", HERE)

    await sequencer.store_identity.bind(store, "tidelog", HERE)

    assert await sequencer.store_identity.check(store, "tidelog", HERE)


async def test_a_store_begun_by_one_that_died_is_refused_once_the_database_has_another(
    sequencer: Sequencer,
) -> None:
    begun = _DiesAfterPut()
    with pytest.raises(StoreUnavailable):
        await sequencer.store_identity.bind(begun, "tidelog", HERE)
    await sequencer.store_identity.bind(MemoryStore(), "tidelog", THERE)

    with pytest.raises(WrongStore, match=re.escape(THERE)):
        await sequencer.store_identity.bind(begun, "tidelog", HERE)


async def test_an_object_that_comes_late_harms_nobody(sequencer: Sequencer) -> None:
    """Of an agent that slept while another one began: it is not the one that the database names."""
    store = MemoryStore()
    await sequencer.store_identity.bind(store, "tidelog", HERE)
    [written] = [info.key async for info in store.list("tidelog/")]

    await store.put(identity_key("tidelog", "late"), [await store.get(written)])

    assert await sequencer.store_identity.check(store, "tidelog", HERE)
    assert (
        await examine(sequencer, store, "tidelog", verify_contents=True, settings=DoctorSettings())
    ).is_healthy


async def test_a_lost_object_can_be_written_again_as_the_message_says(sequencer: Sequencer) -> None:
    store = MemoryStore()
    await sequencer.store_identity.bind(store, "tidelog", HERE)
    await store.delete([info.key async for info in store.list("tidelog/")])

    with pytest.raises(WrongStore) as refused:
        await sequencer.store_identity.check(store, "tidelog", HERE)
    said = re.search(r"there is no (\S+)\. .*write it again: (\{.*\})", str(refused.value))
    assert said is not None
    await store.put(ObjectKey(said[1]), [said[2].encode()])

    assert await sequencer.store_identity.check(store, "tidelog", HERE)


@pytest.mark.parametrize("written", [b"", b"hello", b"[]", b'{"id": "x"}', b"\xff"])
async def test_what_no_tidelog_wrote_is_refused(sequencer: Sequencer, written: bytes) -> None:
    store = MemoryStore()
    await store.put(identity_key("tidelog", "x"), [written])

    with pytest.raises(WrongStore, match=re.escape("cluster ?")):
        await sequencer.store_identity.bind(store, "tidelog", HERE)


async def test_the_doctor_takes_the_object_for_no_orphan(sequencer: Sequencer) -> None:
    store = MemoryStore()
    await sequencer.store_identity.bind(store, "tidelog", HERE)

    assert (
        await examine(sequencer, store, "tidelog", verify_contents=True, settings=DoctorSettings())
    ).is_healthy
