"""Merging in the sequencer: candidates, claims, the runs they hold, the swap of coordinates
(docs/design/merging.md#claims).

Promises:
- A segment is claimed by one job at a time, as long as that job's holds last.
- A swap replaces exactly the runs that were read, by runs of the same offsets, or nothing.
- Nothing is published into an object that is doomed or that the job no longer holds [raced].
- A job that dies at any point leaves an intact log, and candidates that `free_lapsed` gives back.

The caller decides what to merge (`compactor/merge_plan.py`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

from psycopg import AsyncConnection

from sequencer.cluster.ownership import demand_ownership, is_owner
from sequencer.database.array_parameters import Int4Array, Int8Array, UuidArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.housekeeping.holds import SQL as HOLDS_SQL
from sequencer.housekeeping.merge_values import (
    Candidate,
    MergeClaim,
    MergeDone,
    MergeInput,
    MergeOutput,
    PartitionKey,
    PlacedSwap,
    RunToMerge,
    SwapsDone,
    SwapsRefused,
    TierTotals,
)
from storage.identifiers import Partition, SegmentId, TopicId

SQL = load_statements("merges")

BEFORE_ALL: PartitionKey = (TopicId(UUID(int=0)), Partition(-1))
_ROWS_AT_A_TIME = 500
"""Runs taken from the connection at a time, so that the event loop is not blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """How far discovery has come. `more`: the page was full."""

    added: int
    reached: tuple[datetime, SegmentId]
    more: bool


BEGINNING = (datetime(1970, 1, 1, tzinfo=UTC), SegmentId(UUID(int=0)))


class Merges:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def discover(
        self, after: tuple[datetime, SegmentId], *, settle_s: float, long_run_bytes: int, cap: int
    ) -> Discovered:
        """Makes candidates of at most `cap` segments that agents committed after `after` and more than
        `settle_s` ago.

        Segments with runs of `long_run_bytes` on average are no candidates. It may be repeated.
        """
        async with self._database.transaction() as connection:
            [row] = await _rows(
                connection,
                "discover",
                after_committed_at=after[0],
                after_segment_id=after[1],
                settle_s=settle_s,
                long_run_bytes=long_run_bytes,
                cap=cap,
            )
        reached = after if row.segment_id is None else (row.committed_at, row.segment_id)
        return Discovered(added=row.added, reached=reached, more=row.seen == cap)

    async def free_lapsed(self, cap: int) -> int:
        """Gives back at most `cap` candidates of jobs whose holds have ended. Returns how many."""
        return len(await self._database.run(SQL["free_lapsed"], cap=cap))

    async def claim(
        self,
        tier: int,
        choose: Callable[[Sequence[Candidate]], Collection[SegmentId]],
        *,
        cap: int,
        lease_s: float,
        long_run_bytes: int,
    ) -> MergeClaim | None:
        """Claims what `choose` takes from the oldest `cap` free candidates of a tier, and holds it for
        `lease_s`.

        None if it takes nothing, if nothing is left of its choice, or if the bucket may be another
        database's. Prolong the claim with `holds.renew(claim.job_id)`.
        """
        job_id = uuid4()
        async with self._database.transaction() as connection:
            if not await is_owner(connection):
                return None
            locked = await _rows(connection, "lock_candidates", tier=tier, cap=cap)
            candidates = {row.segment_id: _candidate(row) for row in locked}
            chosen = sorted(choose(tuple(candidates.values())))
            if not chosen:
                return None
            cursor = await connection.execute(HOLDS_SQL["lock_segments"], {"segment_ids": UuidArray(chosen)})
            held = [row.segment_id for row in await cursor.fetchall()]
            await connection.execute(
                HOLDS_SQL["hold"], {"segment_ids": held, "job_id": job_id, "lease_s": lease_s}
            )
            found = await _rows(
                connection, "inputs", segment_ids=UuidArray(held), long_run_bytes=long_run_bytes
            )
            inputs = {row.segment_id: _input(row) for row in found if row.live_bytes}
            await _rows(connection, "claim_candidates", segment_ids=UuidArray(inputs), job_id=job_id)
            empty = UuidArray(segment_id for segment_id in chosen if segment_id not in inputs)
            await _rows(connection, "forget_candidates", segment_ids=empty)
            if not inputs:
                await connection.execute(HOLDS_SQL["release"], {"job_id": job_id})
                return None
            newest = max(candidates[segment_id].committed_at for segment_id in chosen)
            return MergeClaim(job_id=job_id, tier=tier, inputs=inputs, newest=newest)

    async def runs(self, claim: MergeClaim, after: PartitionKey, cap: int) -> list[RunToMerge]:
        """Returns at most `cap` runs in the claimed segments, in key order, of partitions after `after`."""
        parameters = {
            "segment_ids": list(claim.inputs),
            "after_topic_id": after[0],
            "after_partition": after[1],
            "cap": cap,
        }
        runs: list[RunToMerge] = []
        ids: dict[UUID, UUID] = {}  # one object per id, because they are compared very often
        async with (
            self._database.transaction() as connection,
            connection.cursor(name="runs_to_merge", binary=True) as cursor,
        ):
            await cursor.execute(SQL["runs"], parameters)
            while rows := await cursor.fetchmany(_ROWS_AT_A_TIME):
                runs += [_run(row, ids) for row in rows]
        return runs

    async def topic_configs(
        self, topic_ids: Collection[TopicId]
    ) -> tuple[dict[TopicId, Mapping[str, str]], int]:
        """Returns the configs that each topic has set, and the time in milliseconds."""
        rows = await self._database.run(SQL["topic_configs"], topic_ids=list(topic_ids))
        return {row.topic_id: row.config for row in rows}, max((row.now_ms for row in rows), default=0)

    async def publish(
        self, claim: MergeClaim, output: MergeOutput, swaps: Sequence[PlacedSwap]
    ) -> SwapsDone | SwapsRefused:
        """Swaps coordinates in one short transaction. Raises CommitOutcomeUnknown: repeat it with the same
        arguments until the outcome is known. Raises OwnershipUnconfirmed.
        """
        [row] = await self._database.write(SQL["publish"], **publish_parameters(claim, output, swaps))
        if not row.is_owned:
            async with self._database.connection() as connection:
                await demand_ownership(connection)
        if row.state != "published":
            return SwapsRefused(reason=row.state)
        return SwapsDone(places=frozenset(number - 1 for number in row.swaps))

    async def end(
        self, claim: MergeClaim, outputs: Collection[SegmentId], done: MergeDone, *, is_complete: bool
    ) -> None:
        """Ends the claim. `is_complete`: everything in the inputs was handled. Otherwise what is left of them
        can be claimed again. Repeating it counts twice.
        """
        inputs, made = UuidArray(claim.inputs), UuidArray([*claim.inputs, *outputs])
        async with self._database.transaction() as connection:
            await _rows(
                connection, "forget_merged", segment_ids=inputs, job_id=claim.job_id, is_complete=is_complete
            )
            await _rows(connection, "release_candidates", segment_ids=made, job_id=claim.job_id)
            await _rows(connection, "give_up_reserved", segment_ids=UuidArray(sorted(outputs)))
            await connection.execute(HOLDS_SQL["release"], {"job_id": claim.job_id})
            await _rows(connection, "count_merge", tier=claim.tier + 1, **asdict(done))

    async def totals(self) -> tuple[TierTotals, ...]:
        """Returns the total work, by tier."""
        return tuple(_totals(row) for row in await self._database.run(SQL["tiers"]))


async def _rows(connection: AsyncConnection[Row], statement: str, **parameters: object) -> list[Row]:
    cursor = await connection.execute(SQL[statement], parameters)
    return await cursor.fetchall() if cursor.description is not None else []


def publish_parameters(
    claim: MergeClaim, output: MergeOutput, swaps: Sequence[PlacedSwap]
) -> dict[str, object]:
    """Returns the parameters of the statement `publish`."""
    keys = sorted({swap.key for swap in swaps}, key=lambda key: (key[0].bytes, key[1]))
    parts = {key: number for number, key in enumerate(keys, 1)}
    replaced = [(number, run) for number, swap in enumerate(swaps, 1) for run in swap.replaced]
    made = [(number, run) for number, swap in enumerate(swaps, 1) for run in swap.made]
    return {
        "job_id": claim.job_id,
        "output": output.segment_id,
        "output_bytes": output.size_bytes,
        "output_tier": output.tier,
        "newest": output.newest,
        "may_be_merged_again": output.may_be_merged_again,
        "topic_ids": UuidArray(key[0] for key in keys),
        "partition_numbers": Int4Array(key[1] for key in keys),
        "swap_parts": Int4Array(parts[swap.key] for swap in swaps),
        "input_swaps": Int4Array(number for number, _ in replaced),
        "input_base_offsets": Int8Array(run.base_offset for _, run in replaced),
        "input_segments": UuidArray(run.segment_id for _, run in replaced),
        "input_positions": Int8Array(run.position for _, run in replaced),
        "run_swaps": Int4Array(number for number, _ in made),
        "run_base_offsets": Int8Array(run.base_offset for _, run in made),
        "run_last_offsets": Int8Array(run.last_offset for _, run in made),
        "run_positions": Int8Array(run.position for _, run in made),
        "run_lengths": Int8Array(run.length for _, run in made),
        "run_min_timestamps": Int8Array(run.min_timestamp_ms for _, run in made),
        "run_max_timestamps": Int8Array(run.max_timestamp_ms for _, run in made),
    }


def _candidate(row: Row) -> Candidate:
    return Candidate(segment_id=row.segment_id, committed_at=row.committed_at, size_bytes=row.size_bytes)


def _input(row: Row) -> MergeInput:
    return MergeInput(
        segment_id=row.segment_id,
        object_key=row.object_key,
        size_bytes=row.size_bytes,
        live_bytes=row.live_bytes,
        long_bytes=row.long_bytes,
    )


def _run(row: Row, ids: dict[UUID, UUID]) -> RunToMerge:
    return RunToMerge(
        topic_id=TopicId(ids.setdefault(row.topic_id, row.topic_id)),
        partition=row.partition,
        base_offset=row.base_offset,
        last_offset=row.last_offset,
        segment_id=SegmentId(ids.setdefault(row.segment_id, row.segment_id)),
        position=row.position,
        length=row.length,
        min_timestamp_ms=row.min_timestamp_ms,
        max_timestamp_ms=row.max_timestamp_ms,
        aged_from_ms=row.aged_from_ms,
        marker_key=row.marker_key,
    )


def _totals(row: Row) -> TierTotals:
    return TierTotals(
        tier=row.tier,
        merges=row.merges,
        done=MergeDone(
            objects_in=row.objects_in,
            objects_out=row.objects_out,
            bytes_in=row.bytes_in,
            bytes_out=row.bytes_out,
            runs_in=row.runs_in,
            runs_out=row.runs_out,
            swaps_refused=row.swaps_refused,
            runs_damaged=row.runs_damaged,
        ),
        success_age_s=row.success_age_s,
    )
