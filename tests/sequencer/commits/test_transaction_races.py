"""Races about transactions: each test is named after a sentence in docs/design/transactions.md that it keeps
true."""

import asyncio
from random import Random

import pytest

from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, FencedEpoch, InvalidTransaction
from sequencer.commits.transactions import (
    SQL,
    Added,
    EndCause,
    Ended,
    ProducerOfTransactions,
    TransactionRefusal,
)
from sequencer.settings import SequencerSettings
from storage.identifiers import Offset
from storage.segments.segment_batches import BatchTransaction
from tests.sequencer.builders import ABatch, reserved
from tests.sequencer.commits.test_transactions import (
    a_producer,
    a_topic,
    end,
    look,
    of,
    write,
)
from tests.sequencer.races import IN_TURN, JUDGED, commit_within, is_kept_waiting

KINDS = {EndCause.CLIENT: BatchTransaction.ADDED, EndCause.CLIENT_2: BatchTransaction.ADDS_ITSELF}


@pytest.mark.parametrize("function", [IN_TURN, JUDGED])
@pytest.mark.parametrize("cause", list(KINDS))
async def test_the_end_of_a_transaction_waits_for_an_upload_that_is_being_committed(
    sequencer: Sequencer, function: str, cause: EndCause
) -> None:
    """Else its records would be in no transaction that ever ends."""
    key, other = await a_topic(sequencer)
    producer = await a_producer(sequencer)
    await sequencer.transactions.add(producer, [key, other])
    await write(sequencer, producer, other, kind=KINDS[cause])
    late = ABatch(
        topic_id=key[0],
        partition=key[1],
        producer_id=producer.producer_id,
        sequence=0,
        transaction=KINDS[cause],
    )
    segment = await reserved(sequencer, [late])

    async with sequencer.database.connection() as connection, connection.transaction():
        outcomes = await commit_within(connection, [segment], function)
        ending = asyncio.create_task(end(sequencer, producer, cause=cause))
        assert await is_kept_waiting(sequencer, ending)
    ended = await ending

    assert outcomes == [Assigned(base_offset=Offset(0))]
    assert {(run.topic_id, run.partition) for run in ended.markers} == {key, other}
    for each in (key, other):
        seen = await look(sequencer, each)
        assert seen.last_stable_offset == seen.high_watermark == 2


@pytest.mark.parametrize("cause", list(KINDS))
async def test_an_upload_that_is_committed_behind_the_end_of_its_transaction_is_refused(
    sequencer: Sequencer, cause: EndCause
) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await sequencer.transactions.add(producer, [key])
    await write(sequencer, producer, key, kind=KINDS[cause])

    async with sequencer.database.connection() as connection, connection.transaction():
        # What the end locks first.
        await connection.execute("SELECT FROM transactions FOR NO KEY UPDATE")
        late = asyncio.create_task(write(sequencer, producer, key, 1, kind=KINDS[cause]))
        assert await is_kept_waiting(sequencer, late)
        await connection.execute(
            "SELECT end_transaction('tx', %s, 0, true, %s, gen_random_uuid(), 'inline/', 1)",
            (producer.producer_id, cause.value),
        )
    refused = await late

    assert refused == (InvalidTransaction() if cause is EndCause.CLIENT else FencedEpoch())
    seen = await look(sequencer, key)
    assert seen.last_stable_offset == seen.high_watermark == 2


@pytest.mark.parametrize("cause", list(KINDS))
@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_that_is_repeated_at_the_same_time_returns_what_the_first_one_did(
    sequencer: Sequencer, cause: EndCause, is_commit: bool
) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await sequencer.transactions.add(producer, [key])
    await write(sequencer, producer, key, kind=KINDS[cause])

    ends = await asyncio.gather(
        *(end(sequencer, producer, is_commit=is_commit, cause=cause) for _ in range(4))
    )

    assert len({each.identity for each in ends}) == 1
    assert sum(len(each.markers) for each in ends) == 1
    assert (await look(sequencer, key)).high_watermark == 2


async def test_of_two_ends_that_differ_one_is_done(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    for _ in range(5):
        producer = await a_producer(sequencer)
        await write(sequencer, producer, key)

        ends = await asyncio.gather(
            sequencer.transactions.end(producer, is_commit=True, cause=EndCause.CLIENT_2),
            sequencer.transactions.end(producer, is_commit=False, cause=EndCause.RESTART),
        )

        assert sorted(type(each).__name__ for each in ends) == ["Ended", "TransactionRefusal"]
    assert len({run.base_offset for run in (await look(sequencer, key)).runs}) == 10


async def test_ends_that_share_a_statement_do_not_deadlock_with_each_other_or_with_commits(
    sequencer: Sequencer, database_url: str
) -> None:
    """Twenty producers write to the same partitions, in different orders, and end at the same time through
    two agents."""
    keys = await a_topic(sequencer, 4)
    other = await Sequencer.open(database_url, SequencerSettings())
    try:
        agents = (sequencer, other)
        producers = [await a_producer(sequencer, f"tx-{number}") for number in range(20)]
        chance = Random(7)

        async def transact(number: int, producer: ProducerOfTransactions) -> None:
            for turn in range(6):
                for key in chance.sample(keys, 3):
                    written = await write(agents[(number + turn) % 2], producer, key)
                    assert isinstance(written, Assigned), written
                ended = await end(agents[number % 2], producer, is_commit=turn % 2 == 0)
                assert len(ended.markers) == 3
                producer = of(producer.transactional_id, ended.identity)

        await asyncio.gather(*(transact(number, each) for number, each in enumerate(producers)))

        for agent in agents:
            assert agent.database.counters.deadlocks == 0
    finally:
        await other.close()
    ends = [await look(sequencer, key) for key in keys]
    assert sum(each.high_watermark for each in ends) == 20 * 6 * 3 * 2
    assert all(each.last_stable_offset == each.high_watermark for each in ends)


async def test_ends_that_share_a_statement_lock_partitions_in_the_order_of_commits(
    sequencer: Sequencer,
) -> None:
    """A commit has the first partition and takes the second. The first of the ends needs only the second."""
    first, second = sorted(await a_topic(sequencer))
    producers = [await a_producer(sequencer, f"tx-{number}") for number in range(2)]
    await write(sequencer, producers[0], second)
    await write(sequencer, producers[1], first)
    lock = "SELECT FROM partitions WHERE partition = %s FOR NO KEY UPDATE"

    async with sequencer.database.connection() as connection, connection.transaction():
        await connection.execute(lock, (first[1],))
        ending = asyncio.create_task(
            sequencer.database.run(
                "SELECT end_transactions(ARRAY['tx-0', 'tx-1'], %(producers)s::bigint[], '{0, 0}',"
                " '{true, true}', '{client2, client2}', ARRAY[gen_random_uuid(), gen_random_uuid()],"
                " '{inline/a, inline/b}', '{1, 1}')",
                producers=[each.producer_id for each in producers],
            )
        )
        assert await is_kept_waiting(sequencer, ending)
        await connection.execute("SET LOCAL lock_timeout = '10s'")
        await connection.execute(lock, (second[1],))
    await ending

    assert [(await look(sequencer, key)).high_watermark for key in (first, second)] == [2, 2]


async def test_a_producer_that_goes_on_while_its_transaction_times_out_has_one_epoch(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer, timeout_ms=0)
    await write(sequencer, producer, key)

    ended, added = await asyncio.gather(
        sequencer.transactions.end(producer, is_commit=False, cause=EndCause.TIMEOUT),
        sequencer.transactions.add(producer, [key]),
    )

    assert isinstance(ended, Ended)
    assert added in (Added(missing=[]), TransactionRefusal.FENCED)
    assert await sequencer.transactions.expired(10) == []
    assert await write(sequencer, of("tx", ended.identity), key) == Assigned(base_offset=Offset(2))


async def test_a_timeout_spares_the_transaction_that_began_after_the_late_one(sequencer: Sequencer) -> None:
    """A client of the older protocol keeps its epoch, so only the time tells the two apart."""
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await sequencer.transactions.add(producer, [key])
    await write(sequencer, producer, key, kind=BatchTransaction.ADDED)
    await sequencer.database.run("UPDATE transaction_partitions SET expires_at = now()")

    [found] = await sequencer.transactions.expired(10)
    await end(sequencer, producer, cause=EndCause.CLIENT)
    await sequencer.transactions.add(producer, [key])
    await write(sequencer, producer, key, 1, kind=BatchTransaction.ADDED)
    timed_out = await sequencer.transactions.end(found, is_commit=False, cause=EndCause.TIMEOUT)

    assert timed_out is TransactionRefusal.NOTHING_TO_END
    assert await write(sequencer, producer, key, 2, kind=BatchTransaction.ADDED) == Assigned(
        base_offset=Offset(3)
    )


PAUSED = (
    "ALTER TABLE transaction_groups RENAME TO all_groups",
    """CREATE FUNCTION paused() RETURNS SETOF all_groups LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock(7);
        RETURN QUERY SELECT * FROM all_groups;
    END $$""",
    "CREATE VIEW transaction_groups AS SELECT * FROM paused()",
)
"""While the lock is held, whoever looks for the groups of a transaction pauses, with the snapshot that it
has.
"""


@pytest.mark.superuser
async def test_an_id_whose_transaction_begins_as_it_is_forgotten_stays_or_refuses_it(
    sequencer: Sequencer,
) -> None:
    """Else nothing would ever end the transaction, and the last stable offset would stay where it is."""
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await sequencer.database.run("UPDATE transactions SET changed_at = changed_at - interval '8 days'")
    for statement in PAUSED:
        await sequencer.database.run_local(statement)

    async with sequencer.database.connection() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(7)")
        forgetting = asyncio.create_task(sequencer.transactions.forget(7 * 86_400.0, 10))
        assert await is_kept_waiting(sequencer, forgetting)
        writing = asyncio.create_task(write(sequencer, producer, key))
        await asyncio.wait([writing], timeout=0.5)
    forgotten = (await forgetting).forgotten
    written = await writing

    known = await sequencer.transactions.of_producer(producer.producer_id)
    assert (known is None) == (forgotten == 1) == (written == InvalidTransaction())
    seen = await look(sequencer, key)
    assert seen.last_stable_offset == (0 if known else seen.high_watermark)


async def test_an_id_that_is_used_as_it_is_forgotten_stays(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await sequencer.database.run("UPDATE transactions SET changed_at = changed_at - interval '8 days'")
    async with sequencer.database.transaction() as connection:
        look_at = {"after": "", "unused_for_s": 7 * 86_400.0, "cap": 10}
        [looked] = await (await connection.execute(SQL["lock_unused"], look_at)).fetchall()
    assert looked.locked == ["tx"]

    used = await a_producer(sequencer)
    judged = {"transactional_ids": looked.locked, "unused_for_s": 7 * 86_400.0}
    [gone] = await sequencer.database.run(SQL["forget"], **judged)

    assert gone.forgotten == 0
    assert await write(sequencer, used, key) == Assigned(base_offset=Offset(0))
    assert producer.producer_id == used.producer_id
