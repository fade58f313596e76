"""The commit and the poll cost what they answer, not what the log holds."""

import re
from collections.abc import Mapping
from typing import Any

from psycopg import AsyncClientCursor, AsyncConnection

from sequencer.client import Sequencer
from sequencer.commit_request import commit_request
from sequencer.coordinates import SQL as COORDINATES_SQL
from storage.identifiers import Partition, ProducerId, SegmentId, TopicId, new_segment_id
from tests.sequencer.builders import ABatch, reserved

PARTITIONS = 1000
RUNS_PER_PARTITION = 100
BUFFERS = re.compile(r"Buffers: shared hit=(\d+)(?: read=(\d+))?")


async def test_the_work_of_a_commit_and_of_a_poll_does_not_grow_with_the_log(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("wide", PARTITIONS, {})
    small = await _pages_touched(sequencer, topic.topic_id)
    await _fill(sequencer, topic.topic_id)
    large = await _pages_touched(sequencer, topic.topic_id)

    # An index over 100,000 runs is a level or two deeper than one over none; a scan would touch their 1,500 pages.
    assert large["commit"] < small["commit"] + 60, (small, large)
    assert large["poll"] < small["poll"] + 60, (small, large)
    assert large["commit"] < 200, large
    assert large["poll"] < 100, large


async def _pages_touched(sequencer: Sequencer, topic_id: TopicId) -> Mapping[str, int]:
    """Of a commit of three batches, and of a poll of three partitions that have news."""
    batches = [
        ABatch(topic_id=topic_id, partition=Partition(partition), producer_id=ProducerId(1), sequence=0)
        for partition in (1, 500, 999)
    ]
    segment = await reserved(sequencer, batches)
    polled = {
        "topic_ids": [topic_id] * 3,
        "partitions": [1, 500, 999],
        "known_ends": [0, 0, 0],
        "log_starts": [-1, -1, -1],
        "epochs": [0, 0, 0],
        "max_runs": 2,
    }
    async with sequencer.database.connection() as connection:
        work = await _work_statement(connection)
        return {
            "commit": await _buffers(connection, work, commit_request([segment]).parameters),
            "poll": await _buffers(connection, COORDINATES_SQL["poll"], polled),
        }


async def _fill(sequencer: Sequencer, topic_id: TopicId) -> None:
    segment_id: SegmentId = new_segment_id()
    await sequencer.database.fetch(
        "INSERT INTO segments (segment_id, object_key, writer, lease_until, state)"
        " VALUES (%(segment_id)s, 'key', 'test', clock_timestamp(), 'committed')",
        segment_id=segment_id,
    )
    await sequencer.database.fetch(
        "INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,"
        " min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)"
        " SELECT %(topic_id)s, partition, base, base, %(segment_id)s, 0, 1, 0, 0, 0"
        " FROM generate_series(0, %(partitions)s - 1) AS partition, generate_series(0, %(runs)s - 1) AS base",
        topic_id=topic_id,
        segment_id=segment_id,
        partitions=PARTITIONS,
        runs=RUNS_PER_PARTITION,
    )
    await sequencer.database.fetch(
        "UPDATE partitions SET high_watermark = %(runs)s WHERE topic_id = %(topic_id)s",
        topic_id=topic_id,
        runs=RUNS_PER_PARTITION,
    )
    await sequencer.database.fetch("VACUUM ANALYZE")


async def _work_statement(connection: AsyncConnection[Any]) -> str:
    """What `commit_segments` runs after its locks: EXPLAIN does not look into functions."""
    cursor = await connection.execute(
        "SELECT prosrc, proargnames[:pronargs] AS names, proargtypes::regtype[] AS types"
        " FROM pg_proc WHERE proname = 'commit_segments'"
    )
    row = await cursor.fetchone()
    assert row is not None
    statement = str(row.prosrc).split("RETURN QUERY", 1)[1].rsplit("END", 1)[0].strip().rstrip(";")
    for name in row.names:
        kind = "uuid[]" if name.endswith("_ids") else "integer[]" if name in INTEGERS else "bigint[]"
        statement = re.sub(rf"\b{name}\b", f"(%({name})s::{kind})", statement)
    return statement


INTEGERS = (
    "partition_numbers",
    "chain_parts",
    "chain_epochs",
    "batch_parts",
    "batch_segments",
    "batch_lengths",
    "batch_records",
    "batch_chains",
    "batch_members",
    "batch_sequences",
)


async def _buffers(connection: AsyncConnection[Any], statement: str, parameters: Mapping[str, Any]) -> int:
    """Pages touched by the generic plan, as a prepared statement has it; what it did is rolled back."""
    names = [name for name in parameters if f"%({name})s" in statement]
    text = statement
    for number, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${number}")
    values = [list(value) if isinstance(value, tuple) else value for value in (parameters[name] for name in names)]
    arguments = AsyncClientCursor(connection).mogrify(", ".join(["%s"] * len(values)), values)
    async with connection.transaction(force_rollback=True):
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await connection.execute("SET LOCAL enable_seqscan = off")
        await connection.execute(f"PREPARE explained AS {text}".encode(), prepare=False)
        cursor = await connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE explained ({arguments})".encode(), prepare=False, binary=False
        )
        plan = "\n".join(row[0] for row in await cursor.fetchall())
        await connection.execute("DEALLOCATE explained")
    assert "Seq Scan" not in plan, plan
    return max(sum(int(pages or 0) for pages in match) for match in BUFFERS.findall(plan))
