"""Small Parquet files become large ones: which, and that no record moves, goes or comes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.client import Sequencer
from sequencer.history.history_values import TableFile
from spark_compaction.bucket import BucketAddress
from spark_compaction.footers import is_full, read_footer
from spark_compaction.history_file import PARQUET_SCHEMA, FileDiffers, HistoryFile
from spark_compaction.job import SparkJobFailed
from spark_compaction.job_keys import open_job_keys
from spark_compaction.manifest import ManifestRefused
from spark_compaction.merge_files import FileMerger, first_rewrites
from spark_compaction.rewrite_tasks import (
    Rewrite,
    RewriteContext,
    RewrittenFile,
    expected_files,
    rewrite_table,
    run_rewrites,
)
from spark_compaction.settings import CompactionSettings
from spark_compaction.ttl import expire_history
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.row_groups import row_group_range
from storage.identifiers import ObjectKey, Offset, Partition, TopicId
from storage.stores.object_store import ObjectStore, StoreSettings
from tests.spark_compaction.log import Log, one, records
from tests.spark_compaction.reading import compact, compact_one, iceberg_rows, spark_rows, written_rows

MIB = 1 << 20
FULL = 256 * MIB


def a_file(number: int, size_bytes: int) -> TableFile:
    return TableFile(
        object_key=ObjectKey(f"{number:06d}"),
        partition=Partition(0),
        first_offset=Offset(10 * number),
        last_offset=Offset(10 * number + 9),
        row_count=10,
        size_bytes=size_bytes,
        is_full=is_full(size_bytes, FULL),
        oldest=None,
        newest=None,
        has_untimed=True,
        row_groups=(),
        written_at=datetime.now(UTC),
        sequence_number=1,
    )


def planned(*groups: Sequence[TableFile], job_bytes: int = 1 << 50) -> list[list[str]]:
    rewrites = first_rewrites(groups, files=8, file_bytes=FULL, job_bytes=job_bytes)
    return [[file.object_key.lstrip("0") or "0" for file in rewrite.sources] for rewrite in rewrites]


def test_eight_neighbours_of_a_size_are_merged_and_seven_are_not() -> None:
    seven = [a_file(number, 1000) for number in range(7)]
    assert planned(seven) == []
    assert planned([*seven, a_file(7, 1000)]) == [[str(number) for number in range(8)]]
    assert planned(seven, [a_file(8, 1000)]) == []


def test_a_large_file_is_not_rewritten_for_the_sake_of_small_ones() -> None:
    files = [a_file(0, 60 * MIB), *(a_file(number, 1000) for number in range(1, 10))]

    assert planned(files) == [[str(number) for number in range(1, 10)]]


def test_a_job_takes_so_many_bytes_but_at_least_one_group() -> None:
    groups = [[a_file(number, 1000) for number in range(start, start + 8)] for start in (0, 8, 16)]

    assert len(planned(*groups, job_bytes=1)) == 1
    assert len(planned(*groups, job_bytes=16_000)) == 2


@given(st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=400))
def test_a_partition_keeps_few_files_and_a_byte_is_rewritten_few_times(sizes: list[int]) -> None:
    """Publishes of any size; after each, what is planned is merged."""
    files: list[TableFile] = []
    rewritten = 0
    for number, size_bytes in enumerate(sizes):
        files.append(a_file(number, size_bytes))
        small = [file for file in files if not file.is_full]
        for rewrite in first_rewrites([small], files=8, file_bytes=FULL, job_bytes=1 << 50):
            first, total = rewrite.sources[0], sum(file.size_bytes for file in rewrite.sources)
            rewritten += total
            at = files.index(first)
            merged = replace(first, size_bytes=total, is_full=is_full(total, FULL))
            files[at : at + len(rewrite.sources)] = [merged]

    assert len(files) <= 8 * 4 + sum(sizes) * 8 // FULL
    assert rewritten <= 4 * sum(sizes)


REWRITE = Rewrite(sources=(a_file(0, 100), a_file(1, 100)))


def a_row(first: int, rows: int, name: str = "new", **fields: Any) -> RewrittenFile:
    return RewrittenFile(
        task_id=0, object_key=name, kept_rows=rows, first_offset=first, last_offset=first + rows - 1, **fields
    )


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [a_row(0, 19)],
        [a_row(0, 20), a_row(0, 1, name="", expired_rows=0)],
        [a_row(1, 20)],
        [a_row(0, 10), a_row(9, 10)],
        [a_row(0, 20), RewrittenFile(task_id=1, expired_rows=1)],
    ],
    ids=["nothing", "a dropped row", "a row too many", "shifted", "overlapping", "of no task"],
)
def test_what_does_not_account_for_every_row_is_refused(rows: list[RewrittenFile]) -> None:
    with pytest.raises(ManifestRefused):
        expected_files([REWRITE], rows, file_bytes=FULL)


def test_what_accounts_for_every_row_is_expected() -> None:
    rows = [a_row(0, 12), a_row(14, 6), RewrittenFile(task_id=0, expired_rows=2)]

    assert [file.first_offset for file in expected_files([REWRITE], rows, file_bytes=FULL)] == [0, 14]


def rewritten(address: BucketAddress, source: TableFile) -> list[tuple[int, bytes]]:
    """Offsets and values of what a rewrite of this file puts."""
    context = RewriteContext(
        address=address,
        prefix="rewritten/",
        topic_id=TopicId(uuid4()),
        cutoff=None,
        row_group_bytes=MIB,
        file_bytes=MIB,
        keyring=None,
        schema=PARQUET_SCHEMA,
    )
    rewrite = Rewrite(sources=(source,))
    batches = run_rewrites(context, rewrite_table([rewrite], None).to_batches())
    rows = [RewrittenFile(**row) for batch in batches for row in batch.to_pylist()]
    [expected] = expected_files([rewrite], rows, file_bytes=FULL)
    bucket = address.open()
    read_footer(bucket, expected)
    table = pq.read_table(pa.BufferReader(bucket.get(expected.object_key)))
    columns: list[list[Any]] = [table.column(name).to_pylist() for name in ("offset", "value")]
    return list(zip(*columns, strict=True))


def test_a_damaged_file_is_not_merged_into_another_one(tmp_path: Path) -> None:
    """Each byte of the row group is changed. Without the pages' checksums, the new file has other records."""
    address = BucketAddress.of(f"file://{tmp_path}", StoreSettings())
    bucket = address.open()
    values = [bytes(range(n, n + 40)) for n in range(10)]
    columns: dict[str, list[Any]] = {
        "offset": list(range(10)),
        "timestamp": [None] * 10,
        "timestamp_type": [0] * 10,
        "key": [None] * 10,
        "value": values,
        "headers": [[]] * 10,
    }
    file = HistoryFile(bucket, "sources/", TopicId(uuid4()), Partition(0), row_group_bytes=MIB)
    file.add(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA))
    written = file.close()
    source = replace(a_file(0, written.size_bytes), object_key=written.object_key)
    sound = bytes(bucket.get(written.object_key))
    group = pq.read_metadata(pa.BufferReader(sound)).row_group(0)
    start, length = row_group_range(group)

    assert rewritten(address, source) == list(enumerate(values))
    refused = 0
    for at in range(start, start + length):
        damaged = bytearray(sound)
        damaged[at] ^= 0x04
        bucket.put(written.object_key, bytes(damaged))
        try:
            found = rewritten(address, source)
        except (pa.ArrowException, OSError, ValueError, FileDiffers, ManifestRefused):
            refused += 1
        else:
            assert found == list(enumerate(values)), f"byte {at}"
    assert refused > length // 2


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_a_topic_whose_file_is_damaged_keeps_no_other_from_being_merged(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, store: ObjectStore
) -> None:
    ids = {}
    for topic in ("bad", "good"):
        ids[topic] = await log.topic(topic)
        for start in range(0, 20, 10):
            await log.write(topic, one(0, *records(10, start)))
            await compact_one(settings, topic)
    [[first, _]] = await sequencer.history.small_files(ids["bad"], Partition(0), 10)
    damaged = bytearray(await store.get(first.object_key))
    middle = first.row_groups[0].position + first.row_groups[0].length // 2
    damaged[middle : middle + 100] = bytes(100)
    await store.put(first.object_key, [bytes(damaged)])

    with pytest.raises(SparkJobFailed):
        await compact(settings.model_copy(update={"parquet_merge_files": 2}), "bad", "good")

    shown = {topic: (await sequencer.history.shown(topic))[0] for topic in ids}
    assert {topic: found.files for topic, found in shown.items()} == {"bad": 2, "good": 1}
    assert await iceberg_rows(settings, "good") == written_rows(log, "good")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_many_compactions_leave_few_files_with_the_same_records(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    topic_id = await log.topic("orders", partitions=2)
    four_at_once = settings.model_copy(update={"parquet_merge_files": 4})
    merged = 0
    for start in range(0, 90, 10):
        await log.write("orders", one(0, *records(10, start)), one(1, *records(3, start, timestamp_ms=-1)))
        merged += (await compact_one(four_at_once, "orders")).merged_files

    files = [
        file for group in await sequencer.history.small_files(topic_id, Partition(0), 100) for file in group
    ]

    assert merged >= 16
    assert len(files) <= 2 * 4
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")
    assert await iceberg_rows(settings, "orders") == written_rows(log, "orders")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
async def test_a_merge_of_files_that_ttl_dropped_meanwhile_publishes_nothing(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.topic("orders", retention_ms="1000")
    for start in range(0, 20, 10):
        await log.write("orders", one(0, *records(10, start)))
        await compact_one(settings, "orders")
    two_at_once = settings.model_copy(update={"parquet_merge_files": 2})
    topic = (await sequencer.topics.by_name(["orders"]))["orders"]
    async with open_job_keys(settings, sequencer) as keys:
        merger = FileMerger(two_at_once, sequencer, topic, keys)
        merge = merger._merge

        async def merge_then_expire(*given: object) -> object:
            added = await merge(*given)  # type: ignore[arg-type]
            await asyncio.to_thread(expire_history, settings, ["orders"])
            return added

        monkeypatch.setattr(merger, "_merge", merge_then_expire)

        assert await merger.run_job() is None
    assert await iceberg_rows(settings, "orders") == []
