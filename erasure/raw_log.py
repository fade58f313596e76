"""Erases records of some keys from the objects of the log (docs/design/erasure.md#the-log).

A pass reads every run of the topic below the ends that the log had when the erasure began. An object with a
record to erase is emptied: all its runs, of all topics, are copied into new objects, the topic's own without
these records. The runs are swapped as merging swaps them, so readers find every other record at every moment.

Promises:
- An object that holds such a record, in a run or between its runs, ends without runs: it is garbage.
- Batches of an encrypted topic are opened to look into them. A run that loses records is sealed with the
  topic's newest key.
- Of a partition that changes meanwhile the swap fails, and the next pass reads it again. The last pass finds
  nothing.
- Memory is bounded by `erase_object_bytes` and `erase_requests`, whatever the topic's size.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from compactor.merge_copy import ByteRange, LaidOut, Layout, ReadRanges, fault_of_run, ranges_to_read
from compactor.merge_plan import Swap, fill_objects
from erasure.report import ErasureFailed, ErasureProgress, ErasureReport, OnProgress
from erasure.settings import ErasureSettings
from sequencer.client import Sequencer
from sequencer.cluster.ownership import OwnershipUnconfirmed
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.housekeeping.erasures import (
    ErasureClaim,
    ErasureScope,
    PartitionEnd,
    RunToErase,
    SegmentSeen,
)
from sequencer.housekeeping.merge_values import (
    MergeOutput,
    PartitionKey,
    PlacedSwap,
    RunToMerge,
    SwapsRefused,
)
from sequencer.housekeeping.merges import BEFORE_ALL
from sequencer.topics.topics import Topic
from spark_compaction.job_keys import JobKeys
from storage.arrow.erased_batches import ErasedKeys, ErasedRun, erase_keys, holds_keys
from storage.batches.batch_validation import InvalidBatch
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import SealBroken, sealed_records
from storage.encryption.topic_keyring import TopicKeyring, opened_batches
from storage.identifiers import ObjectKey, Offset, SegmentId, new_segment_id
from storage.segments.keys import merged_key
from storage.segments.segment import TRAILER_BYTES, CorruptSegment, FooterRun, footer_range, read_footer
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.side_by_side import side_by_side
from storage.threads import Threads

_WRITER = "erase"
_READ_BYTES = 4 << 20
_MOST_RUNS = 50_000
_RUNS_PER_PUBLISH = 500
_MOST_PASSES = 20
_RESERVATION_LEASES = 5
"""How long an object may take to be written and published, in leases of the job. The object of a killed
erasure is garbage after so long."""
_LONGEST_WAIT_S = 2.0
_TAIL_BYTES = 64 << 10
_ONE_RUN_BYTES = 1 << 62
"""A run stays one run."""


class RawEraser:
    """Erases from the log of one topic. `report` counts what it does."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        settings: ErasureSettings,
        topic: Topic,
        keys: ErasedKeys,
        job_keys: JobKeys,
        scope: ErasureScope,
        report: ErasureReport,
        on_progress: OnProgress,
    ) -> None:
        self._sequencer = sequencer
        self._store = store
        self._settings = settings
        self._topic = topic
        self._keys = keys
        self._job_keys = job_keys
        self._scope = scope
        self._ends = {end.partition: end.end_offset for end in scope.partitions}
        self._report = report
        self._on_progress = on_progress
        self._threads = Threads("erase", 2)

    async def run(self) -> None:
        """Reads and empties until a pass finds nothing. Raises ErasureFailed, KeyUnavailable,
        SequencerUnavailable, CommitOutcomeUnknown, StoreUnavailable or OwnershipUnconfirmed."""
        for _ in range(_MOST_PASSES):
            self._report.passes += 1
            if not await self._pass():
                return
        raise ErasureFailed(
            f"the log changed during each of {_MOST_PASSES} passes. Run the command again when less is merged"
        )

    async def empty_old_copies(self) -> None:
        """Empties objects that hold such a record where no run is any more: after merging, or after the
        topic's own run was dropped, other topics' runs may keep the object."""
        after, looked_at = SegmentId(UUID(int=0)), 0
        while page := await self._sequencer.erasures.segments(after, self._settings.erase_page_rows):
            suspects = [segment for segment in page if segment.is_suspect]
            waiting = iter(suspects)
            found: dict[SegmentId, int] = {}

            async def look(
                waiting: Iterable[SegmentSeen] = waiting, found: dict[SegmentId, int] = found
            ) -> None:
                for segment in waiting:
                    if await self._holds_dead_records(segment):
                        found[segment.segment_id] = segment.object_bytes

            await side_by_side(look() for _ in range(self._settings.erase_requests))
            await self._empty_all(found)
            looked_at += len(page)
            self._on_progress(ErasureProgress(stage="looking for old copies", done=looked_at))
            after = page[-1].segment_id

    # --- reading

    async def _pass(self) -> bool:
        """True if an object held a record to erase, or was gone before it could be read."""
        total = sum(end.size_bytes for end in self._scope.partitions)
        found_any = False
        read_before = self._report.raw_bytes_read
        for end in self._scope.partitions:
            from_offset = Offset(0)
            while runs := await self._sequencer.erasures.runs(
                self._topic.topic_id, end, from_offset, self._settings.erase_page_rows
            ):
                found = await self._in_page(runs, end)
                found_any = found_any or bool(found)
                await self._empty_all(found)
                from_offset = Offset(runs[-1].last_offset + 1)
                done = self._report.raw_bytes_read - read_before
                self._on_progress(
                    ErasureProgress(stage="reading the log", done=min(done, total), total=total)
                )
        return found_any

    async def _in_page(self, runs: Sequence[RunToErase], end: PartitionEnd) -> dict[SegmentId, int]:
        """The objects of these runs that hold a record to erase, each with its size. An object that is gone
        counts: its runs were swapped since."""
        waiting = iter(runs)
        found: dict[SegmentId, int] = {}

        async def look() -> None:
            for run in waiting:
                if run.segment_id in found:
                    continue  # it is emptied in any case
                if await self._holds(run, end):
                    found[run.segment_id] = run.object_bytes

        await side_by_side(look() for _ in range(self._settings.erase_requests))
        return found

    async def _holds(self, run: RunToErase, end: PartitionEnd) -> bool:
        try:
            data = await self._store.get(run.object_key, run.position, run.position + run.length)
        except ObjectNotFound:
            return True
        self._report.raw_bytes_read += len(data)
        try:
            opened = await self._job_keys.opened(self._topic, run.partition, data)
            return await self._threads.run(
                lambda: holds_keys(opened, run.base_offset, self._keys, before=end.end_offset)
            )
        except (InvalidBatch, SealBroken, ValueError) as error:
            raise ErasureFailed(_undecodable(run.object_key, run, error)) from error

    async def _holds_dead_records(self, segment: SegmentSeen) -> bool:
        """True if the object has a record to erase where no run of the topic is."""
        live = await self._sequencer.erasures.live_places(segment.segment_id, self._topic.topic_id)
        covered = sorted((position, position + length) for _, position, length in live)
        try:
            for run in await self._footer_runs(segment):
                if run.topic_id != self._topic.topic_id or _is_covered(run, covered):
                    continue
                data = await self._store.get(segment.object_key, run.position, run.position + run.length)
                before = (1 << 62) if run.base_offset is None else self._ends.get(run.partition, Offset(0))
                base = int(run.base_offset or 0)
                if await self._may_hold(bytes(data), run.partition, base, before):
                    return True
        except (ObjectNotFound, CorruptSegment):
            return False  # gone since, or nothing that a reader could use
        return False

    async def _may_hold(self, data: bytes, partition: int, base_offset: int, before: int) -> bool:
        """As `holds_keys`. Bytes that do not decode, or that no key opens, may hold anything: True."""
        try:
            opened = await self._job_keys.opened(self._topic, partition, data)
            return await self._threads.run(lambda: holds_keys(opened, base_offset, self._keys, before=before))
        except (InvalidBatch, KeyUnavailable, SealBroken, ValueError):
            return True

    async def _footer_runs(self, segment: SegmentSeen) -> Sequence[FooterRun]:
        size = segment.object_bytes
        tail = await self._store.get(segment.object_key, max(0, size - _TAIL_BYTES), size)
        start, end = footer_range(bytes(tail[-TRAILER_BYTES:]), size)
        if start < size - len(tail):
            tail = await self._store.get(segment.object_key, start, end)
        else:
            tail = tail[start - (size - len(tail)) :]
        return read_footer(tail).runs

    # --- emptying

    async def _empty_all(self, sizes: dict[SegmentId, int]) -> None:
        """Empties these objects, some at a time."""
        some: list[SegmentId] = []
        some_bytes = 0
        for segment_id, size_bytes in sizes.items():
            if some and some_bytes + size_bytes > self._settings.erase_object_bytes:
                await self._empty(some)
                some, some_bytes = [], 0
            some.append(segment_id)
            some_bytes += size_bytes
        if some:
            await self._empty(some)

    async def _empty(self, segment_ids: Collection[SegmentId]) -> None:
        """Moves all runs out of these objects. Another job may move some first."""
        ends_s = time.monotonic() + self._settings.erase_timeout_s
        is_first = True
        while claim := await self._sequencer.erasures.claim(segment_ids, lease_s=self._settings.job_lease_s):
            if is_first:
                self._report.objects_rewritten += len(claim.claim.inputs)
            elif time.monotonic() > ends_s:
                left = sorted(each.object_key for each in claim.claim.inputs.values())
                raise ErasureFailed(
                    f"{len(left)} objects still have runs, {left[0]} among them. Run the command again"
                )
            else:  # runs below the log start, and those of deleted topics, are about to go
                await asyncio.sleep(self._settings.erase_poll_s)
            is_first = False
            await self._move_out(claim)

    async def _move_out(self, claim: ErasureClaim) -> None:
        outputs: list[SegmentId] = []
        holding = asyncio.create_task(self._keep_holding(claim.claim.job_id))
        try:
            after: PartitionKey = BEFORE_ALL
            while runs := await self._sequencer.merges.runs(claim.claim, after, _MOST_RUNS):
                swaps = [Swap(replaced=(run,)) for run in runs]
                for some in fill_objects(swaps, self._settings.erase_object_bytes):
                    await self._write(claim, some, outputs)
                after = runs[-1].key  # of a partition with more runs the rest moves at the next try
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):  # then the holds lapse
                await self._sequencer.erasures.release(claim.claim, outputs)

    async def _write(self, claim: ErasureClaim, swaps: Sequence[Swap], outputs: list[SegmentId]) -> None:
        """Reads, checks, erases, uploads and publishes one object, whose id it adds to `outputs`."""
        read = await self._read(claim, ranges_to_read(swaps, _READ_BYTES))
        segment_id = new_segment_id()
        keyring = await self._job_keys.of(self._topic)
        laid_out, erased = await self._threads.run(self._laid_out, segment_id, swaps, read, claim, keyring)
        key = merged_key(self._settings.cluster, segment_id)
        await self._sequencer.reservations.reserve(
            {segment_id: key}, _RESERVATION_LEASES * self._settings.job_lease_s, _WRITER
        )
        outputs.append(segment_id)
        await self._sequencer.holds.take(claim.claim.job_id, [segment_id], lease_s=self._settings.job_lease_s)
        await self._store.put(key, laid_out.chunks)
        output = MergeOutput(
            segment_id=segment_id,
            object_key=key,
            size_bytes=laid_out.size_bytes,
            tier=claim.claim.tier,
            newest=claim.claim.newest,
            may_be_merged_again=claim.may_be_merged_again,
        )
        for first in range(0, len(laid_out.swaps), _RUNS_PER_PUBLISH):
            some = laid_out.swaps[first : first + _RUNS_PER_PUBLISH]
            done = await self._publish(claim, output, some)
            self._report.raw_records += sum(erased.get(id(some[place].replaced[0]), 0) for place in done)
        self._report.objects_written += 1
        self._report.bytes_written += laid_out.size_bytes

    def _laid_out(
        self,
        segment_id: SegmentId,
        swaps: Sequence[Swap],
        read: ReadRanges,
        claim: ErasureClaim,
        keyring: TopicKeyring | None,
    ) -> tuple[LaidOut, dict[int, int]]:
        """The new object, and how many records went from each run, by the run's `id`."""
        layout = Layout(segment_id, _WRITER, run_bytes=_ONE_RUN_BYTES)
        erased: dict[int, int] = {}
        for swap in swaps:
            [run] = swap.replaced
            data = read.of(run)
            if (fault := fault_of_run(run, data)) is not None:
                key = claim.claim.inputs[run.segment_id].object_key
                raise ErasureFailed(
                    f"{key} at byte {run.position} is damaged ({fault}), so its runs cannot be moved out of "
                    "it. `tidelog doctor` says more"
                )
            before = self._ends.get(run.partition, Offset(0))
            if run.topic_id == self._topic.topic_id and run.base_offset < before:
                try:
                    found = _erased(run, data, self._keys, keyring, before)
                except SealBroken as broken:
                    key = claim.claim.inputs[run.segment_id].object_key
                    raise ErasureFailed(_undecodable(key, run, broken)) from broken
                if found is not None:
                    data = memoryview(found.data)
                    erased[id(run)] = found.records
            layout.add(swap, [data])
        laid_out = layout.finish()
        assert laid_out is not None, "there is at least one swap"
        return laid_out, erased

    async def _read(self, claim: ErasureClaim, spans: Sequence[ByteRange]) -> ReadRanges:
        read = ReadRanges()
        waiting = iter(spans)

        async def take_turns() -> None:
            for span in waiting:
                key = claim.claim.inputs[span.segment_id].object_key
                with contextlib.suppress(ObjectNotFound):  # its runs have a fault then
                    read.add(span, await self._store.get(key, span.start, span.end))

        await side_by_side(take_turns() for _ in range(self._settings.erase_requests))
        return read

    async def _publish(
        self, claim: ErasureClaim, output: MergeOutput, swaps: Sequence[PlacedSwap]
    ) -> frozenset[int]:
        """Repeats a publish with an unknown outcome until it is known, or the hold must have ended; also one
        that came while the bucket's ownership was confirmed too long ago. Returns the places of the swaps
        that are done."""
        ends_s = time.monotonic() + self._settings.job_lease_s
        wait_s = 0.1
        while True:
            try:
                answer = await self._sequencer.merges.publish(claim.claim, output, swaps)
                break
            except (SequencerUnavailable, CommitOutcomeUnknown, OwnershipUnconfirmed):
                if time.monotonic() > ends_s:
                    raise
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        if isinstance(answer, SwapsRefused):
            raise ErasureFailed(
                f"the new object {output.object_key} is {answer.reason}. Run the command again"
            )
        return answer.places

    async def _keep_holding(self, job_id: UUID) -> None:
        """Renews the holds until cancelled, or until they have ended: then publishing is refused."""
        lease_s = self._settings.job_lease_s
        while True:
            await asyncio.sleep(lease_s / 4)
            with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):
                if not await self._sequencer.holds.renew(job_id, lease_s=lease_s):
                    return


def _undecodable(object_key: ObjectKey, run: RunToErase | RunToMerge, error: Exception) -> str:
    return (
        f"{object_key} at byte {run.position} (partition {run.partition}, offset {run.base_offset}) does not "
        f"decode, so nothing is known of its keys: {error}. `tidelog doctor` says more; retention, or "
        "deleting these records, removes them"
    )


def _erased(
    run: RunToMerge, data: memoryview, keys: ErasedKeys, keyring: TopicKeyring | None, before: int
) -> ErasedRun | None:
    """As `erase_keys`. The run of an encrypted topic is sealed with its newest key. Raises KeyUnavailable or
    SealBroken, too."""
    opened = opened_batches(keyring, data, run.partition)
    found = erase_keys(opened, run.base_offset, keys, before=before)
    if found is None or keyring is None:
        return found
    return replace(found, data=sealed_records(found.data, run.partition, keyring.newest))


def _is_covered(run: FooterRun, covered: Sequence[tuple[int, int]]) -> bool:
    """True if runs of the log, in the order of their positions, cover a footer's run without a gap."""
    reached = int(run.position)
    for start, end in covered:
        if start <= reached < end:
            reached = end
    return reached >= run.position + run.length
