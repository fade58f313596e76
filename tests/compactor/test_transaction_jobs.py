"""The jobs of transactions, and what merging and garbage collection do with markers."""

import pytest

from compactor.doctor import DoctorSettings, examine
from compactor.garbage_jobs import GarbageScanJob
from compactor.transaction_jobs import (
    AbortedTransactionsJob,
    TransactionalIdExpiryJob,
    TransactionTimeoutJob,
)
from sequencer.client import Sequencer
from sequencer.commits.commits import FencedEpoch
from sequencer.commits.transactions import EndCause
from sequencer.topics.topics import Topic
from storage.identifiers import Offset
from storage.segments.keys import is_inline
from storage.stores.inline_objects import InlineObjects
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER, pending, settings, written
from tests.compactor.merging import coordinates, merge_everything, read_all
from tests.compactor.test_garbage_jobs import finish
from tests.sequencer.commits.test_transactions import a_producer, a_topic, end, look, write
from tests.sequencer.housekeeping.housekeeping import count


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 1, {"retention.ms": "-1"})


async def test_a_transaction_whose_timeout_is_over_is_aborted_and_its_producer_fenced(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    late = [await a_producer(sequencer, f"late {number}", timeout_ms=0) for number in range(3)]
    for producer in late:
        await write(sequencer, producer, key)
    in_time = await a_producer(sequencer, "in time")
    await write(sequencer, in_time, key)

    await finish(TransactionTimeoutJob(sequencer, settings(transactions_per_step=2)))

    seen = await look(sequencer, key)
    assert seen.last_stable_offset == 3
    assert len(seen.aborted or ()) == 3
    assert await write(sequencer, late[0], key, 1) == FencedEpoch()


async def test_a_large_transaction_delays_no_other_timeout(sequencer: Sequencer) -> None:
    keys = await a_topic(sequencer, 4)
    large = await a_producer(sequencer, "large", timeout_ms=0)
    for key in keys:
        await write(sequencer, large, key)
    await write(sequencer, await a_producer(sequencer, "small", timeout_ms=0), keys[0])

    await finish(TransactionTimeoutJob(sequencer, settings(transactions_per_step=2)))

    assert await count(sequencer, "transaction_partitions") == 0


async def test_only_unused_transactional_ids_are_forgotten(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    for number in range(5):
        await a_producer(sequencer, f"unused {number}")
    await write(sequencer, await a_producer(sequencer, "open"), key)
    await sequencer.database.run("UPDATE transactions SET changed_at = changed_at - interval '8 days'")
    await a_producer(sequencer, "used")

    await finish(TransactionalIdExpiryJob(sequencer, settings(producers_per_step=2)))

    assert sorted(await sequencer.transactions.describe(["open", "used", "unused 0", "unused 4"])) == [
        "open",
        "used",
    ]


async def test_aborted_transactions_are_forgotten_behind_the_log_start_and_with_their_topic(
    sequencer: Sequencer,
) -> None:
    key, other = await a_topic(sequencer, 2)
    [of_deleted] = await a_topic(sequencer, 1, "deleted")
    for place in (key, key, key, other, of_deleted):
        producer = await a_producer(sequencer)
        await write(sequencer, producer, place)
        await end(sequencer, producer, is_commit=False)
    await sequencer.retention.delete_records(*key, before_offset=Offset(3))
    await sequencer.topics.delete("deleted")

    await finish(AbortedTransactionsJob(sequencer, settings(producers_per_step=2)))

    assert [entry.last_offset for entry in (await look(sequencer, key)).aborted or ()] == [3, 5]
    assert len((await look(sequencer, other)).aborted or ()) == 1
    assert await count(sequencer, "aborted_transactions") == 3


async def test_markers_are_merged_with_the_runs_before_them_and_nothing_of_them_stays(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    store = InlineObjects(local_store)
    producer = await a_producer(sequencer)
    key = topic.topic_id, (await coordinates(sequencer, topic)).partition
    for number in range(40):
        await written(sequencer, store, pending(topic, 2, timestamp_ms=10_000 + number))
        if number % 2:
            await sequencer.transactions.add(producer, [key])
            await sequencer.database.run(
                "UPDATE transaction_partitions SET first_offset = %(offset)s",
                offset=(await coordinates(sequencer, topic)).high_watermark - 2,
            )
            await end(sequencer, producer, is_commit=number % 4 == 1, cause=EndCause.CLIENT)
    before = await read_all(sequencer, store, topic)
    assert before[0].runs == 60

    assert await merge_everything(sequencer, store) > 0
    await finish(GarbageScanJob(sequencer, settings()))

    after = await read_all(sequencer, store, topic)
    assert [each.batches for each in after] == [each.batches for each in before]
    assert after[0].runs < 12
    runs = (await coordinates(sequencer, topic)).runs
    left = sum(is_inline(run.object_key) for run in runs)
    rows = await sequencer.database.run("SELECT count(*) AS n FROM segments WHERE writer = 'transaction'")
    assert left <= 4
    assert rows[0].n == left
    assert len((await coordinates(sequencer, topic)).aborted or ()) == 10
    diagnosis = await examine(sequencer, store, CLUSTER, verify_contents=True, settings=DoctorSettings())
    assert diagnosis.is_healthy, diagnosis.summary()
