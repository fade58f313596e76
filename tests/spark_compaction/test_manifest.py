"""A manifest is published only if every planned offset is accounted for, once."""

from dataclasses import replace
from typing import Any

import pytest

from sequencer.history.history_values import Advance, RawRange
from spark_compaction.manifest import ManifestRefused, ManifestRow, Stopped, VerifiedManifest, verify_manifest
from spark_compaction.planner import plan_tasks
from storage.identifiers import ObjectKey, Offset, Partition
from tests.spark_compaction.test_planner import run

TASKS = plan_tasks(
    [run(0, 0, 9, 10), run(0, 10, 19, 10), run(1, 5, 9, 10)], {}, task_bytes=10, job_bytes=1000
)


def row(task_id: int, kind: Any, first: int, end: int, rows: int | None = None) -> ManifestRow:
    return ManifestRow(
        task_id=task_id,
        kind=kind,
        first_offset=Offset(first),
        end_offset=Offset(end),
        object_key=ObjectKey(f"{task_id}-{first}"),
        row_count=end - first if rows is None else rows,
        reason="why" if kind != "file" else "",
    )


def advanced(manifest: VerifiedManifest) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.from_offset, each.to_offset) for each in manifest.advances}


def test_files_that_tile_the_plan_are_published_in_any_order_of_arrival() -> None:
    rows = [row(2, "file", 5, 10), row(1, "file", 15, 20), row(0, "file", 0, 10), row(1, "file", 10, 15)]

    manifest = verify_manifest(TASKS, rows)

    assert [file.row.object_key for file in manifest.files] == ["0-0", "1-10", "1-15", "2-5"]
    assert advanced(manifest) == {0: (0, 20), 1: (5, 10)}
    assert (manifest.raw_ranges, manifest.stopped, manifest.failed) == ((), (), ())


def test_a_raw_range_is_recorded_and_passed() -> None:
    rows = [
        row(0, "file", 0, 3),
        row(0, "raw", 3, 7),
        row(0, "file", 7, 10),
        row(1, "raw", 10, 20),
        row(2, "file", 5, 10),
    ]

    manifest = verify_manifest(TASKS, rows)

    assert [(each.base_offset, each.last_offset, each.reason) for each in manifest.raw_ranges] == [
        (3, 6, "why"),
        (10, 19, "why"),
    ]
    assert isinstance(manifest.raw_ranges[0], RawRange)
    assert advanced(manifest) == {0: (0, 20), 1: (5, 10)}


def test_a_missing_object_stops_its_partition_and_drops_what_later_tasks_wrote_of_it() -> None:
    rows = [row(0, "file", 0, 4), row(0, "missing", 4, 10), row(1, "file", 10, 20), row(2, "file", 5, 10)]

    manifest = verify_manifest(TASKS, rows)

    assert [file.row.object_key for file in manifest.files] == ["0-0", "2-5"]
    assert manifest.advances == (
        Advance(partition=Partition(0), from_offset=Offset(0), to_offset=Offset(4)),
        Advance(partition=Partition(1), from_offset=Offset(5), to_offset=Offset(10)),
    )
    assert manifest.stopped == (Stopped(partition=Partition(0), offset=Offset(4), reason="why"),)


def test_a_partition_that_stops_at_once_does_not_advance() -> None:
    rows = [row(0, "missing", 0, 10), row(1, "file", 10, 20), row(2, "file", 5, 10)]

    assert advanced(verify_manifest(TASKS, rows)) == {1: (5, 10)}


GOOD = [row(0, "file", 0, 10), row(1, "file", 10, 20), row(2, "file", 5, 10)]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (GOOD[:2], "covers offsets up to 5 of 10"),
        ([*GOOD, GOOD[0]], r"covers \[0, 10\) after 10"),
        ([*GOOD, row(7, "file", 0, 1)], "not planned"),
        ([row(0, "file", 0, 9), *GOOD[1:]], "up to 9 of 10"),
        ([row(0, "file", 0, 4), row(0, "file", 5, 10), *GOOD[1:]], r"covers \[5, 10\) after 4"),
        ([row(0, "file", 0, 10, rows=9), *GOOD[1:]], "9 rows for 10 records"),
        ([row(0, "missing", 0, 4), row(0, "file", 4, 10), *GOOD[1:]], "went on"),
    ],
)
def test_what_does_not_tile_the_plan_is_refused(rows: list[ManifestRow], complaint: str) -> None:
    with pytest.raises(ManifestRefused, match=complaint):
        verify_manifest(TASKS, rows)


def test_erased_offsets_are_counted_and_a_dropped_row_is_still_found() -> None:
    others = [row(1, "file", 10, 20), row(2, "file", 5, 10)]
    first = replace(row(0, "file", 0, 6, 4), empty_offsets=2)
    last = replace(row(0, "empty", 6, 10, 0), empty_offsets=4)

    manifest = verify_manifest(TASKS, [first, last, *others])

    assert advanced(manifest) == {0: (0, 20), 1: (5, 10)}
    assert len(manifest.files) == 3
    with pytest.raises(ManifestRefused, match="has 3 rows for 4 records"):
        verify_manifest(TASKS, [replace(first, row_count=3), last, *others])
    with pytest.raises(ManifestRefused, match="wrote no file for 1 records"):
        verify_manifest(TASKS, [first, replace(last, empty_offsets=3), *others])
