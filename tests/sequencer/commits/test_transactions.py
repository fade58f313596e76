"""Transactions: their producers, batches, offsets and ends (docs/design/transactions.md)."""

from typing import Any

import pytest

from sequencer.client import Sequencer
from sequencer.commits import coordinates
from sequencer.commits.commits import (
    Assigned,
    BatchOutcome,
    Duplicate,
    FencedEpoch,
    InvalidTransaction,
)
from sequencer.commits.coordinates import (
    NOTHING,
    CoordinateRequest,
    KnownEnd,
    PartitionCoordinates,
    PartitionKey,
)
from sequencer.commits.producers import LAST_EPOCH, ProducerIdentity
from sequencer.commits.transactions import (
    Added,
    EndCause,
    Ended,
    OffsetVerdict,
    ProducerOfTransactions,
    TransactionRefusal,
)
from sequencer.database.database import SequencerUnavailable
from sequencer.groups.committed_offsets import CommittedOffset, OffsetCommit, OffsetQuery
from storage.arrow.aborted_batches import AbortedTransaction, overlapping
from storage.batches.record_batch import read_header
from storage.identifiers import NodeId, Offset, Partition
from storage.segments.keys import inline_bytes
from storage.segments.segment_batches import BatchTransaction
from tests.sequencer.builders import ABatch, committed

MINUTE_MS = 60_000


async def a_topic(sequencer: Sequencer, partitions: int = 2, name: str = "orders") -> list[PartitionKey]:
    topic = await sequencer.topics.create(name, partitions, {})
    return [(topic.topic_id, Partition(number)) for number in range(partitions)]


async def a_producer(
    sequencer: Sequencer, transactional_id: str = "tx", timeout_ms: int = MINUTE_MS
) -> ProducerOfTransactions:
    identity = await sequencer.transactions.initialize(transactional_id, timeout_ms)
    assert isinstance(identity, ProducerIdentity), identity
    return of(transactional_id, identity)


def of(transactional_id: str, identity: ProducerIdentity) -> ProducerOfTransactions:
    return ProducerOfTransactions(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )


async def write(
    sequencer: Sequencer,
    producer: ProducerOfTransactions,
    key: PartitionKey,
    sequence: int = 0,
    *,
    kind: BatchTransaction = BatchTransaction.ADDS_ITSELF,
    records: int = 1,
) -> BatchOutcome:
    batch = ABatch(
        topic_id=key[0],
        partition=key[1],
        records=records,
        producer_id=producer.producer_id,
        epoch=producer.producer_epoch,
        sequence=sequence,
        transaction=kind,
    )
    return (await committed(sequencer, [batch])).outcomes[0]


async def plain(sequencer: Sequencer, key: PartitionKey, records: int = 1) -> None:
    await committed(sequencer, [ABatch(topic_id=key[0], partition=key[1], records=records)])


async def end(
    sequencer: Sequencer,
    producer: ProducerOfTransactions,
    *,
    is_commit: bool = True,
    cause: EndCause = EndCause.CLIENT_2,
) -> Ended:
    ended = await sequencer.transactions.end(producer, is_commit=is_commit, cause=cause)
    assert isinstance(ended, Ended), ended
    return ended


async def look(
    sequencer: Sequencer, key: PartitionKey, from_offset: int = 0, max_runs: int = 100
) -> PartitionCoordinates:
    request = CoordinateRequest(
        topic_id=key[0], partition=key[1], from_offset=Offset(from_offset), max_runs=max_runs
    )
    return (await sequencer.coordinates.read([request]))[key]


async def test_records_are_stable_once_their_transaction_has_ended(sequencer: Sequencer) -> None:
    key, other = await a_topic(sequencer)
    await plain(sequencer, key, 3)
    producer = await a_producer(sequencer)

    assert await write(sequencer, producer, key) == Assigned(base_offset=Offset(3))
    assert await write(sequencer, producer, other) == Assigned(base_offset=Offset(0))
    await plain(sequencer, key)
    during = await look(sequencer, key)
    ended = await end(sequencer, producer)
    after = await look(sequencer, key)

    assert (during.last_stable_offset, during.high_watermark) == (3, 5)
    assert (after.last_stable_offset, after.high_watermark) == (6, 6)
    assert after.aborted == ()
    assert [(run.topic_id, run.partition, run.base_offset) for run in ended.markers] == [
        (*key, 5),
        (*other, 1),
    ]
    assert ended.identity == ProducerIdentity(producer_id=producer.producer_id, producer_epoch=1)
    marker = after.runs[-1]
    data = inline_bytes(marker.object_key)
    assert data is not None
    header = read_header(data)
    assert header.is_control
    assert (header.producer_id, header.producer_epoch) == (producer.producer_id, 1)
    assert len(data) == marker.length == header.size_bytes


async def test_an_aborted_transaction_is_named_to_whoever_reads_over_it(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await write(sequencer, producer, key, records=2)
    await plain(sequencer, key)
    await end(sequencer, producer, is_commit=False)
    await plain(sequencer, key)

    entry = AbortedTransaction(Offset(3), Offset(0), producer.producer_id)
    assert (await look(sequencer, key)).aborted == (entry,)
    assert (await look(sequencer, key, 3)).aborted == (entry,)
    assert (await look(sequencer, key, 4)).aborted == ()
    known = KnownEnd(
        topic_id=key[0],
        partition=key[1],
        known_end=Offset(2),
        log_start_offset=Offset(0),
        coordinate_epoch=0,
    )
    polled = (await sequencer.coordinates.poll([known], 100))[key]
    assert polled is not None
    assert polled.aborted == (entry,)


async def abort_some(sequencer: Sequencer, key: PartitionKey, count: int) -> None:
    """Each transaction has one record and its marker."""
    for number in range(count):
        producer = await a_producer(sequencer, f"aborted {number}")
        await write(sequencer, producer, key)
        await end(sequencer, producer, is_commit=False)


@pytest.mark.parametrize("local_start", [0, 1, 5, 10, 11])
async def test_runs_below_the_local_start_have_their_aborted_transactions_or_say_that_they_are_too_many(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch, local_start: int
) -> None:
    """Runs there did not decode."""
    [key] = await a_topic(sequencer, 1)
    await abort_some(sequencer, key, 5)
    await plain(sequencer, key)
    everything = (await look(sequencer, key)).aborted
    assert everything is not None
    await sequencer.database.run(f"UPDATE partitions SET local_start_offset = {local_start}")
    monkeypatch.setattr(coordinates, "MAX_ABORTED", 2)

    for max_runs in (1, 2, 6, 100):
        offset, pages = 0, []
        while offset < 11:
            page = await look(sequencer, key, offset, max_runs)
            pages.append(page)
            offset = page.runs[-1].last_offset + 1

        assert [run.base_offset for page in pages for run in page.runs] == list(range(11))
        for page in pages:
            first, last = page.runs[0].base_offset, page.runs[-1].last_offset
            if page.aborted is not None:
                assert set(overlapping(everything, first, last + 1)) <= set(page.aborted)
        assert (max_runs < 6) == all(page.aborted is not None for page in pages)


async def test_a_page_from_history_ends_before_a_run_whose_aborted_transactions_were_not_read(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets 2 to 7 are in history alone. What is raw behind them is merged between the statement that reads
    the aborted transactions and the one that reads the history."""
    [key] = await a_topic(sequencer, 1)
    await abort_some(sequencer, key, 5)
    await sequencer.database.run("DELETE FROM runs WHERE base_offset BETWEEN 2 AND 7")
    await sequencer.database.run("UPDATE partitions SET local_start_offset = 10")
    read_history = sequencer.coordinates._read_history

    async def merge_first(*spans: Any) -> Any:
        await sequencer.database.run("DELETE FROM runs WHERE base_offset = 9")
        await sequencer.database.run("UPDATE runs SET last_offset = 9 WHERE base_offset = 8")
        return await read_history(*spans)

    monkeypatch.setattr(sequencer.coordinates, "_read_history", merge_first)
    [gap] = (await look(sequencer, key, 4, 1)).runs

    assert (gap.base_offset, gap.last_offset, gap.object_key) == (4, 7, NOTHING)

    await sequencer.database.run("UPDATE runs SET last_offset = 8 WHERE base_offset = 8")
    with pytest.raises(SequencerUnavailable, match="was moved"):
        await look(sequencer, key, 8, 1)


async def test_a_poll_from_below_the_local_start_is_answered_however_many_transactions_were_aborted(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    [key] = await a_topic(sequencer, 1)
    await abort_some(sequencer, key, 3)
    await sequencer.database.run("UPDATE partitions SET local_start_offset = 6")
    monkeypatch.setattr(coordinates, "MAX_ABORTED", 2)
    known = KnownEnd(
        topic_id=key[0],
        partition=key[1],
        known_end=Offset(0),
        log_start_offset=Offset(0),
        coordinate_epoch=0,
    )

    polled = (await sequencer.coordinates.poll([known], 100))[key]

    assert polled is not None
    assert (polled.high_watermark, polled.runs) == (6, ())


async def test_a_transaction_that_has_lost_its_id_gets_another_only_while_it_is_open(
    sequencer: Sequencer,
) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await write(sequencer, producer, key)
    await sequencer.database.run("DELETE FROM transactions")

    adopted = await sequencer.transactions.adopt(producer.producer_id, producer.producer_epoch)
    assert adopted is not None
    assert await sequencer.transactions.adopt(producer.producer_id, producer.producer_epoch) is None
    await end(sequencer, adopted, is_commit=False, cause=EndCause.FENCE)
    found = await look(sequencer, key)

    assert found.aborted == (AbortedTransaction(Offset(1), Offset(0), producer.producer_id),)
    assert found.last_stable_offset == found.high_watermark == 2
    assert await sequencer.transactions.adopt(producer.producer_id, producer.producer_epoch) is None


async def test_the_oldest_open_transaction_holds_the_last_stable_offset(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    first, second = await a_producer(sequencer, "first"), await a_producer(sequencer, "second")
    await write(sequencer, first, key)
    await write(sequencer, second, key)

    await end(sequencer, second, is_commit=False)
    held = await look(sequencer, key)
    await end(sequencer, first)
    free = await look(sequencer, key)

    assert (held.last_stable_offset, held.high_watermark) == (0, 3)
    assert (free.last_stable_offset, free.high_watermark) == (4, 4)
    assert free.aborted == (AbortedTransaction(Offset(2), Offset(1), second.producer_id),)


async def test_a_batch_outside_of_its_transaction_is_refused(sequencer: Sequencer) -> None:
    key, other = await a_topic(sequencer)
    producer = await a_producer(sequencer)
    added = BatchTransaction.ADDED

    assert await write(sequencer, producer, key, kind=added) == InvalidTransaction()
    assert await sequencer.transactions.add(producer, [key]) == Added(missing=[])
    assert await write(sequencer, producer, other, kind=added) == InvalidTransaction()
    assert await write(sequencer, producer, key, kind=added) == Assigned(base_offset=Offset(0))
    assert await write(sequencer, producer, key, 1, kind=added) == Assigned(base_offset=Offset(1))
    await end(sequencer, producer, cause=EndCause.CLIENT)
    assert await write(sequencer, producer, key, 1, kind=added) == Duplicate(
        base_offset=Offset(1), max_timestamp_ms=1000
    )
    assert await write(sequencer, producer, key, 2, kind=added) == InvalidTransaction()


async def test_a_producer_that_was_replaced_is_fenced_everywhere(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    old = await a_producer(sequencer)
    await write(sequencer, old, key)

    open_one = await sequencer.transactions.initialize("tx", MINUTE_MS)
    assert open_one == old
    await end(sequencer, old, is_commit=False, cause=EndCause.FENCE)
    new = await a_producer(sequencer)

    assert new.producer_id == old.producer_id
    assert new.producer_epoch > old.producer_epoch
    assert await write(sequencer, old, key, 1) == FencedEpoch()
    for refused in (
        await sequencer.transactions.end(old, is_commit=True, cause=EndCause.CLIENT_2),
        await sequencer.transactions.end(old, is_commit=False, cause=EndCause.CLIENT_2),
        await sequencer.transactions.add(old, [key]),
        await sequencer.transactions.initialize(
            "tx",
            MINUTE_MS,
            ProducerIdentity(producer_id=old.producer_id, producer_epoch=old.producer_epoch),
        ),
    ):
        assert refused is TransactionRefusal.FENCED
    assert await write(sequencer, new, key) == Assigned(base_offset=Offset(2))


async def test_a_repeated_end_gets_the_first_answer(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await write(sequencer, producer, key)

    first = await end(sequencer, producer)
    again = await end(sequencer, producer)
    other_way = await sequencer.transactions.end(producer, is_commit=False, cause=EndCause.CLIENT_2)
    going_on = of("tx", first.identity)
    nothing = await sequencer.transactions.end(going_on, is_commit=True, cause=EndCause.CLIENT_2)

    assert again.identity == first.identity
    assert again.markers == ()
    assert other_way is TransactionRefusal.FENCED
    assert nothing is TransactionRefusal.NOTHING_TO_END
    assert (await look(sequencer, key)).high_watermark == 2


async def test_a_client_of_the_older_protocol_keeps_its_epoch(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    for sequence in range(3):
        await sequencer.transactions.add(producer, [key])
        await write(sequencer, producer, key, sequence, kind=BatchTransaction.ADDED)
        ended = await end(sequencer, producer, cause=EndCause.CLIENT)
        assert ended.identity.producer_epoch == 0
        assert (await end(sequencer, producer, cause=EndCause.CLIENT)).markers == ()


async def test_another_client_that_knows_the_epoch_ends_a_transaction_in_the_older_protocol(
    sequencer: Sequencer,
) -> None:
    """As Flink resumes what a dead process has prepared. Answers are those of Kafka 4.1."""
    [key] = await a_topic(sequencer, 1)
    first = await a_producer(sequencer)
    await write(sequencer, first, key)
    prepared = of("tx", (await end(sequencer, first)).identity)
    await write(sequencer, prepared, key)

    resumed = await end(sequencer, prepared, cause=EndCause.CLIENT)
    again = await end(sequencer, prepared, cause=EndCause.CLIENT)
    before = await sequencer.transactions.end(first, is_commit=True, cause=EndCause.CLIENT)

    assert [(marker.topic_id, marker.partition) for marker in resumed.markers] == [key]
    assert again.markers == ()
    assert resumed.identity == again.identity
    assert resumed.identity.producer_epoch == prepared.producer_epoch
    assert before is TransactionRefusal.FENCED
    assert (await look(sequencer, key)).high_watermark == 4


async def test_used_up_epochs_give_another_producer_id(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer)
    await sequencer.database.run("UPDATE transactions SET producer_epoch = 32766")
    last = of("tx", ProducerIdentity(producer_id=producer.producer_id, producer_epoch=LAST_EPOCH - 1))
    await write(sequencer, last, key)

    ended = await end(sequencer, last)

    assert ended.identity.producer_id != last.producer_id
    assert ended.identity.producer_epoch == 0
    assert (await end(sequencer, last)).identity == ended.identity
    assert await write(sequencer, of("tx", ended.identity), key) == Assigned(base_offset=Offset(2))


async def test_a_producer_that_goes_on_after_the_last_epoch_gets_another_id(sequencer: Sequencer) -> None:
    """The last epoch is only for fencing: an abort could not raise it."""
    [key] = await a_topic(sequencer, 1)
    producer = await a_producer(sequencer, timeout_ms=0)
    await sequencer.database.run("UPDATE transactions SET producer_epoch = 32766")
    last = ProducerIdentity(producer_id=producer.producer_id, producer_epoch=LAST_EPOCH - 1)
    await write(sequencer, of("tx", last), key)
    await end(sequencer, of("tx", last), is_commit=False, cause=EndCause.TIMEOUT)

    again = await sequencer.transactions.initialize("tx", MINUTE_MS, last)

    assert isinstance(again, ProducerIdentity)
    assert again.producer_id != last.producer_id
    assert again.producer_epoch == 0
    assert await sequencer.transactions.initialize("tx", MINUTE_MS, last) == again, "repeated"


async def test_offsets_are_committed_with_their_transaction(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    claimed = await sequencer.groups.claim("readers", NodeId(1), create=True)
    assert claimed is not None
    producer = await a_producer(sequencer)

    async def offset() -> int:
        query = OffsetQuery(group_id="readers", coordinator_epoch=None, partitions=[key])
        [found] = await sequencer.committed_offsets.fetch([query])
        assert found is not None
        return found[key].offset

    def commit(value: int) -> OffsetCommit:
        return OffsetCommit(
            group_id="readers",
            coordinator_epoch=claimed.coordinator_epoch,
            offsets=[(*key, CommittedOffset(offset=Offset(value)))],
        )

    late = await sequencer.transactions.commit_offsets(producer, commit(3), adds_group=False)
    assert late is OffsetVerdict.NOT_IN_TRANSACTION
    done = await sequencer.transactions.commit_offsets(producer, commit(5), adds_group=True)
    assert done is OffsetVerdict.DONE
    assert await offset() == -1
    aborted = await end(sequencer, producer, is_commit=False)
    assert await offset() == -1
    producer = of("tx", aborted.identity)
    await sequencer.transactions.add(producer, group_ids=["readers"])
    assert await sequencer.transactions.commit_offsets(producer, commit(7), adds_group=False) is done
    await end(sequencer, producer)
    assert await offset() == 7


async def test_what_is_open_too_long_is_found(sequencer: Sequencer) -> None:
    [key] = await a_topic(sequencer, 1)
    slow, quick = await a_producer(sequencer, "slow"), await a_producer(sequencer, "quick", timeout_ms=0)
    await write(sequencer, slow, key)
    await write(sequencer, quick, key)

    assert await sequencer.transactions.expired(10) == [quick]
    await end(sequencer, quick, is_commit=False, cause=EndCause.TIMEOUT)

    assert await sequencer.transactions.expired(10) == []
    assert await write(sequencer, quick, key, 1) == FencedEpoch()
    again = await sequencer.transactions.initialize(
        "quick", MINUTE_MS, ProducerIdentity(producer_id=quick.producer_id, producer_epoch=0)
    )
    assert again == ProducerIdentity(producer_id=quick.producer_id, producer_epoch=1)


async def test_a_commit_says_where_the_oldest_open_transaction_begins(sequencer: Sequencer) -> None:
    key, other = await a_topic(sequencer)
    producer = await a_producer(sequencer)
    batches = [
        ABatch(topic_id=key[0], partition=key[1], records=4),
        ABatch(
            topic_id=key[0],
            partition=key[1],
            producer_id=producer.producer_id,
            sequence=0,
            transaction=BatchTransaction.ADDS_ITSELF,
        ),
        ABatch(topic_id=other[0], partition=other[1]),
    ]

    written = await committed(sequencer, batches)
    later = await committed(sequencer, [ABatch(topic_id=key[0], partition=key[1])])

    assert written.is_news
    assert [run.first_unstable for run in written.runs] == [4, -1]
    assert [run.first_unstable for run in later.runs] == [4]
