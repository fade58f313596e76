"""Sizes and producers of partitions, as administrators ask for them."""

from uuid import uuid4

from sequencer.client import Sequencer
from sequencer.commits.producers import ProducerIdentity
from sequencer.commits.transactions import EndCause, ProducerOfTransactions
from sequencer.topics.topics import ActiveProducer
from storage.identifiers import Partition, ProducerId, TopicId
from storage.segments.segment_batches import BatchTransaction
from tests.sequencer.builders import ABatch, committed


async def test_a_partition_is_as_large_as_the_batches_it_refers_to(sequencer: Sequencer) -> None:
    orders = await sequencer.topics.create("orders", 2, {})
    gone = await sequencer.topics.create("gone", 1, {})
    await committed(sequencer, [ABatch(topic_id=orders.topic_id, partition=Partition(1), length=70)])
    await committed(sequencer, [ABatch(topic_id=orders.topic_id, partition=Partition(1), length=30)])
    await sequencer.topics.delete("gone")

    sizes = await sequencer.administration.sizes([orders.topic_id, gone.topic_id, TopicId(uuid4())])

    assert sizes == {(orders.topic_id, 0): 0, (orders.topic_id, 1): 100}


async def test_the_producers_of_a_partition_are_named_with_their_last_batch(sequencer: Sequencer) -> None:
    orders = await sequencer.topics.create("orders", 2, {})
    written, empty = (orders.topic_id, Partition(0)), (orders.topic_id, Partition(1))
    ids = [await sequencer.producers.new_producer_id() for _ in range(3)]
    for number, producer_id in enumerate(ids):
        batch = ABatch(
            topic_id=orders.topic_id,
            partition=Partition(0),
            producer_id=producer_id,
            epoch=number,
            sequence=0,
            records=number + 1,
            timestamp_ms=5_000 + number,
        )
        await committed(sequencer, [batch])

    found = await sequencer.administration.active_producers(
        [written, empty, (TopicId(uuid4()), Partition(0))], 2
    )

    assert found.keys() == {written, empty}
    assert found[empty] == ()
    assert found[written] == tuple(
        ActiveProducer(
            producer_id=ProducerId(ids[number]),
            producer_epoch=number,
            last_sequence=number,
            last_timestamp_ms=5_000 + number,
        )
        for number in (1, 2)
    )


async def test_producers_with_open_transactions_are_seen_however_many_are_younger(
    sequencer: Sequencer,
) -> None:
    key = ((await sequencer.topics.create("orders", 1, {})).topic_id, Partition(0))
    producers = []
    for number in range(4):
        identity = await sequencer.transactions.initialize(f"id-{number}", 60_000)
        assert isinstance(identity, ProducerIdentity)
        batch = ABatch(
            topic_id=key[0],
            partition=key[1],
            producer_id=identity.producer_id,
            epoch=identity.producer_epoch,
            sequence=0,
            transaction=BatchTransaction.ADDS_ITSELF,
        )
        await committed(sequencer, [batch])
        producer = ProducerOfTransactions(
            transactional_id=f"id-{number}",
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )
        if number not in (1, 3):
            await sequencer.transactions.end(producer, is_commit=True, cause=EndCause.CLIENT_2)
        producers.append(identity.producer_id)

    found = await sequencer.administration.active_producers([key], 1)

    # The oldest open one, and the youngest.
    assert [producer.producer_id for producer in found[key]] == [producers[1], producers[3]]
