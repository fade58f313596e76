"""Erasure in the sequencer (docs/design/erasure.md): the runs to look into, the objects to move runs out of,
and what must be gone before an erasure is finished.

Promises:
- A statement reads the runs of one topic or of given objects, through an index. Two passes go over all
  segments, page by page, as the garbage scan does.
- Nothing here deletes an object. Erasures shorten the wait of garbage, which the garbage collector deletes.

The caller decides what to move (`erasure/raw_log.py`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from sequencer.cluster.ownership import demand_ownership
from sequencer.database.array_parameters import UuidArray
from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from sequencer.housekeeping.holds import SQL as HOLDS_SQL
from sequencer.housekeeping.merge_values import MergeClaim, MergeInput
from sequencer.housekeeping.merges import SQL as MERGES_SQL
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId

SQL = load_statements("erasures")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnd:
    """A live partition when the erasure began: records from `end_offset` on stay."""

    partition: Partition
    log_start_offset: Offset
    end_offset: Offset
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureScope:
    began_at: datetime
    partitions: Sequence[PartitionEnd]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToErase:
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    segment_id: SegmentId
    object_key: ObjectKey
    object_bytes: int
    tier: int
    position: BytePosition
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSeen:
    """A segment. `is_suspect`: its object may have bytes that no run names."""

    segment_id: SegmentId
    object_key: ObjectKey
    object_bytes: int
    tier: int
    is_suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureClaim:
    """Objects that are held, to move all runs out of them."""

    claim: MergeClaim
    may_be_merged_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StillThere:
    """How many objects may still hold what was erased, at most 1,000 or so of each kind."""

    segments: int
    history_objects: int


class Erasures:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def scope(self, topic_id: TopicId) -> ErasureScope | None:
        """Where each live partition of the topic ends now; None if it has none."""
        rows = await self._database.read(SQL["ends"], topic_id=topic_id)
        if not rows:
            return None
        ends = [
            PartitionEnd(
                partition=Partition(row.partition),
                log_start_offset=Offset(row.log_start_offset),
                end_offset=Offset(row.high_watermark),
                size_bytes=row.size_bytes,
            )
            for row in rows
        ]
        return ErasureScope(began_at=rows[0].now, partitions=ends)

    async def runs(
        self, topic_id: TopicId, end: PartitionEnd, from_offset: Offset, cap: int
    ) -> Sequence[RunToErase]:
        """The first `cap` runs of a partition that begin at `from_offset` or later, and below its end."""
        rows = await self._database.run(
            SQL["runs"],
            topic_id=topic_id,
            partition=end.partition,
            from_offset=from_offset,
            end_offset=end.end_offset,
            cap=cap,
        )
        return [
            RunToErase(
                partition=end.partition,
                base_offset=Offset(row.base_offset),
                last_offset=Offset(row.last_offset),
                segment_id=SegmentId(row.segment_id),
                object_key=ObjectKey(row.object_key),
                object_bytes=row.size_bytes,
                tier=row.tier,
                position=BytePosition(row.position),
                length=row.length,
            )
            for row in rows
        ]

    async def claim(self, segment_ids: Collection[SegmentId], *, lease_s: float) -> ErasureClaim | None:
        """Holds those of the segments that still have runs; None if none has. Prolong it with
        `holds.renew(claim.job_id)`. Raises OwnershipUnconfirmed.
        """
        job_id = uuid4()
        async with self._database.transaction() as connection:
            await demand_ownership(connection)
            chosen = UuidArray(sorted(segment_ids))
            cursor = await connection.execute(HOLDS_SQL["lock_segments"], {"segment_ids": chosen})
            locked = UuidArray(row.segment_id for row in await cursor.fetchall())
            cursor = await connection.execute(SQL["inputs"], {"segment_ids": locked})
            found = [row for row in await cursor.fetchall() if row.live_bytes]
            if not found:
                return None
            held = [row.segment_id for row in found]
            await connection.execute(
                HOLDS_SQL["hold"], {"segment_ids": held, "job_id": job_id, "lease_s": lease_s}
            )
        inputs = {
            SegmentId(row.segment_id): MergeInput(
                segment_id=SegmentId(row.segment_id),
                object_key=ObjectKey(row.object_key),
                size_bytes=row.size_bytes,
                live_bytes=row.live_bytes,
                long_bytes=0,
            )
            for row in found
        }
        return ErasureClaim(
            claim=MergeClaim(
                job_id=job_id,
                tier=max(row.tier for row in found),
                inputs=inputs,
                newest=max(row.committed_at for row in found),
            ),
            may_be_merged_again=any(row.is_candidate for row in found),
        )

    async def release(self, claim: MergeClaim, outputs: Collection[SegmentId]) -> None:
        """Ends the claim. What is left in its objects can be claimed again."""
        async with self._database.transaction() as connection:
            await connection.execute(MERGES_SQL["forget_emptied"], {"segment_ids": UuidArray(claim.inputs)})
            await connection.execute(
                MERGES_SQL["release_candidates"], {"segment_ids": UuidArray(outputs), "job_id": claim.job_id}
            )
            await connection.execute(
                MERGES_SQL["give_up_reserved"], {"segment_ids": UuidArray(sorted(outputs))}
            )
            await connection.execute(HOLDS_SQL["release"], {"job_id": claim.job_id})

    async def segments(self, after: SegmentId, cap: int) -> Sequence[SegmentSeen]:
        """The first `cap` segments after an id. It looks up the runs of each."""
        rows = await self._database.run(SQL["page_of_segments"], after=after, cap=cap)
        return [
            SegmentSeen(
                segment_id=SegmentId(row.segment_id),
                object_key=ObjectKey(row.object_key),
                object_bytes=row.size_bytes,
                tier=row.tier,
                is_suspect=row.is_suspect,
            )
            for row in rows
        ]

    async def live_places(
        self, segment_id: SegmentId, topic_id: TopicId
    ) -> frozenset[tuple[Partition, BytePosition, int]]:
        """Partition, position and length of each of the topic's runs in an object."""
        rows = await self._database.run(SQL["live_places"], segment_id=segment_id, topic_id=topic_id)
        return frozenset((row.partition, row.position, row.length) for row in rows)

    async def now(self) -> datetime:
        [row] = await self._database.read(SQL["now"])
        moment: datetime = row.now
        return moment

    async def jobs_on_garbage(self) -> frozenset[UUID]:
        """The jobs that hold objects without runs now: these cannot be found as garbage yet."""
        return frozenset(row.job_id for row in await self._database.run(SQL["jobs_on_garbage"]))

    async def older_jobs(self, topic_id: TopicId, before: datetime) -> frozenset[UUID]:
        """The running jobs on the topic's history that began before a moment."""
        rows = await self._database.run(SQL["older_jobs"], topic_id=topic_id, before=before)
        return frozenset(row.job_id for row in rows)

    async def has_history(self, topic_id: TopicId) -> bool:
        """True if the topic has a table."""
        [row] = await self._database.read(SQL["has_history"], topic_id=topic_id)
        return bool(row.has_it)

    async def let_go(self, topic_id: TopicId) -> datetime:
        """Shortens the wait of all garbage that there is now, and of the topic's history that no snapshot
        names. Returns the moment. Raises OwnershipUnconfirmed."""
        async with self._database.transaction() as connection:
            await demand_ownership(connection)
            cursor = await connection.execute(SQL["let_garbage_go"])
            [row] = await cursor.fetchall()
            await connection.execute(SQL["let_history_go"], {"topic_id": topic_id})
        moment: datetime = row.garbage_before
        return moment

    async def still_there(self, topic_id: TopicId, before: datetime) -> StillThere:
        """What `let_go` let go at that moment and was not deleted yet."""
        [row] = await self._database.read(SQL["waiting"], topic_id=topic_id, before=before)
        return StillThere(segments=row.segments, history_objects=row.history_objects)

    async def unswept_prefixes(self, topic_id: TopicId, before: datetime) -> Sequence[str]:
        """The prefixes of ended jobs on the topic's history that began before a moment: what they did not
        publish may lie there."""
        rows = await self._database.read(SQL["ended_jobs"], topic_id=topic_id, before=before)
        return [row.prefix for row in rows]

    async def drop_pages(self, made_before: datetime) -> int:
        """Asks all agents to drop their pages of objects that were made before a moment. Returns the
        request's number."""
        [row] = await self._database.run(SQL["drop_pages"], made_before=made_before)
        return int(row.number)

    async def agents_behind(self, number: int) -> int:
        """How many agents with a valid lease have not done what `drop_pages` asked."""
        [row] = await self._database.read(SQL["agents_behind"], number=number)
        return int(row.agents)
