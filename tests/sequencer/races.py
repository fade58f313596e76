"""For race tests: a commit with an open transaction, and a wrong commit in one statement."""

import asyncio
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection

from sequencer.client import Sequencer
from sequencer.commits.commits import BatchOutcome, SegmentToCommit, commit_request
from sequencer.commits.outcomes import decode_outcomes

IN_TURN, JUDGED = "sequence_segments", "commit_segments"
"""What agents call, and what it calls unless every batch is accepted anyway."""
IN_ONE_STATEMENT = "commit_in_one_statement"


async def commit_within(
    connection: AsyncConnection[Any], segments: Sequence[SegmentToCommit], function: str = IN_TURN
) -> list[BatchOutcome]:
    """Commits segments of one partition in this connection's transaction, which stays open; the outcomes one
    after another.
    """
    cursor = await connection.execute(
        "SELECT proargnames[:pronargs] AS names FROM pg_proc WHERE proname = %s", (function,)
    )
    row = await cursor.fetchone()
    assert row is not None
    arguments = ", ".join(f"{name} => %({name})s" for name in row.names)
    statement = f"SELECT state, object_key, outcome FROM {function}({arguments})"
    cursor = await connection.execute(statement.encode(), commit_request(segments).parameters)
    rows = await cursor.fetchall()
    return [
        outcome
        for segment, row in zip(segments, rows, strict=True)
        for outcome in decode_outcomes(row.outcome, len(segment.batches)).each
    ]


async def is_kept_waiting(sequencer: Sequencer, task: asyncio.Task[Any]) -> bool:
    """True once the task waits for another transaction's lock, False if it is done without."""
    async with asyncio.timeout(60):
        while not task.done():
            rows = await sequencer.database.run(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
                "current_database()"
            )
            if rows:
                return True
            await asyncio.sleep(0.005)
    return False


async def create_commit_in_one_statement(sequencer: Sequencer) -> None:
    """The variant that docs/design/commit.md#locks-first-then-work warns of: it takes its locks in the
    statement that does the work.
    """
    async with sequencer.database.connection() as connection:
        cursor = await connection.execute("SELECT pg_get_functiondef('commit_segments'::regproc) AS source")
        row = await cursor.fetchone()
        assert row is not None
        before, rest = row.source.split("    PERFORM 1 FROM segments", 1)
        source = before + rest[rest.index("    RETURN QUERY") :]
        for found, changed in (
            ("commit_segments", IN_ONE_STATEMENT),
            (
                "s.segment_id = given.segment_id OFFSET 0",
                "s.segment_id = given.segment_id OFFSET 0 FOR NO KEY UPDATE",
            ),
            ("p.state = 'live' OFFSET 0", "p.state = 'live' OFFSET 0 FOR NO KEY UPDATE"),
            ("segments.ctid = segment.row", "segments.segment_id = segment_ids[segment.segment]"),
            (
                "partitions.ctid = part.row",
                "(partitions.topic_id, partitions.partition) = (part.topic_id, part.partition)",
            ),
        ):
            assert found in source, f"{found} is no longer in the commit"
            source = source.replace(found, changed)
        await connection.execute(source.encode(), prepare=False)
