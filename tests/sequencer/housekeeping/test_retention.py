"""Retention's statements on the real Postgres: what moves, what is dropped, and which transaction waits."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from compactor.retention_jobs import RetentionJob, RetentionPolicy, has_work
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.commits import Committed, UnknownPartition
from sequencer.housekeeping.retention import (
    BEFORE_ALL,
    TO_HIGH_WATERMARK,
    BeyondHighWatermark,
    Moved,
    PartitionKey,
    PartitionLog,
)
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition, TopicId
from tests.sequencer.builders import a_segment, committed, reserved
from tests.sequencer.housekeeping.housekeeping import count, records_of, time_passes, waits_for_a_lock

P0 = Partition(0)


async def a_topic(sequencer: Sequencer, partitions: int = 1, **config: str) -> Topic:
    return await sequencer.topics.create(
        "orders", partitions, {name.replace("_", "."): v for name, v in config.items()}
    )


async def base_offsets(sequencer: Sequencer) -> list[int]:
    rows = await sequencer.database.run(
        "SELECT base_offset FROM runs ORDER BY topic_id, partition, base_offset"
    )
    return [row.base_offset for row in rows]


async def partition_row(sequencer: Sequencer, key: PartitionKey):  # type: ignore[no-untyped-def]
    rows = await sequencer.database.run(
        "SELECT * FROM partitions WHERE topic_id = %(topic)s AND partition = %(partition)s",
        topic=key[0],
        partition=key[1],
    )
    return rows[0]


async def turn_history_on(sequencer: Sequencer, topic: Topic, compacted_to: int) -> None:
    await sequencer.database.run(
        "INSERT INTO history_tables (topic_id, published_at) VALUES (%(topic)s, now())", topic=topic.topic_id
    )
    await sequencer.database.run(
        "INSERT INTO history_partitions VALUES (%(topic)s, 0, %(to)s)", topic=topic.topic_id, to=compacted_to
    )


async def all_pages(sequencer: Sequencer, cap: int) -> list[PartitionLog]:
    after: PartitionKey | None = BEFORE_ALL
    found: list[PartitionLog] = []
    while after is not None:
        page = await sequencer.retention.page(after, cap)
        found += page.logs
        after = page.next_after
    return found


async def test_pages_walk_every_live_partition_once_in_order(sequencer: Sequencer) -> None:
    first = await sequencer.topics.create("first", 3, {"retention.ms": "5"})
    second = await sequencer.topics.create("second", 2, {})
    await sequencer.topics.create("deleted", 2, {})
    await sequencer.topics.delete("deleted")

    logs = await all_pages(sequencer, 1)

    keys = [(log.topic_id, log.partition) for log in logs]
    assert keys == sorted(keys, key=lambda key: (key[0].int, key[1]))
    assert {key[0] for key in keys} == {first.topic_id, second.topic_id}
    assert len(keys) == 5
    assert {log.config.get("retention.ms") for log in logs if log.topic_id == first.topic_id} == {"5"}


@pytest.mark.parametrize("cap", [1, 7, 1000])
async def test_a_page_leaves_out_only_what_has_nothing_to_drop(sequencer: Sequencer, cap: int) -> None:
    """Limits of every spelling that a topic may have, one of them only for Python a number."""
    chance = random.Random(cap)
    for number in range(12):
        config = {
            name: chance.choice(
                [f" {limit}", f"{limit}", f"+{limit}" if limit >= 0 else "-1", f"\u00a0{limit}"]
            )
            for name, limit in [
                ("retention.ms", chance.choice([-1, 0, 1_000, 10**9, 2**63 - 1])),
                ("retention.bytes", chance.choice([-1, 0, 150, 10**6, 2**63 - 1])),
            ]
            if chance.random() < 0.7
        }
        if chance.random() < 0.5:
            config["cleanup.policy"] = chance.choice(["compact", "delete, compact", "delete", ""])
        topic = await sequencer.topics.create(f"topic-{number}", 2, config)
        for _ in range(chance.randint(0, 2)):
            await committed(
                sequencer, [records_of(topic, length=100, timestamp_ms=chance.choice([-1, 1_000]))]
            )
        if chance.random() < 0.3:
            await sequencer.retention.delete_records(topic.topic_id, P0, TO_HIGH_WATERMARK, cap=0)
    every = await all_pages(sequencer, 1)

    found = await all_pages(sequencer, cap)

    def busy(logs: list[PartitionLog]) -> set[PartitionKey]:
        return {(log.topic_id, log.partition) for log in logs if has_work(log, RetentionPolicy.of(log))}

    assert busy(found) == busy(every)
    assert busy(every)
    if cap == 1000:
        assert len(found) < len(every) == 24


async def expired(sequencer: Sequencer, key: PartitionKey, before: Offset, cap: int) -> Moved | None:
    return (await sequencer.retention.expire({key: before}, cap)).get(key)


@pytest.mark.parametrize(
    ("timestamp_ms", "ages_from"),
    [(1_000, "its own time"), (4_102_444_800_000, "its commit"), (-1, "its commit")],
    ids=["past", "future", "none"],
)
async def test_a_run_ages_from_its_own_maximum_but_never_later_than_its_commit(
    sequencer: Sequencer, timestamp_ms: int, ages_from: str
) -> None:
    topic = await a_topic(sequencer)
    await committed(sequencer, [records_of(topic, timestamp_ms=timestamp_ms)])

    [log] = (await sequencer.retention.page(BEFORE_ALL, 10)).logs

    [run] = log.oldest
    [again] = await sequencer.retention.with_oldest_runs([log], 10)
    assert (again.oldest, again.size_bytes) == ((run,), log.size_bytes)
    if ages_from == "its own time":
        assert run.aged_from_ms == timestamp_ms
    else:
        assert abs(run.aged_from_ms - log.now_ms) < 60_000
        assert abs(log.now_ms - time.time() * 1000) < 60_000


async def test_an_old_run_after_one_from_the_future_keeps_its_own_age(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    for timestamp_ms in (4_102_444_800_000, 2_000):
        await committed(sequencer, [records_of(topic, timestamp_ms=timestamp_ms)])
    await time_passes(sequencer, 3600)

    page = await sequencer.retention.page(BEFORE_ALL, 10)
    [log] = await sequencer.retention.with_oldest_runs(page.logs, 10)
    future, old = log.oldest

    assert old.aged_from_ms == 2_000
    assert future.aged_from_ms < time.time() * 1000 - 3_500_000


async def test_raced_retention_by_bytes_does_not_count_what_a_client_deletes_meanwhile(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await a_topic(sequencer, retention_bytes="300", retention_ms="-1")
    for _ in range(6):
        await committed(sequencer, [records_of(topic, 10, length=100)])
    job = RetentionJob(sequencer, HousekeeperSettings())
    look_closer = sequencer.retention.with_oldest_runs

    async def deleted_before(logs: Iterable[PartitionLog], cap: int) -> Sequence[PartitionLog]:
        await sequencer.retention.delete_records(topic.topic_id, P0, Offset(30))
        return await look_closer(logs, cap)

    monkeypatch.setattr(sequencer.retention, "with_oldest_runs", deleted_before)
    await job.step(None)

    row = await partition_row(sequencer, (topic.topic_id, P0))
    assert (row.log_start_offset, row.size_bytes) == (30, 300)
    assert await base_offsets(sequencer) == [30, 40, 50]


async def test_expiry_moves_the_log_start_drops_whole_runs_and_tells_readers(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    key = (topic.topic_id, P0)
    for length in (100, 200, 400):
        await committed(sequencer, [records_of(topic, 10, length=length)])

    moved = await expired(sequencer, key, Offset(20), 10)

    assert moved == Moved(log_start_offset=Offset(20), dropped_runs=2, dropped_bytes=300)
    row = await partition_row(sequencer, key)
    assert (row.log_start_offset, row.high_watermark, row.size_bytes, row.coordinate_epoch) == (
        20,
        30,
        400,
        1,
    )
    assert await base_offsets(sequencer) == [20]


async def test_expiry_deletes_no_more_than_its_cap_per_step_and_goes_on(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    key = (topic.topic_id, P0)
    for _ in range(5):
        await committed(sequencer, [records_of(topic)])

    steps = [await expired(sequencer, key, Offset(5), 2) for _ in range(4)]

    assert [step.dropped_runs for step in steps if step] == [2, 2, 1, 0]
    row = await partition_row(sequencer, key)
    assert (row.log_start_offset, row.size_bytes, row.coordinate_epoch) == (5, 0, 1)


async def test_the_log_start_never_passes_the_high_watermark_nor_goes_back(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    key = (topic.topic_id, P0)
    await committed(sequencer, [records_of(topic, 10)])

    beyond = await expired(sequencer, key, Offset(1_000), 10)
    back = await expired(sequencer, key, Offset(3), 10)

    assert beyond is not None
    assert back is not None
    assert (beyond.log_start_offset, back.log_start_offset) == (10, 10)
    assert (await committed(sequencer, [records_of(topic)])).runs[0].base_offset == 10


async def test_retention_waits_for_history_and_an_explicit_deletion_does_not(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    key = (topic.topic_id, P0)
    for _ in range(3):
        await committed(sequencer, [records_of(topic, 10)])
    await turn_history_on(sequencer, topic, compacted_to=15)

    moved = await expired(sequencer, key, Offset(30), 10)
    deleted = await sequencer.retention.delete_records(topic.topic_id, P0, Offset(25))

    assert moved == Moved(log_start_offset=Offset(15), dropped_runs=1, dropped_bytes=100)
    assert deleted == Moved(log_start_offset=Offset(25), dropped_runs=1, dropped_bytes=100)


async def test_the_job_counts_the_partitions_that_history_holds_back(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer, retention_ms="1000")
    for _ in range(3):
        await committed(sequencer, [records_of(topic, 10)])
    job = RetentionJob(sequencer, HousekeeperSettings())
    await turn_history_on(sequencer, topic, compacted_to=20)

    held = (await job.step(None)).done["held_for_history"]
    await sequencer.topics.alter_config(topic.name, {"tidelog.history": "off"})
    step = await job.step(None)

    assert held == 1
    assert (step.done["held_for_history"], step.done["runs"]) == (0, 1)


@pytest.mark.parametrize("limit", ["retention_ms", "retention_bytes"])
async def test_limits_of_retention_apply_where_the_policy_has_delete(
    sequencer: Sequencer, limit: str
) -> None:
    """A topic that keeps its records is not even selected, time after time."""
    topics = {}
    for number, policy in enumerate(["delete", "compact", "compact, delete", "delete,compact", ""]):
        config = {limit.replace("_", "."): "1", "cleanup.policy": policy}
        topics[policy] = await sequencer.topics.create(f"topic-{number}", 1, config)
        for _ in range(2):
            await committed(sequencer, [records_of(topics[policy], 10)])

    selected = {log.topic_id for log in await all_pages(sequencer, 100)}
    await RetentionJob(sequencer, HousekeeperSettings()).step(None)

    due = {topic.topic_id for policy, topic in topics.items() if "delete" in policy}
    last = max(topic.topic_id for topic in topics.values())  # says where the next page begins
    assert due <= selected <= due | {last}
    starts = [await partition_row(sequencer, (topic.topic_id, P0)) for topic in topics.values()]
    assert {row.topic_id for row in starts if row.log_start_offset > 0} == due


async def test_retention_waits_for_the_table_of_a_compacted_topic_unless_parquet_is_its_log(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer, retention_ms="1000")
    for _ in range(3):
        await committed(sequencer, [records_of(topic, 10)])
    job = RetentionJob(sequencer, HousekeeperSettings())
    await turn_history_on(sequencer, topic, compacted_to=20)

    held = (await job.step(None)).done["held_for_history"]
    await sequencer.topics.alter_config(topic.name, {"cleanup.policy": "compact,delete"})
    waits = await job.step(None)
    await sequencer.database.run("UPDATE partitions SET local_start_offset = log_start_offset + 1")
    goes_on = await sequencer.history.compacted_to([topic.topic_id])

    assert held == 1
    assert (waits.done["held_for_history"], waits.done["runs"]) == (1, 0)
    assert goes_on == {}


async def test_delete_records_moves_into_a_run_and_keeps_what_is_left_of_it(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    await committed(sequencer, [records_of(topic, 10)])

    moved = await sequencer.retention.delete_records(topic.topic_id, P0, Offset(4))
    again = await sequencer.retention.delete_records(topic.topic_id, P0, Offset(2))

    assert moved == again == Moved(log_start_offset=Offset(4), dropped_runs=0, dropped_bytes=0)
    assert await base_offsets(sequencer) == [0]


async def test_delete_records_answers_for_offsets_and_partitions_that_are_not_there(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer)
    await committed(sequencer, [records_of(topic, 10)])
    delete = sequencer.retention.delete_records

    assert await delete(topic.topic_id, P0, Offset(11)) == BeyondHighWatermark(high_watermark=Offset(10))
    assert await delete(topic.topic_id, P0, Offset(-2)) == BeyondHighWatermark(high_watermark=Offset(10))
    assert await delete(topic.topic_id, Partition(1), Offset(1)) == UnknownPartition()
    everything = await delete(topic.topic_id, P0, TO_HIGH_WATERMARK)
    assert everything == Moved(log_start_offset=Offset(10), dropped_runs=1, dropped_bytes=100)


async def test_sweep_removes_a_deleted_topic_in_steps_while_its_name_is_used_again(
    sequencer: Sequencer,
) -> None:
    old = await a_topic(sequencer, partitions=2)
    for _ in range(3):
        await committed(sequencer, [records_of(old), records_of(old, partition=1)])
    await sequencer.topics.delete("orders")
    new = await a_topic(sequencer)
    await committed(sequencer, [records_of(new)])

    steps: list[Any] = []
    while not steps or steps[-1].more:
        steps.append(await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=4))

    assert [step.runs for step in steps] == [4, 2]
    assert sum(step.topics for step in steps) == 1
    assert await base_offsets(sequencer) == [0]
    assert await count(sequencer, "partitions") == 1
    assert await sequencer.topics.list() == [new]


async def test_a_deleted_topic_stays_until_its_history_is_dropped(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    await turn_history_on(sequencer, topic, compacted_to=0)
    await sequencer.topics.delete("orders")

    before = await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=10)
    await sequencer.history.garbage.drop_deleted(10)
    after = await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=10)

    assert (before.partitions, before.topics) == (1, 0)
    assert (after.partitions, after.topics) == (0, 1)


async def test_two_sweepers_share_the_work_and_wait_for_neither(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer, partitions=2)
    await committed(sequencer, [records_of(topic), records_of(topic, partition=1)])
    await sequencer.topics.delete("orders")

    async with sequencer.database.transaction() as other:
        await other.execute("SELECT FROM partitions WHERE partition = 0 FOR NO KEY UPDATE")
        beside = await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=10)
    rest = await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=10)

    assert (beside.runs, beside.partitions, beside.topics) == (1, 1, 0)
    assert (rest.runs, rest.partitions, rest.topics) == (1, 1, 1)


async def test_raced_a_commit_that_a_topic_deletion_waits_for_leaves_no_runs_behind(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer)

    async with sequencer.database.transaction() as commit:
        await commit.execute("SELECT FROM partitions FOR NO KEY UPDATE")
        deletion = await waits_for_a_lock(sequencer, lambda: sequencer.topics.delete("orders"))
        swept_early = await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=10)
        await commit.execute(
            "INSERT INTO runs VALUES (%s, 0, 0, 9, gen_random_uuid(), 64, 100, 'batches', 1, 1, 1)",
            (topic.topic_id,),
        )
    await deletion
    swept = await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=10)

    assert (swept_early.runs, swept_early.partitions) == (0, 0)
    assert (swept.runs, swept.partitions, swept.topics) == (1, 1, 1)
    assert await count(sequencer, "runs") == 0


async def test_raced_a_commit_that_waits_for_a_topic_deletion_finds_the_partition_unknown(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer)
    segment = await reserved(sequencer, [records_of(topic)])

    async with sequencer.database.transaction() as deletion:
        await deletion.execute("UPDATE partitions SET state = 'deleting'")
        commit = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))
    [answer] = await commit

    assert isinstance(answer, Committed)
    assert answer.outcomes == (UnknownPartition(),)
    assert await count(sequencer, "runs") == 0


async def test_raced_a_commit_and_retention_of_one_partition_wait_for_each_other(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer)
    key = (topic.topic_id, P0)
    await committed(sequencer, [records_of(topic, 10)])
    segment = await reserved(sequencer, [records_of(topic, 5)])

    async with sequencer.database.transaction() as retention:
        await retention.execute("UPDATE partitions SET log_start_offset = 10")
        commit = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))
    [answer] = await commit
    async with sequencer.database.transaction() as late_commit:
        await late_commit.execute("UPDATE partitions SET high_watermark = 17, size_bytes = size_bytes + 50")
        await late_commit.execute(
            "INSERT INTO runs VALUES (%s, 0, 15, 16, gen_random_uuid(), 64, 50, 'batches', 1, 1, 1)",
            (topic.topic_id,),
        )
        expiry = await waits_for_a_lock(sequencer, lambda: expired(sequencer, key, Offset(15), 10))
    moved = await expiry

    assert isinstance(answer, Committed)
    assert [run.base_offset for run in answer.runs] == [10]
    assert moved == Moved(log_start_offset=Offset(15), dropped_runs=2, dropped_bytes=200)
    row = await partition_row(sequencer, key)
    assert (row.log_start_offset, row.high_watermark, row.size_bytes) == (15, 17, 50)


async def test_raced_retention_that_waits_while_history_is_turned_on_stays_behind_it(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer)
    key = (topic.topic_id, P0)
    await committed(sequencer, [records_of(topic, 10)])

    async with sequencer.database.transaction() as compaction:
        await compaction.execute("SELECT FROM partitions FOR NO KEY UPDATE")
        expiry = await waits_for_a_lock(sequencer, lambda: expired(sequencer, key, Offset(10), 10))
        await compaction.execute(
            "INSERT INTO history_tables (topic_id, published_at) VALUES (%s, now())", (topic.topic_id,)
        )
        await compaction.execute("INSERT INTO history_partitions VALUES (%s, 0, 0)", (topic.topic_id,))
    moved = await expiry

    assert moved == Moved(log_start_offset=Offset(0), dropped_runs=0, dropped_bytes=0)


async def test_retention_of_a_deleted_partition_is_none(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    await sequencer.topics.delete("orders")

    assert await expired(sequencer, (topic.topic_id, P0), Offset(1), 10) is None
    assert await expired(sequencer, (TopicId(a_segment([]).segment_id), P0), Offset(1), 10) is None


async def test_many_partitions_are_expired_in_one_transaction_each_as_if_alone(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer, partitions=6)
    keys = [(topic.topic_id, Partition(number)) for number in range(6)]
    for _ in range(3):
        await committed(sequencer, [records_of(topic, 10, partition=number) for number in range(6)])
    await turn_history_on(sequencer, topic, compacted_to=15)
    await sequencer.database.run(
        "INSERT INTO history_partitions SELECT topic_id, n, 15 FROM history_tables, "
        "generate_series(1, 4) AS n"
    )
    gone = (TopicId(a_segment([]).segment_id), P0)
    before = {gone: Offset(5), **{key: Offset(5 * number) for number, key in enumerate(keys)}}

    moved = await sequencer.retention.expire(before, 1)

    assert {int(key[1]): (one.log_start_offset, one.dropped_runs) for key, one in moved.items()} == {
        0: (0, 0), 1: (5, 0), 2: (10, 1), 3: (15, 1), 4: (15, 1), 5: (0, 0),
    }  # fmt: skip
    assert await sequencer.retention.expire({}, 1) == {}


async def test_raced_retention_of_many_partitions_and_commits_to_them_lose_and_block_nothing(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer, partitions=8)
    keys = [(topic.topic_id, Partition(number)) for number in range(8)]
    for _ in range(3):
        await committed(sequencer, [records_of(topic, 10, partition=number) for number in range(8)])

    async def commit(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(15):
            some = chance.sample(range(8), 5)
            await committed(sequencer, [records_of(topic, 1, partition=number) for number in some])

    async def expire(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(15):
            some = chance.sample(keys, 6)
            await sequencer.retention.expire({key: Offset(chance.randrange(30)) for key in some}, 2)

    async with asyncio.timeout(60):
        await asyncio.gather(*map(commit, range(4)), *map(expire, range(4)))

    rows = [await partition_row(sequencer, key) for key in keys]
    assert sum(row.high_watermark for row in rows) == 8 * 30 + 4 * 15 * 5
    assert sequencer.database.counters.deadlocks == 0
