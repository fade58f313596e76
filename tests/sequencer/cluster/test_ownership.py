"""The bucket knows its owner: one of a database and its copies, whatever crashes, is late or slow."""

import asyncio
from typing import cast

import pytest

from sequencer.client import Sequencer
from sequencer.cluster.ownership import Confirmed, OwnershipLost, OwnershipUnconfirmed, Watching
from sequencer.cluster.ownership_rules import WATCH_RATCHETS, Lost, OwnerObject
from sequencer.history.history_values import Begun, Publication, Published, StagedVersion
from sequencer.housekeeping.merge_values import SwapsDone
from sequencer.housekeeping.merges import BEFORE_ALL
from sequencer.settings import SequencerSettings
from storage.identifiers import ObjectKey
from storage.segments.keys import identity_prefix, ownership_key
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore, StoreUnavailable
from tests.sequencer.cluster.ownership import CLUSTER, BreaksAt, WithoutConditions, a_copy, time_passes
from tests.sequencer.housekeeping.merges import (
    LONG,
    a_log,
    an_output,
    claimed,
    discovered,
    everything,
    one_swap_each,
    runs_of,
)

RATCHET_S = 60.0
KEY = ownership_key(CLUSTER)


async def ratchet(sequencer: Sequencer, store: ObjectStore) -> Confirmed | Watching | Lost:
    """A ratchet that is due."""
    await time_passes(sequencer, RATCHET_S)
    return await sequencer.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S)


async def owner_in(store: ObjectStore) -> OwnerObject:
    return OwnerObject.model_validate_json((await store.get_tagged(KEY)).data)


async def is_lost(sequencer: Sequencer) -> bool:
    return (await sequencer.ownership.state()).lost_because is not None


async def test_the_first_ratchet_makes_the_object_and_confirms(
    unowned: Sequencer, any_store: ObjectStore
) -> None:
    with pytest.raises(OwnershipUnconfirmed, match="never"):
        await unowned.ownership.demand()

    assert await ratchet(unowned, any_store) == Confirmed()

    await unowned.ownership.demand()
    state = await unowned.ownership.state()
    owner = await owner_in(any_store)
    assert (state.epoch, state.ratchets, state.newest_nonce) == (1, 1, owner.nonce)
    assert owner.cluster_id == await unowned.cluster.cluster_id()


async def test_each_ratchet_writes_another_nonce_and_none_comes_early(
    unowned: Sequencer, any_store: ObjectStore
) -> None:
    nonces = set()
    for _ in range(70):  # more than are kept
        assert await ratchet(unowned, any_store) == Confirmed()
        nonces.add((await owner_in(any_store)).nonce)
    assert len(nonces) == 70

    assert await unowned.ownership.ratchet(any_store, CLUSTER, ratchet_s=RATCHET_S) == Confirmed(
        is_early=True
    )

    assert (await owner_in(any_store)).nonce in nonces


async def test_an_ownership_counts_for_two_ratchets(unowned: Sequencer) -> None:
    await ratchet(unowned, MemoryStore())

    await time_passes(unowned, 2 * RATCHET_S - 30)
    await unowned.ownership.demand()
    await time_passes(unowned, 31)

    with pytest.raises(OwnershipUnconfirmed, match="jobs"):
        await unowned.ownership.demand()


@pytest.mark.superuser
async def test_a_copy_finds_the_originals_nonce_and_has_lost(
    unowned: Sequencer, database_url: str, any_store: ObjectStore
) -> None:
    await ratchet(unowned, any_store)
    async with a_copy(unowned, database_url) as copy:
        await ratchet(unowned, any_store)
        mine = await owner_in(any_store)

        found = await ratchet(copy, any_store)

        assert isinstance(found, Lost)
        assert "tidelog recover --take-over" in found.because
        assert "TIDELOG_STORE_URL" in found.because
        with pytest.raises(OwnershipLost, match="another database owns the bucket"):
            await copy.ownership.demand()
        with pytest.raises(OwnershipLost):
            await copy.ownership.check_object(any_store, CLUSTER)
        assert await owner_in(any_store) == mine, "it wrote nothing"
        assert await ratchet(unowned, any_store) == Confirmed()


@pytest.mark.superuser
async def test_a_copy_that_starts_before_the_next_ratchet_does_not_win(
    unowned: Sequencer, database_url: str, any_store: ObjectStore
) -> None:
    """A volume that was forked and started within a minute knows the nonce that it finds."""
    await ratchet(unowned, any_store)
    async with a_copy(unowned, database_url) as copy:
        with pytest.raises(OwnershipUnconfirmed):
            await copy.ownership.demand()
        await copy.ownership.check_object(any_store, CLUSTER)  # nothing is wrong yet

        first = await ratchet(copy, any_store)
        second = await ratchet(copy, any_store)
        with pytest.raises(OwnershipUnconfirmed, match="watched"):
            await copy.ownership.demand()
        assert await ratchet(unowned, any_store) == Confirmed()
        third = await ratchet(copy, any_store)

        assert isinstance(first, Watching)
        assert isinstance(second, Watching)
        assert first.left_s > second.left_s
        assert isinstance(third, Lost)


async def test_a_restarted_postgres_goes_on_when_nobody_else_ratchets(
    unowned: Sequencer, any_store: ObjectStore
) -> None:
    await ratchet(unowned, any_store)
    await unowned.database.run(
        "UPDATE ownership SET postmaster_started_at = postmaster_started_at - interval '1 s'"
    )

    outcomes = [await ratchet(unowned, any_store) for _ in range(WATCH_RATCHETS + 1)]

    assert all(isinstance(outcome, Watching) for outcome in outcomes[:-1])
    assert outcomes[-1] == Confirmed()


@pytest.mark.superuser
async def test_a_restored_dump_needs_a_take_over_whatever_it_finds(
    unowned: Sequencer, database_url: str, any_store: ObjectStore
) -> None:
    await ratchet(unowned, any_store)
    async with a_copy(unowned, database_url, as_files=False) as restored:
        assert isinstance(await ratchet(restored, any_store), Lost)
        with pytest.raises(OwnershipLost, match="restored dump"):
            await restored.ownership.check_object(any_store, CLUSTER)
        assert await ratchet(unowned, any_store) == Confirmed()


@pytest.mark.parametrize("conditions", [True, False])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
async def test_a_crash_between_any_two_steps_fences_nobody_from_its_own_bucket(
    unowned: Sequencer, call: int, after: bool, conditions: bool
) -> None:
    store = MemoryStore() if conditions else WithoutConditions()
    await ratchet(unowned, store)
    confirmed = (await unowned.ownership.state()).ratchets

    with pytest.raises(StoreUnavailable):
        await ratchet(unowned, cast(ObjectStore, BreaksAt(store, call, after=after)))
    assert (await unowned.ownership.state()).ratchets == confirmed

    assert await ratchet(unowned, store) == Confirmed()
    assert (await unowned.ownership.state()).newest_nonce == (await owner_in(store)).nonce


@pytest.mark.parametrize("conditions", [True, False])
async def test_holders_at_once_do_not_fence_each_other(
    unowned: Sequencer, database_url: str, conditions: bool
) -> None:
    store = MemoryStore() if conditions else WithoutConditions()
    holders = [await Sequencer.open(database_url, SequencerSettings()) for _ in range(3)]
    try:
        for _ in range(10):
            await time_passes(unowned, RATCHET_S)
            outcomes = await asyncio.gather(
                *(holder.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S) for holder in holders),
                return_exceptions=True,
            )
            assert any(isinstance(outcome, Confirmed) for outcome in outcomes), outcomes
            assert all(isinstance(outcome, Confirmed | OwnershipUnconfirmed) for outcome in outcomes), (
                outcomes
            )
            assert not await is_lost(unowned)
    finally:
        for holder in holders:
            await holder.close()


async def test_a_late_put_of_an_older_nonce_fences_nobody(unowned: Sequencer) -> None:
    store = WithoutConditions()
    await ratchet(unowned, store)
    late = (await store.get_tagged(KEY)).data
    for _ in range(3):
        await ratchet(unowned, store)

    await store.put(KEY, [late])

    assert await ratchet(unowned, store) == Confirmed()


@pytest.mark.superuser
async def test_a_late_put_of_the_former_owner_is_replaced_by_the_higher_epoch(
    unowned: Sequencer, database_url: str
) -> None:
    store = WithoutConditions()
    await ratchet(unowned, store)
    async with a_copy(unowned, database_url) as copy:
        await ratchet(unowned, store)
        late = (await store.get_tagged(KEY)).data
        await copy.ownership.take_over(store, CLUSTER)

        await store.put(KEY, [late])

        assert await ratchet(copy, store) == Confirmed()
        assert isinstance(await ratchet(unowned, store), Lost)


@pytest.mark.superuser
async def test_an_object_that_vanished_is_made_again_by_its_owner_and_not_by_a_copy(
    unowned: Sequencer, database_url: str, any_store: ObjectStore
) -> None:
    await unowned.store_identity.bind(any_store, CLUSTER, "here")
    await ratchet(unowned, any_store)
    async with a_copy(unowned, database_url) as copy:
        await any_store.delete([KEY])

        assert isinstance(await ratchet(copy, any_store), Watching)
        assert await ratchet(unowned, any_store) == Confirmed()
        assert isinstance(await ratchet(copy, any_store), Lost)


async def test_an_object_that_vanished_with_all_else_is_not_made_again(unowned: Sequencer) -> None:
    """The bucket was emptied, or it is another one."""
    store = MemoryStore()
    await unowned.store_identity.bind(store, CLUSTER, "here")
    await ratchet(unowned, store)
    [identity] = [info.key async for info in store.list(identity_prefix(CLUSTER))]

    await store.delete([KEY, identity])

    with pytest.raises(OwnershipUnconfirmed, match="is this the right bucket"):
        await ratchet(unowned, store)
    assert [info.key async for info in store.list("")] == []


@pytest.mark.parametrize("written", [b"", b"hello", b"[]", b'{"epoch": 1}', b"\xff"])
async def test_an_object_that_no_tidelog_wrote_is_not_replaced(unowned: Sequencer, written: bytes) -> None:
    store = MemoryStore()
    await ratchet(unowned, store)
    await store.put(KEY, [written])

    assert isinstance(await ratchet(unowned, store), Lost)
    assert await store.get(KEY) == written


async def test_a_clock_that_is_set_back_neither_confirms_for_long_nor_stops_the_ratchet(
    unowned: Sequencer,
) -> None:
    store = MemoryStore()
    await ratchet(unowned, store)
    await time_passes(unowned, -3600)

    with pytest.raises(OwnershipUnconfirmed):
        await unowned.ownership.demand()
    assert await unowned.ownership.ratchet(store, CLUSTER, ratchet_s=RATCHET_S) == Confirmed()

    await unowned.ownership.demand()


@pytest.mark.superuser
async def test_a_take_over_turns_the_roles(
    unowned: Sequencer, database_url: str, any_store: ObjectStore
) -> None:
    await ratchet(unowned, any_store)
    async with a_copy(unowned, database_url) as copy:
        await ratchet(unowned, any_store)
        before = await owner_in(any_store)
        assert isinstance(await ratchet(copy, any_store), Lost)

        taken = await copy.ownership.take_over(any_store, CLUSTER)

        assert (taken.epoch, taken.before) == (2, before)
        assert taken.before_age_s is not None
        await copy.ownership.demand()
        assert await ratchet(copy, any_store) == Confirmed()
        assert isinstance(await ratchet(unowned, any_store), Lost)
        again = await unowned.ownership.take_over(any_store, CLUSTER)
        assert again.epoch == 3
        assert isinstance(await ratchet(copy, any_store), Lost)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
async def test_a_take_over_that_died_may_be_repeated(unowned: Sequencer, call: int, after: bool) -> None:
    store = MemoryStore()
    await ratchet(unowned, store)
    await unowned.ownership.stop("a copy")

    with pytest.raises(StoreUnavailable):
        await unowned.ownership.take_over(cast(ObjectStore, BreaksAt(store, call, after=after)), CLUSTER)
    assert isinstance(await ratchet(unowned, store), Lost), "half a take-over is none"
    await unowned.ownership.take_over(store, CLUSTER)

    assert await ratchet(unowned, store) == Confirmed()


async def test_a_database_that_is_being_recovered_is_not_served_until_it_resumes(unowned: Sequencer) -> None:
    store = MemoryStore()
    await unowned.ownership.take_over(store, CLUSTER, stopped_because="the database is being recovered")
    with pytest.raises(OwnershipLost, match="being recovered"):
        await unowned.ownership.demand()

    await unowned.ownership.resume()

    await unowned.ownership.demand()


async def test_no_merge_is_claimed_or_published_without_the_ownership(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    await a_log(sequencer, topic, 4)
    await discovered(sequencer)
    claim = await claimed(sequencer)
    swaps = one_swap_each(await sequencer.merges.runs(claim, BEFORE_ALL, 100))
    output = await an_output(sequencer, claim)
    await a_log(sequencer, topic, 4)
    await discovered(sequencer)
    before = await runs_of(sequencer, topic)

    await sequencer.ownership.stop("another database owns the bucket")
    with pytest.raises(OwnershipLost):
        await sequencer.merges.publish(claim, output, swaps)
    assert await sequencer.merges.claim(0, everything, cap=10, lease_s=60, long_run_bytes=LONG) is None

    assert await runs_of(sequencer, topic) == before
    await sequencer.ownership.resume()
    assert await sequencer.merges.publish(claim, output, swaps) == SwapsDone(places=frozenset({0}))
    assert await sequencer.merges.claim(0, everything, cap=10, lease_s=60, long_run_bytes=LONG) is not None


async def test_no_job_of_history_begins_or_publishes_without_the_ownership(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    await a_log(sequencer, topic, 2)
    ends = await sequencer.history.ends(topic.topic_id)
    begun = await sequencer.history.begin_compaction(
        topic.topic_id, ends, cluster="c", lease_s=60, runs_per_partition=10
    )
    assert isinstance(begun, Begun)
    key = ObjectKey("c/history/1")
    version = StagedVersion(
        on=begun.job.table, metadata_key=key, sequence_number=1, written=[key], let_go=[], oldest_version=1
    )
    publication = Publication(version=version)

    await sequencer.database.run("UPDATE ownership SET confirmed_at = NULL")
    with pytest.raises(OwnershipUnconfirmed):
        await sequencer.history.publish(begun.job, publication)
    with pytest.raises(OwnershipUnconfirmed):
        await sequencer.history.begin(topic.topic_id, "expire", cluster="c", lease_s=60)

    await sequencer.database.run("UPDATE ownership SET confirmed_at = clock_timestamp()")
    assert await sequencer.history.publish(begun.job, publication) == Published()
