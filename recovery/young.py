"""Appends young segments to the log, in the order of their ids. They were uploaded and perhaps acknowledged,
and no journal entry names them.

Promises:
- Only segments whose every byte passes its checks are appended.
- They go through the agents' own commit, so an idempotent producer's batch is never in the log twice.
- Batches that came before their predecessors are tried again as long as others are accepted.
- What is refused in the end is listed.
- Batches of transactions are in the log as of open transactions, which the end of the recovery aborts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from recovery.holes import BatchMark
from recovery.plan import PartitionKey
from recovery.report import RecordsRefused, Report
from recovery.settings import RecoverySettings
from recovery.transactions import open_transactions
from sequencer.commits.commits import (
    Assigned,
    BatchOutcome,
    Committed,
    Duplicate,
    FencedEpoch,
    Outcomes,
    OutOfOrderSequence,
    SegmentRefused,
    SegmentToCommit,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
)
from sequencer.commits.outcomes import decode_outcomes
from sequencer.journal.recovery import WRITER, RecoverySession
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import index_batches, read_header
from storage.identifiers import NO_PRODUCER_ID, ObjectKey, Offset, Partition, ProducerId, SegmentId
from storage.segments.segment import CorruptSegment, empty_segment, verify_segment
from storage.segments.segment_batches import (
    COLUMNS,
    CRC,
    LENGTH,
    PARTITION,
    PRODUCER_ID,
    RECORDS,
    TOPIC,
    TRANSACTION,
    BatchTransaction,
    PlacedBatches,
)
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.side_by_side import side_by_side
from storage.threads import Threads

_MARK: Final = [TOPIC, PARTITION, LENGTH, RECORDS, PRODUCER_ID, CRC]
_MAY_BE_ACCEPTED_LATER = (OutOfOrderSequence, UnknownProducer)
_REASONS: Final[dict[type, str]] = {
    OutOfOrderSequence: "a batch of its producer is missing before it",
    UnknownProducer: "nothing is known of its producer, and it is not the first batch",
    FencedEpoch: "a newer epoch of its producer has written since",
    UnknownPartition: "its topic or partition is not known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Why a segment cannot be appended. `reason` is empty if it has no client's records."""

    reason: str


@dataclass(slots=True, kw_only=True)
class _Deferred:
    """A segment with refused batches that may be accepted after others."""

    to_commit: SegmentToCommit
    object_key: ObjectKey
    outcomes: list[BatchOutcome]


def segment_to_commit(segment_id: SegmentId, data: Buffer) -> SegmentToCommit | Unreadable:
    """Returns what an agent would commit, from a segment's bytes alone. A batch gets its run's minimum
    timestamp."""
    if data == empty_segment(segment_id):
        return Unreadable(reason="")  # an agent's test of the store
    try:
        footer = verify_segment(data)
    except CorruptSegment as corrupt:
        return Unreadable(reason=str(corrupt))
    if footer.segment_id != segment_id:
        return Unreadable(reason=f"it holds segment {footer.segment_id}")
    if footer.writer == WRITER:
        return Unreadable(reason="")  # of an unfinished recovery: it holds no records
    topic_ids = tuple(sorted({run.topic_id for run in footer.runs}))
    numbers = {topic_id: number for number, topic_id in enumerate(topic_ids)}
    columns: list[tuple[int, ...]] = []
    for run in footer.runs:
        for position in index_batches(data, run.position, run.position + run.length)["position"].tolist():
            header = read_header(data, position)
            columns.append(
                (
                    numbers[run.topic_id],
                    run.partition,
                    position,
                    header.size_bytes,
                    header.record_count,
                    run.min_timestamp_ms,
                    header.max_timestamp_ms,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.crc,
                    BatchTransaction.ADDED if header.is_transactional else BatchTransaction.NONE,
                )
            )
    placed = PlacedBatches(
        topic_ids=topic_ids, columns=np.array(columns, np.int64).reshape(-1, COLUMNS).T.copy()
    )
    return SegmentToCommit(segment_id=segment_id, size_bytes=len(data), batches=placed)


class YoungSegments:
    def __init__(
        self,
        session: RecoverySession,
        store: ObjectStore,
        settings: RecoverySettings,
        report: Report,
        in_the_log: Counter[BatchMark],
    ) -> None:
        """`in_the_log`: batches without a producer that are in the log, and may be in young segments, too."""
        self._session = session
        self._store = store
        self._settings = settings
        self._report = report
        self._in_the_log = in_the_log
        self._deferred: list[_Deferred] = []
        self._threads = Threads("young", 1)

    async def append(self, since: datetime | None, on_segments: Callable[[int, int], None]) -> None:
        """Appends all segments uploaded since then that the log does not know. Calls `on_segments` with
        (done, of)."""
        rows = await self._session.run("young_objects", since=since, writer=WRITER)
        self._report.young_segments = len(rows)
        for start in range(0, len(rows), self._settings.recovery_requests):
            group = rows[start : start + self._settings.recovery_requests]
            found = await side_by_side(self._read(row.segment_id, row.object_key) for row in group)
            readable: list[tuple[SegmentToCommit, ObjectKey]] = []
            for one, row in zip(found, group, strict=True):
                if isinstance(one, Unreadable):
                    if one.reason:
                        self._refuse(row.object_key, one.reason, None)
                elif row.outcome is None:
                    new = self._without_known(one)
                    if new is not None:
                        readable.append((new, row.object_key))
                else:
                    self._deferred.append(self._committed_before(one, row.object_key, row.outcome))
            await self._commit(readable)
            on_segments(start + len(group), len(rows))
        await self._try_again()
        for deferred in self._deferred:
            self._count(deferred.to_commit, deferred.outcomes, deferred.object_key)

    async def _read(self, segment_id: SegmentId, object_key: ObjectKey) -> SegmentToCommit | Unreadable:
        try:
            data = await self._store.get(object_key)
        except ObjectNotFound:
            return Unreadable(reason="it was deleted after it had been listed")
        return await self._threads.run(segment_to_commit, segment_id, data)

    def _committed_before(
        self, segment: SegmentToCommit, key: ObjectKey, outcome: Sequence[int]
    ) -> _Deferred:
        """An unfinished recovery committed this segment. It may have left out what was in the log."""
        try:
            known = decode_outcomes(outcome, len(segment.batches))
        except ValueError:
            segment = self._without_known(segment) or segment
            known = decode_outcomes(outcome, len(segment.batches))
        return _Deferred(to_commit=segment, object_key=key, outcomes=list(known.each))

    def _without_known(self, segment: SegmentToCommit) -> SegmentToCommit | None:
        """None if all batches are in the log."""
        columns, topic_ids = segment.batches.columns, segment.batches.topic_ids
        new: list[int] = []
        for index, (topic, partition, length, records, producer_id, crc) in enumerate(
            columns[_MARK].T.tolist()
        ):
            mark = (topic_ids[topic], Partition(partition), crc, length)
            if producer_id == NO_PRODUCER_ID and self._in_the_log[mark] > 0:
                self._in_the_log[mark] -= 1
                self._report.of((topic_ids[topic], Partition(partition))).duplicates += records
            else:
                new.append(index)
        if len(new) == len(segment.batches):
            return segment
        return replace(segment, batches=_some(segment.batches, np.array(new, np.int64))) if new else None

    async def _commit(self, segments: Sequence[tuple[SegmentToCommit, ObjectKey]]) -> None:
        """Reserves and commits the segments in one transaction."""
        if not segments:
            return
        async with self._session.transaction():
            await self._session.run(
                "reserve_again",
                segment_ids=[one.segment_id for one, _ in segments],
                object_keys=[key for _, key in segments],
                writer=WRITER,
            )
            answers = await self._commit_and_open([one for one, _ in segments])
        for (one, key), answer in zip(segments, answers, strict=True):
            assert isinstance(answer, Committed), "it was reserved in this transaction"
            outcomes = list(answer.outcomes)
            if any(isinstance(each, _MAY_BE_ACCEPTED_LATER) for each in outcomes):
                self._deferred.append(_Deferred(to_commit=one, object_key=key, outcomes=outcomes))
            else:
                self._count(one, outcomes, key)

    async def _commit_and_open(
        self, segments: Sequence[SegmentToCommit]
    ) -> tuple[Committed | SegmentRefused, ...]:
        """Commits the batches of transactions like others, then notes their transactions as open: how they
        ended is not known."""
        answers = await self._session.commit([_outside_transactions(one) for one in segments])
        opened: list[tuple[PartitionKey, ProducerId, Offset]] = []
        for segment, answer in zip(segments, answers, strict=True):
            if not isinstance(answer, Committed):
                continue
            columns, topic_ids = segment.batches.columns, segment.batches.topic_ids
            for index in np.flatnonzero(columns[TRANSACTION]).tolist():
                outcome = answer.outcomes[index]
                if isinstance(outcome, Assigned):
                    topic, partition, producer_id = columns[[TOPIC, PARTITION, PRODUCER_ID], index].tolist()
                    key = (topic_ids[topic], Partition(partition))
                    opened.append((key, ProducerId(producer_id), outcome.base_offset))
        await open_transactions(self._session, opened)
        return answers

    async def _try_again(self) -> None:
        """Repeats rounds until one changes nothing."""
        changed = bool(self._deferred)
        while changed:
            changed = False
            for deferred in self._deferred:
                changed |= await self._commit_rest(deferred)

    async def _commit_rest(self, deferred: _Deferred) -> bool:
        """Commits the batches of a segment that were refused so far. True if the outcome of any became
        final."""
        refused = np.flatnonzero([isinstance(each, _MAY_BE_ACCEPTED_LATER) for each in deferred.outcomes])
        if not len(refused):
            return False
        segment = deferred.to_commit
        rest = SegmentToCommit(
            segment_id=segment.segment_id,
            size_bytes=segment.size_bytes,
            batches=_some(segment.batches, refused),
        )
        async with self._session.transaction():
            await self._session.run("commit_again", segment_id=segment.segment_id)
            [answer] = await self._commit_and_open([rest])
            assert isinstance(answer, Committed), "it is reserved in this transaction"
            is_better = not all(isinstance(each, _MAY_BE_ACCEPTED_LATER) for each in answer.outcomes)
            for index, outcome in zip(refused.tolist(), answer.outcomes, strict=True):
                deferred.outcomes[index] = outcome
            await self._session.set_outcome(segment.segment_id, Outcomes.of(deferred.outcomes))
        return is_better

    def _count(self, segment: SegmentToCommit, outcomes: Sequence[BatchOutcome], key: ObjectKey) -> None:
        columns, refused = segment.batches.columns, dict[str, int]()
        for index, outcome in enumerate(outcomes):
            topic_id = segment.batches.topic_ids[int(columns[TOPIC, index])]
            change = self._report.of((topic_id, Partition(int(columns[PARTITION, index]))))
            records = int(columns[RECORDS, index])
            reason = _REASONS.get(type(outcome))
            if reason is not None:
                change.refused += records
                refused[reason] = refused.get(reason, 0) + records
            elif isinstance(outcome, Duplicate | WrittenBefore):
                change.duplicates += records
            else:
                change.appended += records
        for reason, records in refused.items():
            self._refuse(key, reason, records)

    def _refuse(self, key: ObjectKey, reason: str, records: int | None) -> None:
        self._report.refuse(
            RecordsRefused(what=key, reason=reason, records=records), self._settings.recovery_listed
        )


def _outside_transactions(segment: SegmentToCommit) -> SegmentToCommit:
    columns = segment.batches.columns.copy()
    columns[TRANSACTION] = BatchTransaction.NONE
    return replace(segment, batches=replace(segment.batches, columns=columns))


def _some(batches: PlacedBatches, which: NDArray[np.int64]) -> PlacedBatches:
    """Returns these batches with only their topics: a commit names no topic without a batch."""
    columns = np.take(batches.columns, which, axis=1)
    used = np.unique(columns[TOPIC])
    columns[TOPIC] = np.searchsorted(used, columns[TOPIC])
    return PlacedBatches(
        topic_ids=tuple([batches.topic_ids[topic] for topic in used.tolist()]), columns=columns
    )
