"""The doctor: compares the bucket with the database, in both directions (docs/design/garbage.md#the-doctor).
Nothing else LISTs the whole bucket. The doctor changes nothing.

- From the bucket: every object is referenced, reserved, waits for its deletion, or came back late after it.
- From the database: every run's object exists with the right size (with `--verify`, every byte and record is
  checked), runs cover their partitions, producers' states make sense, and history's files exist.

Promise: live traffic is never reported as a fault. Whatever looks wrong is checked again, in an order in
which it must have become right if it was only being changed.

The doctor's direction from the bucket to the database: why each object under `<cluster>/` exists
(docs/design/garbage.md#the-doctor).

Every key is reserved before it is written. So a listed object without a row is either an orphan, or it was
deleted, and its row afterwards: then a second look-up does not find the object.

Checks that a segment's bytes match the runs that refer to it (docs/design/segment.md#verification).

Pure. Promise: bytes that pass hold, at every run's place, whole batches of the run's partition with as many
records as it has offsets. Every byte of the segment is as it was sealed.

Checks that runs cover a partition's offsets exactly, from its log start to its high watermark
(docs/design/commit.md).

Pure. It gets the runs in chunks. Each chunk is from one moment; between two of them the log may grow at its
end and shrink at its start.

Promises: it finds every gap, overlap and missing end in a log that stands still. It finds nothing in a log
that only grows and shrinks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import Field

from compactor.diagnosis import Chart, Diagnosis, Fault, Finding, Sight
from sequencer.client import Sequencer
from sequencer.history.history import history_prefix
from sequencer.history.history_values import HistoryTable
from sequencer.housekeeping.garbage import BEFORE_ALL as BEFORE_ALL_SEGMENTS
from sequencer.housekeeping.inspection import (
    ChunkRun,
    LogChunk,
    PartitionKey,
    ReferencedSegment,
    SegmentRow,
    SegmentRun,
)
from sequencer.housekeeping.retention import BEFORE_ALL as BEFORE_ALL_PARTITIONS
from storage.batches.batch_validation import InvalidBatch, check_crc
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import index_batches, read_header
from storage.encryption.key_objects import CorruptKeyObject, KeyObjects, WrappedKey
from storage.identifiers import ObjectKey, Offset, SegmentId
from storage.segments.keys import (
    backups_prefix,
    checkpoints_prefix,
    identity_prefix,
    is_inline,
    is_merged,
    journal_prefix,
    ownership_key,
    segment_id_of,
    topic_key_of,
)
from storage.segments.segment import CorruptSegment, FooterRun, SegmentFooter, verify_segment
from storage.settings import Settings
from storage.stores.object_store import ObjectInfo, ObjectNotFound, ObjectStore, is_there
from storage.stores.side_by_side import side_by_side
from storage.threads import Threads


class ObjectCensus:
    def __init__(
        self, sequencer: Sequencer, store: ObjectStore, cluster: str, chart: Chart, *, page: int
    ) -> None:
        self._sequencer = sequencer
        self._store = store
        self._cluster = cluster
        self._chart = chart
        self._page = page

    async def take(self) -> None:
        """Lists all objects, in pages."""
        page: list[ObjectInfo] = []
        async for info in self._store.list(f"{self._cluster}/"):
            page.append(info)
            if len(page) == self._page:
                await self._look_at(page)
                page = []
        await self._look_at(page)

    async def _look_at(self, page: Sequence[ObjectInfo]) -> None:
        self._chart.saw(Sight.OBJECT, len(page))
        self._chart.saw(Sight.MERGED, sum(is_merged(info.key) for info in page))
        unknown = await self._unknown([info.key for info in page], self._chart)
        if not unknown:
            return
        there = [key for key in unknown if await is_there(self._store, key)]
        for key in await self._unknown(there, chart=None):
            self._chart.found(
                Finding(fault=Fault.ORPHAN_OBJECT, where=key, what="nothing in the database knows it")
            )

    async def _unknown(self, keys: Collection[ObjectKey], chart: Chart | None) -> list[ObjectKey]:
        """Returns the keys that have no reason to exist. Notes the reasons of the others on the chart."""
        history = [key for key in keys if key.startswith(history_prefix(self._cluster))]
        segments = {key: segment_id_of(key) for key in keys}
        rows = await self._sequencer.inspection.segments_by_id([each for each in segments.values() if each])
        sights: dict[ObjectKey, Sight | None] = {
            key: _sight(key, segment_id, rows) for key, segment_id in segments.items()
        }
        sights.update({key: Sight.IDENTITY for key in keys if key.startswith(identity_prefix(self._cluster))})
        sights.update({key: Sight.IDENTITY for key in keys if key == ownership_key(self._cluster)})
        journal = (journal_prefix(self._cluster), checkpoints_prefix(self._cluster))
        sights.update({key: Sight.JOURNAL for key in keys if key.startswith(journal)})
        sights.update({key: Sight.BACKUP for key in keys if key.startswith(backups_prefix(self._cluster))})
        sights.update(await self._key_sights(keys))
        sights.update(await self._history_sights(history))
        if chart is not None:
            for sight in sights.values():
                if sight is not None:
                    chart.saw(sight)
        return [key for key, sight in sights.items() if sight is None]

    async def _key_sights(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, Sight | None]:
        copies = {key: copy for key in keys if (copy := topic_key_of(key)) is not None}
        if not copies:
            return {}
        known = await self._sequencer.topic_keys.known(list(copies.values()))
        return {key: Sight.KEY if copy in known else None for key, copy in copies.items()}

    async def _history_sights(self, keys: Sequence[ObjectKey]) -> dict[ObjectKey, Sight | None]:
        """Reads the prefixes first: a job's objects are recorded before its prefix is given up."""
        if not keys:
            return {}
        garbage = self._sequencer.history.garbage
        prefixes = tuple(await garbage.reserved_prefixes())
        recorded = await garbage.recorded(keys)
        sights: dict[ObjectKey, Sight | None] = {}
        for key in keys:
            if key in recorded:
                sights[key] = Sight.HISTORY_RECORDED
            else:
                sights[key] = Sight.HISTORY_RESERVED if key.startswith(prefixes) else None
        return sights


def _sight(key: ObjectKey, segment_id: SegmentId | None, rows: dict[SegmentId, SegmentRow]) -> Sight | None:
    row = rows.get(segment_id) if segment_id else None
    if row is None or row.object_key != key:
        return None
    if row.state == "reserved":
        return Sight.RESERVED
    if row.has_runs:
        return Sight.LIVE
    return Sight.LATE if row.is_tombstone else Sight.GARBAGE


def faults_of_segment(segment_id: SegmentId, data: Buffer, runs: Sequence[SegmentRun]) -> list[str]:
    """Returns what is wrong, in words; empty if nothing is."""
    try:
        footer = verify_segment(data)
    except CorruptSegment as corrupt:
        return [str(corrupt)]
    if footer.segment_id != segment_id:
        return [f"it holds segment {footer.segment_id}"]
    return [fault for run in runs if (fault := _fault_of_run(run, data, footer))]


def _fault_of_run(run: SegmentRun, data: Buffer, footer: SegmentFooter) -> str | None:
    name = f"run {run.topic_id}/{run.partition} [{run.base_offset}, {run.last_offset}]"
    end = run.position + run.length
    if not any(
        (sealed.topic_id, sealed.partition) == (run.topic_id, run.partition)
        and sealed.position <= run.position
        and end <= sealed.position + sealed.length
        and _may_hold(sealed, run)
        for sealed in footer.runs
    ):
        return f"{name} is not within its partition's bytes, or not within their offsets"
    try:
        batches = index_batches(data, run.position, end)
    except ValueError as error:
        return f"{name} does not lie on batch borders: {error}"
    records = int((batches["last_offset_delta"] + 1).sum())
    if records != run.last_offset - run.base_offset + 1:
        return f"{name} refers to bytes with {records} records"
    return None


def _may_hold(sealed: FooterRun, run: SegmentRun) -> bool:
    """A merged segment's footer must agree with the run's offsets. An uploaded segment has no offsets yet."""
    if sealed.base_offset is None or sealed.last_offset is None:
        return True
    return sealed.base_offset <= run.base_offset and run.last_offset <= sealed.last_offset


@dataclass(slots=True, kw_only=True)
class OffsetCoverage:
    """The extent of the runs so far: `reached` is the first offset after them, None before the first run."""

    reached: int | None = None
    runs: int = 0
    length: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def next_from(self) -> Offset:
        return Offset(self.reached or 0)

    def add(self, chunk: LogChunk, *, is_last: bool) -> None:
        for run in chunk.runs:
            self._follow(run, chunk.log_start_offset)
        if is_last:
            self._end(chunk)

    def _follow(self, run: ChunkRun, log_start: int) -> None:
        """Below the log start no run is needed."""
        expected = log_start if self.reached is None else self.reached
        if run.base_offset > max(expected, log_start):
            self.faults.append(f"no run holds offsets [{max(expected, log_start)}, {run.base_offset})")
        elif self.reached is not None and run.base_offset < self.reached:
            self.faults.append(f"two runs hold offsets [{run.base_offset}, {self.reached})")
        self.reached = max(self.reached or 0, run.last_offset + 1)
        self.runs += 1
        self.length += run.length

    def _end(self, chunk: LogChunk) -> None:
        reached = max(self.reached or 0, chunk.log_start_offset)
        if reached < chunk.high_watermark:
            self.faults.append(
                f"no run holds offsets [{reached}, {chunk.high_watermark}), the end of the log"
            )
        elif reached > chunk.high_watermark:
            self.faults.append(f"runs reach to {reached}, past the high watermark {chunk.high_watermark}")


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
    doctor = _Doctor(sequencer, store, cluster, chart, settings, verify_contents)
    await doctor.check_ownership()
    await doctor.check_journal()
    await doctor.check_keys()
    await doctor.check_segments()
    await doctor.check_partitions()
    await doctor.check_producers()
    await doctor.check_history()
    return chart.diagnosis(contents_verified=verify_contents)


class _Doctor:
    """The direction from the database to the bucket."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        cluster: str,
        chart: Chart,
        settings: DoctorSettings,
        verify_contents: bool,
    ) -> None:
        self._sequencer = sequencer
        self._database = sequencer.inspection
        self._store = store
        self._key_objects = KeyObjects(store, cluster)
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
            what = (
                f"its last entry is {behind_s:.0f} s old, and segments were committed since: does an "
                "agent with the"
            )
            self._found(
                Fault.OLD_JOURNAL, "the journal", f"{what} role jobs run, and can it write to the bucket?"
            )

    async def check_keys(self) -> None:
        """Checks that the bucket has each key of an encrypted topic, for a rebuilt log."""
        page: list[WrappedKey] = []
        async for one in self._sequencer.topic_keys.all():
            page.append(one.key)
            if len(page) == self._page:
                await self._for_each(page, self._check_key)
                page = []
        await self._for_each(page, self._check_key)

    async def _check_key(self, key: WrappedKey) -> None:
        what = "a rebuilt log could not read the topic; `tidelog keys rewrap` writes it again"
        place = (key.topic_id, key.key_id)
        try:
            if (await self._key_objects.get(*place)).wrapped == key.wrapped:
                return
            fault, why = Fault.CORRUPT_OBJECT, "it differs from the database"
        except CorruptKeyObject as error:
            fault, why = Fault.CORRUPT_OBJECT, str(error)
        except ObjectNotFound:
            fault, why = Fault.MISSING_OBJECT, "it is a topic's key"
        if await self._sequencer.topic_keys.of_id(*place) == key:  # neither rewrapped nor destroyed meanwhile
            self._found(fault, self._key_objects.object_key(*place), f"{why}: {what}")

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
        data = await self._store.get(segment.object_key)
        if is_inline(segment.object_key):
            return _fault_of_size(segment, len(data)) or _faults_of_marker(data)
        runs = await self._database.runs_of_segments([segment.segment_id])
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
            self._found(
                Fault.DANGLING_RUN, f"{topic_id}/{partition}", "it has runs, but the partition is gone"
            )

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
                    what=(
                        f"run [{run.base_offset}, {run.last_offset}] is in segment {run.segment_id}, "
                        "which is "
                    )
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
                Fault.PRODUCER_STATE,
                f"{topic_id}/{partition}",
                f"the state of producer {producer_id} makes no sense",
            )

    async def check_history(self) -> None:
        """Checks every file that a retained snapshot may name."""
        last = ""
        while tables := await self._sequencer.history.tables(last, self._page):
            for table in tables:
                await self._check_history_of(table)
            last = tables[-1].topic_name

    async def _check_history_of(self, table: HistoryTable) -> None:
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
        for key in sorted(
            await self._sequencer.history.live_among(missing)
        ):  # it may have become garbage meanwhile
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


def _faults_of_marker(data: Buffer) -> list[str]:
    view = memoryview(data)
    try:
        header = read_header(view)
        check_crc(view, header)
    except (ValueError, InvalidBatch) as error:
        return [str(error)]
    return [] if header.is_control and header.size_bytes == len(view) else ["it is no control batch"]


def _fault_of_size(segment: ReferencedSegment, size_bytes: int) -> list[str]:
    if size_bytes == segment.size_bytes:
        return []
    return [f"it has {size_bytes} bytes, committed were {segment.size_bytes}"]
