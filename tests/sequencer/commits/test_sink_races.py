"""Races about sinks: two connections at a time."""

import asyncio
from random import Random
from typing import Any

import pytest
from psycopg import AsyncConnection

from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned
from sequencer.commits.sinks import SinkBatch, SinkCommitted, SinkFenced, TransactionsLost
from sequencer.commits.transactions import EndCause, Ended, ProducerOfTransactions
from sequencer.settings import SequencerSettings
from storage.identifiers import Offset
from storage.segments.segment_batches import BatchTransaction
from tests.sequencer.builders import ABatch, reserved
from tests.sequencer.commits.test_sinks import a_batch, stable, tasks
from tests.sequencer.commits.test_transactions import a_producer, a_topic, of, write
from tests.sequencer.races import commit_within, is_kept_waiting


async def commit_in(connection: AsyncConnection[Any], batch: SinkBatch) -> int:
    """Commits the batch in this connection's transaction, which stays open. Returns the outcome."""
    assert batch.query_batch is not None
    cursor = await connection.execute(
        "SELECT outcome FROM commit_sink_batch(%s, %s, %s, %s, %s, %s::text[], %s::bigint[], %s::integer[],"
        " ARRAY(SELECT gen_random_uuid() FROM generate_series(1, %s)),"
        " array_fill('inline/'::text, ARRAY[%s]), array_fill(1, ARRAY[%s]))",
        (
            *(batch.sink_name, batch.run_id, batch.id_prefix),
            *(batch.query_batch.query_id, batch.query_batch.batch_id),
            [each.transactional_id for each in batch.transactions],
            [each.producer_id for each in batch.transactions],
            [each.producer_epoch for each in batch.transactions],
            *[len(batch.transactions)] * 3,
        ),
    )
    return int((await cursor.fetchall())[0].outcome)


async def test_of_two_attempts_at_a_batch_at_the_same_time_one_is_committed(sequencer: Sequencer) -> None:
    """Such as that of a driver that was thought to be dead, and of the next one."""
    [key] = await a_topic(sequencer, 1)
    first, second = await tasks(sequencer, [key]), await tasks(sequencer, [key], attempt=1)

    async with sequencer.database.connection() as connection, connection.transaction():
        outcome = await commit_in(connection, a_batch(first, run="old"))
        waiting = asyncio.create_task(sequencer.sinks.commit(a_batch(second, run="new")))
        assert await is_kept_waiting(sequencer, waiting)
    answered = await waiting

    assert outcome == 0
    assert isinstance(answered, SinkCommitted)
    assert answered.is_repeat
    assert await stable(sequencer, key) == (8, 8, 2)


async def test_a_repeat_waits_for_the_commit_that_is_under_way(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    batch = a_batch(await tasks(sequencer, [key]))

    done = await asyncio.gather(*(sequencer.sinks.commit(batch) for _ in range(5)))

    assert sorted(isinstance(each, SinkCommitted) and each.is_repeat for each in done) == [False] + [True] * 4
    assert await stable(sequencer, key) == (4, 4, 0)


async def test_an_older_run_that_commits_while_a_newer_one_does_is_refused(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    await sequencer.sinks.commit(a_batch([], 0, run="old"))
    older, newer = await tasks(sequencer, [key]), await tasks(sequencer, [key], attempt=1)

    async with sequencer.database.connection() as connection, connection.transaction():
        await commit_in(connection, a_batch(newer, 1, run="new"))
        waiting = asyncio.create_task(sequencer.sinks.commit(a_batch(older, 2, run="old")))
        assert await is_kept_waiting(sequencer, waiting)
    refused = await waiting

    assert refused == SinkFenced()
    await sequencer.sinks.abort(a_batch(older, 2, run="old"))
    assert await stable(sequencer, key) == (8, 8, 2)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_batch_whose_transaction_times_out_meanwhile_is_committed_as_a_whole_or_not_at_all(
    sequencer: Sequencer, which: int
) -> None:
    [key] = await a_topic(sequencer, 1)
    batch = a_batch(await tasks(sequencer, [key]))
    await sequencer.database.run("UPDATE transaction_partitions SET expires_at = now() - interval '1 s'")
    late = batch.transactions[which]

    async with sequencer.database.connection() as connection, connection.transaction():
        await connection.execute(
            "SELECT end_transaction(%s, %s, %s, false, 'timeout', gen_random_uuid(), 'inline/', 1)",
            (late.transactional_id, late.producer_id, late.producer_epoch),
        )
        waiting = asyncio.create_task(sequencer.sinks.commit(batch))
        assert await is_kept_waiting(sequencer, waiting)
    refused = await waiting

    assert refused == TransactionsLost(transactional_ids=(late.transactional_id,))
    assert (await stable(sequencer, key))[2] == 1
    assert len(await sequencer.transactions.open_offsets(key)) == 1


async def test_a_timeout_that_waits_for_the_commit_of_a_batch_aborts_nothing(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    batch = a_batch(await tasks(sequencer, [key]))
    await sequencer.database.run("UPDATE transaction_partitions SET expires_at = now() - interval '1 s'")
    expired = await sequencer.transactions.expired(10)

    async with sequencer.database.connection() as connection, connection.transaction():
        assert await commit_in(connection, batch) == 0
        waiting = asyncio.create_task(
            sequencer.transactions.end(expired[0], is_commit=False, cause=EndCause.TIMEOUT)
        )
        assert await is_kept_waiting(sequencer, waiting)

    assert not isinstance(await waiting, Ended)
    assert await stable(sequencer, key) == (4, 4, 0)


async def test_the_commit_of_a_batch_waits_for_an_upload_that_is_being_committed(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    producers = await tasks(sequencer, [key])
    late = ABatch(
        topic_id=key[0],
        partition=key[1],
        producer_id=producers[1].producer_id,
        epoch=producers[1].producer_epoch,
        sequence=1,
        transaction=BatchTransaction.ADDS_ITSELF,
    )
    segment = await reserved(sequencer, [late])

    async with sequencer.database.connection() as connection, connection.transaction():
        outcomes = await commit_within(connection, [segment])
        waiting = asyncio.create_task(sequencer.sinks.commit(a_batch(producers)))
        assert await is_kept_waiting(sequencer, waiting)
    await waiting

    assert outcomes == [Assigned(base_offset=Offset(2))]
    assert await stable(sequencer, key) == (5, 5, 0)


async def test_a_sink_that_is_forgotten_while_it_commits_is_kept(sequencer: Sequencer) -> None:
    await sequencer.sinks.commit(a_batch([], 3))
    for table in ("sinks", "sink_batches"):
        await sequencer.database.run(f"UPDATE {table} SET changed_at = changed_at - interval '8 days'")

    async with sequencer.database.connection() as connection, connection.transaction():
        await commit_in(connection, a_batch([], 4))
        forgotten = await sequencer.sinks.forget(7 * 86_400.0, 10)
    again = await sequencer.sinks.commit(a_batch([], 4))

    assert forgotten == 0
    assert again == SinkCommitted(is_repeat=True, markers=())


async def test_sinks_do_not_deadlock_with_each_other_or_with_producers(
    sequencer: Sequencer, database_url: str
) -> None:
    """Three sinks of two drivers each, and six producers, write to the same partitions in random order."""
    keys = await a_topic(sequencer, 4)
    other = await Sequencer.open(database_url, SequencerSettings())
    seed = 11
    committed = 0

    async def stream(name: str, driver: int) -> None:
        nonlocal committed
        agent, chance = (sequencer, other)[driver], Random(f"{seed} {name} {driver}")
        for batch_id in range(6):
            producers = [
                await a_producer(agent, f"{name}-query-{task}-{driver}")
                for task in chance.sample(range(3), 3)
            ]
            for producer in producers:
                for key in chance.sample(keys, 2):
                    await write(agent, producer, key)
            batch = a_batch(producers, batch_id, sink=name)
            done = await agent.sinks.commit(batch)
            if isinstance(done, TransactionsLost):  # the other driver aborts what it finds open
                await agent.sinks.abort(batch)
            committed += isinstance(done, SinkCommitted) and not done.is_repeat

    async def produce(number: int) -> None:
        agent, chance = (sequencer, other)[number % 2], Random(f"{seed} {number}")
        producer: ProducerOfTransactions = await a_producer(agent, f"tx-{number}")
        for turn in range(6):
            for key in chance.sample(keys, 3):
                assert isinstance(await write(agent, producer, key), Assigned)
            ended = await agent.transactions.end(producer, is_commit=turn % 2 == 0, cause=EndCause.CLIENT_2)
            assert isinstance(ended, Ended)
            producer = of(producer.transactional_id, ended.identity)

    try:
        await asyncio.gather(
            *(stream(f"sink{number}", driver) for number in range(3) for driver in range(2)),
            *(produce(number) for number in range(6)),
        )
        for agent in (sequencer, other):
            assert agent.database.counters.deadlocks == 0
        assert 0 < committed <= 3 * 6
        await sequencer.database.run("UPDATE transaction_partitions SET expires_at = now() - interval '1 s'")
        for producer in await sequencer.transactions.expired(100):
            await sequencer.transactions.end(producer, is_commit=False, cause=EndCause.TIMEOUT)
    finally:
        await other.close()
    for key in keys:
        last_stable, high_watermark, _ = await stable(sequencer, key)
        assert last_stable == high_watermark
