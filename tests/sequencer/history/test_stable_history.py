"""A compaction takes what is stable, with the aborted transactions that overlap it."""

import pytest

from sequencer.client import Sequencer
from sequencer.commits.coordinates import PartitionKey
from sequencer.history import history
from sequencer.history.history_values import (
    Advance,
    Begun,
    Busy,
    Ends,
    NothingToDo,
    Publication,
    Published,
)
from storage.identifiers import Offset, Partition
from tests.sequencer.commits.test_transactions import a_producer, a_topic, end, look, plain, write
from tests.sequencer.plans import generic_plan, pages_touched


async def begin(sequencer: Sequencer, key: PartitionKey, ends: Ends | None = None) -> Begun:
    begun = await begin_if_any(sequencer, key, ends)
    assert isinstance(begun, Begun), begun
    return begun


async def begin_if_any(
    sequencer: Sequencer, key: PartitionKey, ends: Ends | None = None
) -> Begun | Busy | NothingToDo:
    found = ends or await sequencer.history.ends(key[0])
    return await sequencer.history.begin_compaction(
        key[0], found, cluster="c", lease_s=60, runs_per_partition=100
    )


async def publish(sequencer: Sequencer, begun: Begun, to_offset: int) -> None:
    first = Advance(
        partition=Partition(0), from_offset=begun.runs[0].from_offset, to_offset=Offset(to_offset)
    )
    published = await sequencer.history.publish(begun.job, Publication(version=None, advances=[first]))
    assert published == Published()


def spans(begun: Begun) -> list[tuple[int, int]]:
    return [(run.from_offset, run.end_offset) for run in begun.runs]


async def abort_some(sequencer: Sequencer, key: PartitionKey, transactions: int) -> None:
    """Each has one record and a marker."""
    for number in range(transactions):
        producer = await a_producer(sequencer, f"aborted {number}")
        await write(sequencer, producer, key)
        await end(sequencer, producer, is_commit=False)


async def test_a_compaction_ends_where_the_first_open_transaction_begins(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    await plain(sequencer, key, 3)
    producer = await a_producer(sequencer)
    await write(sequencer, producer, key, records=2)
    await plain(sequencer, key, 1)

    during = await begin(sequencer, key)
    await publish(sequencer, during, 3)
    behind_during = await sequencer.history.behind()
    ends = await sequencer.history.ends(key[0])
    is_complete = await sequencer.history.is_complete(key[0], ends)
    after_publish = await begin_if_any(sequencer, key)
    await end(sequencer, producer)

    assert spans(during) == [(0, 3)]
    assert ends.offsets == {0: 3}
    assert (behind_during, is_complete, after_publish) == ((), True, NothingToDo())
    assert [each.records for each in await sequencer.history.behind()] == [4]
    assert spans(await begin(sequencer, key)) == [(3, 5), (5, 6), (6, 7)]


async def test_a_run_is_cut_where_a_transaction_is_open_in_it(sequencer: Sequencer) -> None:
    """Merged runs, and those with batches of several producers, hold stable records and others."""
    [key] = await a_topic(sequencer, 1)
    await plain(sequencer, key, 3)
    producer = await a_producer(sequencer)
    await write(sequencer, producer, key)
    await sequencer.database.run("DELETE FROM runs WHERE base_offset = 3")
    await sequencer.database.run("UPDATE runs SET last_offset = 3")

    cut = await begin(sequencer, key)
    await publish(sequencer, cut, 3)
    await end(sequencer, producer)

    assert spans(cut) == [(0, 3)]
    assert spans(await begin(sequencer, key)) == [(3, 4), (4, 5)]


async def test_a_compaction_gets_the_aborted_transactions_that_overlap_it(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    await abort_some(sequencer, key, 3)
    first = await begin(sequencer, key)
    await publish(sequencer, first, 4)

    rest = await begin(sequencer, key)

    known = (await look(sequencer, key)).aborted or ()
    assert first.aborted == {0: known}
    assert rest.aborted == {0: known[2:]}


@pytest.mark.parametrize("most", [1, 2])
async def test_more_aborted_transactions_than_a_job_takes_are_left_to_the_next(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(history, "_MAX_ABORTED", most)
    [key] = await a_topic(sequencer, 1)
    await abort_some(sequencer, key, 5)
    ends = await sequencer.history.ends(key[0])
    reached = [0]
    while not isinstance(begun := await begin_if_any(sequencer, key, ends), NothingToDo):
        assert isinstance(begun, Begun)
        assert len(begun.aborted[Partition(0)]) <= most
        reached.append(begun.runs[-1].end_offset)
        await publish(sequencer, begun, reached[-1])

    assert reached == [*range(0, 10, 2 * most), 10]


async def test_a_partition_whose_open_transaction_spanned_too_many_aborted_ones_is_read_by_itself(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_MAX_ABORTED", 2)
    keys = await a_topic(sequencer, 2)
    for key in keys:
        long = await a_producer(sequencer, f"long {key[1]}")
        await write(sequencer, long, key)
        await abort_some(sequencer, key, 5)
        await end(sequencer, long)

    begun = await begin(sequencer, keys[0])

    assert {run.partition for run in begun.runs} == {0}
    assert begun.runs[-1].end_offset == 12
    assert len(begun.aborted[Partition(0)]) == 5


async def test_a_job_costs_what_it_takes_and_not_what_the_log_has(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    await abort_some(sequencer, key, 10)
    asked = {
        "topic_id": key[0],
        "partitions": [0],
        "ends": [1 << 62],
        "runs_per_partition": 10,
        "max_aborted": 1000,
        "is_state": False,
    }
    async with sequencer.database.connection() as connection:
        few = pages_touched(await generic_plan(connection, history.SQL["runs_to_compact"], asked))
        await connection.execute(
            "INSERT INTO runs SELECT r.topic_id, r.partition, 100 + n, 100 + n, r.segment_id, 0, r.length,"
            " r.format, -1, -1, -1 FROM runs AS r, generate_series(1, 20000) AS n WHERE r.base_offset = 1"
        )
        await connection.execute(
            "INSERT INTO aborted_transactions"
            " SELECT topic_id, partition, 100 + n, 99 + n, producer_id, 101 + n"
            " FROM aborted_transactions, generate_series(1, 100000) AS n WHERE last_offset = 1"
        )
        await connection.execute("UPDATE partitions SET high_watermark = 100101")
        await connection.execute("ANALYZE")
        many = pages_touched(await generic_plan(connection, history.SQL["runs_to_compact"], asked))

    assert many <= few + 20
