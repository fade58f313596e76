"""What a publish costs as a history grows: `python -m benchmarks.history_publish`.

It fills a topic's table with data files, by the same publishes that compaction makes, 4,096 files each. The
table has the files' entries but not their bytes, because a publish does not read them. At each size, it times
32 publishes of one file each: staging (a manifest, a manifest list and a metadata file, on MinIO), and the
transaction in Postgres. One in eight merges small manifests. Then it removes one file, 8 times, as TTL does.

The benchmark starts its own Postgres and MinIO.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

import uvloop
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType
from rich.console import Console
from rich.table import Table

from benchmarks.commit_rate import own_postgres
from benchmarks.endpoints import Endpoint, minio
from sequencer.client import Sequencer
from sequencer.history.history_values import HistoryJob, Publication, Published, TableFile
from sequencer.settings import SequencerSettings
from spark_compaction.bucket import BucketAddress
from spark_compaction.iceberg_table import AddedFile, Change, HistoryTableFiles
from storage.identifiers import ObjectKey, Offset, Partition, TopicId
from storage.stores.open_store import open_store

SIZES: Final = (10, 10_000, 1_000_000)
_CLUSTER: Final = "bench"
_OWNED_FOR_S: Final = 3600.0
_FILES_AT_A_TIME: Final = 4096
_PUBLISHES: Final = 32
_REMOVALS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one publish."""

    stage_ms: float
    publish_ms: float

    @property
    def total_ms(self) -> float:
        return self.stage_ms + self.publish_ms


class _History:
    """A topic's table that grows."""

    def __init__(self, sequencer: Sequencer, address: BucketAddress, topic_id: TopicId) -> None:
        self._sequencer = sequencer
        self._address = address
        self._bucket = address.open()
        self._topic_id = topic_id
        self.files = self._added = 0

    async def add(self, count: int) -> Cost:
        job = await self._job()
        added = [_file(self._address, job.prefix, self._added + number) for number in range(count)]
        cost = await self._publish(job, added, [])
        self.files += count
        self._added += count
        return cost

    async def remove(self) -> Cost:
        """One of the oldest files."""
        job = await self._job()
        [oldest] = await self._sequencer.history.expired_files(self._topic_id, datetime.now(UTC), 1)
        self.files -= 1
        return await self._publish(job, [], [oldest])

    async def _job(self) -> HistoryJob:
        job = await self._sequencer.history.begin(self._topic_id, "expire", cluster=_CLUSTER, lease_s=600.0)
        assert isinstance(job, HistoryJob), job
        return job

    async def _publish(self, job: HistoryJob, added: list[AddedFile], removed: list[TableFile]) -> Cost:
        change = Change(added=added, removed=removed, summary={}, expire_snapshots_before=datetime.now(UTC))
        began_s = time.perf_counter()
        staged = HistoryTableFiles(self._address, self._bucket, job, job.table).stage(change)
        staged_s = time.perf_counter()
        publication = Publication(
            version=staged, added=[each.file for each in added], removed=[file.object_key for file in removed]
        )
        assert await self._sequencer.history.publish(job, publication) == Published()
        return Cost(stage_ms=(staged_s - began_s) * 1e3, publish_ms=(time.perf_counter() - staged_s) * 1e3)


def _file(address: BucketAddress, prefix: str, number: int) -> AddedFile:
    key = ObjectKey(f"{prefix}00000-{number:020d}-{uuid4().hex}.parquet")
    offset, partition = to_bytes(LongType(), number), to_bytes(IntegerType(), 0)
    counts = dict.fromkeys((1, 2, 3, 4), 1)
    bounds = {1: partition, 2: offset, 3: offset, 4: partition}
    entry = DataFile.from_args(
        content=DataFileContent.DATA, file_path=address.location(key), file_format=FileFormat.PARQUET,
        partition=Record(), file_size_in_bytes=10_000, sort_order_id=1, spec_id=0, equality_ids=None,
        key_metadata=None, record_count=1, column_sizes=dict.fromkeys(range(1, 11), 1000),
        value_counts=counts,
        null_value_counts=counts, nan_value_counts={}, lower_bounds=bounds, upper_bounds=bounds,
        split_offsets=[4],
    )  # fmt: skip
    time_of_it = datetime.fromtimestamp(number, UTC)
    file = TableFile(
        object_key=key, partition=Partition(0), first_offset=Offset(number), last_offset=Offset(number),
        row_count=1,
        size_bytes=10_000, is_full=False, oldest=time_of_it, newest=time_of_it, has_untimed=False,
        row_groups=(),
    )  # fmt: skip
    return AddedFile(file=file, entry=entry)


async def _measure(history: _History, size: int) -> tuple[list[Cost], list[Cost]]:
    while history.files < size:
        await history.add(min(_FILES_AT_A_TIME, size - history.files))
    added = [await history.add(1) for _ in range(_PUBLISHES)]
    removed = [await history.remove() for _ in range(_REMOVALS)]
    return added, removed


def _rows(size: int, added: list[Cost], removed: list[Cost]) -> Iterator[tuple[str, ...]]:
    for what, costs in (("one file added", added), ("one file removed", removed)):
        totals = [cost.total_ms for cost in costs]
        yield (
            f"{size:,}",
            what,
            f"{statistics.median(cost.stage_ms for cost in costs):.1f}",
            f"{statistics.median(cost.publish_ms for cost in costs):.1f}",
            f"{statistics.median(totals):.1f}",
            f"{max(totals):.1f}",
        )


async def _run(database_url: str, endpoint: Endpoint, sizes: list[int]) -> Table:
    table = Table(
        "files", "publish", "stage, p50 ms", "Postgres, p50 ms", "both, p50 ms", "longest ms",
        title="a publish of history", title_justify="left",
    )  # fmt: skip
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    store = await open_store(endpoint.store_url, endpoint.settings())
    try:
        await sequencer.ownership.ratchet(store, _CLUSTER, ratchet_s=_OWNED_FOR_S)
        address = BucketAddress.of(endpoint.store_url, endpoint.settings())
        topic = await sequencer.topics.create("orders", 1, {})
        await sequencer.database.run("INSERT INTO history_tables (topic_id) SELECT topic_id FROM topics")
        history = _History(sequencer, address, topic.topic_id)
        for size in sizes:
            for row in _rows(size, *await _measure(history, size)):
                table.add_row(*row)
    finally:
        await store.close()
        await sequencer.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_publish", description=__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), help="files in the table, ascending"
    )
    sizes = parser.parse_args().sizes
    with (
        tempfile.TemporaryDirectory() as directory,
        own_postgres() as database,
        minio(Path(directory)) as endpoint,
    ):
        Console(width=120).print(uvloop.run(_run(database.url, endpoint, sizes)))


if __name__ == "__main__":
    main()
