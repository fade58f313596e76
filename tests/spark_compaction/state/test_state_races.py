"""Jobs on the table of a compacted topic: killed, late, two at once, and with other jobs in between."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from compactor.history_log_jobs import local_drop
from sequencer.client import Sequencer
from sequencer.history.history_log import LocallyDropped
from sequencer.housekeeping.merges import BEFORE_ALL
from spark_compaction.compact import Compaction, TopicCompaction, TopicCompactor
from spark_compaction.job_keys import open_job_keys
from spark_compaction.merge_files import FileMerger
from spark_compaction.settings import CompactionSettings
from spark_compaction.ttl import TopicExpirer
from storage.batches.record_batch import Compression
from storage.identifiers import Offset, Partition
from storage.stores.object_store import StoreSettings
from tests.agent.running import running
from tests.erasure.reading import consumed
from tests.spark_compaction.log import Log, Sent, drop_local, one
from tests.spark_compaction.reading import iceberg_table
from tests.spark_compaction.state.model import state_of, table_rows, written_state
from tests.spark_compaction.state.test_state_properties import (
    TOPIC,
    a_compacted_topic,
    check,
    clean,
    ends,
    is_healthy,
)
from tests.spark_compaction.test_races import Held

POINTS = ("before staging", "before the commit")
CHANGED = "the topic's cleanup policy has changed"

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("without_spark"), pytest.mark.timeout(300)]


async def write(log: Log, *pairs: tuple[str, str | None], partition: int = 0) -> None:
    sent = [Sent(key=key.encode(), value=value and value.encode()) for key, value in pairs]  # type: ignore[arg-type]
    await log.write(TOPIC, one(partition, *sent))


async def a_table(log: Log, settings: CompactionSettings, **config: str) -> TopicCompaction:
    """Of several files, with more in the log."""
    await a_compacted_topic(log, **config)
    for number in range(4):
        await write(log, (f"a{number}", "1"), (f"b{number}", "1"))
        done = await compacted(log, settings)
    await write(log, ("a0", "2"), ("b1", None), ("c", "1"))
    return done


async def a_table_of_all_records(log: Log, settings: CompactionSettings, **config: str) -> None:
    await log.topic(TOPIC, 1, retention_ms="-1", **config)
    await write(log, ("a", "1"), ("a", "2"), ("b", None), ("c", "1"))
    assert (await compacted(log, settings)).advanced


async def compacted(log: Log, settings: CompactionSettings) -> TopicCompaction:
    """As `tidelog compact`, on this event loop."""
    [topic] = (await log.sequencer.topics.by_name([TOPIC])).values()
    async with open_job_keys(settings, log.sequencer) as keys:
        compaction = Compaction(settings, log.sequencer, keys, lambda _: None)
        compactor = TopicCompactor(settings, log.sequencer, topic, keys)
        while await compaction.run_round([compactor]):
            pass
    return compactor.done


async def set_config(log: Log, **config: str) -> None:
    changes = {name.replace("_", "."): value for name, value in config.items()}
    await log.sequencer.topics.alter_config(TOPIC, changes)


def after(held: Held, point: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
    async def step() -> None:
        await meanwhile()

    held.point, held.meanwhile = point, step


async def test_two_jobs_at_once_make_one_table(log: Log, settings: CompactionSettings) -> None:
    await a_table(log, settings)
    reports = await asyncio.gather(compacted(log, settings), compacted(log, settings))
    assert sorted(report.rows for report in reports) == [0, 2]
    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)


@pytest.mark.parametrize("point", POINTS)
async def test_a_job_that_comes_back_after_its_lease_publishes_nothing(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, held: Held, point: str
) -> None:
    """As for one that is killed there: what it wrote lies under its prefix, and another job does its work."""
    await a_table(log, settings)

    async def lose_the_lease() -> None:
        await sequencer.database.run(
            "UPDATE history_jobs SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'running'"
        )
        await write(log, ("a3", None), ("d", "1"))
        assert (await compacted(log, settings)).advanced

    after(held, point, lose_the_lease)
    late = await compacted(log, settings)

    assert held.reached == [point]
    assert late.refused == ("the job's lease has passed",) or late.refused[0].startswith("another job")
    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)
    assert await is_healthy(sequencer, log.store)


@pytest.mark.parametrize("point", POINTS)
async def test_a_job_whose_files_were_merged_meanwhile_looks_once_more(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, held: Held, point: str
) -> None:
    await a_table(log, settings)
    [topic] = (await sequencer.topics.by_name([TOPIC])).values()
    merging = settings.model_copy(update={"parquet_merge_files": 2})

    async def merge() -> None:
        async with open_job_keys(merging, sequencer) as keys:
            assert await FileMerger(merging, sequencer, topic, keys).run_job() == 4

    after(held, point, merge)
    done = await compacted(log, settings)

    assert (held.reached, done.refused, done.rewritten_files) == ([point], (), 1)
    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)
    assert await is_healthy(sequencer, log.store)


@pytest.mark.parametrize("point", POINTS)
async def test_a_topic_that_is_deleted_meanwhile_gets_no_table(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, held: Held, point: str
) -> None:
    await a_table(log, settings)

    async def delete() -> None:
        await sequencer.topics.delete(TOPIC)
        await sequencer.history.garbage.drop_deleted(10)

    after(held, point, delete)
    done = await compacted(log, settings)
    assert (held.reached, done.refused, done.advanced) == ([point], ("the topic was deleted",), False)


@pytest.mark.parametrize("point", POINTS)
async def test_the_policy_may_change_at_any_moment(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, held: Held, point: str
) -> None:
    """What was planned before is planned again."""
    await a_table(log, settings)
    new = log.expected[TOPIC][8:]
    state = await table_rows(settings, TOPIC)
    after(held, point, lambda: set_config(log, cleanup_policy="delete", retention_ms="-1"))
    done = await compacted(log, settings)
    assert (done.advanced, done.refused) == (False, (CHANGED,))
    assert (await compacted(log, settings)).advanced
    assert await table_rows(settings, TOPIC) == [*state, *new]
    await write(log, ("a0", "3"), ("a0", "4"), ("c", None))

    after(held, point, lambda: set_config(log, cleanup_policy="compact"))
    done = await compacted(log, settings)
    assert (done.advanced, done.refused) == (False, (CHANGED,))

    assert (await compacted(log, settings)).advanced
    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)
    assert not (await compacted(log, settings)).advanced
    assert await is_healthy(sequencer, log.store)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_table_does_not_begin_again_where_parquet_became_the_log_meanwhile(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    held: Held,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
    point: str,
    policy: str,
) -> None:
    """Whether or not the topic is compacted by key once more when the job publishes."""
    await a_table_of_all_records(log, settings)
    await set_config(log, cleanup_policy="compact")

    async def drop() -> None:
        await set_config(log, cleanup_policy="delete", tidelog_history="log", local_retention_ms="0")
        assert await drop_local(sequencer) > 0
        if policy == "compact":
            await set_config(log, tidelog_history="table")
            await set_config(log, cleanup_policy="compact")

    after(held, point, drop)
    done = await compacted(log, settings)

    reason = CHANGED if policy == "delete" else "Parquet has become the log of a partition"
    assert (held.reached, done.advanced, done.refused) == ([point], False, (reason,))
    assert await table_rows(settings, TOPIC) == log.expected[TOPIC]
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        found = await consumed(agent, TOPIC, 1)
    assert found == [(row[0], row[1], row[4], row[5]) for row in log.expected[TOPIC]]


@pytest.mark.parametrize("policy", ["compact", "delete"])
async def test_runs_that_were_to_go_stay_where_the_table_began_again_meanwhile(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
    policy: str,
) -> None:
    """Whether or not the topic is still compacted by key when they were to go."""
    await a_table_of_all_records(log, settings, tidelog_history="log", local_retention_ms="0")
    logs, _ = await sequencer.history_log.to_shorten(BEFORE_ALL, 10, 10)
    drops = [drop for drop in map(local_drop, logs) if drop is not None]
    assert [len(drop.runs) for drop in drops] == [1]
    await set_config(log, tidelog_history="table")
    await set_config(log, cleanup_policy="compact")
    assert (await compacted(log, settings)).advanced
    await set_config(log, cleanup_policy=policy)

    dropped = await sequencer.history_log.drop_local(drops)

    assert dropped == LocallyDropped(runs=0, size_bytes=0)
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        found = await consumed(agent, TOPIC, 1)
    assert found == [(row[0], row[1], row[4], row[5]) for row in log.expected[TOPIC]]


async def test_runs_that_were_to_go_stay_where_the_topic_became_compacted_meanwhile(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    """So the table may begin again."""
    await a_table_of_all_records(log, settings, tidelog_history="log", local_retention_ms="0")
    logs, _ = await sequencer.history_log.to_shorten(BEFORE_ALL, 10, 10)
    drops = [drop for drop in map(local_drop, logs) if drop is not None]
    await set_config(log, tidelog_history="table")
    await set_config(log, cleanup_policy="compact")

    dropped = await sequencer.history_log.drop_local(drops)

    assert dropped == LocallyDropped(runs=0, size_bytes=0)
    assert (await compacted(log, settings)).advanced
    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)


async def test_a_table_of_all_records_becomes_the_state_without_new_ones(
    log: Log, settings: CompactionSettings
) -> None:
    await log.topic(TOPIC, 2, retention_ms="-1")
    await write(log, ("a", "1"), ("a", "2"), ("b", None))
    await log.write(TOPIC, one(1, Sent(key=None), Sent(key=b"a")))
    await compacted(log, settings)
    assert await table_rows(settings, TOPIC) == sorted(log.expected[TOPIC], key=lambda row: row[:2])
    await set_config(log, cleanup_policy="compact")
    assert [topic.topic_name for topic in await log.sequencer.history.behind()] == [TOPIC]

    await compacted(log, settings)

    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)
    assert await log.sequencer.history.behind() == ()


async def test_agents_clean_no_further_than_the_table(log: Log, settings: CompactionSettings) -> None:
    """So the table is the state at its end, and has seen each tombstone that goes."""
    await a_table(log, settings)
    [end] = (await ends(log, log.topic_ids[TOPIC])).values()
    await clean(log)
    [row] = await log.sequencer.database.read("SELECT clean_to FROM cleanings")
    assert row.clean_to == end
    await compacted(log, settings)
    await clean(log)
    [row] = await log.sequencer.database.read("SELECT clean_to FROM cleanings")
    assert row.clean_to == end + 3
    await check(log, settings)


async def test_a_table_that_missed_tombstones_begins_again(log: Log, settings: CompactionSettings) -> None:
    await a_table(log, settings)
    await compacted(log, settings)
    await set_config(log, tidelog_history="off")
    await write(log, ("a1", None), ("b2", None), ("x", "1"))
    while await clean(log):
        pass
    read = await log.sequencer.database.read("SELECT tombstones_gone_to FROM cleanings")
    assert read[0].tombstones_gone_to > 0
    await write(log, ("y", "1"))
    await set_config(log, tidelog_history="table")

    done = await compacted(log, settings)

    assert done.rewritten_files == 0
    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)
    await write(log, ("y", "2"), ("a2", None))
    assert (await compacted(log, settings)).rewritten_files == 1
    await check(log, settings)


async def test_deleted_and_expired_records_leave_the_table(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await a_table(log, settings, cleanup_policy="compact,delete", retention_ms="-1")
    await compacted(log, settings)
    topic_id = log.topic_ids[TOPIC]
    await sequencer.retention.delete_records(topic_id, Partition(0), Offset(4))
    [topic] = (await sequencer.topics.by_name([TOPIC])).values()
    async with open_job_keys(settings, sequencer) as keys:
        await TopicExpirer(settings, sequencer, topic, keys, now=datetime.now(UTC)).run()
    assert await table_rows(settings, TOPIC) == [row for row in written_state(log, TOPIC) if row[1] >= 4]
    await write(log, ("a3", "9"))
    await compacted(log, settings)
    assert await table_rows(settings, TOPIC) == [row for row in written_state(log, TOPIC) if row[1] >= 4]


async def test_a_missing_object_stops_its_partition_alone(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await a_table(log, settings)
    before = await table_rows(settings, TOPIC)
    await write(log, ("a1", "lost"))
    await write(log, ("z", "1"), partition=1)
    [_, lost] = await sequencer.database.read(
        "SELECT object_key FROM segments WHERE state = 'committed' ORDER BY committed_at DESC LIMIT 2"
    )
    await log.store.delete([lost.object_key])

    done = await compacted(log, settings)

    assert [stop.partition for stop in done.stopped] == [0]
    other = state_of([row for row in log.expected[TOPIC] if row[0] == 1])
    assert await table_rows(settings, TOPIC) == [*before, *other]


async def test_a_record_that_does_not_decode_stays_in_the_log_and_its_key_as_it_was(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await a_table(log, settings)
    await compacted(log, settings)
    before = await table_rows(settings, TOPIC)
    await log.write(TOPIC, one(0, Sent(key=b"a1", value=b"damaged"), compression=Compression.NONE))
    [newest] = await sequencer.database.read(
        "SELECT object_key FROM segments WHERE state = 'committed' ORDER BY committed_at DESC LIMIT 1"
    )
    data = bytearray(await log.store.get(newest.object_key))
    data[data.index(b"damaged")] ^= 1
    await log.store.put(newest.object_key, [bytes(data)])
    await write(log, ("e", "1"))

    done = await compacted(log, settings)

    assert [(each.base_offset, each.last_offset) for each in done.raw_ranges] == [(11, 11)]
    assert await table_rows(settings, TOPIC) == [*before, log.expected[TOPIC][-1]]


async def test_a_topic_that_is_no_longer_compacted_may_have_its_log_in_parquet(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    """Consumers read the runs where the table is the state, and Parquet behind it. Compacted once more, the
    partition has no state, because Parquet is its log."""
    await a_table(log, settings)
    await compacted(log, settings)
    await set_config(
        log, cleanup_policy="delete", retention_ms="-1", tidelog_history="log", local_retention_ms="0"
    )
    await write(log, ("a0", "3"), ("a0", "4"), ("c", None))
    await compacted(log, settings)
    assert await drop_local(sequencer) == 1

    async with running(database_url, store_url, store_settings=store_settings) as agent:
        found = await consumed(agent, TOPIC, 1)

    assert found == [(row[0], row[1], row[4], row[5]) for row in log.expected[TOPIC]]
    in_parquet = await table_rows(settings, TOPIC)
    await set_config(log, tidelog_history="table")
    await set_config(log, cleanup_policy="compact")
    await write(log, ("a0", "5"))
    assert not (await compacted(log, settings)).advanced
    assert await table_rows(settings, TOPIC) == in_parquet
    assert await sequencer.history.behind() == ()


async def test_columns_of_values_stay_with_their_rows_when_files_are_rewritten(
    log: Log, settings: CompactionSettings
) -> None:
    await a_compacted_topic(log, tidelog_value_format="json")
    await write(log, ("a", '{"price": 1}'), ("b", '{"price": 2}'), ("c", '{"price": 3}'))
    await compacted(log, settings)
    await write(log, ("b", '{"price": 5, "currency": "EUR"}'), ("c", None), ("d", "no object"))
    assert (await compacted(log, settings)).rewritten_files == 1

    table = (await iceberg_table(settings, TOPIC)).sort_by("offset")

    assert table.select(["key", "price", "currency"]).to_pylist() == [
        {"key": b"a", "price": 1, "currency": None},
        {"key": b"b", "price": 5, "currency": "EUR"},
        {"key": b"d", "price": None, "currency": None},
    ]


@pytest.mark.parametrize("size", [1, 3])
async def test_jobs_that_take_a_part_of_the_new_records_make_the_same_table(
    log: Log, settings: CompactionSettings, size: int
) -> None:
    """Each publishes the state at its end."""
    await a_table(log, settings)
    for number in range(9):
        await write(log, (f"a{number % 4}", str(number)), ("often", str(number)), (f"b{number % 3}", None))
    few = settings.model_copy(update={"compact_job_runs": size * 2, "compact_state_keys": size})
    assert (await compacted(log, few)).advanced
    await check(log, settings)
    assert await table_rows(settings, TOPIC) == written_state(log, TOPIC)
