"""Key files, and which tasks and partitions of a job their keys are known for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sequencer.history.history_values import StatePlan
from spark_compaction.bucket import InlineBucket, LocalBucket
from spark_compaction.manifest import ManifestRow, verify_manifest
from spark_compaction.planner import PlannedTask, plan_tasks
from spark_compaction.state.key_files import KeyFileDamaged, KeyFiles, KeyWriter, LastRecords
from spark_compaction.state.key_tasks import NotedTask
from spark_compaction.state.state_job import StateJob, whole_partitions, with_keys
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.identifiers import ObjectKey, Offset, Partition
from tests.spark_compaction.test_manifest import row
from tests.spark_compaction.test_planner import run

SECRET = bytes(range(16))
TASKS = plan_tasks(
    [run(0, 0, 9, 10), run(0, 10, 19, 10), run(0, 20, 29, 10), run(1, 5, 9, 10)],
    {},
    task_bytes=10,
    job_bytes=1000,
)
NOTHING_SEEN = StatePlan(
    from_offset=Offset(0),
    seen_to=None,
    seen_state_to=Offset(0),
    is_begun=False,
    tombstones_gone_to=Offset(0),
)


def records(*pairs: tuple[bytes | None, bytes | None], first: int = 0) -> pa.RecordBatch:
    fields: dict[str, Any] = {"timestamp": None, "timestamp_type": 0, "headers": []}
    rows = [
        fields | {"offset": first + at, "key": key, "value": value} for at, (key, value) in enumerate(pairs)
    ]
    return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)


def noted(task_id: int, count: int = 10, entries: int = 4, **more: Any) -> NotedTask:
    fields = {"kind": "keys", "records": count, "entries": entries, "object_key": ObjectKey(str(task_id))}
    return NotedTask(task_id=task_id, **{**fields, **more})


@pytest.fixture
def bucket(tmp_path: Path) -> InlineBucket:
    return InlineBucket(LocalBucket(tmp_path))


def test_the_last_record_of_each_key_stays_and_replaces_rows_of_the_table(bucket: InlineBucket) -> None:
    first, second = KeyWriter(SECRET), KeyWriter(SECRET)
    early = records((b"a", b"1"), (b"b", b"1"), (None, b"no key"), first=10)
    late = records((b"a", None), (b"c", b""), (b"", b"empty key"), first=13)
    first.add(early)
    second.add(late)
    files = [writer.close(bucket, "job/") for writer in (first, second)]

    last = LastRecords(bucket, KeyFiles(secret=SECRET, files=files))

    assert last.among(early).tolist() == [False, True, False]
    assert last.among(late).tolist() == [False, True, True]
    table = records((b"a", b"0"), (b"x", b"0"), (b"b", b"0")).select(["offset", "key"])
    assert last.replaced(table).tolist() == [True, False, True]


def test_more_records_than_a_chunk_make_one_file(
    bucket: InlineBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_compaction.state.key_files._CHUNK_ROWS", 7)
    rows = records(*((b"%d" % (number % 20), b"") for number in range(100)))
    writer = KeyWriter(SECRET)
    for start in range(0, 100, 30):
        writer.add(rows.slice(start, 30))
    last = LastRecords(bucket, KeyFiles(secret=SECRET, files=[writer.close(bucket, "job/")]))
    assert last.among(rows).tolist() == [False] * 80 + [True] * 20


def test_a_job_without_records_has_an_empty_key_file(bucket: InlineBucket) -> None:
    file = KeyWriter(SECRET).close(bucket, "job/")
    last = LastRecords(bucket, KeyFiles(secret=SECRET, files=[file]))
    assert (file.entries, last.replaced(records((b"a", b""))).tolist()) == (0, [False])


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_key_file_is_refused(bucket: InlineBucket, damage: str) -> None:
    writer = KeyWriter(SECRET)
    writer.add(records((b"a", b"1"), (b"b", b"1")))
    file = writer.close(bucket, "job/")
    data = bytearray(bucket.get(file.object_key))
    data[3] ^= 1
    bucket.put(file.object_key, bytes(data[:24] if damage == "cut" else data))
    with pytest.raises(KeyFileDamaged):
        LastRecords(bucket, KeyFiles(secret=SECRET, files=[file]))


def left(found: Mapping[int, NotedTask], most_keys: int = 100) -> tuple[StateJob, list[int]]:
    state = StateJob(plans={}, secret=SECRET)
    changed, tasks = with_keys(state, TASKS, found, most_keys)
    return changed, [task.task_id for task in tasks]


def test_a_partition_is_cut_where_its_keys_find_no_room_but_never_to_nothing() -> None:
    found = {task_id: noted(task_id) for task_id in range(4)}
    assert left(found)[1] == [0, 1, 2, 3]
    assert left(found, most_keys=8)[1] == [0, 1, 3]
    assert left(found, most_keys=1)[1] == [0, 3]
    assert [len(keys.files) for keys in left(found, most_keys=8)[0].keys.values()] == [2, 1]


def test_a_partition_is_cut_where_a_task_found_no_keys() -> None:
    found = {0: noted(0), 1: noted(1, kind="missing", reached=13), 2: noted(2), 3: noted(3, kind="failed")}
    state, tasks = left(found)
    assert tasks == [0]
    assert [(stop.partition, stop.offset) for stop in state.stopped] == [(0, 13)]
    assert [stop.partition for stop in state.failed] == [1]
    assert set(state.keys) == {Partition(0)}
    assert [stop.partition for stop in left({0: noted(0), 1: noted(1)})[0].failed] == [0, 1]


def _verified(rows: Mapping[int, Sequence[ManifestRow]], tasks: Sequence[PlannedTask] = TASKS) -> Any:
    state = StateJob(
        plans={Partition(0): NOTHING_SEEN, Partition(1): NOTHING_SEEN},
        secret=SECRET,
        noted={task_id: noted(task_id, 5 if task_id == 3 else 10) for task_id in range(4)},
    )
    verified = verify_manifest(tasks, [each for own in rows.values() for each in own])
    return whole_partitions(state, tasks, rows, verified)


def _whole() -> dict[int, list[ManifestRow]]:
    return {
        0: [row(0, "file", 0, 10)],
        1: [_with_replaced(1, 10, 20, 4)],
        2: [row(2, "file", 20, 30)],
        3: [row(3, "file", 5, 10)],
    }


def _with_replaced(task_id: int, first: int, end: int, replaced: int) -> ManifestRow:
    return ManifestRow(
        task_id=task_id,
        kind="file",
        first_offset=Offset(first),
        end_offset=Offset(end),
        object_key=ObjectKey(f"{task_id}"),
        row_count=end - first - replaced,
        empty_offsets=replaced,
        replaced_rows=replaced,
    )


def test_partitions_whose_records_are_all_accounted_for_advance() -> None:
    verified = _verified(_whole())
    assert [(each.partition, each.to_offset) for each in verified.advances] == [(0, 30), (1, 10)]
    assert all(each.state is NOTHING_SEEN for each in verified.advances)
    assert (len(verified.files), verified.failed) == (4, ())


def test_a_partition_of_which_a_task_fails_or_loses_a_record_stays_as_it_is() -> None:
    failed = _whole() | {2: [row(2, "file", 20, 25), row(2, "failed", 25, 30, 0)]}
    verified = _verified(failed)
    assert [each.partition for each in verified.advances] == [1]
    assert [file.partition for file in verified.files] == [1]
    assert [each.partition for each in verified.failed] == [0]


def test_a_record_that_is_neither_written_nor_left_out_is_noticed() -> None:
    """The offset counts as one without a record, as if the batch had been erased."""
    lost = replace(_with_replaced(1, 10, 20, 4), replaced_rows=3)
    verified = _verified(_whole() | {1: [lost]})
    assert [each.partition for each in verified.advances] == [1]
    assert "9 records" in verified.failed[0].reason
