"""What Spark's tasks say they wrote, and whether it may be published. Pure.

Promises of a verified manifest:
- It covers each task's offsets without gap or overlap.
- Every offset is a row of a file, or has no record (it was erased, as the header of its batch says, or it is
  of a marker or of an aborted transaction), or is in a range that did not decode. A record of a compacted
  topic may be left out (`state/state_job.py` counts those).
- A partition's history advances only over such offsets.

Rows of attempts that Spark discarded never get here, so their files are never published.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from sequencer.history.history_values import Advance, RawRange
from spark_compaction.planner import PlannedTask
from storage.identifiers import ObjectKey, Offset, Partition

MANIFEST_COLUMNS = (
    "task_id int, kind string, first_offset long, end_offset long, object_key string, row_count long, "
    "empty_offsets long, replaced_rows long, size_bytes long, footer_crc32c long, reason string, "
    "unplanned string"
)


_NO_OBJECT = ObjectKey("")
_ENDS = ("missing", "failed")


class ManifestRefused(Exception):
    """The tasks' output does not match the plan. Nothing of it is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """What happened to offsets `[first_offset, end_offset)` of a task.

    `file`: they are the rows of one Parquet file, but for `empty_offsets` that have no record. `empty`: none
    of them has a record. `raw`: they did not decode. `missing`: their object does
    not exist; the task stopped here, and the partition's history stops here until a person has acted.
    `unplanned`: the records need columns or schemas that the task was not given; the task runs again.
    """

    task_id: int
    kind: Literal["file", "empty", "raw", "missing", "failed", "unplanned"]
    first_offset: Offset
    end_offset: Offset
    object_key: ObjectKey = _NO_OBJECT
    row_count: int = 0
    empty_offsets: int = 0
    """Offsets without a row: erased, in a marker, of an aborted transaction, or left out."""
    replaced_rows: int = 0
    """Records that were left out, of a compacted topic: without a key, a tombstone, or not the last of its
    key."""
    size_bytes: int = 0
    footer_crc32c: int = 0
    reason: str = ""
    unplanned: str = ""
    """What was met (`spark_compaction.typed.decoding.Unplanned`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A partition whose history cannot continue."""

    partition: Partition
    offset: Offset
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    partition: Partition
    row: ManifestRow


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedManifest:
    files: tuple[VerifiedFile, ...]
    advances: tuple[Advance, ...]
    raw_ranges: tuple[RawRange, ...]
    stopped: tuple[Stopped, ...]
    failed: tuple[Stopped, ...]


def verify_manifest(tasks: Sequence[PlannedTask], rows: Iterable[ManifestRow]) -> VerifiedManifest:
    """Raises ManifestRefused unless every task is accounted for."""
    by_task: dict[int, list[ManifestRow]] = {task.task_id: [] for task in tasks}
    for row in rows:
        if row.task_id not in by_task:
            raise ManifestRefused(f"a task that was not planned reported: {row.task_id}")
        by_task[row.task_id].append(row)
    files: list[VerifiedFile] = []
    advances: list[Advance] = []
    raw_ranges: list[RawRange] = []
    stopped: list[Stopped] = []
    failed: list[Stopped] = []
    for partition, own_tasks in groupby(tasks, key=lambda task: task.partition):
        planned = list(own_tasks)
        reached = planned[0].from_offset
        for task in planned:
            own = sorted(by_task[task.task_id], key=lambda row: row.first_offset)
            _check_offset_coverage(task, own)
            kept = own if own[-1].kind not in _ENDS else own[:-1]
            files += [VerifiedFile(partition=partition, row=row) for row in kept if row.kind == "file"]
            raw_ranges += [_raw_range(partition, row) for row in kept if row.kind == "raw"]
            reached = kept[-1].end_offset if kept else reached
            if kept != own:
                stop = Stopped(partition=partition, offset=own[-1].first_offset, reason=own[-1].reason)
                (stopped if own[-1].kind == "missing" else failed).append(stop)
                break  # what later tasks wrote of this partition is garbage under the job's prefix
        if reached > planned[0].from_offset:
            advances.append(
                Advance(partition=partition, from_offset=planned[0].from_offset, to_offset=reached)
            )
    return VerifiedManifest(
        files=tuple(files),
        advances=tuple(advances),
        raw_ranges=tuple(raw_ranges),
        stopped=tuple(stopped),
        failed=tuple(failed),
    )


def _check_offset_coverage(task: PlannedTask, rows: Sequence[ManifestRow]) -> None:
    reached = task.from_offset
    for position, row in enumerate(rows):
        if row.first_offset != reached or row.end_offset <= row.first_offset:
            raise ManifestRefused(
                f"task {task.task_id} covers [{row.first_offset}, {row.end_offset}) after {reached}"
            )
        covered = row.end_offset - row.first_offset - row.empty_offsets
        if row.kind == "file" and row.row_count != covered:
            raise ManifestRefused(f"{row.object_key} has {row.row_count} rows for {covered} records")
        if row.kind == "empty" and covered:
            raise ManifestRefused(f"task {task.task_id} wrote no file for {covered} records")
        if row.kind == "unplanned":
            raise ManifestRefused(f"task {task.task_id} needs columns or schemas that it was not given")
        if row.kind in _ENDS and position != len(rows) - 1:
            raise ManifestRefused(f"task {task.task_id} went on after it had ended ({row.kind})")
        reached = row.end_offset
    if reached != task.end_offset:
        raise ManifestRefused(f"task {task.task_id} covers offsets up to {reached} of {task.end_offset}")


def _raw_range(partition: Partition, row: ManifestRow) -> RawRange:
    return RawRange(
        partition=partition,
        base_offset=row.first_offset,
        last_offset=Offset(row.end_offset - 1),
        reason=row.reason,
    )
