"""History's pointers, jobs and garbage in the sequencer; what is published through them is shown in
`tests/spark_compaction`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from sequencer.client import Sequencer
from sequencer.history.history_values import (
    Advance,
    Busy,
    HistoryJob,
    NothingToDo,
    Outrun,
    Publication,
    Published,
    PublishRefused,
    StagedVersion,
    TableFile,
    TableVersion,
)
from storage.identifiers import ObjectKey, Offset, Partition, TopicId
from tests.sequencer.housekeeping.housekeeping import count, waits_for_a_lock


async def topic_with_history(sequencer: Sequencer, partitions: int = 1) -> TopicId:
    created = await sequencer.topics.create("orders", partitions, {})
    await sequencer.database.run("INSERT INTO history_tables (topic_id) VALUES (%(id)s)", id=created.topic_id)
    return created.topic_id


async def claimed(sequencer: Sequencer, topic_id: TopicId, lease_s: float = 60) -> HistoryJob:
    job = await sequencer.history.begin(topic_id, "expire", cluster="c", lease_s=lease_s)
    assert isinstance(job, HistoryJob)
    return job


def staged(name: str, on: TableVersion, let_go: Sequence[str] = (), oldest_version: int = 0) -> StagedVersion:
    key = ObjectKey(f"c/history/{name}")
    return StagedVersion(
        on=on,
        metadata_key=key,
        sequence_number=on.number + 1,
        written=[key],
        let_go=[ObjectKey(f"c/history/{each}") for each in let_go],
        oldest_version=oldest_version,
    )


def publication(name: str, job: HistoryJob, advances: tuple[Advance, ...] = (), **more: Any) -> Publication:
    return Publication(version=staged(name, job.table), advances=advances, **more)


def a_file(name: str, first: int = 0, **times: Any) -> TableFile:
    bounds = {"oldest": None, "newest": None, "has_untimed": True} | times
    return TableFile(
        object_key=ObjectKey(f"c/history/{name}"),
        partition=Partition(0),
        first_offset=Offset(first),
        last_offset=Offset(first + 9),
        row_count=10,
        size_bytes=100,
        is_full=False,
        row_groups=(),
        **bounds,
    )


async def live(sequencer: Sequencer, topic_id: TopicId) -> list[str]:
    return list(await sequencer.history.live_objects(topic_id, "", 100))


def advance(first: int, end: int) -> tuple[Advance, ...]:
    return (Advance(partition=Partition(0), from_offset=Offset(first), to_offset=Offset(end)),)


async def pointer(sequencer: Sequencer) -> str | None:
    table = await sequencer.history.table("orders")
    assert table is not None
    return table.metadata_key


async def test_a_publish_moves_pointer_reach_and_objects_together(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)

    assert await sequencer.history.publish(job, publication("1", job, advance(0, 10))) == Published()

    assert await pointer(sequencer) == "c/history/1"
    assert await sequencer.history.compacted_to([topic_id]) == {(topic_id, 0): 10}
    assert await live(sequencer, topic_id) == ["c/history/1"]
    assert job.prefix.startswith(f"c/history/{topic_id}/")


async def test_offsets_that_history_has_are_not_published_again(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    first = await claimed(sequencer, topic_id)
    await sequencer.history.publish(first, publication("1", first, advance(0, 10)))
    second = await claimed(sequencer, topic_id)

    refused = await sequencer.history.publish(second, publication("2", second, advance(5, 20)))

    assert isinstance(refused, PublishRefused)
    assert await pointer(sequencer) == "c/history/1"
    assert await live(sequencer, topic_id) == ["c/history/1"]
    assert await sequencer.history.publish(second, publication("3", second, advance(10, 20))) == Published()


async def test_a_publish_repeated_after_its_answer_was_lost_is_the_first_one(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)
    answers = [await sequencer.history.publish(job, publication("1", job, advance(0, 10))) for _ in range(2)]
    later = await claimed(sequencer, topic_id)
    await sequencer.history.publish(later, publication("2", later, advance(10, 20)))

    again = await sequencer.history.publish(job, publication("1", job, advance(0, 10)))

    assert [*answers, again] == [Published()] * 3
    assert await pointer(sequencer) == "c/history/2"


async def test_a_job_whose_lease_has_passed_cannot_publish_even_if_nobody_took_over(
    sequencer: Sequencer,
) -> None:
    job = await claimed(sequencer, await topic_with_history(sequencer), lease_s=0)

    assert await sequencer.history.publish(job, publication("1", job)) == PublishRefused(
        reason="the job's lease has passed"
    )

    assert await pointer(sequencer) is None


async def test_a_topic_deleted_meanwhile_takes_the_publish_with_it(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    first = await claimed(sequencer, topic_id)
    await sequencer.history.publish(first, publication("1", first))
    job = await claimed(sequencer, topic_id)
    await sequencer.topics.delete("orders")

    dropped = await sequencer.history.garbage.drop_deleted(cap=10)

    assert dropped == 1
    assert isinstance(await sequencer.history.publish(job, publication("2", job)), PublishRefused)
    assert await sequencer.history.garbage.unreferenced(grace_s=0, cap=10) == ("c/history/1",)
    assert await sequencer.history.begin(topic_id, "expire", cluster="c", lease_s=1) == NothingToDo()
    assert await sequencer.history.tables() == ()


async def test_a_lease_that_passes_while_the_publish_waits_refuses_it(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id, lease_s=0.2)
    async with sequencer.database.transaction() as other:
        await other.execute("SELECT FROM history_tables WHERE topic_id = %s FOR NO KEY UPDATE", (topic_id,))
        publish = partial(sequencer.history.publish, job, publication("1", job, advance(0, 10)))
        waiting = await waits_for_a_lock(sequencer, publish)
        await asyncio.sleep(0.2)

    assert await waiting == PublishRefused(reason="the job's lease has passed")
    assert await count(sequencer, "history_partitions") == 0


async def test_one_publish_sent_twice_at_once_is_one(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)
    async with sequencer.database.transaction() as other:
        await other.execute("SELECT FROM history_tables WHERE topic_id = %s FOR NO KEY UPDATE", (topic_id,))
        both = [
            asyncio.create_task(sequencer.history.publish(job, publication("1", job, advance(0, 10))))
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)

    assert await asyncio.gather(*both) == [Published(), Published()]
    assert await live(sequencer, topic_id) == ["c/history/1"]


async def test_garbage_waits_its_grace_and_is_forgotten_when_deleted(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    await published(sequencer, topic_id, "1")
    await published(sequencer, topic_id, "2", let_go=["1"], oldest_version=2)
    garbage = sequencer.history.garbage

    assert await garbage.unreferenced(grace_s=60, cap=10) == ()
    assert await garbage.unreferenced(grace_s=0, cap=10) == ("c/history/1",)
    await garbage.forget_objects([ObjectKey("c/history/1"), ObjectKey("c/history/2")])

    assert await garbage.unreferenced(grace_s=0, cap=10) == ()
    assert await live(sequencer, topic_id) == ["c/history/2"]


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


async def published(sequencer: Sequencer, topic_id: TopicId, name: str, **how: Any) -> None:
    files = {key: how.pop(key) for key in ("added", "removed") if key in how}
    job = await claimed(sequencer, topic_id)
    outcome = await sequencer.history.publish(
        job, Publication(version=staged(name, job.table, **how), **files)
    )
    assert outcome == Published()


async def test_an_object_is_garbage_once_no_retained_snapshot_is_older_than_what_let_it_go(
    sequencer: Sequencer,
) -> None:
    topic_id = await topic_with_history(sequencer)
    garbage = sequencer.history.garbage
    await published(sequencer, topic_id, "1", oldest_version=1)
    await published(sequencer, topic_id, "2", let_go=["1"], oldest_version=1)
    await published(sequencer, topic_id, "3", let_go=["2"], oldest_version=1)
    assert await garbage.unreferenced(grace_s=0, cap=10) == ()
    assert await live(sequencer, topic_id) == ["c/history/1", "c/history/2", "c/history/3"]

    await published(sequencer, topic_id, "4", let_go=["3"], oldest_version=2)
    assert await garbage.unreferenced(grace_s=0, cap=10) == ("c/history/1",)
    await published(sequencer, topic_id, "5", let_go=["4"], oldest_version=5)

    assert await live(sequencer, topic_id) == ["c/history/5"]


async def test_a_publish_staged_on_an_older_version_is_told_the_newer_one(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)
    await sequencer.database.run("UPDATE history_tables SET version = 3, metadata_key = 'c/history/3'")

    outrun = await sequencer.history.publish(job, publication("1", job, advance(0, 10)))

    now = TableVersion(number=3, metadata_key=ObjectKey("c/history/3"))
    assert outrun == Outrun(table=now)
    again = Publication(version=staged("4", now), advances=advance(0, 10))
    assert await sequencer.history.publish(job, again) == Published()
    assert await pointer(sequencer) == "c/history/4"


async def test_a_compaction_and_a_ttl_work_on_a_topic_at_the_same_time_and_two_of_a_kind_do_not(
    sequencer: Sequencer,
) -> None:
    topic_id = await topic_with_history(sequencer)
    await sequencer.database.run("UPDATE partitions SET high_watermark = 10")
    claims = {
        kind: partial(sequencer.history._claim, topic_id=topic_id, kind=kind, cluster="c", lease_s=60)
        for kind in ("compact", "expire")
    }
    outcomes = []
    for kind in ("compact", "expire", "compact", "expire"):
        async with sequencer.database.transaction() as connection:
            outcomes.append(type(await claims[kind](connection)))

    assert outcomes == [HistoryJob, HistoryJob, Busy, Busy]


async def test_a_file_is_removed_once(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer)
    await published(sequencer, topic_id, "1", added=[a_file("a"), a_file("b", 10)])
    gone = ObjectKey("c/history/a")
    await published(sequencer, topic_id, "2", removed=[gone])
    job = await claimed(sequencer, topic_id)

    refused = await sequencer.history.publish(
        job, Publication(version=staged("3", job.table), removed=[gone])
    )

    assert isinstance(refused, PublishRefused)
    assert await count(sequencer, "history_files") == 1
    assert await pointer(sequencer) == "c/history/2"


CUTOFF = datetime(2024, 1, 1, tzinfo=UTC)
BEFORE, AFTER = CUTOFF - timedelta(hours=1), CUTOFF + timedelta(hours=1)


async def test_files_expire_by_their_records_and_records_without_a_time_by_when_they_came(
    sequencer: Sequencer,
) -> None:
    topic_id = await topic_with_history(sequencer)
    timed = {"has_untimed": False}
    files = [
        a_file("old", oldest=BEFORE, newest=BEFORE, **timed),
        a_file("at the cutoff", oldest=CUTOFF, newest=AFTER, **timed),
        a_file("both", oldest=BEFORE, newest=CUTOFF, **timed),
        replace(a_file("untimed and old"), written_at=BEFORE),
        replace(a_file("untimed and new"), written_at=CUTOFF),
        replace(a_file("kept by the untimed", oldest=BEFORE, newest=BEFORE), written_at=AFTER),
        replace(
            a_file("older than it came", oldest=BEFORE - timedelta(days=1), newest=BEFORE, **timed),
            written_at=AFTER,
        ),
    ]
    apart = [
        replace(file, first_offset=Offset(10 * number), last_offset=Offset(10 * number + 9))
        for number, file in enumerate(files)
    ]
    await published(sequencer, topic_id, "1", added=apart)

    expired = await sequencer.history.expired_files(topic_id, CUTOFF, 10)
    partly = await sequencer.history.partly_expired_files(topic_id, CUTOFF, 10)

    assert {file.object_key[10:] for file in expired} == {"old", "untimed and old", "older than it came"}
    assert [file.object_key[10:] for file in partly] == ["both", "kept by the untimed"]
    assert await sequencer.history.expired_files(topic_id, CUTOFF, 1) == expired[:1]


async def test_small_files_come_in_groups_of_neighbours(sequencer: Sequencer) -> None:
    topic_id = await topic_with_history(sequencer, partitions=2)
    files = [replace(a_file(str(first), first), is_full=first == 20) for first in (0, 10, 20, 30, 60)]
    other = replace(a_file("other"), partition=Partition(1))
    await published(sequencer, topic_id, "1", added=[*files, other])

    groups = await sequencer.history.small_files(topic_id, Partition(0), 10)
    later = await sequencer.history.small_files(topic_id, Partition(1), 10)

    assert [[file.object_key[10:] for file in group] for group in groups] == [
        ["0", "10"],
        ["30", "60"],
        ["other"],
    ]
    assert [[file.object_key[10:] for file in group] for group in later] == [["other"]]


async def test_retention_waits_for_history_from_its_first_publish_and_while_it_is_not_off(
    sequencer: Sequencer,
) -> None:
    """A compaction that fails before it has ever published holds nothing back."""
    topic_id = await topic_with_history(sequencer)
    job = await claimed(sequencer, topic_id)
    before = await sequencer.history.compacted_to([topic_id])
    await sequencer.history.publish(job, Publication(version=None, advances=advance(0, 4)))
    on = await sequencer.history.compacted_to([topic_id])
    await sequencer.topics.alter_config("orders", {"tidelog.history": "off"})
    off = await sequencer.history.compacted_to([topic_id])
    await sequencer.topics.alter_config("orders", {"cleanup.policy": "compact"}, remove=["tidelog.history"])
    compacted = await sequencer.history.compacted_to([topic_id])

    assert (before, on, off, compacted) == ({}, {(topic_id, 0): 4}, {}, {(topic_id, 0): 4})


async def test_the_table_of_a_compacted_topic_is_behind_like_others_and_expires_with_its_log(
    sequencer: Sequencer,
) -> None:
    topic_id = await topic_with_history(sequencer)
    old = a_file("old", oldest=BEFORE, newest=BEFORE)
    await published(sequencer, topic_id, "1", added=[old])
    await sequencer.database.run("UPDATE partitions SET high_watermark = 100")

    async def seen(policy: str, **more: str) -> tuple[bool, bool]:
        config = {"cleanup.policy": policy, **{name.replace("_", "."): value for name, value in more.items()}}
        await sequencer.topics.alter_config("orders", config)
        behind = bool(await sequencer.history.behind())
        return behind, bool(await sequencer.history.topics_with_expired_files())

    assert await seen("delete") == (True, True)
    assert await seen("compact") == (True, False)
    assert await seen("compact,delete", retention_ms="1000") == (True, True)
    assert await seen("") == (True, False)
    assert await seen("compact", tidelog_history_retention_ms="1000") == (True, False)
    await sequencer.database.run(
        "UPDATE partitions SET local_start_offset = 5"
    )  # below it, Parquet is the log
    assert await seen("compact") == (False, False)
    assert await seen("delete") == (True, True)


@pytest.mark.parametrize(
    ("log_start", "compacted_to", "state_to", "gone_before", "gone_to", "continues"),
    [
        (0, None, None, None, None, False),  # nothing was published
        (0, 10, 0, 0, None, False),  # the table has all records
        (0, 10, 8, 0, None, False),  # and some that were appended
        (0, 10, 10, 0, None, True),
        (10, 10, 10, 0, None, True),
        (11, 10, 10, 0, None, False),  # records went that it has not seen
        (0, 10, 10, 0, 10, True),
        (0, 10, 10, 0, 11, False),  # tombstones went
        (0, 10, 10, 11, 11, True),  # but before it was begun
        (0, 10, 10, -1, 0, False),  # nobody knows which went
    ],
)
async def test_a_state_goes_on_only_if_it_has_seen_all_that_went(
    sequencer: Sequencer,
    log_start: int,
    compacted_to: int | None,
    state_to: int | None,
    gone_before: int | None,
    gone_to: int | None,
    continues: bool,
) -> None:
    arguments = (
        "%(log_start)s::bigint, %(compacted_to)s::bigint, %(state_to)s::bigint, %(gone_before)s::bigint, "
        "%(gone_to)s::bigint"
    )
    [row] = await sequencer.database.read(
        f"SELECT history_continues({arguments}) AS continues, "
        f"history_goes_on_at(true, {arguments}) AS state_from, "
        f"history_goes_on_at(false, {arguments}) AS records_from",
        log_start=log_start,
        compacted_to=compacted_to,
        state_to=state_to,
        gone_before=gone_before,
        gone_to=gone_to,
    )
    after = max(log_start, compacted_to or 0)
    assert (row.continues, row.state_from, row.records_from) == (
        continues,
        after if continues else log_start,
        after,
    )


async def test_a_compaction_begins_while_a_commit_holds_the_partition(sequencer: Sequencer) -> None:
    created = await sequencer.topics.create("orders", 1, {})
    await sequencer.database.run("UPDATE partitions SET high_watermark = 10")
    ends = await sequencer.history.ends(created.topic_id)
    async with sequencer.database.transaction() as commit:
        await commit.execute(
            "SELECT FROM partitions WHERE topic_id = %s FOR NO KEY UPDATE", (created.topic_id,)
        )
        async with asyncio.timeout(60):
            began = await sequencer.history.begin_compaction(
                created.topic_id, ends, cluster="c", lease_s=60, runs_per_partition=10
            )

    assert began == NothingToDo()  # there are no runs; it did not wait
