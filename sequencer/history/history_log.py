"""Parquet is the log: drops raw runs that are in history, and finds what of the history retention may drop
(docs/design/history.md#parquet-is-the-log).

Promises:
- A run is dropped only while every offset of it is in history or has expired from it. A run of which some did
  not decode stays, as does one of which history has the last record of each key alone. Whether that is so is
  looked up under the lock of the partition's row.
- The local start only moves forward, and never past the end of the history.
- No object is touched: it becomes garbage with its last run, after the grace period. So an agent that knows a
  dropped run still reads it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sequencer.cluster.ownership import demand_ownership
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.housekeeping.retention import AgedRun, PartitionKey, PartitionLog
from storage.identifiers import Offset, Partition, TopicId

SQL = load_statements("history_log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """A run that is in history. `aged_from_ms` as `AgedRun` has it."""

    base_offset: Offset
    last_offset: Offset
    length: int
    aged_from_ms: int
    stays_raw: bool
    """Some of it did not decode, and is nowhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """A partition whose log is its history, and its first runs past the local start that are in history."""

    topic_id: TopicId
    partition: Partition
    config: Mapping[str, str]
    size_bytes: int
    """Of its runs."""
    now_ms: int
    oldest: tuple[LocalRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDrop:
    """What to drop of a partition: these runs. From `local_start` on, all offsets are in runs."""

    topic_id: TopicId
    partition: Partition
    local_start: Offset
    runs: Sequence[LocalRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocallyDropped:
    runs: int
    size_bytes: int


class HistoryLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def to_shorten(
        self, after: PartitionKey, cap: int, runs: int
    ) -> tuple[Sequence[LocalLog], PartitionKey | None]:
        """The next `cap` partitions after `after`, each with at most `runs` runs, and where the next page
        begins; None: this was the last.
        """
        rows = await self._database.run(SQL["to_shorten"], **_after(after), cap=cap)
        logs = {(row.topic_id, row.partition): row for row in rows}
        found = await self._database.run(SQL["oldest_local_runs"], **_places(logs), cap=runs) if logs else []
        oldest = {key: tuple(map(_local_run, of_one)) for key, of_one in groupby(found, key=_key)}
        page = [
            LocalLog(
                topic_id=row.topic_id,
                partition=row.partition,
                config=row.config,
                size_bytes=row.size_bytes,
                now_ms=row.now_ms,
                oldest=oldest.get(key, ()),
            )
            for key, row in logs.items()
        ]
        return page, _key(rows[-1]) if len(rows) == cap else None

    async def drop_local(self, drops: Sequence[LocalDrop]) -> LocallyDropped:
        """Drops the runs and moves the local starts, in one transaction. It may be repeated."""
        runs = [(drop, run) for drop in drops for run in drop.runs]
        keys = [(drop.topic_id, drop.partition) for drop in drops]
        parameters = {
            "topic_ids": [drop.topic_id for drop, _ in runs],
            "partitions": [drop.partition for drop, _ in runs],
            "base_offsets": [run.base_offset for _, run in runs],
            "last_offsets": [run.last_offset for _, run in runs],
            "moved_topic_ids": [topic_id for topic_id, _ in keys],
            "moved_partitions": [partition for _, partition in keys],
            "local_starts": [drop.local_start for drop in drops],
        }
        async with self._database.transaction() as connection:
            await demand_ownership(connection)
            await connection.execute(SQL["lock_partitions"], _places(keys))
            [row] = await (await connection.execute(SQL["drop_local_runs"], parameters)).fetchall()
            return LocallyDropped(runs=row.runs, size_bytes=row.bytes)

    async def begun_in_history(
        self, after: PartitionKey, cap: int, files: int
    ) -> tuple[Sequence[tuple[PartitionLog, Offset]], PartitionKey | None]:
        """The next `cap` partitions whose log begins in history, each with its local start and at most
        `files` of its oldest files in place of runs; and where the next page begins, None: this was the last.
        """
        rows = await self._database.run(SQL["begun_in_history"], **_after(after), cap=cap, files=files)
        logs = [_history_log(list(of_one)) for _, of_one in groupby(rows, key=_key)]
        return logs, _key(rows[-1]) if len(logs) == cap else None


def _after(after: PartitionKey) -> dict[str, Any]:
    return {"after_topic_id": after[0], "after_partition": after[1]}


def _places(keys: Iterable[PartitionKey]) -> dict[str, list[Any]]:
    found = list(keys)
    return {"topic_ids": [key[0] for key in found], "partitions": [key[1] for key in found]}


def _key(row: Row) -> PartitionKey:
    return row.topic_id, row.partition


def _local_run(row: Row) -> LocalRun:
    return LocalRun(
        base_offset=row.base_offset,
        last_offset=row.last_offset,
        length=row.length,
        aged_from_ms=row.aged_from_ms,
        stays_raw=row.stays_raw,
    )


def _history_log(rows: Sequence[Row]) -> tuple[PartitionLog, Offset]:
    row = rows[0]
    log = PartitionLog(
        topic_id=row.topic_id,
        partition=row.partition,
        config=row.config,
        log_start_offset=row.log_start_offset,
        high_watermark=row.high_watermark,
        size_bytes=row.size_bytes,
        now_ms=row.now_ms,
        oldest=tuple(
            AgedRun(last_offset=each.last_offset, length=each.length, aged_from_ms=each.aged_from_ms)
            for each in rows
            if each.last_offset is not None
        ),
    )
    return log, Offset(row.local_start_offset)
