"""Runs in Spark's executors: reads a task's runs, writes Parquet files into the bucket, returns manifest
rows.

An executor needs only the bucket. A few threads read runs ahead while one run is decoded, so a small run
costs no extra round trip. If the store cannot be reached, the attempt fails and Spark repeats it. Files of a
failed attempt are garbage under the job's prefix, because only the rows that an attempt returns to the driver
are published.

Decodes a run's bytes into Arrow rows, and sets aside what does not decode. Pure but for `reread`.

Promises:
- The results cover the run's offsets `[from_offset, end_offset)` without gaps. Decoded rows have exactly
  these offsets, but for those without a record: erased ones, which the headers of their batches count, and
  those of batches that readers of committed data leave out (`storage.arrow.aborted_batches`).
- A fault costs only the batch that has it. A batch that fails is first read once more: bytes that were
  damaged on the way are no reason to leave a range out of history.
- Memory is bounded by a group of batches, not by the run.
- A sealed batch whose key is not at hand fails the task. It is never taken for one that does not decode.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sequencer.history.history_values import HistoryJob, RunToCompact
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.history_file import FRESH_ZSTD_LEVEL, HistoryFile
from spark_compaction.manifest import ManifestRow
from spark_compaction.planner import PlannedTask
from spark_compaction.state.key_files import KeyFiles, LastRecords
from spark_compaction.typed.decoding import RecordDecoder, TypedPlan, Unplanned
from storage.arrow.aborted_batches import AbortedTransaction, columns_of, left_out
from storage.arrow.arrow_columns import decode_batches
from storage.batches.batch_validation import InvalidBatch
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import index_batches, read_header, relative_offsets
from storage.encryption.sealed_batches import SealBroken
from storage.encryption.topic_keyring import ReadKeyring, TopicKeyring, opened_batches
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, ProducerId, SegmentId, TopicId
from storage.stores.object_store import ObjectNotFound, StoreUnavailable

_GROUP_BYTES = 1 << 20
_FAULTS = (InvalidBatch, SealBroken, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """The rows of offsets `[first_offset, end_offset)`, one per offset that has a record."""

    first_offset: int
    end_offset: int
    rows: pa.RecordBatch
    empty_offsets: int
    """Those without a record: erased, in a marker, or of an aborted transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodableRange:
    first_offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Batches back to back: bytes `[start, end)` of the run, offsets `[base_offset, end_offset)`."""

    start: int
    end: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoding:
    """What all batches of a run have in common."""

    run: RunToCompact
    reread: Callable[[int, int], bytes]
    aborted: NDArray[np.int64]
    keyring: ReadKeyring | None


def decode_run(
    run: RunToCompact,
    data: bytes,
    reread: Callable[[int, int], bytes],
    aborted: NDArray[np.int64],
    keyring: ReadKeyring | None = None,
) -> Iterator[DecodedRows | UndecodableRange]:
    """`reread(start, end)` reads bytes of the run from the store again. `aborted`: what `left_out` takes.
    Raises KeyUnavailable.
    """
    try:
        batches = _batches(run, data)
    except ValueError:
        data = reread(0, run.length)
        try:
            batches = _batches(run, data)
        except ValueError as error:
            yield UndecodableRange(
                first_offset=run.from_offset, end_offset=run.end_offset, reason=_reason(run, error)
            )
            return
    decoding = _Decoding(run=run, reread=reread, aborted=aborted, keyring=keyring)
    for group in _groups([batch for batch in batches if batch.base_offset < run.end_offset]):
        if group[-1].end_offset > run.from_offset:
            yield from _decode_group(decoding, data, group)


def _batches(run: RunToCompact, data: bytes) -> list[_Span]:
    """Returns the batches. Raises ValueError unless they fill the run's bytes and offsets exactly."""
    if len(data) != run.length:
        raise ValueError(f"{len(data)} bytes were read of a run of {run.length}")
    spans = []
    offset = int(run.base_offset)
    for position, size_bytes, last_offset_delta in index_batches(data, 0, len(data)).tolist():
        end_offset = offset + last_offset_delta + 1
        spans.append(
            _Span(start=position, end=position + size_bytes, base_offset=offset, end_offset=end_offset)
        )
        offset = end_offset
    if offset != run.last_offset + 1:
        raise ValueError(f"the batches end before offset {offset}, the run before {run.last_offset + 1}")
    return spans


def _groups(batches: list[_Span]) -> Iterator[list[_Span]]:
    group: list[_Span] = []
    for batch in batches:
        group.append(batch)
        if batch.end - group[0].start >= _GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _decode_group(
    decoding: _Decoding, data: bytes, group: list[_Span]
) -> Iterator[DecodedRows | UndecodableRange]:
    try:
        yield _decode_span(decoding, data, 0, _joined(group))
    except _FAULTS:
        for batch in group:
            if batch.end_offset > decoding.run.from_offset:
                yield _decode_batch(decoding, data, batch)


def _decode_batch(decoding: _Decoding, data: bytes, batch: _Span) -> DecodedRows | UndecodableRange:
    run = decoding.run
    try:
        return _decode_span(decoding, data, 0, batch)
    except _FAULTS:
        again = decoding.reread(batch.start, batch.end)
    try:
        return _decode_span(decoding, again, batch.start, batch)
    except _FAULTS as error:
        first = max(batch.base_offset, run.from_offset)
        end = min(batch.end_offset, run.end_offset)
        return UndecodableRange(first_offset=first, end_offset=end, reason=_reason(run, error))


def _decode_span(decoding: _Decoding, raw: bytes, raw_start: int, span: _Span) -> DecodedRows:
    run = decoding.run
    found = memoryview(raw)[span.start - raw_start : span.end - raw_start]
    data = opened_batches(decoding.keyring, found, run.partition)
    batches = index_batches(data, 0, len(data))
    base_offsets = span.base_offset + relative_offsets(batches)
    is_left_out = left_out(data, batches["position"], base_offsets, decoding.aborted)
    rows = decode_batches(data, 0, len(data), span.base_offset, is_left_out)
    offsets = rows.column("offset").to_numpy()
    first, end_offset = max(span.base_offset, run.from_offset), min(span.end_offset, run.end_offset)
    before, count = first - span.base_offset, end_offset - first
    if not np.array_equal(offsets, np.arange(span.base_offset, span.end_offset)):
        has_record = _records_of(data, batches, is_left_out, offsets, span)
        count = int(has_record[before : end_offset - span.base_offset].sum())
        before = int(has_record[:before].sum())
    return DecodedRows(
        first_offset=first,
        end_offset=end_offset,
        rows=rows.slice(before, count),
        empty_offsets=end_offset - first - count,
    )


def _records_of(
    data: Buffer,
    batches: NDArray[Any],
    is_left_out: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    span: _Span,
) -> NDArray[np.bool_]:
    """True for each offset of the span that has a record. Raises ValueError unless each batch that is not
    left out has as many records as its header says, and lacks others only because they were erased.
    """
    has_record = np.zeros(span.end_offset - span.base_offset, np.bool_)
    has_record[offsets - span.base_offset] = True
    at = 0
    for (position, _, last_offset_delta), is_out in zip(batches.tolist(), is_left_out.tolist(), strict=True):
        header = read_header(data, position)
        records = int(has_record[at : at + last_offset_delta + 1].sum())
        expected = 0 if is_out else header.record_count
        if records != expected or not (records or is_out or header.is_erased):
            first = span.base_offset + at
            raise ValueError(f"{records} records for offsets [{first}, {first + last_offset_delta + 1})")
        at += last_offset_delta + 1
    return has_record


def _joined(group: list[_Span]) -> _Span:
    return _Span(
        start=group[0].start,
        end=group[-1].end,
        base_offset=group[0].base_offset,
        end_offset=group[-1].end_offset,
    )


def _reason(run: RunToCompact, error: Exception) -> str:
    return f"{run.object_key} at byte {run.position}: {type(error).__name__}: {error}"[:500]


_RUN_FIELDS: list["pa.Field[Any]"] = [
    pa.field("base_offset", pa.int64()),
    pa.field("last_offset", pa.int64()),
    pa.field("end_offset", pa.int64()),
    pa.field("segment_id", pa.string()),
    pa.field("object_key", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("length", pa.int64()),
]
_TASK_FIELDS: list["pa.Field[Any]"] = [
    pa.field("task_id", pa.int32()),
    pa.field("topic_id", pa.string()),
    pa.field("prefix", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("from_offset", pa.int64()),
    pa.field("end_offset", pa.int64()),
    pa.field("runs", pa.list_(pa.struct(_RUN_FIELDS))),
    pa.field("aborted", pa.list_(pa.list_(pa.int64(), 3))),
]
_FIELDS: list["pa.Field[Any]"] = [
    pa.field("task_id", pa.int32()),
    pa.field("kind", pa.string()),
    pa.field("first_offset", pa.int64()),
    pa.field("end_offset", pa.int64()),
    pa.field("object_key", pa.string()),
    pa.field("row_count", pa.int64()),
    pa.field("empty_offsets", pa.int64()),
    pa.field("replaced_rows", pa.int64()),
    pa.field("size_bytes", pa.int64()),
    pa.field("footer_crc32c", pa.int64()),
    pa.field("reason", pa.string()),
    pa.field("unplanned", pa.string()),
]
_MANIFEST_SCHEMA = pa.schema(_FIELDS)
_MAX_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What all tasks of a job share. It travels to the executors."""

    address: BucketAddress
    prefetch_runs: int
    row_group_bytes: int
    file_bytes: int
    typed: Mapping[TopicId, TypedPlan] = field(default_factory=dict)
    """How keys and values become columns, of the topics that have a format."""
    keys: Mapping[tuple[TopicId, Partition], KeyFiles] = field(default_factory=dict)
    """Which records stay, of the partitions whose history is their state."""
    keyrings: Mapping[TopicId, TopicKeyring] = field(default_factory=dict)
    """Of the topics that are encrypted."""


def task_table(tasks: Iterable[tuple[HistoryJob, PlannedTask]]) -> pa.Table:
    """The tasks as a table, one row each. Task ids are unique among them."""
    rows = [
        {
            "task_id": task.task_id,
            "topic_id": str(job.topic_id),
            "prefix": job.prefix,
            "partition": task.partition,
            "from_offset": task.from_offset,
            "end_offset": task.end_offset,
            "runs": [{**asdict(run), "segment_id": str(run.segment_id)} for run in task.runs],
            "aborted": task.aborted,
        }
        for job, task in tasks
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(_TASK_FIELDS))


def run_tasks(context: TaskContext, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function given to `mapInArrow`."""
    bucket = context.address.open()
    for batch in batches:
        for row in batch.to_pylist():
            topic_id = TopicId(UUID(row["topic_id"]))
            rows = _TaskRun(context, bucket, topic_id, row["prefix"], task_of(row)).run()
            yield pa.RecordBatch.from_pylist([asdict(each) for each in rows], schema=_MANIFEST_SCHEMA)


class _TaskRun:
    """One attempt at one task."""

    def __init__(
        self, context: TaskContext, bucket: Bucket, topic_id: TopicId, prefix: str, task: PlannedTask
    ) -> None:
        self._context = context
        self._bucket = bucket
        self._topic_id = topic_id
        self._prefix = prefix
        self._task = task
        self._aborted = columns_of(task.aborted)
        self._file: HistoryFile | None = None
        self._reached = self._decoded_to = int(task.from_offset)
        """What the rows so far cover, and what was decoded."""
        self._empty_offsets = 0
        """Of what was decoded past the rows so far."""
        self._replaced_rows = 0
        """As `_empty_offsets`."""
        self._last: LastRecords | None = None
        self._keyring = context.keyrings.get(topic_id)
        plan = context.typed.get(topic_id)
        self._decoder = None if plan is None else RecordDecoder(plan)

    def run(self) -> list[ManifestRow]:
        """Raises StoreUnavailable."""
        rows: list[ManifestRow] = []
        try:
            rows.extend(self._rows())  # keeps those before a failure
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this task's alone
            end = self._task.end_offset
            reached = rows[-1].end_offset if rows else self._task.from_offset
            reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
            rows.append(
                ManifestRow(
                    task_id=self._task.task_id,
                    kind="failed",
                    first_offset=reached,
                    end_offset=end,
                    reason=reason,
                )
            )
        unplanned = None if self._decoder is None else self._decoder.unplanned
        return rows if unplanned is None else [self._unplanned_row(unplanned)]

    def _unplanned_row(self, unplanned: Unplanned) -> ManifestRow:
        """What was written is garbage under the job's prefix: the task runs again."""
        return ManifestRow(
            task_id=self._task.task_id,
            kind="unplanned",
            first_offset=self._task.from_offset,
            end_offset=self._task.end_offset,
            unplanned=unplanned.to_text(),
        )

    def _rows(self) -> Iterator[ManifestRow]:
        keys = self._context.keys.get((self._topic_id, self._task.partition))
        self._last = None if keys is None else LastRecords(self._bucket, keys)
        for run, data in read_ahead(self._bucket, self._task, self._context.prefetch_runs):
            if data is None:
                yield from self._close_file()
                yield self._row(
                    "missing", self._task.end_offset, f"object {run.object_key} is not in the bucket"
                )
                return
            for event in decode_run(run, data, rereading(self._bucket, run), self._aborted, self._keyring):
                if isinstance(event, UndecodableRange):
                    yield from self._close_file()
                    yield self._row("raw", Offset(event.end_offset), event.reason)
                    self._reached = self._decoded_to = event.end_offset
                else:
                    yield from self._add(event)
                    if self._file is not None and self._file.is_complete(self._context.file_bytes):
                        yield from self._close_file()
        yield from self._close_file()

    def _add(self, event: DecodedRows) -> Iterator[ManifestRow]:
        rows = event.rows
        if self._last is not None:
            rows = rows.filter(pa.array(self._last.among(rows)))
        replaced = event.rows.num_rows - rows.num_rows
        self._replaced_rows += replaced
        self._decoded_to = event.end_offset
        self._empty_offsets += event.empty_offsets + replaced
        if self._file is None and rows.num_rows:
            first_offset = rows.column("offset")[0].as_py()
            if first_offset > self._reached:  # a file begins with a record
                skipped = first_offset - self._reached
                yield self._empty(first_offset, skipped)
                self._empty_offsets -= skipped
        if self._decoder is None:
            self._write(rows)
            return
        for piece in self._decoder.pieces(rows):
            self._write(piece)
        if self._decoder.unplanned is not None:
            self._file = None

    def _write(self, rows: pa.RecordBatch) -> None:
        if self._file is None and rows.num_rows:
            context = self._context
            self._file = HistoryFile(
                self._bucket,
                self._prefix,
                self._topic_id,
                self._task.partition,
                row_group_bytes=context.row_group_bytes,
                schema=None if self._decoder is None else self._decoder.schema,
                zstd_level=FRESH_ZSTD_LEVEL,
                topic_key=None if self._keyring is None else self._keyring.newest,
            )
        if self._file is not None:
            self._file.add(rows)

    def _close_file(self) -> Iterator[ManifestRow]:
        if self._file is None:
            if self._decoded_to > self._reached:
                yield self._empty(self._decoded_to, self._empty_offsets)
                self._empty_offsets = 0
            return
        written = self._file.close()
        self._file = None
        yield ManifestRow(
            task_id=self._task.task_id,
            kind="file",
            first_offset=Offset(self._reached),
            end_offset=Offset(self._decoded_to),
            object_key=written.object_key,
            row_count=written.row_count,
            empty_offsets=self._empty_offsets,
            replaced_rows=self._replaced_rows,
            size_bytes=written.size_bytes,
            footer_crc32c=written.footer_crc32c,
        )
        self._reached, self._empty_offsets, self._replaced_rows = self._decoded_to, 0, 0

    def _empty(self, end_offset: int, empty_offsets: int) -> ManifestRow:
        row = ManifestRow(
            task_id=self._task.task_id,
            kind="empty",
            first_offset=Offset(self._reached),
            end_offset=Offset(end_offset),
            empty_offsets=empty_offsets,
            replaced_rows=self._replaced_rows,
        )
        self._reached, self._replaced_rows = end_offset, 0
        return row

    def _row(self, kind: Any, end_offset: Offset, reason: str) -> ManifestRow:
        return ManifestRow(
            task_id=self._task.task_id,
            kind=kind,
            first_offset=Offset(self._reached),
            end_offset=end_offset,
            reason=reason,
        )


def rereading(bucket: Bucket, run: RunToCompact) -> Callable[[int, int], bytes]:
    """What `decode_run` reads a run again by."""

    def read(start: int, end: int) -> bytes:
        return bucket.get(run.object_key, run.position + start, run.position + end)

    return read


def read_ahead(
    bucket: Bucket, task: PlannedTask, prefetch_runs: int
) -> Iterator[tuple[RunToCompact, bytes | None]]:
    """The task's runs with their bytes, in order; None if an object is not there. Raises StoreUnavailable."""

    def read(run: RunToCompact) -> bytes | None:
        try:
            return bucket.get(run.object_key, run.position, run.position + run.length)
        except ObjectNotFound:
            return None

    runs = deque(task.runs)
    reading: deque[tuple[RunToCompact, Future[bytes | None]]] = deque()
    with ThreadPoolExecutor(prefetch_runs) as pool:
        while runs or reading:
            while runs and len(reading) < prefetch_runs:
                run = runs.popleft()
                reading.append((run, pool.submit(read, run)))
            run, data = reading.popleft()
            yield run, data.result()


def task_of(row: dict[str, Any]) -> PlannedTask:
    """From a row of `task_table`."""
    partition, from_offset = Partition(row["partition"]), Offset(row["from_offset"])
    return PlannedTask(
        task_id=row["task_id"],
        partition=partition,
        from_offset=from_offset,
        end_offset=Offset(row["end_offset"]),
        runs=tuple(_run(partition, from_offset, run) for run in row["runs"]),
        aborted=tuple(
            AbortedTransaction(Offset(last), Offset(first), ProducerId(producer))
            for last, first, producer in row["aborted"]
        ),
    )


def _run(partition: Partition, from_offset: Offset, run: dict[str, Any]) -> RunToCompact:
    return RunToCompact(
        partition=partition,
        from_offset=Offset(max(from_offset, run["base_offset"])),
        base_offset=Offset(run["base_offset"]),
        last_offset=Offset(run["last_offset"]),
        end_offset=Offset(run["end_offset"]),
        segment_id=SegmentId(UUID(run["segment_id"])),
        object_key=ObjectKey(run["object_key"]),
        position=BytePosition(run["position"]),
        length=run["length"],
    )


def manifest_rows(rows: Sequence[dict[str, Any]]) -> list[ManifestRow]:
    """Returns the rows that the driver collected."""
    return [ManifestRow(**row) for row in rows]
