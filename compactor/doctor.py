"""The doctor: compares the bucket with the database, in both directions (docs/design/garbage.md#the-doctor). Nothing
else LISTs the whole bucket. The doctor changes nothing.

- From the bucket: every object is referenced, reserved, waits for its deletion, or came back late after it.
- From the database: every run's object exists with the right size (with `--verify`, every byte and record is
  checked), runs cover their partitions, producers' states make sense, and history's files exist.

Promise: live traffic is never reported as a fault. Whatever looks wrong is checked again, in an order in
which it must have become right if it was only being changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pydantic import Field

from compactor.diagnosis import Chart, Diagnosis, Fault, Finding, Sight
from compactor.object_census import ObjectCensus
from compactor.offset_coverage import OffsetCoverage
from compactor.segment_check import faults_of_segment
from sequencer.client import Sequencer
from sequencer.housekeeping.garbage import BEFORE_ALL as BEFORE_ALL_SEGMENTS
from sequencer.housekeeping.inspection import PartitionKey, ReferencedSegment
from sequencer.housekeeping.retention import BEFORE_ALL as BEFORE_ALL_PARTITIONS
from storage.identifiers import ObjectKey
from storage.settings import Settings
from storage.stores.object_store import ObjectNotFound, ObjectStore, is_there
from storage.stores.side_by_side import side_by_side
from storage.threads import Threads

__all__ = ["Diagnosis", "DoctorSettings", "examine"]

T = TypeVar("T")


class DoctorSettings(Settings):
    doctor_requests: int = Field(default=16, ge=1)
    """Requests to the store at a time. With `--verify`, this many whole segments are in memory."""
    doctor_page: int = Field(default=500, ge=1)
    """Objects, segments, partitions or runs per statement."""
    doctor_journal_age_s: float = Field(default=600.0, gt=0)
    """Commits older than this should be in the journal."""
    doctor_findings: int = Field(default=100, ge=1)
    """Findings listed per fault; further ones are only counted."""


async def examine(
    sequencer: Sequencer,
    store: ObjectStore,
    cluster: str,
    verify_contents: bool,
    settings: DoctorSettings,
) -> Diagnosis:
    """Checks everything under `<cluster>/` and everything the database knows. Raises SequencerUnavailable or
    StoreUnavailable.
    """
    chart = Chart(settings.doctor_findings)
    await ObjectCensus(sequencer, store, cluster, chart, page=settings.doctor_page).take()
    doctor = _Doctor(sequencer, store, chart, settings, verify_contents)
    await doctor.check_ownership()
    await doctor.check_journal()
    await doctor.check_segments()
    await doctor.check_partitions()
    await doctor.check_producers()
    await doctor.check_history()
    return chart.diagnosis(contents_verified=verify_contents)


class _Doctor:
    """The direction from the database to the bucket."""

    def __init__(
        self, sequencer: Sequencer, store: ObjectStore, chart: Chart, settings: DoctorSettings, verify_contents: bool
    ) -> None:
        self._sequencer = sequencer
        self._database = sequencer.inspection
        self._store = store
        self._chart = chart
        self._page = settings.doctor_page
        self._requests = settings.doctor_requests
        self._journal_age_s = settings.doctor_journal_age_s
        self._verify_contents = verify_contents
        self._threads = Threads("doctor", 1)

    async def check_ownership(self) -> None:
        """Checks that this database owns the bucket (`sequencer/cluster/ownership.py`)."""
        because = (await self._sequencer.ownership.state()).lost_because
        if because is not None:
            self._found(Fault.NOT_OWNED, "the bucket", because)

    async def check_journal(self) -> None:
        """Checks that the bucket alone could rebuild the log, up to a while ago."""
        behind_s = await self._sequencer.journal.seconds_behind(self._journal_age_s)
        if behind_s is not None:
            what = f"its last entry is {behind_s:.0f} s old, and segments were committed since: does an agent with the"
            self._found(Fault.OLD_JOURNAL, "the journal", f"{what} role jobs run, and can it write to the bucket?")

    async def check_segments(self) -> None:
        """Checks every object that a run refers to."""
        after = BEFORE_ALL_SEGMENTS
        while segments := await self._database.referenced_segments(after, self._page):
            after = segments[-1].segment_id
            self._chart.saw(Sight.REFERENCED, len(segments))
            await self._for_each(segments, self._check_segment)

    async def _check_segment(self, segment: ReferencedSegment) -> None:
        try:
            faults = await self._faults_of(segment)
        except ObjectNotFound:
            if await self._is_still_missing(segment):
                self._found(Fault.MISSING_OBJECT, segment.object_key, "runs refer to it")
            return
        for fault in faults:
            self._found(Fault.CORRUPT_OBJECT, segment.object_key, fault)

    async def _faults_of(self, segment: ReferencedSegment) -> list[str]:
        if not self._verify_contents:
            return _fault_of_size(segment, (await self._store.head(segment.object_key)).size_bytes)
        runs = await self._database.runs_of_segments([segment.segment_id])
        data = await self._store.get(segment.object_key)
        return _fault_of_size(segment, len(data)) or await self._threads.run(
            faults_of_segment, segment.segment_id, data, runs.get(segment.segment_id, [])
        )

    async def _is_still_missing(self, segment: ReferencedSegment) -> bool:
        """An object is deleted long after its last run, so a run that still exists makes the missing object a
        fault."""
        row = (await self._database.segments_by_id([segment.segment_id])).get(segment.segment_id)
        return row is not None and row.has_runs and not await is_there(self._store, segment.object_key)

    async def check_partitions(self) -> None:
        """Checks every partition's runs."""
        after = BEFORE_ALL_PARTITIONS
        while keys := await self._database.live_partitions(after, self._page):
            after = keys[-1]
            for key in keys:
                await self._check_partition(key)
        for topic_id, partition in await self._database.runs_without_partition(self._page):
            self._found(Fault.DANGLING_RUN, f"{topic_id}/{partition}", "it has runs, but the partition is gone")

    async def _check_partition(self, key: PartitionKey) -> None:
        """Checks twice if something looks wrong: coordinates may have been replaced between two chunks."""
        findings, runs = await self._walk(key)
        if findings:
            findings, runs = await self._walk(key)
        self._chart.saw(Sight.PARTITION)
        self._chart.saw(Sight.RUN, runs)
        for finding in findings:
            self._chart.found(finding)

    async def _walk(self, key: PartitionKey) -> tuple[list[Finding], int]:
        """Returns what is wrong with the partition's runs, and how many runs there are. A partition that is
        being deleted has no faults."""
        where = f"{key[0]}/{key[1]}"
        coverage = OffsetCoverage()
        findings: list[Finding] = []
        is_last = False
        while not is_last:
            chunk = await self._database.log_chunk(key, coverage.next_from, self._page)
            if chunk is None:
                return [], 0
            is_last = len(chunk.runs) < self._page
            in_one_chunk = is_last and coverage.reached is None
            coverage.add(chunk, is_last=is_last)
            findings += [
                Finding(
                    fault=Fault.DANGLING_RUN,
                    where=where,
                    what=f"run [{run.base_offset}, {run.last_offset}] is in segment {run.segment_id}, which is "
                    + (run.segment_state or "unknown"),
                )
                for run in chunk.runs
                if run.segment_state != "committed"
            ]
            if in_one_chunk and coverage.length != chunk.size_bytes:
                what = f"its runs have {coverage.length} bytes, its row says {chunk.size_bytes}"
                findings.append(Finding(fault=Fault.WRONG_SIZE, where=where, what=what))
        findings += [Finding(fault=Fault.GAP, where=where, what=fault) for fault in coverage.faults]
        return findings, coverage.runs

    async def check_producers(self) -> None:
        """Checks every producer's state."""
        for topic_id, partition, producer_id in await self._database.odd_producer_states(self._page):
            self._found(
                Fault.PRODUCER_STATE, f"{topic_id}/{partition}", f"the state of producer {producer_id} makes no sense"
            )

    async def check_history(self) -> None:
        """Checks every file that a retained snapshot may name."""
        for table in await self._sequencer.history.tables():
            after = ""
            while keys := await self._sequencer.history.live_objects(table.topic_id, after, self._page):
                await self._check_history_objects(table.topic_name, keys)
                after = keys[-1]

    async def _check_history_objects(self, topic_name: str, keys: Sequence[ObjectKey]) -> None:
        self._chart.saw(Sight.HISTORY, len(keys))
        missing: list[ObjectKey] = []

        async def look(key: ObjectKey) -> None:
            if not await is_there(self._store, key):
                missing.append(key)

        await self._for_each(keys, look)
        for key in sorted(await self._sequencer.history.live_among(missing)):  # it may have become garbage meanwhile
            self._found(Fault.MISSING_HISTORY, key, f"history of topic {topic_name} names it")

    async def _for_each(self, items: Sequence[T], check: Callable[[T], Awaitable[None]]) -> None:
        """Runs `doctor_requests` checks at a time."""
        gate = asyncio.Semaphore(self._requests)

        async def gated(item: T) -> None:
            async with gate:
                await check(item)

        for start in range(0, len(items), self._page):
            await side_by_side(gated(item) for item in items[start : start + self._page])

    def _found(self, fault: Fault, where: str, what: str) -> None:
        self._chart.found(Finding(fault=fault, where=where, what=what))


def _fault_of_size(segment: ReferencedSegment, size_bytes: int) -> list[str]:
    if size_bytes == segment.size_bytes:
        return []
    return [f"it has {size_bytes} bytes, committed were {segment.size_bytes}"]
