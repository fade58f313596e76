"""For tests of housekeeping: time that passes at once, what is left, and calls that wait for a lock."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sequencer.client import Sequencer
from sequencer.database.database import Row
from sequencer.housekeeping.garbage import Doomed, DoomingRules
from sequencer.housekeeping.observations import Observation, ObservationBounds
from sequencer.topics.topics import Topic
from storage.identifiers import Partition, SegmentId
from tests.sequencer.builders import ABatch

T = TypeVar("T")

RULES = DoomingRules(reservation_lease_s=900.0, outage_after_s=60.0, failover_hold_s=86_400.0)
GRACE_S = 600.0

BOUNDS = ObservationBounds(segments=1000, candidates=20_000)

_TIMES = {
    "segments": (
        "reserved_at",
        "lease_until",
        "committed_at",
        "unreferenced_since",
        "doomed_at",
    ),
    "time_partitions": ("begins_at", "ends_at"),
    "holds": ("lease_until",),
    "dooming": ("last_seen_at", "paused_until"),
    "jobs": ("lease_until", "last_started_at", "last_success_at"),
    "history_jobs": ("lease_until", "ended_at"),
    "history_objects": ("unreferenced_since",),
    "groups": ("claimed_at", "empty_since"),
    "committed_offsets": ("committed_at",),
    "observation": ("observed_at",),
}


async def observed(sequencer: Sequencer, bounds: ObservationBounds = BOUNDS) -> Observation:
    """Measures, and reads the result."""
    await sequencer.observations.observe(bounds)
    seen = await sequencer.observations.latest()
    assert seen is not None
    return seen


async def time_passes(sequencer: Sequencer, seconds: float) -> None:
    """As if the clock were `seconds` ahead: every time that housekeeping has stored lies that much further
    back.
    """
    async with sequencer.database.transaction() as connection:
        for table, columns in _TIMES.items():
            shifted = ", ".join(
                f"{column} = {column} - make_interval(secs => {seconds})" for column in columns
            )
            await connection.execute(f"UPDATE {table} SET {shifted}")


async def ready_to_doom(sequencer: Sequencer) -> None:
    """The database has been looked at, and the pause that this brought is over."""
    # So that this look dooms nothing.
    await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=1, outage_seen=True)
    await sequencer.database.run(
        "UPDATE dooming SET paused_until = clock_timestamp(), last_seen_at = clock_timestamp()"
    )


async def doom(sequencer: Sequencer, *, grace_s: float = GRACE_S, cap: int = 100) -> Doomed:
    """Dooms, however much time was made to pass since the last look."""
    await ready_to_doom(sequencer)
    doomed = await sequencer.garbage.doom(RULES, grace_s=grace_s, cap=cap)
    assert isinstance(doomed, Doomed), doomed
    return doomed


async def segment_row(sequencer: Sequencer, segment_id: SegmentId) -> Row | None:
    rows = await sequencer.database.run("SELECT * FROM segments WHERE segment_id = %(id)s", id=segment_id)
    return rows[0] if rows else None


async def state_of(sequencer: Sequencer, segment_id: SegmentId) -> str:
    row = await segment_row(sequencer, segment_id)
    return "gone" if row is None else str(row.state)


async def count(sequencer: Sequencer, table: str) -> int:
    rows = await sequencer.database.run(f"SELECT count(*) AS rows FROM {table}")
    return int(rows[0].rows)


def records_of(
    topic: Topic, records: int = 1, *, partition: int = 0, timestamp_ms: int = 1_000, length: int = 100
) -> ABatch:
    return ABatch(
        topic_id=topic.topic_id,
        partition=Partition(partition),
        records=records,
        timestamp_ms=timestamp_ms,
        length=length,
    )


async def waits_for_a_lock(
    sequencer: Sequencer, call: Callable[[], Coroutine[Any, Any, T]]
) -> asyncio.Task[T]:
    """Starts the call and returns once Postgres says that it waits for another transaction's lock."""
    task = asyncio.create_task(call())
    async with asyncio.timeout(60):
        while not task.done():
            rows = await sequencer.database.run(
                "SELECT count(*) AS waiting FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            if rows[0].waiting:
                return task
            await asyncio.sleep(0.005)
    raise AssertionError(f"it did not wait: {await task}")
