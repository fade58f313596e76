"""Retention: moves a partition's log start and drops the runs below it (docs/design/garbage.md#retention).

Promises:
- The log start only moves forward, and never past the high watermark.
- Retention never passes the end of a topic's history. An explicit DeleteRecords may.
- A transaction deletes a bounded number of runs, and holds the partitions' rows meanwhile.
- Runs of a deleted topic are swept only from partitions that can take no further commit.

The caller decides what to keep (`compactor/retention_jobs.py`). Objects are not touched: they become
garbage with their last run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from sequencer.commits.commits import UnknownPartition
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.topics.known_configs import KNOWN_CONFIGS
from storage.identifiers import Offset, Partition, TopicId

SQL = load_statements("retention")

PartitionKey = tuple[TopicId, Partition]
BEFORE_ALL: PartitionKey = (TopicId(UUID(int=0)), Partition(-1))
TO_HIGH_WATERMARK = Offset(-1)
"""As `before_offset`: delete every record (KIP-107)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedRun:
    """A run, as retention sees it. `aged_from_ms` is its maximum timestamp, or its commit's time if that is
    earlier or it has no timestamp.
    """

    last_offset: Offset
    length: int
    aged_from_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """A live partition and its oldest runs, in order. Runs below the log start are still to be dropped."""

    topic_id: TopicId
    partition: Partition
    config: Mapping[str, str]
    log_start_offset: Offset
    high_watermark: Offset
    size_bytes: int
    now_ms: int
    oldest: tuple[AgedRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The partitions of a page that may have something to drop, each with at most its oldest run. The caller
    decides: some may have nothing to drop.
    """

    logs: Sequence[PartitionLog]
    next_after: PartitionKey | None
    """Where the next page begins; None: this was the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Where the log starts now, and what this step dropped. If `dropped_runs` equals the cap, there may be
    more.
    """

    log_start_offset: Offset
    dropped_runs: int
    dropped_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondHighWatermark:
    """The requested offset is negative or not in the log yet."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a step deleted of deleted topics. `more`: it reached its cap."""

    runs: int
    producers: int
    partitions: int
    topics: int
    more: bool


class Retention:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, after: PartitionKey, cap: int) -> Page:
        """Examines the next `cap` live partitions in primary-key order after `after` (first: BEFORE_ALL)."""
        rows = await self._database.run(
            SQL["page"],
            after_topic_id=after[0],
            after_partition=after[1],
            cap=cap,
            retention_ms=KNOWN_CONFIGS["retention.ms"].default,
            retention_bytes=KNOWN_CONFIGS["retention.bytes"].default,
        )
        is_full = bool(rows) and rows[-1].looked_at == cap
        return Page(logs=[_log(row) for row in rows], next_after=_key(rows[-1]) if is_full else None)

    async def with_oldest_runs(self, logs: Iterable[PartitionLog], cap: int) -> Sequence[PartitionLog]:
        """Reads these partitions again, each with at most `cap` oldest runs. Partitions without runs are left
        out."""
        known = {(log.topic_id, log.partition): log for log in logs}
        rows = await self._database.run(SQL["oldest_runs"], **_places(known), cap=cap)
        return [_with_runs(known[key], list(of_partition)) for key, of_partition in groupby(rows, key=_key)]

    async def expire(self, before: Mapping[PartitionKey, Offset], cap: int) -> Mapping[PartitionKey, Moved]:
        """Moves each partition's log start up to the given offset, as far as history and high watermark
        allow, and drops at most `cap` runs below it. All in one transaction, which holds their rows. Missing
        partitions are left out.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(SQL["lock_partitions"], _places(before))
            locked = {_key(row): row for row in await cursor.fetchall()}
            cursor = await connection.execute(SQL["history_limits"], _places(locked))
            limits = {_key(row): row.compacted_to for row in await cursor.fetchall()}
            targets = {
                key: Offset(
                    max(
                        min(before[key], row.high_watermark, limits.get(key, before[key])),
                        row.log_start_offset,
                    )
                )
                for key, row in locked.items()
            }
            return await _move(connection, targets, cap)

    async def delete_records(
        self, topic_id: TopicId, partition: Partition, before_offset: Offset, *, cap: int = 1000
    ) -> Moved | BeyondHighWatermark | UnknownPartition:
        """Deletes the records below `before_offset` (TO_HIGH_WATERMARK: all), in history or not. It may be
        repeated.

        The log start moves at once, into the middle of a run if necessary. Later steps of retention drop the
        runs beyond the first `cap`.
        """
        key = (topic_id, partition)
        async with self._database.transaction() as connection:
            locked = await (await connection.execute(SQL["lock_partitions"], _places([key]))).fetchone()
            if locked is None:
                return UnknownPartition()
            target = locked.high_watermark if before_offset == TO_HIGH_WATERMARK else before_offset
            if not 0 <= target <= locked.high_watermark:
                return BeyondHighWatermark(high_watermark=Offset(locked.high_watermark))
            deleted = {"topic_id": topic_id, "partition": partition, "deleted_to": target}
            await connection.execute(SQL["note_deleted"], deleted)
            moved = await _move(connection, {key: Offset(max(target, locked.log_start_offset))}, cap)
            return moved[key]

    async def sweep_deleted_topics(self, *, partitions_cap: int, rows_cap: int) -> Swept:
        """Deletes at most `rows_cap` runs and producer rows of deleted topics, then the partitions and topics
        that are empty.

        Several may sweep at once. The history of a deleted topic is dropped elsewhere; its topic row waits
        for that.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(SQL["lock_deleting_partitions"], {"cap": partitions_cap})
            locked = await cursor.fetchall()
            parameters = {
                "topic_ids": [row.topic_id for row in locked],
                "partitions": [row.partition for row in locked],
                "cap": rows_cap,
            }
            runs = await _deleted(connection, "sweep_runs", parameters)
            producers = await _deleted(connection, "sweep_producer_state", parameters)
            partitions = await _deleted(connection, "sweep_partitions", parameters)
        async with self._database.transaction() as connection:
            topics = await _deleted(connection, "sweep_topics", {"cap": partitions_cap})
        more = runs == rows_cap or producers == rows_cap or len(locked) == partitions_cap
        return Swept(runs=runs, producers=producers, partitions=partitions, topics=topics, more=more)


def _places(keys: Iterable[PartitionKey]) -> dict[str, list[Any]]:
    """Returns the keys as arrays for a statement."""
    found = list(keys)
    return {
        "topic_ids": [topic_id for topic_id, _ in found],
        "partitions": [partition for _, partition in found],
    }


def _key(row: Row) -> PartitionKey:
    return row.topic_id, row.partition


async def _move(
    connection: AsyncConnection[Row], targets: Mapping[PartitionKey, Offset], cap: int
) -> Mapping[PartitionKey, Moved]:
    """The caller holds the partitions' rows."""
    parameters = {**_places(targets), "log_starts": list(targets.values()), "cap": cap}
    await connection.execute(SQL["move_log_starts"], parameters)
    rows = await (await connection.execute(SQL["drop_runs"], parameters)).fetchall()
    dropped = {_key(row): row for row in rows}
    return {
        key: Moved(
            log_start_offset=target,
            dropped_runs=dropped[key].runs if key in dropped else 0,
            dropped_bytes=dropped[key].bytes if key in dropped else 0,
        )
        for key, target in targets.items()
    }


async def _deleted(connection: AsyncConnection[Row], statement: str, parameters: Mapping[str, object]) -> int:
    [row] = await (await connection.execute(SQL[statement], parameters)).fetchall()
    return int(row.deleted)


def _with_runs(log: PartitionLog, rows: Sequence[Row]) -> PartitionLog:
    return replace(
        log,
        size_bytes=rows[0].size_bytes,
        log_start_offset=rows[0].log_start_offset,
        oldest=tuple(
            AgedRun(last_offset=row.last_offset, length=row.length, aged_from_ms=row.aged_from_ms)
            for row in rows
        ),
    )


def _log(row: Row) -> PartitionLog:
    oldest = AgedRun(
        last_offset=row.oldest_last_offset, length=row.oldest_length, aged_from_ms=row.oldest_aged_from_ms
    )
    return PartitionLog(
        topic_id=row.topic_id,
        partition=row.partition,
        config=row.config,
        log_start_offset=row.log_start_offset,
        high_watermark=row.high_watermark,
        size_bytes=row.size_bytes,
        now_ms=row.now_ms,
        oldest=() if row.oldest_last_offset is None else (oldest,),
    )
