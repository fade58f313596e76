"""History's pointers, jobs and garbage in the sequencer; what is published through them is shown in
`tests/spark_compaction`.
"""

import asyncio
from functools import partial
from typing import Any

from sequencer.client import Sequencer
from sequencer.history.history_values import Advance, HistoryJob, NothingToDo, Publication, Published, PublishRefused
from storage.identifiers import ObjectKey, Offset, Partition, TopicId
from tests.sequencer.housekeeping import waits_for_a_lock


async def topic_with_history(sequencer: Sequencer, partitions: int = 1) -> TopicId:
    created = await sequencer.topics.create("orders", partitions, {})
    await sequencer.database.run("INSERT INTO history_tables (topic_id) VALUES (%(id)s)", id=created.topic_id)
    await sequencer.database.run(
        "INSERT INTO history_partitions SELECT topic_id, partition, 0 FROM partitions WHERE topic_id = %(id)s",
        id=created.topic_id,
    )
    return created.topic_id


async def claimed(sequencer: Sequencer, topic_id: TopicId, lease_s: float = 60) -> HistoryJob:
    job = await sequencer.history.begin_expiry(topic_id, cluster="c", lease_s=lease_s)
    assert isinstance(job, HistoryJob)
    return job


def publication(name: str, advances: tuple[Advance, ...] = (), **more: Any) -> Publication:
    key = ObjectKey(f"c/history/{name}")
    return Publication(metadata_key=key, added={key: None}, advances=advances, **more)


def advance(first: int, end: int) -> tuple[Advance, ...]:
    return (Advance(partition=Partition(0), from_offset=Offset(first), to_offset=Offset(end)),)


async def pointer(sequencer: Sequencer) -> str | None:
    table = await sequencer.history.table("orders")
    assert table is not None
    return table.metadata_key


async def test_a_publish_moves_pointer_reach_and_objects_together(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)

    assert await sequencer.history.publish(job, publication("1", advance(0, 10))) == Published()

    assert await pointer(sequencer) == "c/history/1"
    assert await sequencer.history.compacted_to([topic_id]) == {(topic_id, 0): 10}
    assert list(await sequencer.history.live_objects(topic_id)) == ["c/history/1"]
    assert job.prefix.startswith(f"c/history/{topic_id}/")


async def test_offsets_that_history_has_are_not_published_again(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    first = await claimed(sequencer, topic_id)
    await sequencer.history.publish(first, publication("1", advance(0, 10)))
    second = await claimed(sequencer, topic_id)

    refused = await sequencer.history.publish(second, publication("2", advance(5, 20)))

    assert isinstance(refused, PublishRefused)
    assert await pointer(sequencer) == "c/history/1"
    assert list(await sequencer.history.live_objects(topic_id)) == ["c/history/1"]
    assert await sequencer.history.publish(second, publication("3", advance(10, 20))) == Published()


async def test_a_publish_repeated_after_its_answer_was_lost_is_the_first_one(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)
    answers = [await sequencer.history.publish(job, publication("1", advance(0, 10))) for _ in range(2)]
    later = await claimed(sequencer, topic_id)
    await sequencer.history.publish(later, publication("2", advance(10, 20)))

    again = await sequencer.history.publish(job, publication("1", advance(0, 10)))

    assert [*answers, again] == [Published()] * 3
    assert await pointer(sequencer) == "c/history/2"


async def test_a_job_whose_lease_has_passed_cannot_publish_even_if_nobody_took_over(sequencer: Sequencer) -> None:
    job = await claimed(sequencer, await topic_with_history(sequencer), lease_s=0)

    assert await sequencer.history.publish(job, publication("1")) == PublishRefused(reason="the job's lease has passed")

    assert await pointer(sequencer) is None


async def test_a_topic_deleted_meanwhile_takes_the_publish_with_it(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    await sequencer.history.publish(await claimed(sequencer, topic_id), publication("1"))
    job = await claimed(sequencer, topic_id)
    await sequencer.topics.delete("orders")

    dropped = await sequencer.history.garbage.drop_deleted(cap=10)

    assert dropped == 1
    assert isinstance(await sequencer.history.publish(job, publication("2")), PublishRefused)
    assert await sequencer.history.garbage.unreferenced(grace_s=0, cap=10) == ("c/history/1",)
    assert await sequencer.history.begin_expiry(topic_id, cluster="c", lease_s=1) == NothingToDo()
    assert await sequencer.history.tables() == ()


async def test_a_lease_that_passes_while_the_publish_waits_refuses_it(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id, lease_s=0.2)
    async with sequencer.database.transaction() as other:
        await other.execute("SELECT FROM history_tables WHERE topic_id = %s FOR NO KEY UPDATE", (topic_id,))
        publish = partial(sequencer.history.publish, job, publication("1", advance(0, 10)))
        waiting = await waits_for_a_lock(sequencer, publish)
        await asyncio.sleep(0.2)

    assert await waiting == PublishRefused(reason="the job's lease has passed")
    assert await sequencer.history.compacted_to([topic_id]) == {(topic_id, 0): 0}


async def test_one_publish_sent_twice_at_once_is_one(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)
    async with sequencer.database.transaction() as other:
        await other.execute("SELECT FROM history_tables WHERE topic_id = %s FOR NO KEY UPDATE", (topic_id,))
        both = [asyncio.create_task(sequencer.history.publish(job, publication("1", advance(0, 10)))) for _ in range(2)]
        await asyncio.sleep(0.1)

    assert await asyncio.gather(*both) == [Published(), Published()]
    assert list(await sequencer.history.live_objects(topic_id)) == ["c/history/1"]


async def test_garbage_waits_its_grace_and_is_forgotten_when_deleted(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    await sequencer.history.publish(await claimed(sequencer, topic_id), publication("1"))
    await sequencer.history.publish(
        await claimed(sequencer, topic_id), publication("2", unreferenced=[ObjectKey("c/history/1")])
    )
    garbage = sequencer.history.garbage

    assert await garbage.unreferenced(grace_s=60, cap=10) == ()
    assert await garbage.unreferenced(grace_s=0, cap=10) == ("c/history/1",)
    await garbage.forget_objects([ObjectKey("c/history/1"), ObjectKey("c/history/2")])

    assert await garbage.unreferenced(grace_s=0, cap=10) == ()
    assert list(await sequencer.history.live_objects(topic_id)) == ["c/history/2"]


async def test_the_prefix_of_a_job_is_swept_once_it_has_ended(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    killed = await claimed(sequencer, topic_id, lease_s=0)
    garbage = sequencer.history.garbage
    assert await garbage.ended_jobs(older_than_s=0, cap=10) == ()

    assert await garbage.abandon_expired(cap=10) == 1

    assert [job.prefix for job in await garbage.ended_jobs(older_than_s=0, cap=10)] == [killed.prefix]
    assert await garbage.ended_jobs(older_than_s=60, cap=10) == ()
    assert list(await garbage.reserved_prefixes()) == [killed.prefix]
    await garbage.forget_jobs([killed.job_id])
    assert list(await garbage.reserved_prefixes()) == []


async def test_turning_history_on_waits_for_retention_and_is_seen_by_it(sequencer: Sequencer) -> None:
    """Retention holds the partition row: it either ends before history is on, or finds it on."""
    created = await sequencer.topics.create("orders", 1, {})
    await sequencer.database.run(
        "UPDATE partitions SET high_watermark = 10 WHERE topic_id = %(id)s", id=created.topic_id
    )
    async with sequencer.database.transaction() as retention:
        await retention.execute("SELECT FROM partitions WHERE topic_id = %s FOR NO KEY UPDATE", (created.topic_id,))
        begin = partial(
            sequencer.history.begin_compaction, created.topic_id, cluster="c", lease_s=60, runs_per_partition=10
        )
        turning_on = await waits_for_a_lock(sequencer, begin)
        await retention.execute("UPDATE partitions SET log_start_offset = 4 WHERE topic_id = %s", (created.topic_id,))

    await turning_on

    assert await sequencer.history.compacted_to([created.topic_id]) == {(created.topic_id, 0): 4}
