"""Sinks: batches of many transactions, each committed as one and once."""

from collections.abc import Sequence

import pytest

from compactor.transaction_jobs import SinkExpiryJob
from sequencer.client import Sequencer
from sequencer.commits.commits import FencedEpoch
from sequencer.commits.coordinates import PartitionKey
from sequencer.commits.sinks import (
    QueryBatch,
    SinkBatch,
    SinkCommitted,
    SinkFenced,
    TransactionsLost,
)
from sequencer.commits.transactions import EndCause, ProducerOfTransactions
from tests.compactor.builders import settings
from tests.compactor.test_garbage_jobs import finish
from tests.sequencer.commits.test_transactions import a_producer, a_topic, end, look, write
from tests.sequencer.housekeeping.housekeeping import count


def a_batch(
    transactions: Sequence[ProducerOfTransactions],
    batch_id: int | None = 0,
    *,
    query: str = "query",
    run: str = "run",
    sink: str = "sink",
) -> SinkBatch:
    """`batch_id` None: the run commits only once."""
    return SinkBatch(
        sink_name=sink,
        run_id=run,
        id_prefix=f"{sink}-" if batch_id is None else f"{sink}-{query}-",
        query_batch=None if batch_id is None else QueryBatch(query_id=query, batch_id=batch_id),
        transactions=transactions,
    )


async def tasks(
    sequencer: Sequencer,
    keys: Sequence[PartitionKey],
    number: int = 2,
    *,
    prefix: str = "sink-query-",
    attempt: int = 0,
) -> list[ProducerOfTransactions]:
    """Each has written one record to each partition."""
    producers = [await a_producer(sequencer, f"{prefix}{task}-{attempt}") for task in range(number)]
    for producer in producers:
        for key in keys:
            await write(sequencer, producer, key)
    return producers


async def stable(sequencer: Sequencer, key: PartitionKey) -> tuple[int, int, int]:
    """The last stable offset, the high watermark, and how many aborted transactions there are."""
    seen = await look(sequencer, key)
    assert seen.aborted is not None
    return seen.last_stable_offset, seen.high_watermark, len(seen.aborted)


async def test_all_transactions_of_a_batch_are_committed_as_one(sequencer: Sequencer) -> None:
    keys = await a_topic(sequencer)
    producers = await tasks(sequencer, keys, 3)

    before = await stable(sequencer, keys[0])
    done = await sequencer.sinks.commit(a_batch(producers))
    late = await write(sequencer, producers[0], keys[0], 1)

    assert before == (0, 3, 0)
    assert isinstance(done, SinkCommitted)
    assert not done.is_repeat
    assert {(run.topic_id, run.partition, run.base_offset) for run in done.markers} == {
        (*key, offset) for key in keys for offset in (3, 4, 5)
    }
    assert [await stable(sequencer, key) for key in keys] == [(6, 6, 0)] * 2
    assert late == FencedEpoch()


async def test_a_repeated_commit_says_that_the_batch_was_committed_before(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    for batch in (
        a_batch(await tasks(sequencer, [key])),
        a_batch(await tasks(sequencer, [key], prefix="sink-"), None, run="write"),
    ):
        await sequencer.sinks.commit(batch)
        after = await stable(sequencer, key)

        again = await sequencer.sinks.commit(batch)

        assert again == SinkCommitted(is_repeat=True, markers=())
        assert await stable(sequencer, key) == after
    assert after == (8, 8, 0)


@pytest.mark.parametrize("number", [0, 1])
async def test_a_batch_that_is_written_again_is_aborted_if_it_or_a_later_one_was_committed(
    sequencer: Sequencer, number: int
) -> None:
    [key] = await a_topic(sequencer, 1)
    for batch_id in range(2):
        await sequencer.sinks.commit(a_batch(await tasks(sequencer, [key]), batch_id))

    replay = await tasks(sequencer, [key], attempt=1)
    again = await sequencer.sinks.commit(a_batch(replay, number, run="restarted"))

    assert isinstance(again, SinkCommitted)
    assert again.is_repeat
    assert len(again.markers) == 2
    assert await stable(sequencer, key) == (12, 12, 2)


async def test_a_batch_with_a_transaction_that_is_not_open_any_more_is_not_committed_at_all(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    producers = await tasks(sequencer, [key], 4)
    await end(sequencer, producers[1], is_commit=False, cause=EndCause.RESTART)
    await end(sequencer, producers[2], is_commit=True)

    refused = await sequencer.sinks.commit(a_batch(producers))
    in_between = await stable(sequencer, key)
    await sequencer.sinks.abort(a_batch(producers))
    replayed = await sequencer.sinks.commit(a_batch(await tasks(sequencer, [key])))

    assert refused == TransactionsLost(transactional_ids=("sink-query-1-0", "sink-query-2-0"))
    assert in_between == (0, 6, 1)
    assert isinstance(replayed, SinkCommitted)
    assert not replayed.is_repeat
    assert await stable(sequencer, key) == (12, 12, 3)


async def test_the_run_that_commits_takes_the_name_and_the_one_before_it_is_refused(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    await sequencer.sinks.commit(a_batch(await tasks(sequencer, [key]), 7, query="old", run="old run"))
    in_flight = await tasks(sequencer, [key], prefix="sink-old-")

    newer = await tasks(sequencer, [key], prefix="sink-new-")
    taken = await sequencer.sinks.commit(a_batch(newer, 0, query="new", run="new run"))
    all_ended = await stable(sequencer, key)
    refused = await sequencer.sinks.commit(a_batch(in_flight, 8, query="old", run="old run"))
    answered = await sequencer.sinks.commit(a_batch([], 7, query="old", run="old run"))
    restarted = await tasks(sequencer, [key], prefix="sink-old-")
    back = await sequencer.sinks.commit(a_batch(restarted, 8, query="old", run="another run"))

    assert isinstance(taken, SinkCommitted)
    assert all_ended == (12, 12, 2)
    assert refused == SinkFenced()
    assert answered == SinkCommitted(is_repeat=True, markers=())
    assert isinstance(back, SinkCommitted)
    assert not back.is_repeat
    assert await stable(sequencer, key) == (16, 16, 2)


async def test_a_query_that_lost_the_name_and_got_it_back_still_knows_its_batches(
    sequencer: Sequencer,
) -> None:
    for run, query in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "b")):
        done = await sequencer.sinks.commit(a_batch([], 5, query=query, run=run))

        assert done == SinkCommitted(is_repeat=run in "34", markers=())


async def test_a_name_remembers_the_twenty_runs_before(sequencer: Sequencer) -> None:
    for run in range(25):
        assert isinstance(await sequencer.sinks.commit(a_batch([], run, run=f"{run}")), SinkCommitted)

    assert await sequencer.sinks.commit(a_batch([], 30, run="4")) == SinkFenced()
    assert await sequencer.sinks.commit(a_batch([], 30, run="24")) == SinkCommitted(
        is_repeat=False, markers=()
    )
    assert await sequencer.sinks.commit(a_batch([], 31, run="3")) == SinkCommitted(
        is_repeat=False, markers=()
    )


async def test_attempts_that_lost_are_aborted_and_others_with_similar_names_are_not(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    winners = await tasks(sequencer, [key], attempt=1)
    losers = await tasks(sequencer, [key], 1) + await tasks(sequencer, [key], 1, attempt=2)
    others = [
        await a_producer(sequencer, name)
        for name in ("sink-query-", "sink-query-a-0", "sink-query-0", "sink-query-0-0-0", "sink-queryx-0-0")
    ]
    for producer in others:
        await write(sequencer, producer, key)

    await sequencer.sinks.commit(a_batch(winners))

    still_open = await sequencer.transactions.open_offsets(key)
    assert set(still_open) == {producer.producer_id for producer in others}
    assert (await stable(sequencer, key))[2] == len(losers)
    for producer in losers:
        assert await write(sequencer, producer, key, 1) == FencedEpoch()


async def test_a_batch_that_is_aborted_leaves_nothing_open(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    producers = await tasks(sequencer, [key])
    await tasks(sequencer, [key], attempt=1)

    for _ in range(2):
        await sequencer.sinks.abort(a_batch(producers))
    committed = await tasks(sequencer, [key])
    await sequencer.sinks.commit(a_batch(committed))
    await sequencer.sinks.abort(a_batch(committed))

    assert await stable(sequencer, key) == (12, 12, 4)


async def test_only_sinks_that_committed_nothing_for_long_are_forgotten(sequencer: Sequencer) -> None:
    for sink in ("a", "b", "c"):
        await sequencer.sinks.commit(a_batch([], 3, sink=sink))
    for table in ("sinks", "sink_batches"):
        await sequencer.database.run(
            f"UPDATE {table} SET changed_at = changed_at - interval '8 days' WHERE sink_name < 'c'"
        )

    await finish(SinkExpiryJob(sequencer, settings(producers_per_step=1)))

    assert [await count(sequencer, table) for table in ("sinks", "sink_batches")] == [1, 1]
    assert await sequencer.sinks.commit(a_batch([], 3, sink="c")) == SinkCommitted(is_repeat=True, markers=())


async def test_a_late_repeat_of_a_batch_leaves_the_next_batch_open(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    first = await tasks(sequencer, [key])
    await sequencer.sinks.commit(a_batch(first, 0))
    second = await tasks(sequencer, [key])

    again = await sequencer.sinks.commit(a_batch(first, 0))
    following = await sequencer.sinks.commit(a_batch(second, 1))

    assert again == SinkCommitted(is_repeat=True, markers=())
    assert isinstance(following, SinkCommitted)
    assert not following.is_repeat


async def test_a_fenced_run_that_aborts_leaves_transactions_of_its_successor_open(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    await sequencer.sinks.commit(a_batch(await tasks(sequencer, [key]), 0, run="old"))
    await sequencer.sinks.commit(a_batch(await tasks(sequencer, [key]), 1, run="new"))
    third = await tasks(sequencer, [key])

    refused = await sequencer.sinks.commit(a_batch([], 2, run="old"))
    aborted = await sequencer.sinks.abort(a_batch([], 2, run="old"))
    following = await sequencer.sinks.commit(a_batch(third, 2, run="new"))

    assert (refused, aborted) == (SinkFenced(), ())
    assert isinstance(following, SinkCommitted)
