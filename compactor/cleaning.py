"""Log compaction in the agents (docs/design/log-compaction.md): finds partitions that are due, and cleans one
after the other.

A cleaning reads the dirty part of a partition and notes the latest offset of each key. Then it goes over the
whole log below, writes what stays of each stretch of runs into new objects, and swaps the coordinates as
merging does. Offsets never move.

Promises:
- Readers find every record that stays at every moment.
- The worker may be killed, paused or cut off at any point. What it had published stays right: a record went
  only because a later one of its key is there. Nothing is called clean before all of it is.
- A stretch that changes meanwhile is cleaned again, and a damaged run stays as it is.
- Records of aborted transactions go. A cleaning ends at the last stable offset at most: the batches behind
  its end stay as they are.
- A cleaning ends before the first run that the journal does not have. So a log that is rebuilt from the
  bucket alone shows no record twice.
- Sealed batches are opened in memory only. What is written for a topic that has keys is sealed with its
  newest one. While a key cannot be had, the topic's partitions wait for the next discovery, and others go on.
- Memory is bounded by `clean_keys_bytes` and `merge_object_bytes`. If there are more keys than fit, there are
  several passes over the log, each for some of the keys.
"""

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compactor.cleaning_rules import (
    is_dirty_enough,
    is_due,
    is_too_young,
    may_drop_tombstones,
    tombstones_to,
    with_mark,
)
from compactor.job import Step
from compactor.merge_copy import ByteRange, Layout, ReadRanges, fault_of_run, ranges_to_read
from compactor.merge_plan import Swap
from compactor.merging import ClaimLost, publish_until_known
from compactor.metrics import CleaningMetrics
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.cluster.ownership import OwnershipUnconfirmed
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.housekeeping.cleanings import CleaningClaim, Cleanings, CleaningState, RunToClean
from sequencer.housekeeping.merge_values import (
    MergeClaim,
    MergeOutput,
    PartitionKey,
    RunToMerge,
)
from sequencer.housekeeping.merges import BEFORE_ALL
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topic_key_cache import TopicKeys
from storage.arrow.aborted_batches import are_markers, left_out
from storage.arrow.arrow_columns import decode_pieces
from storage.arrow.arrow_encoding import encode_span, timestamps_ms
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.latest_keys import SLOT_BYTES, LatestKeys
from storage.batches.batch_validation import NO_TIMESTAMP_MS, InvalidBatch
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import Compression, index_batches, relative_offsets
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import SealBroken, sealed_records
from storage.encryption.topic_keyring import TopicKeyring, opened_batches
from storage.identifiers import Offset, Partition, SegmentId, TopicId, new_segment_id
from storage.segments.keys import merged_key
from storage.stores.object_store import ObjectNotFound, ObjectStore, StoreUnavailable
from storage.stores.side_by_side import side_by_side
from storage.threads import Threads

log = logging.getLogger("tidelog")

_WRITER = "clean"
_READ_BYTES = 4 << 20
_BATCH_BYTES = 1 << 20
_WAITING_BYTES = 32 << 20
"""Decoded records that wait to be encoded: most stretches are encoded only if they lose records."""
_NO_RECORDS = pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
_RUNS_AT_A_TIME = 1000
_MOST_RUNS = 50_000
"""Of the dirty part in one cleaning; the next one goes on."""
_FEW_RUNS = 16
"""A stretch of more runs is made one run, even if all its records stay."""
_MOST_OFFSETS = 1 << 30
"""Of a stretch, so that one empty batch can span it."""
_MOST_PASSES = 16
"""Beyond them the cleaning ends earlier, and the next one goes on: a cleaning that is killed begins again."""
_MOST_HELD = 5000
"""What is waiting is published before more objects are held."""
_ATTEMPTS = 5
_RELEASE_TIMEOUT_S = 2.0
_KEY_LOG_INTERVAL_S = 600.0
"""Between two log lines of keys that could not be had."""


_EXPECTED = (ClaimLost, OwnershipUnconfirmed, SequencerUnavailable, CommitOutcomeUnknown, StoreUnavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Neighbouring runs that are read, filtered and swapped together."""

    runs: tuple[RunToClean, ...]

    @property
    def offsets(self) -> tuple[Offset, Offset]:
        return Offset(self.runs[0].run.base_offset), Offset(self.runs[-1].run.last_offset + 1)

    @property
    def length(self) -> int:
        return sum(each.run.length for each in self.runs)

    @property
    def swap(self) -> Swap:
        return Swap(replaced=tuple(each.run for each in self.runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cleaned:
    """What stays of a stretch. `data` None: the stretch stays as it is."""

    stretch: _Stretch
    data: bytes | None
    records_removed: int = 0
    oldest_tombstone: int = -1
    min_timestamp_ms: int = NO_TIMESTAMP_MS
    max_timestamp_ms: int = NO_TIMESTAMP_MS


@dataclass(slots=True, kw_only=True)
class _Cleaning:
    """One claim in progress."""

    claim: CleaningClaim
    config: TopicConfig
    began_s: float
    held_until_s: float
    dirty_from: Offset
    """Where the records begin that no cleaning has looked at."""
    end: Offset
    """The records from this offset on stay. A batch begins here."""
    latest: LatestKeys = field(default_factory=lambda: LatestKeys(0))
    tombstones_to: int = 0
    waiting: list[_Cleaned] = field(default_factory=list)
    """What was not published yet."""
    missed: list[tuple[Offset, Offset]] = field(default_factory=list)
    """Stretches that changed meanwhile."""
    held: set[SegmentId] = field(default_factory=set)
    """The objects that were read since the last publish."""
    undamaged_to: int = 1 << 63
    """Where the first stretch begins that stays with all its records, as it is damaged."""
    clean_bytes: int = 0
    """Of this pass, as the next field."""
    oldest_tombstone: int = -1
    """The first tombstone or marker that stays below `end`, or -1."""
    records_removed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def state(self) -> CleaningState:
        return self.claim.state

    @property
    def waiting_bytes(self) -> int:
        return sum(len(each.data or b"") for each in self.waiting)


class CleaningDiscoveryJob:
    """Goes over the partitions of compacted topics, and notes those that are due."""

    name = "cleaning-discovery"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.clean_interval_s
        self._settings = settings
        self._cleanings = sequencer.cleanings
        self._cap = settings.clean_partitions_per_step

    async def step(self, progress: str | None) -> Step:
        """Handles one page."""
        after: PartitionKey = BEFORE_ALL
        if progress is not None:
            topic_id, partition = json.loads(progress)
            after = TopicId(UUID(topic_id)), Partition(partition)
        page = await self._cleanings.page(after, self._cap)
        due = [state.key for state in page if is_due(state, _config(state, self._settings))]
        if due:
            await self._cleanings.mark_due(due)
        more = len(page) == self._cap
        last = page[-1].key if more else None
        return Step(
            progress=None if last is None else json.dumps([str(last[0]), last[1]]),
            more=more,
            done={"due": len(due)},
        )


class Cleaner:
    """Cleans beside the jobs, in every agent, one partition at a time. `load` tells how busy the agent in
    this process is, from 0 to 1."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        cluster: str,
        settings: HousekeeperSettings,
        metrics: CleaningMetrics,
        load: Callable[[], float] = lambda: 0.0,
        *,
        keys: TopicKeys | None = None,
    ) -> None:
        """`keys` are those of encrypted topics, which wait without it."""
        self._sequencer = sequencer
        self._store = store
        self._cluster = cluster
        self._settings = settings
        self._metrics = metrics
        self._load = load
        self._keys = keys
        self._key_logged_s = float("-inf")
        self._threads = Threads("clean", 1)

    async def run(self) -> None:
        """Runs until cancelled. Logs the first of successive failures, and tries again."""
        failures = 0
        while True:
            try:
                worked = await self.clean_once()
            except Exception as error:
                worked, failures = False, failures + 1
                self._metrics.failed()
                if failures == 1 and isinstance(error, _EXPECTED):
                    log.warning("cleaning: interrupted, retrying", extra={"error": str(error)})
                elif failures == 1:
                    log.error("cleaning: broke, retrying", exc_info=error)
            else:
                failures = 0
            if not worked:
                await asyncio.sleep(self._settings.clean_interval_s * random.uniform(0.8, 1.2))

    async def clean_once(self) -> bool:
        """Cleans the partition that has been due for longest. False if none is due.

        Raises SequencerUnavailable, CommitOutcomeUnknown, StoreUnavailable, OwnershipUnconfirmed or
        ClaimLost.
        """
        began_s = time.monotonic()
        claim = await self._sequencer.cleanings.claim(self._settings.clean_lease_s)
        if claim is None:
            return False
        cleaning = _Cleaning(
            claim=claim,
            config=_config(claim.state, self._settings),
            dirty_from=Offset(max(claim.state.clean_to, claim.state.log_start_offset)),
            end=claim.state.clean_to,
            began_s=began_s,
            held_until_s=began_s + self._settings.clean_lease_s,
        )
        holding = asyncio.create_task(self._keep_holding(cleaning))
        is_done, is_still_due = False, True
        try:
            is_done = await self._clean(cleaning)
        except KeyUnavailable as error:
            is_still_due = False  # the next discovery finds it
            self._note_missing_key(cleaning.state, error)
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            if not is_done:
                with contextlib.suppress(TimeoutError, SequencerUnavailable, CommitOutcomeUnknown):
                    async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                        await self._sequencer.cleanings.let_go(claim, is_still_due=is_still_due)
                        await self._release(cleaning)
        return True

    async def _clean(self, cleaning: _Cleaning) -> bool:
        """True if the claim has ended."""
        cleaning.tombstones_to = tombstones_to(cleaning.state, cleaning.config)
        dirty = await self._find_end(cleaning)
        if dirty is None:
            await self._sequencer.cleanings.let_go(cleaning.claim, is_still_due=False)
            return True
        if not await self._sequencer.cleanings.note_tombstones(cleaning.claim, cleaning.tombstones_to):
            raise ClaimLost("the lease of the cleaning has ended")
        await self._note_keys(cleaning, _one_by_one(dirty), most_passes=_MOST_PASSES)
        del dirty
        while True:
            cleaning.clean_bytes, cleaning.oldest_tombstone = 0, -1
            await self._filter_all(cleaning)
            if not cleaning.latest.next_pass():
                return await self._finish(cleaning)
            await self._note_keys(cleaning, self._runs(cleaning, cleaning.dirty_from, cleaning.end))

    # --- the latest offset of each key

    async def _find_end(self, cleaning: _Cleaning) -> Sequence[RunToClean] | None:
        """Finds the dirty runs to clean, `end` behind them, and the memory for their keys. None: there is
        nothing to do."""
        state, config, stable_to = cleaning.state, cleaning.config, cleaning.state.cleanable_to
        dirty: list[RunToClean] = []
        dirty_bytes = 0
        oldest_ms: int | None = None
        end = cleaning.end
        async for each in self._runs(cleaning, cleaning.dirty_from, stable_to):
            run = each.run
            may_go = run.last_offset < stable_to and each.is_in_journal
            if len(dirty) == _MOST_RUNS or not may_go or is_too_young(run.max_timestamp_ms, state, config):
                break
            if oldest_ms is None:
                committed_ms = int(each.committed_at.timestamp() * 1000)
                oldest_ms = run.min_timestamp_ms if run.min_timestamp_ms >= 0 else committed_ms
            dirty.append(each)
            dirty_bytes, end = dirty_bytes + run.length, Offset(run.last_offset + 1)
        if len(dirty) < _MOST_RUNS and not is_dirty_enough(dirty_bytes, state, config, oldest_ms):
            return () if may_drop_tombstones(state, config) else None
        cleaning.end = end
        needed = (3 * (end - cleaning.dirty_from) + 16) * SLOT_BYTES
        cleaning.latest = LatestKeys(min(self._settings.clean_keys_bytes, needed))
        return dirty

    async def _note_keys(
        self, cleaning: _Cleaning, runs: AsyncIterator[RunToClean], most_passes: int | None = None
    ) -> None:
        """Puts the keys of the dirty runs into `latest`, as far as they are for this pass. Moves `end` to
        where `most_passes` are reached."""
        aborted = _Aborted(self._sequencer.cleanings, cleaning.state.key, cleaning.dirty_from)
        async for stretch in _stretches(runs, self._settings.merge_run_bytes):
            read = await self._read(cleaning, stretch)
            if read is None:
                raise ClaimLost("the dirty part of the log changed")
            overlapping = await aborted.overlapping(stretch)
            keyring = await self._keyring(cleaning)
            took_s = time.monotonic()
            await self._threads.run(_put, cleaning, stretch, read, overlapping, keyring)
            await self._give_way(time.monotonic() - took_s)
            if most_passes is not None and cleaning.latest.passes >= most_passes:
                cleaning.end = Offset(min(stretch.offsets[1], cleaning.end))
                return

    async def _runs(self, cleaning: _Cleaning, start: Offset, end: Offset) -> AsyncIterator[RunToClean]:
        while start < end:
            page = await self._sequencer.cleanings.runs(cleaning.state.key, start, end, _RUNS_AT_A_TIME)
            for run in page:
                yield run
            if len(page) < _RUNS_AT_A_TIME:
                return
            start = Offset(page[-1].run.last_offset + 1)

    # --- what stays

    async def _filter_all(self, cleaning: _Cleaning) -> None:
        """Cleans the log below `end`."""
        parts = [(cleaning.state.log_start_offset, cleaning.end)]
        for _ in range(_ATTEMPTS):
            reached = Offset(0)
            for start, end in sorted(parts):
                if reached < end:  # else a merge has joined runs of both parts
                    reached = await self._filter(cleaning, max(start, reached), end)
            await self._publish_waiting(cleaning)
            parts, cleaning.missed = cleaning.missed, []
            if not parts:
                return
        raise ClaimLost(f"the log changed during each of {_ATTEMPTS} attempts")

    async def _filter(self, cleaning: _Cleaning, start: Offset, end: Offset) -> Offset:
        """Cleans the runs of `[start, end)`. Returns the offset behind the last one."""
        reached = end
        aborted = _Aborted(self._sequencer.cleanings, cleaning.state.key, start)
        async for stretch in _stretches(self._runs(cleaning, start, end), self._settings.merge_run_bytes):
            await self._filter_stretch(cleaning, stretch, await aborted.overlapping(stretch))
            reached = stretch.offsets[1]
        return reached

    async def _filter_stretch(
        self, cleaning: _Cleaning, stretch: _Stretch, aborted: NDArray[np.int64]
    ) -> None:
        is_too_much = cleaning.waiting_bytes + stretch.length > self._settings.merge_object_bytes
        if is_too_much or len(cleaning.held) >= _MOST_HELD:
            await self._publish_waiting(cleaning)
        read = await self._read(cleaning, stretch) if await self._hold(cleaning, stretch) else None
        if read is None:
            cleaning.missed.append(stretch.offsets)
            return
        keyring = await self._keyring(cleaning)
        took_s = time.monotonic()
        cleaned = await self._threads.run(
            _cleaned, cleaning, stretch, read, aborted, keyring, self._settings.merge_object_bytes
        )
        await self._give_way(time.monotonic() - took_s)
        if cleaned is None:
            self._alarm(stretch)
            cleaning.undamaged_to = min(cleaning.undamaged_to, stretch.offsets[0])
            cleaned = _Cleaned(stretch=stretch, data=None)
        if cleaned.data is None:
            _count(cleaning, cleaned)
            return
        cleaning.waiting.append(cleaned)

    async def _keyring(self, cleaning: _Cleaning) -> TopicKeyring | None:
        """As `TopicKeys.all_of`."""
        state = cleaning.state
        if self._keys is None:
            return None
        return await self._keys.all_of(state.topic_id, state.config)

    async def _hold(self, cleaning: _Cleaning, stretch: _Stretch) -> bool:
        """Holds the stretch's objects until what was read of them is published: an erasure waits for that.
        False: runs were swapped since they were listed."""
        segment_ids = {each.run.segment_id for each in stretch.runs}
        cleaning.held |= segment_ids
        held = await self._sequencer.holds.take(
            cleaning.claim.job_id, segment_ids, lease_s=self._settings.clean_lease_s
        )
        return held == segment_ids and await self._is_there(cleaning, stretch)

    async def _release(self, cleaning: _Cleaning) -> None:
        cleaning.held = set()
        with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):  # else they lapse
            await self._sequencer.holds.release(cleaning.claim.job_id)

    async def _read(self, cleaning: _Cleaning, stretch: _Stretch) -> ReadRanges | None:
        """None if an object is gone because its runs were swapped since. Runs that are still there without
        their object are left out, and so have a fault."""
        keys = {each.run.segment_id: each.object_key for each in stretch.runs}
        read = ReadRanges()
        waiting = iter(ranges_to_read([stretch.swap], _READ_BYTES))
        gone: list[ByteRange] = []

        async def take_turns() -> None:
            for span in waiting:
                try:
                    read.add(span, await self._store.get(keys[span.segment_id], span.start, span.end))
                except ObjectNotFound:
                    gone.append(span)

        await side_by_side(take_turns() for _ in range(self._settings.merge_requests))
        return None if gone and not await self._is_there(cleaning, stretch) else read

    async def _is_there(self, cleaning: _Cleaning, stretch: _Stretch) -> bool:
        """True if the stretch's runs were not swapped since."""
        key, (start, end) = cleaning.state.key, stretch.offsets
        found = await self._sequencer.cleanings.runs(key, start, end, len(stretch.runs) + 1)
        return tuple(found) == stretch.runs

    # --- publishing

    async def _publish_waiting(self, cleaning: _Cleaning) -> None:
        """Writes one object of what waits, swaps its runs, and releases what was held."""
        waiting, cleaning.waiting = cleaning.waiting, []
        if not waiting:
            await self._release(cleaning)
            return
        segment_id, job_id = new_segment_id(), cleaning.claim.job_id
        layout = Layout(segment_id, _WRITER, run_bytes=self._settings.merge_run_bytes)
        for each in waiting:
            assert each.data is not None, "what stays as it is does not wait"
            layout.add_rebuilt(each.stretch.swap, each.data, each.min_timestamp_ms, each.max_timestamp_ms)
        laid_out = layout.finish()
        assert laid_out is not None, "something waits"
        key = merged_key(self._cluster, segment_id)
        await self._sequencer.reservations.reserve(
            {segment_id: key}, self._settings.reservation_lease_s, _WRITER
        )
        await self._sequencer.holds.take(job_id, [segment_id], lease_s=self._settings.clean_lease_s)
        if not await self._sequencer.holds.renew(job_id, lease_s=self._settings.clean_lease_s):
            raise ClaimLost("a hold has ended: what was read may have been erased since")
        await self._store.put(key, laid_out.chunks)
        newest = max(each.committed_at for one in waiting for each in one.stretch.runs)
        output = MergeOutput(
            segment_id=segment_id,
            object_key=key,
            size_bytes=laid_out.size_bytes,
            tier=1,
            newest=newest,
            may_be_merged_again=self._settings.merge_tiers > 1,
        )
        merge = MergeClaim(job_id=job_id, tier=output.tier, inputs={}, newest=newest)
        done = await publish_until_known(
            self._sequencer, merge, output, laid_out.swaps, held_until_s=lambda: cleaning.held_until_s
        )
        for place, each in enumerate(waiting):
            if place in done:
                _count(cleaning, each)
            else:
                cleaning.missed.append(each.stretch.offsets)
        await self._release(cleaning)

    async def _finish(self, cleaning: _Cleaning) -> bool:
        state = cleaning.state
        since_ms = state.now_ms + int((time.monotonic() - cleaning.began_s) * 1000) + 1
        oldest = cleaning.oldest_tombstone
        mark_at = Offset(min(cleaning.end, cleaning.undamaged_to))
        markers_gone_to = Offset(min(cleaning.tombstones_to, cleaning.undamaged_to))
        await self._sequencer.cleanings.forget_aborted(state.key, markers_gone_to)
        is_ours = await self._sequencer.cleanings.finish(
            cleaning.claim,
            clean_to=cleaning.end,
            clean_bytes=cleaning.clean_bytes,
            marks=with_mark(state, mark_at, since_ms, cleaning.config),
            oldest_tombstone=None if oldest < 0 else Offset(oldest),
        )
        self._metrics.cleaned(cleaning.records_removed, cleaning.bytes_in, cleaning.bytes_out)
        log.info(
            "cleaned",
            extra={
                "topic_id": str(state.topic_id),
                "partition": state.partition,
                "clean_to": cleaning.end,
                "records_removed": cleaning.records_removed,
                "bytes_in": cleaning.bytes_in,
                "bytes_out": cleaning.bytes_out,
                "seconds": round(time.monotonic() - cleaning.began_s, 1),
            },
        )
        return is_ours

    # --- leases and pace

    async def _keep_holding(self, cleaning: _Cleaning) -> None:
        """Renews the claim and its hold until cancelled, or until the claim is lost."""
        lease_s = self._settings.clean_lease_s
        while True:
            await asyncio.sleep(lease_s / 4)
            asked_s = time.monotonic()
            with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):
                if not await self._sequencer.cleanings.renew(cleaning.claim, lease_s):
                    return
                await self._sequencer.holds.renew(cleaning.claim.job_id, lease_s=lease_s)
                cleaning.held_until_s = asked_s + lease_s

    async def _give_way(self, took_s: float) -> None:
        """Leaves the processor to the agent, for longer the busier that is."""
        load = min(self._load(), 0.9)
        await asyncio.sleep(took_s * load / (1 - load))

    def _note_missing_key(self, state: CleaningState, error: KeyUnavailable) -> None:
        self._metrics.failed()
        now_s = time.monotonic()
        if now_s < self._key_logged_s + _KEY_LOG_INTERVAL_S:
            return
        self._key_logged_s = now_s
        log.warning(
            "cleaning: a topic waits for its key; others go on",
            extra={"topic_id": str(state.topic_id), "partition": state.partition, "error": str(error)},
        )

    def _alarm(self, stretch: _Stretch) -> None:
        self._metrics.damaged()
        first = stretch.runs[0]
        log.error(
            "cleaning: runs are not what they should be; they stay as they are",
            extra={
                "topic_id": str(first.run.topic_id),
                "partition": first.run.partition,
                "base_offset": first.run.base_offset,
                "object_keys": sorted({each.object_key for each in stretch.runs})[:5],
            },
        )


def _config(state: CleaningState, settings: HousekeeperSettings) -> TopicConfig:
    """The topic's settings. Tombstones and markers stay at least for the garbage grace. Until then agents may
    have cached where earlier runs are, and would read an aborted record without its marker."""
    config, grace_ms = TopicConfig.of(state.config), int(settings.garbage_grace_s * 1000)
    return replace(config, delete_retention_ms=max(config.delete_retention_ms, grace_ms))


async def _one_by_one(runs: Sequence[RunToClean]) -> AsyncIterator[RunToClean]:
    for each in runs:
        yield each


async def _stretches(runs: AsyncIterator[RunToClean], most_bytes: int) -> AsyncIterator[_Stretch]:
    """Puts neighbours together, up to the bounds of a stretch. A longer run is a stretch by itself."""
    some: list[RunToClean] = []
    length = 0
    async for run in runs:
        if some and (
            length + run.run.length > most_bytes
            or run.run.last_offset - some[0].run.base_offset >= _MOST_OFFSETS
            or len(some) == _RUNS_AT_A_TIME
        ):
            yield _Stretch(runs=tuple(some))
            some, length = [], 0
        some.append(run)
        length += run.run.length
    if some:
        yield _Stretch(runs=tuple(some))


class _Aborted:
    """The aborted transactions of a partition, for stretches in the order of their offsets. Holds those that
    overlap the last one or, as far as it had to look for them, lie behind it."""

    def __init__(self, cleanings: Cleanings, key: PartitionKey, start: Offset) -> None:
        self._cleanings = cleanings
        self._key = key
        self._next = start
        self._known_to = -1
        """All that begin below this offset are known."""
        self._entries: NDArray[np.int64] = np.empty((0, 3), np.int64)

    async def overlapping(self, stretch: _Stretch) -> NDArray[np.int64]:
        """In the order of their markers, by `columns_of`."""
        start, end = stretch.offsets
        parts = [self._entries]
        while self._known_to < end:
            page = await self._cleanings.aborted(self._key, self._next)
            if len(page.aborted):
                self._next = Offset(int(page.aborted[-1, 0]) + 1)
            parts.append(page.aborted)
            self._known_to = page.stable_offset
        entries = np.concatenate(parts)
        self._entries = entries[np.searchsorted(entries[:, 0], start) :]
        return self._entries[self._entries[:, 1] < end]


def _put(
    cleaning: _Cleaning,
    stretch: _Stretch,
    read: ReadRanges,
    aborted: NDArray[np.int64],
    keyring: TopicKeyring | None,
) -> None:
    """Puts the dirty records. What does not decode is left out: it stays in the log, too. Raises
    KeyUnavailable.
    """
    for each in stretch.runs:
        found, run = read.of(each.run), each.run
        if fault_of_run(run, found) is not None:
            continue
        with contextlib.suppress(InvalidBatch, SealBroken, ValueError):
            data = memoryview(opened_batches(keyring, found, run.partition))
            batches = _Batches(run, data)
            is_left_out = left_out(data, batches.positions, batches.base_offsets, aborted)
            is_left_out |= batches.base_offsets >= cleaning.end
            for rows, _ in decode_pieces(data, run.base_offset, is_left_out=is_left_out):
                offsets = rows.column("offset").to_numpy()
                first, behind = np.searchsorted(offsets, [cleaning.dirty_from, cleaning.end])
                cleaning.latest.put(rows.slice(first, behind - first))


class _Batches:
    """Where the batches of a run are, and how many offsets each takes."""

    def __init__(self, run: RunToMerge, data: memoryview) -> None:
        index = index_batches(data, 0, len(data))
        self.positions = np.ascontiguousarray(index["position"])
        self.next_positions = self.positions + index["size_bytes"]
        self.offsets = index["last_offset_delta"] + 1
        self.base_offsets = run.base_offset + relative_offsets(index)


class _Rebuilt:
    """Encodes what stays of a stretch, in batches of about 1 MiB, some MiB of records at a time. Beyond
    `most_bytes` the topic's compression gives way to zstd: a few bytes may stand for very many."""

    def __init__(self, base_offset: Offset, compression: Compression, most_bytes: int) -> None:
        self._reached = int(base_offset)
        self._compression = compression
        self._most_bytes = most_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._done: list[Buffer] = []
        self._done_bytes = 0
        self.min_timestamp_ms: int | None = None
        self.max_timestamp_ms = NO_TIMESTAMP_MS

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds records behind those before."""
        if not rows.num_rows:
            return
        if sum(each.nbytes for each in self._waiting) >= _WAITING_BYTES:
            self._encode(int(rows.column("offset")[0].as_py()) - 1)
        times_ms = timestamps_ms(rows.column("timestamp"))
        self.add_times(int(times_ms.min()), int(times_ms.max()))
        self._waiting.append(rows)

    def add_as_they_are(self, batches: memoryview, base_offset: int, next_offset: int) -> None:
        """Adds batches behind the records before, from `base_offset` up to `next_offset`."""
        self._encode(base_offset - 1)
        self._append(batches, next_offset)

    def add_times(self, min_timestamp_ms: int, max_timestamp_ms: int) -> None:
        known_ms = min_timestamp_ms if self.min_timestamp_ms is None else self.min_timestamp_ms
        self.min_timestamp_ms = min(known_ms, min_timestamp_ms)
        self.max_timestamp_ms = max(self.max_timestamp_ms, max_timestamp_ms)

    def finish(self, last_offset: int) -> bytes:
        self._encode(last_offset)
        return b"".join(self._done)

    def _encode(self, last_offset: int) -> None:
        if self._reached > last_offset:
            return
        if self._done_bytes > self._most_bytes:
            self._compression = Compression.ZSTD
        joined = pa.Table.from_batches(self._waiting, RECORD_SCHEMA).combine_chunks().to_batches()
        assert len(joined) <= 1, "some MiB fit into one column"
        data = encode_span(
            joined[0] if joined else _NO_RECORDS,
            self._compression,
            base_offset=self._reached,
            last_offset=last_offset,
            batch_bytes=_BATCH_BYTES,
        )
        self._waiting = []
        self._append(data, last_offset + 1)

    def _append(self, batches: Buffer, next_offset: int) -> None:
        self._done.append(batches)
        self._done_bytes += len(batches)
        self._reached = next_offset


def _cleaned(
    cleaning: _Cleaning,
    stretch: _Stretch,
    read: ReadRanges,
    aborted: NDArray[np.int64],
    keyring: TopicKeyring | None,
    most_bytes: int,
) -> _Cleaned | None:
    """What stays of the stretch, sealed if the topic has keys. None if some of it is damaged. Raises
    KeyUnavailable.
    """
    start, end = stretch.offsets
    compression = cleaning.config.compression
    rebuilt = _Rebuilt(start, Compression.ZSTD if compression is None else compression, most_bytes)
    removed, oldest_tombstone = 0, -1
    for each in stretch.runs:
        found = read.of(each.run)
        if fault_of_run(each.run, found) is not None:
            return None
        try:
            data = memoryview(opened_batches(keyring, found, each.run.partition))
            removed_here, oldest_here = _add_cleaned(rebuilt, cleaning, each.run, data, aborted)
        except (InvalidBatch, SealBroken, ValueError):
            return None
        removed += removed_here
        oldest_tombstone = oldest_here if oldest_tombstone < 0 else oldest_tombstone
    if not removed and len(stretch.runs) <= _FEW_RUNS:
        return _Cleaned(stretch=stretch, data=None, oldest_tombstone=oldest_tombstone)
    stays = rebuilt.finish(end - 1)
    if keyring is not None:
        stays = sealed_records(stays, cleaning.state.partition, keyring.newest)
    return _Cleaned(
        stretch=stretch,
        data=stays,
        records_removed=removed,
        oldest_tombstone=oldest_tombstone,
        min_timestamp_ms=NO_TIMESTAMP_MS if rebuilt.min_timestamp_ms is None else rebuilt.min_timestamp_ms,
        max_timestamp_ms=rebuilt.max_timestamp_ms,
    )


def _add_cleaned(
    rebuilt: _Rebuilt,
    cleaning: _Cleaning,
    run: RunToMerge,
    data: memoryview,
    aborted: NDArray[np.int64],
) -> tuple[int, int]:
    """Adds what stays of a run: below `end` records and markers, from there on all batches. Returns how many
    records went, and the offset of the first tombstone or marker that stays below `end`, or -1."""
    batches = _Batches(run, data)
    end = int(np.searchsorted(batches.base_offsets, cleaning.end))
    positions, bases = batches.positions[:end], batches.base_offsets[:end]
    is_left_out = left_out(data, positions, bases, aborted)
    is_marker = are_markers(data, positions) & (bases >= cleaning.tombstones_to)
    removed, oldest = int(batches.offsets[:end][is_left_out & ~is_marker].sum()), []
    start = 0
    for marker in [*np.flatnonzero(is_marker).tolist(), end]:
        if marker > start:
            records = data[positions[start] : batches.next_positions[marker - 1]]
            some_removed, tombstone = _add_records(
                rebuilt, cleaning, records, int(bases[start]), is_left_out[start:marker]
            )
            removed += some_removed
            oldest += [tombstone]
        if marker < end:
            base = int(bases[marker])
            rebuilt.add_as_they_are(data[positions[marker] : batches.next_positions[marker]], base, base + 1)
            oldest += [base]
        start = marker + 1
    if end < len(batches.positions):
        behind = data[batches.positions[end] :]
        rebuilt.add_as_they_are(behind, int(batches.base_offsets[end]), run.last_offset + 1)
        rebuilt.add_times(run.min_timestamp_ms, run.max_timestamp_ms)
    return removed, next((offset for offset in oldest if offset >= 0), -1)


def _add_records(
    rebuilt: _Rebuilt,
    cleaning: _Cleaning,
    data: memoryview,
    base_offset: int,
    is_left_out: NDArray[np.bool_],
) -> tuple[int, int]:
    """As `_add_cleaned`, for batches below `end` without markers that stay."""
    removed, oldest_tombstone = 0, -1
    for rows, _ in decode_pieces(data, base_offset, is_left_out=is_left_out):
        kept, tombstone = cleaning.latest.kept(rows, tombstones_to=cleaning.tombstones_to, end=cleaning.end)
        oldest_tombstone = tombstone if oldest_tombstone < 0 else oldest_tombstone
        removed += rows.num_rows - int(np.count_nonzero(kept))
        rebuilt.add(rows.filter(pa.array(kept)))
    return removed, oldest_tombstone


def _count(cleaning: _Cleaning, cleaned: _Cleaned) -> None:
    """Adds what was done with a stretch. Of the one that holds the end, a part is clean."""
    length = cleaned.stretch.length
    stays = length if cleaned.data is None else len(cleaned.data)
    start, end = cleaned.stretch.offsets
    cleaning.clean_bytes += stays * min(cleaning.end - start, end - start) // (end - start)
    if cleaned.data is not None:
        cleaning.bytes_in += length
        cleaning.bytes_out += stays
        cleaning.records_removed += cleaned.records_removed
    if cleaned.oldest_tombstone >= 0 and (
        cleaning.oldest_tombstone < 0 or cleaned.oldest_tombstone < cleaning.oldest_tombstone
    ):
        cleaning.oldest_tombstone = cleaned.oldest_tombstone
