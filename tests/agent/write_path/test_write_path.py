"""The write path on a real Postgres: order, failed uploads, and commits whose outcome is not known."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from agent.write_path.outcomes import WriteFailed, WriteFailure
from sequencer.client import Sequencer, SequencerSettings
from sequencer.commits.commits import Assigned, OutOfOrderSequence
from sequencer.topics.topics import Topic
from storage.identifiers import ObjectKey, Offset
from storage.segments.segment import verify_segment
from storage.segments.segment_batches import PendingBatches
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import StoreUnavailable
from tests.agent.running import until_answered
from tests.agent.write_path.test_uploader import FOREVER_S, UNTIL_JOINED, TroubledStore
from tests.agent.write_path.wired import outcomes_of, pending, writing
from tests.support.waiting import until

TOO_LATE = WriteFailed(failure=WriteFailure.TIMED_OUT, message="too late")


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 4, {})


@asynccontextmanager
async def partitions_locked(database_url: str) -> AsyncIterator[None]:
    """Another session holds every partition's row, so that commits wait."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("SELECT 1 FROM partitions FOR UPDATE")
        yield
        await connection.rollback()


async def waiting_backends(database_url: str) -> list[int]:
    """The backends of commits that wait for a lock."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        rows = await connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return [pid for (pid,) in await rows.fetchall()]


async def a_commit_that_waits(database_url: str) -> int:
    backends: list[int] = []

    async def found() -> bool:
        backends.extend(await waiting_backends(database_url))
        return bool(backends)

    await until_answered(found)
    return backends[0]


async def terminate(database_url: str, backend: int) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("SELECT pg_terminate_backend(%s)", [backend])


async def doom_everything(database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute(
            "UPDATE segments SET state = 'doomed', doomed_at = now() WHERE state = 'reserved'"
        )


def assigned(*offsets: int) -> list[Assigned]:
    return [Assigned(base_offset=Offset(offset)) for offset in offsets]


def failures(outcomes: list[object]) -> list[WriteFailure]:
    return [outcome.failure for outcome in outcomes if isinstance(outcome, WriteFailed)]


async def test_batches_are_sequenced_in_the_order_they_were_appended(
    sequencer: Sequencer, topic: Topic
) -> None:
    async with writing(sequencer, MemoryStore(), segment_size_bytes=1024) as writer:
        futures = [future for number in range(200) for future in writer.append(topic, number)]

        outcomes = await outcomes_of(futures)

    assert outcomes == assigned(*range(200))


async def test_the_read_path_gets_written_batches_in_whole_segments(
    sequencer: Sequencer, topic: Topic
) -> None:
    store = MemoryStore()
    async with writing(sequencer, store) as writer:
        await outcomes_of(writer.append(topic, 0, 1, 2) + writer.append(topic, 0, producer_id=2, partition=3))

        counted = [writer.metric(f"tidelog_{name}_total") for name in ("batches", "records")]
        assert counted == [4, 4]
        runs = sorted((run.partition, run.base_offset, run.last_offset) for run in writer.notified.runs)
        assert runs == [(0, 0, 2), (3, 0, 0)]
        for run in writer.notified.runs:
            data = await store.get(run.object_key)
            assert writer.notified.objects[run.object_key] == data
            verify_segment(data)


async def test_a_failed_upload_is_reported_as_not_written_and_may_be_sent_again(
    sequencer: Sequencer, topic: Topic
) -> None:
    """The upload of the first segment fails for good. Its client sends it again."""
    store = TroubledStore(StoreUnavailable("away"))
    async with writing(sequencer, store, upload_attempts=1) as writer:
        first = await outcomes_of(writer.append(topic, 0))
        again = await outcomes_of(writer.append(topic, 0))

        assert failures(first) == [WriteFailure.NOT_WRITTEN]  # type: ignore[arg-type]
        assert again == assigned(0)
        assert writer.write_path.unacknowledged_bytes == 0


async def test_a_batch_before_its_predecessor_may_be_sent_again_while_patience_lasts(
    sequencer: Sequencer, topic: Topic
) -> None:
    async with writing(sequencer, MemoryStore()) as writer:
        early = await outcomes_of(writer.append(topic, 0, 2))
        written = await outcomes_of(writer.append(topic, 1) + writer.append(topic, 2))

        assert failures(early) == [WriteFailure.NOT_WRITTEN]  # type: ignore[arg-type]
        assert written == assigned(1, 2)
        assert writer.metric("tidelog_sequence_gaps_total") == 1
    async with writing(sequencer, MemoryStore(), sequence_gap_patience_s=0) as writer:
        assert await outcomes_of(writer.append(topic, 7)) == [OutOfOrderSequence()]


async def test_a_segment_is_not_committed_before_an_earlier_one_is_uploaded(
    sequencer: Sequencer, topic: Topic
) -> None:
    store = TroubledStore(0.5)
    async with writing(sequencer, store, hedge_after_min_s=20, upload_timeout_s=100) as writer:
        done: list[str] = []
        slow = writer.append(topic, 0)
        slow[0].when_done(lambda: done.append("slow"))
        await until(lambda: store.puts_begun == 1)
        quick = writer.append(topic, 0, producer_id=2)
        quick[0].when_done(lambda: done.append("quick"))

        assert await outcomes_of([*slow, *quick]) == assigned(0, 1)
        assert done == ["slow", "quick"]


async def test_segments_uploaded_during_a_commit_are_committed_together(
    sequencer: Sequencer, topic: Topic, database_url: str
) -> None:
    async with writing(sequencer, MemoryStore(), segment_size_bytes=1024, linger_ms=0) as writer:
        async with partitions_locked(database_url):
            futures = writer.append(topic, 0)
            await a_commit_that_waits(database_url)
            for number in range(1, 60):
                futures += writer.append(topic, number)
            await until(lambda: writer.metric("tidelog_put_seconds_count") >= 5)
            await until(lambda: len(writer.notified.objects) == writer.metric("tidelog_put_seconds_count"))

        assert await outcomes_of(futures) == assigned(*range(60))
        assert writer.metric("tidelog_commits_total") < writer.metric("tidelog_put_seconds_count")


async def test_a_commit_whose_connection_was_lost_is_repeated_until_it_is_known(
    sequencer: Sequencer, topic: Topic, database_url: str
) -> None:
    async with writing(sequencer, MemoryStore()) as writer:

        def has_repeated(times: int) -> bool:
            return writer.metric("tidelog_commit_repeats_total", reason="unknown") == times

        async with partitions_locked(database_url):
            futures = writer.append(topic, 0, 1)
            for lost in range(1, 4):
                await terminate(database_url, await a_commit_that_waits(database_url))
                await until(partial(has_repeated, lost))

        assert await outcomes_of(futures) == assigned(0, 1)
        assert await writer.high_watermark(topic) == 2


@pytest.mark.superuser
async def test_a_commit_longer_than_a_statement_may_take_is_repeated_in_parts(
    topic: Topic, database_url: str
) -> None:
    """Postgres takes 0.4 s for a segment, and at most a second for a statement. Five segments are ready at
    once.
    """
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); "
            "RETURN NEW; END'"
        )
        await connection.execute(
            "CREATE TRIGGER slow BEFORE UPDATE ON segments"
            " FOR EACH ROW WHEN (NEW.state = 'committed') EXECUTE FUNCTION slow()"
        )
    settings: dict[str, Any] = {
        "segment_size_bytes": 1024,
        "linger_ms": 60_000,
        "put_budget_burst": 1,
        "put_budget_per_s": 0.001,
    }
    sequencer = await Sequencer.open(database_url, SequencerSettings(database_statement_timeout_ms=1_000))
    try:
        store = TroubledStore(0.2)
        async with writing(
            sequencer, store, hedge_after_min_s=60, upload_timeout_s=100, **settings
        ) as writer:
            futures = [future for number in range(50) for future in writer.append(topic, number)]
            await writer.write_path.drain()

            assert await outcomes_of(futures) == assigned(*range(50))
            assert writer.metric("tidelog_commit_repeats_total", reason="unknown") > 0
            assert await writer.high_watermark(topic) == 50
    finally:
        await sequencer.close()


async def test_acknowledged_records_survive_repeatedly_killed_connections(
    sequencer: Sequencer, topic: Topic, database_url: str
) -> None:
    """Every backend but the test's is killed again and again. Each record is then there once, at its
    acknowledged offset.
    """
    everyone = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with writing(sequencer, MemoryStore(), segment_size_bytes=1024) as writer:
        futures = []
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            for number in range(150):
                futures += writer.append(topic, number)
                if number % 10 == 0:
                    await connection.execute(everyone)
                await asyncio.sleep(0.005)

        assert await outcomes_of(futures) == assigned(*range(150))
        assert await writer.high_watermark(topic) == 150


async def test_a_refusal_of_the_first_attempt_means_that_nothing_was_written(
    sequencer: Sequencer, topic: Topic, database_url: str
) -> None:
    async with writing(sequencer, MemoryStore()) as writer:
        await outcomes_of(writer.append(topic, 0))  # ids are in stock
        await doom_everything(database_url)

        refused = await outcomes_of(writer.append(topic, 1))

        assert failures(refused) == [WriteFailure.NOT_WRITTEN]  # type: ignore[arg-type]
        assert await writer.high_watermark(topic) == 1


async def test_a_refusal_of_a_repeat_means_that_the_outcome_is_unknown(
    sequencer: Sequencer, topic: Topic, database_url: str
) -> None:
    async with writing(sequencer, MemoryStore(), commit_backoff_s=1.0) as writer:
        async with partitions_locked(database_url):
            futures = writer.append(topic, 0)
            await terminate(database_url, await a_commit_that_waits(database_url))
            await until(lambda: writer.metric("tidelog_commit_repeats_total", reason="unknown") == 1)
            await doom_everything(database_url)

        assert failures(await outcomes_of(futures)) == [WriteFailure.UNKNOWN]  # type: ignore[arg-type]
        assert writer.metric("tidelog_commit_refusals_total", reason="doomed") == 1


async def test_a_batch_whose_request_gave_up_before_its_seal_is_not_written(
    sequencer: Sequencer, topic: Topic
) -> None:
    async with writing(
        sequencer, MemoryStore(), linger_ms=300, put_budget_burst=1, put_budget_per_s=0.01
    ) as writer:
        await outcomes_of(writer.append(topic, 0))
        [given_up, kept] = writer.append(topic, 0, producer_id=2) + writer.append(topic, 0, producer_id=3)

        writer.write_path.give_up(given_up, TOO_LATE)

        assert given_up.outcomes == [TOO_LATE]
        assert given_up.is_done
        assert await outcomes_of([kept]) == assigned(1)
        assert await writer.high_watermark(topic) == 2
        assert writer.write_path.unacknowledged_bytes == 0


async def test_a_request_that_gave_up_after_its_seal_is_done_when_its_batches_are(
    sequencer: Sequencer, topic: Topic
) -> None:
    store = TroubledStore(UNTIL_JOINED)
    async with writing(sequencer, store, hedge_after_min_s=60, upload_timeout_s=100) as writer:
        [given_up] = writer.append(topic, 0)
        await until(lambda: store.puts_begun == 1)

        writer.write_path.give_up(given_up, TOO_LATE)

        assert not given_up.is_done
        await store.put(ObjectKey("another"), [b"x"])  # ends the trouble
        assert await outcomes_of([given_up]) == [TOO_LATE]
        assert await writer.high_watermark(topic) == 1
        assert writer.write_path.unacknowledged_bytes == 0


async def test_a_request_may_fill_several_segments_and_its_bytes_are_released_with_the_last(
    sequencer: Sequencer, topic: Topic
) -> None:
    store = MemoryStore()
    async with writing(sequencer, store, segment_size_bytes=1024) as writer:
        batches = PendingBatches.of(
            [pending(topic, number // 4, partition=number % 4) for number in range(40)]
        )

        appended = writer.write_path.append(batches)
        assert appended.batches is batches

        assert await outcomes_of([appended]) == assigned(*(number // 4 for number in range(40)))
        assert not len(appended.batches)
        assert len(writer.notified.objects) >= 3
        for data in writer.notified.objects.values():
            verify_segment(data)


async def test_draining_waits_for_neither_linger_nor_tokens(sequencer: Sequencer, topic: Topic) -> None:
    async with writing(
        sequencer, MemoryStore(), linger_ms=60_000, put_budget_per_s=0.001, put_budget_burst=1
    ) as writer:
        await outcomes_of(writer.append(topic, 0))
        futures = writer.append(topic, 1, 2, 3)

        await asyncio.wait_for(writer.write_path.drain(), 60)

        assert await outcomes_of(futures) == assigned(1, 2, 3)
        assert writer.metric("tidelog_seals_total", reason="drain") == 1


async def test_stopping_gives_every_batch_an_outcome(sequencer: Sequencer, topic: Topic) -> None:
    store = TroubledStore(FOREVER_S, FOREVER_S)
    async with writing(sequencer, store, segment_size_bytes=1024) as writer:
        uploading = writer.append(topic, *range(12))
        await until(lambda: store.puts_begun >= 1)
        gathered = writer.append(topic, 0, producer_id=2)

    outcomes = await outcomes_of([*uploading, *gathered])
    assert failures(outcomes) == [WriteFailure.UNKNOWN] * 13  # type: ignore[arg-type]
    assert writer.write_path.unacknowledged_bytes == 0


async def test_ids_that_are_past_half_their_lease_are_not_used(
    sequencer: Sequencer, topic: Topic, database_url: str
) -> None:
    ahead_s = 0.0
    given = {"reservation_lease_s": 600.0, "reserved_segment_ids": 4}
    async with writing(sequencer, MemoryStore(), lambda: time.monotonic() + ahead_s, **given) as writer:
        await outcomes_of(writer.append(topic, 0))
        await doom_everything(database_url)  # all in stock
        ahead_s = 301.0

        assert await outcomes_of(writer.append(topic, 1)) == assigned(1)
