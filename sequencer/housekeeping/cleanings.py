"""Log compaction in the sequencer: which partitions are due, claims, how far a partition is clean
(docs/design/log-compaction.md).

Promises:
- One job cleans a partition at a time, as long as its lease lasts. Two at once do no harm: the runs are
  swapped as merges swap them (`merges.py`).
- A partition is not cleaned beyond the end of its topic's table, if it has one (docs/design/history.md).
- What is not known to be clean counts as dirty. A lost row costs a cleaning and keeps tombstones longer.

The caller decides what is due and what stays (`compactor/cleaning_rules.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from sequencer.database.array_parameters import Int4Array, Int8Array, UuidArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.housekeeping.merge_values import PartitionKey, RunToMerge
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId

SQL = load_statements("cleanings")

_ABORTED_AT_A_TIME = 10_000
_NONE_LATER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanMark:
    """The log was clean below `offset` at `since_ms`."""

    offset: Offset
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningState:
    """A partition of a compacted topic. `cleanable_to`: the last stable offset, or the end of the topic's
    table if that is lower. `oldest_dirty_ms`: of the first record that was never cleaned; None
    if it was not asked for, or if there is none. `oldest_tombstone`: the first tombstone or marker that is
    clean."""

    topic_id: TopicId
    partition: Partition
    config: Mapping[str, Any]
    log_start_offset: Offset
    local_start_offset: Offset
    high_watermark: Offset
    cleanable_to: Offset
    size_bytes: int
    clean_to: Offset
    clean_bytes: int
    marks: tuple[CleanMark, ...]
    oldest_tombstone: Offset | None
    now_ms: int
    oldest_dirty_ms: int | None

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningClaim:
    """The right to clean a partition as long as the lease lasts."""

    job_id: UUID
    state: CleaningState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToClean:
    """A run and where it is. `committed_at` is its object's. `is_in_journal`: a log that is rebuilt from the
    bucket alone has the run at its offsets."""

    run: RunToMerge
    object_key: ObjectKey
    committed_at: datetime
    is_in_journal: bool = field(compare=False)


class AbortedPage(NamedTuple):
    """Aborted transactions in the order of their markers, by `columns_of`. All later ones begin at
    `stable_offset` or after it."""

    aborted: NDArray[np.int64]
    stable_offset: int


class Cleanings:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, after: PartitionKey, cap: int) -> Sequence[CleaningState]:
        """The next `cap` partitions of compacted topics, in key order."""
        rows = await self._database.run(
            SQL["page"], after_topic_id=after[0], after_partition=after[1], cap=cap
        )
        return [_state(row) for row in rows]

    async def mark_due(self, keys: Collection[PartitionKey]) -> None:
        await self._database.run(
            SQL["mark_due"],
            topic_ids=UuidArray(topic_id for topic_id, _ in keys),
            partitions=Int4Array(partition for _, partition in keys),
        )

    async def claim(self, lease_s: float) -> CleaningClaim | None:
        """Claims the partition that has been due for longest; None if there is none. A partition that needs
        no cleaning any more is let go."""
        while True:
            job_id = uuid4()
            claimed = await self._database.run(SQL["claim"], job_id=job_id, lease_s=lease_s)
            if not claimed:
                return None
            [key] = claimed
            rows = await self._database.run(SQL["state"], topic_id=key.topic_id, partition=key.partition)
            if rows:
                return CleaningClaim(job_id=job_id, state=_state(rows[0]))
            await self._let_go((key.topic_id, key.partition), job_id, is_still_due=False)

    async def runs(
        self, key: PartitionKey, from_offset: Offset, end_offset: Offset, cap: int
    ) -> Sequence[RunToClean]:
        """The first `cap` runs from the one that holds `from_offset` on, that begin below `end_offset`."""
        rows = await self._database.run(
            SQL["runs"],
            topic_id=key[0],
            partition=key[1],
            from_offset=from_offset,
            end_offset=end_offset,
            cap=cap,
        )
        return [_run(key, row) for row in rows]

    async def aborted(self, key: PartitionKey, from_offset: Offset) -> AbortedPage:
        """Some of the partition's aborted transactions, from the first whose marker is at `from_offset` or
        later."""
        [row] = await self._database.run(
            SQL["aborted"],
            topic_id=key[0],
            partition=key[1],
            from_offset=from_offset,
            cap=_ABORTED_AT_A_TIME,
        )
        columns = row.last_offsets or [], row.first_offsets or [], row.producer_ids or []
        aborted = np.ascontiguousarray(np.array(columns, np.int64).T)
        return AbortedPage(aborted, row.stable_offset if len(aborted) == _ABORTED_AT_A_TIME else _NONE_LATER)

    async def forget_aborted(self, key: PartitionKey, below: Offset) -> None:
        """Forgets the partition's aborted transactions whose markers were below this offset and are gone."""
        parameters = {"topic_id": key[0], "partition": key[1], "below": below, "cap": _ABORTED_AT_A_TIME}
        while (await self._database.run(SQL["forget_aborted"], **parameters))[0].may_be_more:
            pass

    async def renew(self, claim: CleaningClaim, lease_s: float) -> bool:
        """Prolongs the claim. False: another job may have the partition."""
        [topic_id, partition] = claim.state.key
        parameters = {"topic_id": topic_id, "partition": partition, "job_id": claim.job_id}
        return bool(await self._database.run(SQL["renew"], lease_s=lease_s, **parameters))

    async def note_tombstones(self, claim: CleaningClaim, tombstones_to: Offset) -> bool:
        """Notes that tombstones below this offset may go now. False: the claim was lost before."""
        [topic_id, partition] = claim.state.key
        parameters = {"topic_id": topic_id, "partition": partition, "job_id": claim.job_id}
        return bool(
            await self._database.run(SQL["note_tombstones"], tombstones_to=tombstones_to, **parameters)
        )

    async def finish(
        self,
        claim: CleaningClaim,
        *,
        clean_to: Offset,
        clean_bytes: int,
        marks: Sequence[CleanMark],
        oldest_tombstone: Offset | None,
    ) -> bool:
        """Ends the claim: the partition is clean below `clean_to`. False: the claim was lost before."""
        [topic_id, partition] = claim.state.key
        rows = await self._database.run(
            SQL["finish"],
            topic_id=topic_id,
            partition=partition,
            job_id=claim.job_id,
            clean_to=clean_to,
            clean_bytes=clean_bytes,
            mark_offsets=Int8Array(mark.offset for mark in marks),
            marks_ms=Int8Array(mark.since_ms for mark in marks),
            oldest_tombstone=oldest_tombstone,
        )
        return bool(rows)

    async def let_go(self, claim: CleaningClaim, *, is_still_due: bool) -> None:
        """Ends the claim; the partition is no cleaner than before."""
        await self._let_go(claim.state.key, claim.job_id, is_still_due=is_still_due)

    async def _let_go(self, key: PartitionKey, job_id: UUID, *, is_still_due: bool) -> None:
        await self._database.run(
            SQL["let_go"], topic_id=key[0], partition=key[1], job_id=job_id, is_still_due=is_still_due
        )


def _state(row: Row) -> CleaningState:
    return CleaningState(
        topic_id=TopicId(row.topic_id),
        partition=Partition(row.partition),
        config=row.config,
        log_start_offset=Offset(row.log_start_offset),
        local_start_offset=Offset(row.local_start_offset),
        high_watermark=Offset(row.high_watermark),
        cleanable_to=Offset(row.cleanable_to),
        size_bytes=row.size_bytes,
        clean_to=Offset(row.clean_to or 0),
        clean_bytes=row.clean_bytes or 0,
        marks=tuple(
            CleanMark(offset=Offset(offset), since_ms=since_ms)
            for offset, since_ms in zip(row.mark_offsets or (), row.marks_ms or (), strict=True)
        ),
        oldest_tombstone=row.oldest_tombstone,
        now_ms=row.now_ms,
        oldest_dirty_ms=row.oldest_ms,
    )


def _run(key: PartitionKey, row: Row) -> RunToClean:
    run = RunToMerge(
        topic_id=key[0],
        partition=key[1],
        base_offset=row.base_offset,
        last_offset=row.last_offset,
        segment_id=SegmentId(row.segment_id),
        position=BytePosition(row.position),
        length=row.length,
        min_timestamp_ms=row.min_timestamp_ms,
        max_timestamp_ms=row.max_timestamp_ms,
        aged_from_ms=0,
    )
    return RunToClean(
        run=run,
        object_key=ObjectKey(row.object_key),
        committed_at=row.committed_at,
        is_in_journal=row.is_in_journal,
    )
