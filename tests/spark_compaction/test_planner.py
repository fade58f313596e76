"""Plans tile what they were given, within their bounds."""

from itertools import groupby, pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from sequencer.history.history_values import RunToCompact
from spark_compaction.planner import plan_tasks
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId


def run(partition: int, base_offset: int, last_offset: int, length: int) -> RunToCompact:
    return RunToCompact(
        partition=Partition(partition),
        from_offset=Offset(base_offset),
        base_offset=Offset(base_offset),
        last_offset=Offset(last_offset),
        end_offset=Offset(last_offset + 1),
        segment_id=SegmentId(UUID(int=1)),
        object_key=ObjectKey("key"),
        position=BytePosition(0),
        length=length,
    )


@st.composite
def runs_of_partitions(draw: st.DrawFn) -> list[RunToCompact]:
    found = []
    for partition in sorted(draw(st.sets(st.integers(0, 9), max_size=4))):
        offset = draw(st.integers(0, 100))
        for records, length in draw(
            st.lists(st.tuples(st.integers(1, 50), st.integers(1, 100)), min_size=1, max_size=12)
        ):
            found.append(run(partition, offset, offset + records - 1, length))
            offset += records
    return found


bounds = st.integers(1, 300)


@given(runs=runs_of_partitions(), task_bytes=bounds, job_bytes=bounds)
def test_the_tasks_of_a_partition_tile_a_prefix_of_its_runs(
    runs: list[RunToCompact], task_bytes: int, job_bytes: int
) -> None:
    tasks = plan_tasks(runs, {}, task_bytes=task_bytes, job_bytes=job_bytes)

    assert [task.task_id for task in tasks] == list(range(len(tasks)))
    assert {task.partition for task in tasks} == {each.partition for each in runs}
    for partition, own in groupby(tasks, key=lambda task: task.partition):
        planned = list(own)
        given_runs = [each for each in runs if each.partition == partition]
        taken = [each for task in planned for each in task.runs]
        assert taken == given_runs[: len(taken)]
        assert all(a.end_offset == b.from_offset for a, b in pairwise(planned))
        assert all((task.from_offset, task.end_offset) == _covered(task.runs) for task in planned)


@given(runs=runs_of_partitions(), task_bytes=bounds, job_bytes=bounds)
def test_only_a_single_run_may_exceed_a_bound(
    runs: list[RunToCompact], task_bytes: int, job_bytes: int
) -> None:
    tasks = plan_tasks(runs, {}, task_bytes=task_bytes, job_bytes=job_bytes)

    assert all(task.size_bytes <= task_bytes or len(task.runs) == 1 for task in tasks)
    shares = len({each.partition for each in runs})
    for _, own in groupby(tasks, key=lambda task: task.partition):
        planned = list(own)
        assert sum(task.size_bytes for task in planned) <= job_bytes // shares or len(planned) == 1


@given(runs=runs_of_partitions(), task_bytes=bounds)
def test_a_large_job_takes_everything_and_the_same_runs_give_the_same_tasks(
    runs: list[RunToCompact], task_bytes: int
) -> None:
    tasks = plan_tasks(runs, {}, task_bytes=task_bytes, job_bytes=10**9)

    assert [each for task in tasks for each in task.runs] == runs
    assert plan_tasks(list(runs), {}, task_bytes=task_bytes, job_bytes=10**9) == tasks


def _covered(runs: tuple[RunToCompact, ...]) -> tuple[int, int]:
    return runs[0].from_offset, runs[-1].last_offset + 1
