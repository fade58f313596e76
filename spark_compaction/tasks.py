"""Runs in Spark's executors: reads a task's runs, writes Parquet files into the bucket, returns manifest
rows.

An executor needs only the bucket. A few threads read runs ahead while one run is decoded, so a small run
costs no extra round trip. If the store cannot be reached, the attempt fails and Spark repeats it. Files of a
failed attempt are garbage under the job's prefix, because only the rows that an attempt returns to the driver
are published.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa

from sequencer.history.history_values import HistoryJob, RunToCompact
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.history_file import HistoryFile
from spark_compaction.manifest import ManifestRow
from spark_compaction.planner import PlannedTask
from spark_compaction.run_decoding import UndecodableRange, decode_run
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId
from storage.stores.object_store import ObjectNotFound, StoreUnavailable

_RUN_FIELDS: list["pa.Field[Any]"] = [
    pa.field("base_offset", pa.int64()),
    pa.field("last_offset", pa.int64()),
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
]
_FIELDS: list["pa.Field[Any]"] = [
    pa.field("task_id", pa.int32()),
    pa.field("kind", pa.string()),
    pa.field("first_offset", pa.int64()),
    pa.field("end_offset", pa.int64()),
    pa.field("object_key", pa.string()),
    pa.field("row_count", pa.int64()),
    pa.field("size_bytes", pa.int64()),
    pa.field("footer_crc32c", pa.int64()),
    pa.field("reason", pa.string()),
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
            rows = _TaskRun(context, bucket, topic_id, row["prefix"], _task(row)).run()
            yield pa.RecordBatch.from_pylist([asdict(each) for each in rows], schema=_MANIFEST_SCHEMA)


class _TaskRun:
    """One attempt at one task."""

    def __init__(self, context: TaskContext, bucket: Bucket, topic_id: TopicId, prefix: str, task: PlannedTask) -> None:
        self._context = context
        self._bucket = bucket
        self._topic_id = topic_id
        self._prefix = prefix
        self._task = task
        self._file: HistoryFile | None = None
        self._reached = task.from_offset

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
                    task_id=self._task.task_id, kind="failed", first_offset=reached, end_offset=end, reason=reason
                )
            )
        return rows

    def _rows(self) -> Iterator[ManifestRow]:
        for run, data in self._read_ahead():
            if data is None:
                yield from self._close_file()
                yield self._row("missing", self._task.end_offset, f"object {run.object_key} is not in the bucket")
                return
            for event in decode_run(run, data, self._reread(run)):
                if isinstance(event, UndecodableRange):
                    yield from self._close_file()
                    yield self._row("raw", Offset(event.end_offset), event.reason)
                    self._reached = Offset(event.end_offset)
                else:
                    self._add(event.rows)
                    if self._file is not None and self._file.size_bytes >= self._context.file_bytes:
                        yield from self._close_file()
        yield from self._close_file()

    def _add(self, rows: pa.RecordBatch) -> None:
        if self._file is None:
            context = self._context
            self._file = HistoryFile(
                self._bucket,
                self._prefix,
                self._topic_id,
                self._task.partition,
                row_group_bytes=context.row_group_bytes,
            )
        self._file.add(rows)

    def _close_file(self) -> Iterator[ManifestRow]:
        if self._file is None:
            return
        written = self._file.close()
        self._file = None
        row = ManifestRow(
            task_id=self._task.task_id,
            kind="file",
            first_offset=self._reached,
            end_offset=Offset(self._reached + written.row_count),
            object_key=written.object_key,
            row_count=written.row_count,
            size_bytes=written.size_bytes,
            footer_crc32c=written.footer_crc32c,
        )
        self._reached = row.end_offset
        yield row

    def _row(self, kind: Any, end_offset: Offset, reason: str) -> ManifestRow:
        return ManifestRow(
            task_id=self._task.task_id, kind=kind, first_offset=self._reached, end_offset=end_offset, reason=reason
        )

    def _reread(self, run: RunToCompact) -> Any:
        def read(start: int, end: int) -> bytes:
            return self._bucket.get(run.object_key, run.position + start, run.position + end)

        return read

    def _read(self, run: RunToCompact) -> bytes | None:
        try:
            return self._bucket.get(run.object_key, run.position, run.position + run.length)
        except ObjectNotFound:
            return None

    def _read_ahead(self) -> Iterator[tuple[RunToCompact, bytes | None]]:
        runs = deque(self._task.runs)
        reading: deque[tuple[RunToCompact, Future[bytes | None]]] = deque()
        with ThreadPoolExecutor(self._context.prefetch_runs) as pool:
            while runs or reading:
                while runs and len(reading) < self._context.prefetch_runs:
                    run = runs.popleft()
                    reading.append((run, pool.submit(self._read, run)))
                run, data = reading.popleft()
                yield run, data.result()


def _task(row: dict[str, Any]) -> PlannedTask:
    partition, from_offset = Partition(row["partition"]), Offset(row["from_offset"])
    return PlannedTask(
        task_id=row["task_id"],
        partition=partition,
        from_offset=from_offset,
        end_offset=Offset(row["end_offset"]),
        runs=tuple(_run(partition, from_offset, run) for run in row["runs"]),
    )


def _run(partition: Partition, from_offset: Offset, run: dict[str, Any]) -> RunToCompact:
    return RunToCompact(
        partition=partition,
        from_offset=Offset(max(from_offset, run["base_offset"])),
        base_offset=Offset(run["base_offset"]),
        last_offset=Offset(run["last_offset"]),
        segment_id=SegmentId(UUID(run["segment_id"])),
        object_key=ObjectKey(run["object_key"]),
        position=BytePosition(run["position"]),
        length=run["length"],
    )


def manifest_rows(rows: Sequence[dict[str, Any]]) -> list[ManifestRow]:
    """Returns the rows that the driver collected."""
    return [ManifestRow(**row) for row in rows]
