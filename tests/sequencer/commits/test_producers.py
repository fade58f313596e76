"""Producer ids and their expiry."""

import asyncio

from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, BatchOutcome, OutOfOrderSequence, UnknownProducer
from sequencer.commits.producers import LAST_EPOCH, ProducerIdentity
from storage.identifiers import Offset, Partition, ProducerId
from tests.sequencer.builders import ABatch, committed
from tests.sequencer.housekeeping.housekeeping import count


async def test_no_producer_id_is_given_twice(sequencer: Sequencer) -> None:
    ids = await asyncio.gather(*(sequencer.producers.new_producer_id() for _ in range(20)))

    assert len(set(ids)) == 20
    assert min(ids) >= 0


async def test_a_producer_that_names_its_id_gets_the_next_epoch(sequencer: Sequencer) -> None:
    fresh = await sequencer.producers.initialize()

    bumped = await sequencer.producers.initialize(fresh.producer_id, fresh.producer_epoch)
    used_up = await sequencer.producers.initialize(fresh.producer_id, LAST_EPOCH - 1)

    assert bumped == ProducerIdentity(producer_id=fresh.producer_id, producer_epoch=1)
    assert used_up.producer_id not in (fresh.producer_id, -1)
    assert used_up.producer_epoch == 0


async def test_a_young_producers_first_batch_is_waited_for_and_an_old_ones_state_may_have_been_forgotten(
    sequencer: Sequencer,
) -> None:
    """Its first batch may still be in another agent. Only a producer that may have been forgotten must begin
    again.
    """
    before_the_topic = (await sequencer.producers.initialize()).producer_id
    await asyncio.sleep(0.01)  # a producer id tells the millisecond
    topic = await sequencer.topics.create("orders", 1, {})
    young = (await sequencer.producers.initialize()).producer_id

    async def answer(producer_id: ProducerId, sequence: int) -> BatchOutcome:
        batch = ABatch(
            topic_id=topic.topic_id, partition=Partition(0), producer_id=producer_id, sequence=sequence
        )  # fmt: skip
        return (await committed(sequencer, [batch])).outcomes[0]

    unknown = UnknownProducer(log_start_offset=Offset(0))
    assert await answer(before_the_topic, 1) == unknown
    assert await answer(young, 1) == OutOfOrderSequence()
    assert await answer(young, 0) == Assigned(base_offset=Offset(0))
    await sequencer.database.run(
        "UPDATE producer_state SET updated_at = clock_timestamp() + interval '1 second'"
    )
    assert (await sequencer.producers.expire(unused_for_s=-2, cap=10)).expired == 1
    assert await answer(young, 1) == unknown


async def test_expiry_forgets_unused_producers_in_bounded_steps(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    for producer_id in range(5):
        batch = ABatch(
            topic_id=topic.topic_id, partition=Partition(0), producer_id=ProducerId(producer_id), sequence=0
        )
        await committed(sequencer, [batch])
    await sequencer.database.run(
        "UPDATE producer_state SET updated_at = clock_timestamp() - interval '1 day' WHERE producer_id <> 2"
    )

    step = await sequencer.producers.expire(unused_for_s=3600, cap=2)
    assert (step.expired, await count(sequencer, "producer_state")) == (2, 3)
    while step.next_after is not None:
        step = await sequencer.producers.expire(unused_for_s=3600, cap=2, after=step.next_after)

    rows = await sequencer.database.run("SELECT producer_id FROM producer_state")
    assert [row.producer_id for row in rows] == [2]
