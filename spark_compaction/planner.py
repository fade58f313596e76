"""Decides which Spark task turns which runs into Parquet. Pure.

Promises:
- Each task covers contiguous offsets of one partition. The tasks of a partition cover its plan without gaps.
- A task exceeds `task_bytes` only if one run alone does.
- The same runs give the same tasks.
- A job takes at most about `job_bytes`, shared evenly among the partitions, so that a partition with a long
  past does not delay the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sequencer.history.history_values import RunToCompact
from storage.arrow.aborted_batches import AbortedTransaction, overlapping
from storage.identifiers import Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """Covers `[from_offset, end_offset)` of one partition."""

    task_id: int
    partition: Partition
    from_offset: Offset
    end_offset: Offset
    runs: tuple[RunToCompact, ...]
    aborted: tuple[AbortedTransaction, ...] = ()
    """All that overlap the task, in the order of their markers."""

    @property
    def size_bytes(self) -> int:
        return sum(run.length for run in self.runs)


def plan_tasks(
    runs: Sequence[RunToCompact],
    aborted: Mapping[Partition, Sequence[AbortedTransaction]],
    *,
    task_bytes: int,
    job_bytes: int,
    first_task_id: int = 0,
) -> tuple[PlannedTask, ...]:
    """`runs` in (partition, offset) order, contiguous per partition. `aborted`: all that overlap them. Task
    ids are `first_task_id` and up.
    """
    by_partition = {
        partition: tuple(group) for partition, group in groupby(runs, key=lambda run: run.partition)
    }
    share = max(1, job_bytes // max(1, len(by_partition)))
    groups = [
        group for own in by_partition.values() for group in _split(_first_bytes(own, share), task_bytes)
    ]
    return tuple(_task(task_id, group, aborted) for task_id, group in enumerate(groups, first_task_id))


def _first_bytes(runs: Sequence[RunToCompact], limit: int) -> Sequence[RunToCompact]:
    """Returns the first runs up to `limit` bytes, at least one."""
    total = 0
    for taken, run in enumerate(runs):
        total += run.length
        if total > limit and taken > 0:
            return runs[:taken]
    return runs


def _split(runs: Sequence[RunToCompact], task_bytes: int) -> Iterator[Sequence[RunToCompact]]:
    while runs:
        group = _first_bytes(runs, task_bytes)
        yield group
        runs = runs[len(group) :]


def _task(
    task_id: int, runs: Sequence[RunToCompact], aborted: Mapping[Partition, Sequence[AbortedTransaction]]
) -> PlannedTask:
    partition, from_offset, end_offset = runs[0].partition, runs[0].from_offset, runs[-1].end_offset
    return PlannedTask(
        task_id=task_id,
        partition=partition,
        from_offset=from_offset,
        end_offset=end_offset,
        runs=tuple(runs),
        aborted=overlapping(aborted.get(partition, ()), from_offset, end_offset),
    )
