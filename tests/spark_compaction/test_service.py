"""The service that keeps history fresh: which topics it takes, and that it keeps them fresh by itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from compactor.metrics import HousekeeperMetrics
from sequencer.client import Sequencer
from sequencer.history.history_values import HistoryJob, TableVersion, TopicBehind
from spark_compaction import compact as compact_module
from spark_compaction import job as job_module
from spark_compaction.compact import Compaction, TopicCompactor
from spark_compaction.job import SparkJobFailed
from spark_compaction.service import FIRST_TOPIC_S, Retries, due_topics, lateness, run_service
from spark_compaction.settings import CompactionSettings
from storage.identifiers import TopicId
from storage.stores.object_store import ObjectStore
from tests.sequencer.housekeeping.housekeeping import observed
from tests.spark_compaction.log import Log, Sent, one, records
from tests.spark_compaction.reading import iceberg_rows, written_rows

_PATIENCE_S = 120.0


def behind(name: str, behind_s: float, raw_bytes: int = 0, freshness_ms: int = 100_000) -> TopicBehind:
    return TopicBehind(
        topic_id=TopicId(UUID(int=int(name))),
        topic_name=name,
        config={"tidelog.history.freshness.ms": str(freshness_ms)},
        partition_count=1,
        records=1,
        raw_bytes=raw_bytes,
        behind_s=behind_s,
    )


def test_topics_are_due_at_half_their_freshness_and_the_latest_come_first() -> None:
    topics = [behind("1", 49), behind("2", 50), behind("3", 90), behind("4", 60, freshness_ms=30_000)]

    assert [topic.topic_name for topic in due_topics(topics, 10)] == ["4", "3", "2"]
    assert [topic.topic_name for topic in due_topics(topics, 2)] == ["4", "3"]


def test_topics_are_due_earlier_if_all_of_them_take_long() -> None:
    topics = [behind("1", 9), behind("2", 11), behind("3", 41), behind("4", 49)]

    def due(topic_s: float) -> list[str]:
        return [topic.topic_name for topic in due_topics(topics, 10, topic_s)]

    assert due(6) == []  # 4 of them, twice, of 100 s: 0.52
    assert due(7.5) == ["4", "3"]
    assert due(1000) == ["4", "3", "2"]


def test_a_new_service_begins_early_if_a_thousand_topics_are_behind() -> None:
    topics = [behind(str(number), 35, freshness_ms=300_000) for number in range(1000)]

    assert len(due_topics(topics, 64, FIRST_TOPIC_S)) == 64
    assert due_topics(topics[:10], 64, FIRST_TOPIC_S) == []


def test_among_topics_that_are_equally_late_the_larger_come_first() -> None:
    assert [topic.topic_name for topic in due_topics([behind("1", 60, 1), behind("2", 60, 2)], 10)] == [
        "2",
        "1",
    ]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**6)), max_size=30))
def test_no_topic_that_is_later_than_one_taken_is_left_out(given_topics: list[tuple[float, int]]) -> None:
    topics = [behind(str(number), *values) for number, values in enumerate(given_topics)]
    taken = due_topics(topics, 5)
    left = [lateness(topic) for topic in topics if topic not in taken]

    assert not taken or len(taken) == 5 or max(left, default=0) < 0.5
    assert all(lateness(topic) >= max(left, default=0) or len(taken) < 5 for topic in taken)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_a_topic_that_waits_for_its_schemas_is_shown_until_it_goes_on(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic(
        "orders", tidelog_history_freshness_ms="1", retention_ms="-1", tidelog_value_format="avro"
    )
    await log.write("orders", one(0, Sent(value=b"\0\0\0\0\1x")))
    at_once = settings.model_copy(update={"history_poll_s": 0.1})

    async with serving(at_once) as registry:
        async with asyncio.timeout(_PATIENCE_S):
            while not (await sequencer.history.shown("orders"))[0].waits:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        waiting = registry.get_sample_value("tidelog_history_waiting", {"topic": "orders"})
        await sequencer.topics.alter_config("orders", {"tidelog.value.format": "string"})
        await complete(sequencer, "orders")
        async with asyncio.timeout(_PATIENCE_S):
            while registry.get_sample_value("tidelog_history_waiting", {"topic": "orders"}) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    [shown] = await sequencer.history.shown("orders")
    assert waiting == 1
    assert shown.waits is None
    assert shown.records == 1


def test_topics_that_cannot_go_on_leave_the_rounds_to_the_others() -> None:
    stuck, well = behind("1", 1000), behind("2", 60)
    retries, now_s = Retries(), time.monotonic()
    for _ in range(3):
        retries.note(stuck.topic_id, advanced=False)

    assert retries.without_waiting([stuck, well], now_s) == [well]
    assert retries.without_waiting([stuck, well], now_s + 1000) == [stuck, well]
    retries.note(stuck.topic_id, advanced=True)
    assert retries.without_waiting([stuck, well], now_s) == [stuck, well]


async def test_a_stop_while_a_job_lets_its_lease_go_is_not_lost(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing, ending, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def renew(*_: object) -> None:
        try:
            renewing.set()
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go_on.wait()

    async def work() -> None:
        async with job_module.kept_lease(sequencer, job, 60.0):
            await renewing.wait()
        await asyncio.Event().wait()  # the next round

    monkeypatch.setattr(job_module, "_renew", renew)
    table = TableVersion(number=0, metadata_key=None)
    job = HistoryJob(job_id=UUID(int=1), topic_id=TopicId(UUID(int=1)), prefix="p/", table=table)
    working = asyncio.create_task(work())
    await ending.wait()

    working.cancel()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, 30)


@asynccontextmanager
async def serving(settings: CompactionSettings) -> AsyncIterator[CollectorRegistry]:
    registry, stop = CollectorRegistry(), asyncio.Event()
    service = asyncio.create_task(run_service(settings, registry, stop))
    try:
        yield registry
    finally:
        stop.set()
        await asyncio.wait_for(service, _PATIENCE_S)


async def complete(sequencer: Sequencer, *names: str) -> None:
    """Waits until nothing of these topics is missing in history."""
    async with asyncio.timeout(_PATIENCE_S):
        while {topic.topic_name for topic in await sequencer.history.behind()} & set(names):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_topics_become_tables_by_themselves(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    names = ("one", "two", "three")
    for name in names:
        await log.topic(name, partitions=2, tidelog_history_freshness_ms="1", retention_ms="-1")
    await log.topic("off", tidelog_history="off")
    at_once = settings.model_copy(update={"history_poll_s": 0.1})

    async with serving(at_once) as registry:
        for start in range(0, 30, 10):
            for name in (*names, "off"):
                await log.write(name, one(0, *records(10, start)))
            await complete(sequencer, *names)

    assert registry.get_sample_value("tidelog_history_records_total") == 90
    for name in names:
        assert await iceberg_rows(settings, name) == written_rows(log, name)
    [off] = await sequencer.history.shown("off")
    assert (off.files, off.complete_at) == (0, None)
    [shown] = await sequencer.history.shown("one")
    assert (shown.records, shown.files > 0, shown.parquet_bytes > 0) == (30, True, True)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_two_services_share_the_topics_and_write_each_record_once(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    names = [f"topic-{number}" for number in range(6)]
    for name in names:
        await log.topic(name, tidelog_history_freshness_ms="1", retention_ms="-1")
    few = settings.model_copy(
        update={"history_poll_s": 0.1, "compact_round_topics": 2, "history_ttl_interval_s": 1.0}
    )

    async with serving(few), serving(few):
        for start in range(0, 20, 10):
            for name in names:
                await log.write(name, one(0, *records(10, start)))
            await complete(sequencer, *names)

    for name in names:
        assert await iceberg_rows(settings, name) == written_rows(log, name)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_a_refused_publish_is_counted(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.topic("orders", tidelog_history_freshness_ms="1", retention_ms="-1")
    await log.write("orders", one(0, *records(10)))
    publish = job_module.publish_staged

    async def outlived(client: Sequencer, job: HistoryJob, *given: Any) -> Any:
        monkeypatch.undo()
        await sequencer.history.abandon(job.job_id)  # as where its lease has passed
        return await publish(client, job, *given)

    monkeypatch.setattr(compact_module, "publish_staged", outlived)
    async with serving(settings.model_copy(update={"history_poll_s": 0.1})) as registry:
        async with asyncio.timeout(_PATIENCE_S):
            while not registry.get_sample_value("tidelog_history_refused_total"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await complete(sequencer, "orders")

    assert registry.get_sample_value("tidelog_history_refused_total") == 1


async def test_a_long_round_that_fails_is_tried_again_soon(
    log: Log, settings: CompactionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service rested twenty times as long as the round had taken."""
    await log.topic("orders", tidelog_history_freshness_ms="1", retention_ms="-1")
    await log.write("orders", one(0, *records(10)))
    rounds_s: list[float] = []
    again = asyncio.Event()

    async def fail_late(*_: object) -> Sequence[TopicCompactor]:
        rounds_s.append(time.monotonic())
        if len(rounds_s) == 2:
            again.set()
        await asyncio.sleep(2.0)
        raise SparkJobFailed("an executor is gone")

    monkeypatch.setattr(Compaction, "run_round", fail_late)
    async with serving(settings.model_copy(update={"history_poll_s": 0.1})), asyncio.timeout(60):
        await again.wait()

    assert rounds_s[1] - rounds_s[0] < 2.0 + 5.0 + 10.0  # the round, the topic's wait, and a slow machine


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_a_topic_that_cannot_go_on_keeps_no_other_from_being_fresh(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, store: ObjectStore
) -> None:
    for name in ("broken", "well"):
        await log.topic(name, tidelog_history_freshness_ms="1", retention_ms="-1")
    await log.write("broken", one(0, *records(10)))
    [run] = await sequencer.database.run("SELECT object_key FROM segments WHERE state = 'committed'")
    await store.delete([run.object_key])
    await log.write("well", one(0, *records(10)))

    async with serving(
        settings.model_copy(update={"history_poll_s": 0.1, "compact_round_topics": 1})
    ) as registry:
        await complete(sequencer, "well")
        failures = registry.get_sample_value("tidelog_history_failures_total", {"error": "task"})

    assert await iceberg_rows(settings, "well") == written_rows(log, "well")
    assert failures is not None
    assert failures >= 1


async def test_agents_show_how_far_tables_are_behind(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    """No round is due, so Spark does not start."""
    await log.topic("orders", tidelog_history_freshness_ms="3600000", retention_ms="-1")
    await log.write("orders", one(0, *records(10)))
    registry = CollectorRegistry()
    shown = HousekeeperMetrics(registry)

    async with serving(settings.model_copy(update={"history_poll_s": 0.1})), asyncio.timeout(_PATIENCE_S):
        while registry.get_sample_value("tidelog_history_lag", {"what": "records"}) != 10:
            await observed(sequencer)
            latest = await sequencer.observations.latest()
            assert latest is not None
            shown.observe(latest)
    behind_s = registry.get_sample_value("tidelog_history_lag_seconds")
    await asyncio.sleep(0.2)
    later_s = registry.get_sample_value("tidelog_history_lag_seconds")

    assert registry.get_sample_value("tidelog_history_lag", {"what": "topics"}) == 1
    assert registry.get_sample_value("tidelog_history_lag", {"what": "late_topics"}) == 0
    assert behind_s is not None
    assert later_s is not None
    assert later_s > behind_s, "it grows although no service looks any more"
