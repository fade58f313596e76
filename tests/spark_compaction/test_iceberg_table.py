"""Staging changes of an Iceberg table: what it then names, and that a change costs what it changes."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType

from sequencer.history.history_values import HistoryJob, TableFile, TableVersion
from spark_compaction.bucket import BucketAddress
from spark_compaction.iceberg_table import AddedFile, BucketIO, Change, FilesGone, HistoryTableFiles
from storage.identifiers import ObjectKey, Offset, Partition, TopicId
from storage.stores.object_store import StoreSettings

NEVER = datetime(1970, 1, 1, tzinfo=UTC)
AT_ONCE = datetime.now(UTC) + timedelta(days=365)


@dataclass
class ATable:
    """A table of files that need not exist, with what the sequencer would know of its objects."""

    address: BucketAddress
    topic_id: TopicId
    version: TableVersion = field(default_factory=lambda: TableVersion(number=0, metadata_key=None))
    files: dict[ObjectKey, TableFile] = field(default_factory=dict)
    let_go_in: dict[ObjectKey, int | None] = field(default_factory=dict)
    garbage: set[ObjectKey] = field(default_factory=set)

    def change(
        self, add: int = 0, remove: tuple[ObjectKey, ...] = (), expire_before: datetime = NEVER
    ) -> None:
        job = HistoryJob(
            job_id=uuid4(),
            topic_id=self.topic_id,
            prefix=f"tidelog/history/{self.topic_id}/{uuid4()}/",
            table=self.version,
        )
        table = HistoryTableFiles(self.address, self.address.open(), job, self.version)
        added = [a_file(self.address, job.prefix, number) for number in range(add)]
        removed = [self.files[key] for key in remove]
        staged = table.stage(
            Change(added=added, removed=removed, summary={}, expire_snapshots_before=expire_before)
        )
        number = staged.on.number + 1
        for file in removed:
            del self.files[file.object_key]
        for each in added:
            self.files[each.file.object_key] = TableFile(
                **{**_values(each.file), "sequence_number": staged.sequence_number}
            )
        self.let_go_in |= dict.fromkeys([*staged.written, *(each.file.object_key for each in added)])
        self.let_go_in |= dict.fromkeys([*staged.let_go, *remove], number)
        self.garbage |= {
            key for key, gone in self.let_go_in.items() if gone and gone <= staged.oldest_version
        }
        self.version = TableVersion(number=number, metadata_key=staged.metadata_key)

    @property
    def io(self) -> BucketIO:
        return BucketIO(self.address, self.address.open())

    def named(self) -> tuple[set[ObjectKey], set[ObjectKey]]:
        """What the metadata says, read in full: the current data files, and every object of a retained
        snapshot.
        """
        assert self.version.metadata_key is not None
        file_io = self.io
        metadata = FromInputFile.table_metadata(
            file_io.new_input(self.address.location(self.version.metadata_key))
        )
        current: set[str] = set()
        objects = {self.address.location(self.version.metadata_key)}
        objects |= {entry.metadata_file for entry in metadata.metadata_log}
        for snapshot in metadata.snapshots:
            files: set[str] = set()
            for manifest in snapshot.manifests(file_io):
                entries = manifest.fetch_manifest_entry(file_io, discard_deleted=False)
                live = [each for each in entries if each.status != ManifestEntryStatus.DELETED]
                assert len(live) == (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
                files |= {each.data_file.file_path for each in live}
                objects.add(manifest.manifest_path)
            objects |= files | {snapshot.manifest_list}
            if snapshot.snapshot_id == metadata.current_snapshot_id:
                current = files
                assert snapshot.summary is not None
                assert snapshot.summary["total-data-files"] == str(len(files))
        return (
            {self.address.key_of(each) for each in current},
            {self.address.key_of(each) for each in objects},
        )

    def manifests(self) -> int:
        assert self.version.metadata_key is not None
        file_io = self.io
        metadata = FromInputFile.table_metadata(
            file_io.new_input(self.address.location(self.version.metadata_key))
        )
        snapshot = metadata.current_snapshot()
        return len(snapshot.manifests(file_io)) if snapshot is not None else 0


def _values(file: TableFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in TableFile.__dataclass_fields__}


def a_file(address: BucketAddress, prefix: str, number: int) -> AddedFile:
    key = ObjectKey(f"{prefix}00000-{number:020d}.parquet")
    bounds = {1: to_bytes(IntegerType(), 0), 2: to_bytes(LongType(), number)}
    entry = DataFile.from_args(
        content=DataFileContent.DATA, file_path=address.location(key), file_format=FileFormat.PARQUET,
        partition=Record(), file_size_in_bytes=1000, sort_order_id=1, spec_id=0, equality_ids=None,
        key_metadata=None,
        record_count=1, column_sizes={}, value_counts={1: 1, 2: 1}, null_value_counts={1: 0, 2: 0},
        nan_value_counts={}, lower_bounds=bounds, upper_bounds=bounds, split_offsets=[4],
    )  # fmt: skip
    file = TableFile(
        object_key=key, partition=Partition(0), first_offset=Offset(number), last_offset=Offset(number),
        row_count=1,
        size_bytes=1000, is_full=False, oldest=None, newest=None, has_untimed=True,
        row_groups=(),
    )  # fmt: skip
    return AddedFile(file=file, entry=entry)


@pytest.fixture
def table(tmp_path: Path) -> ATable:
    address = BucketAddress.of(f"file://{tmp_path}/store", StoreSettings())
    return ATable(address=address, topic_id=TopicId(uuid4()))


@pytest.mark.parametrize("seed", range(3))
def test_a_table_names_what_was_added_and_not_removed_and_garbage_is_what_it_names_no_more(
    table: ATable, seed: int
) -> None:
    """Changes at random. Read in full after each few: data files, and every object that a retained snapshot
    names.
    """
    choose = random.Random(seed)
    for step in range(60):
        remove = tuple(choose.sample(sorted(table.files), min(len(table.files), choose.choice((0, 0, 1, 3)))))
        add = choose.choice((1, 1, 2, 9)) if not remove or choose.random() < 0.5 else 0
        table.change(add, remove, expire_before=choose.choice((NEVER, NEVER, AT_ONCE)))
        if step % 7 == 0:
            current, objects = table.named()
            assert current == table.files.keys()
            assert objects == table.let_go_in.keys() - table.garbage


def test_a_table_has_few_manifests_however_many_publishes_made_it(table: ATable) -> None:
    for _ in range(150):
        table.change(add=1, expire_before=AT_ONCE)
    assert table.manifests() <= 24

    for start in range(0, 140, 10):
        table.change(remove=tuple(sorted(table.files)[start % 7 : start % 7 + 9]), expire_before=AT_ONCE)

    assert table.named()[0] == table.files.keys()
    assert table.manifests() <= 24


def test_a_change_reads_no_more_of_a_large_table_than_of_a_small_one(
    table: ATable, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    counted = BucketIO.new_input

    def new_input(self: BucketIO, location: str) -> object:
        reads.append(location)
        return counted(self, location)

    def reads_of_a_change(**change: Any) -> int:
        reads.clear()
        table.change(**change)
        return len(reads)

    monkeypatch.setattr(BucketIO, "new_input", new_input)
    table.change(add=1)
    small = reads_of_a_change(add=1)
    for _ in range(20):
        table.change(add=500)
    large = min(reads_of_a_change(add=1) for _ in range(3))  # one in eight merges manifests

    assert (small, large) == (1, 1)  # the manifest list


def test_a_file_that_another_job_replaced_is_not_removed_again(table: ATable) -> None:
    table.change(add=3)
    gone = sorted(table.files)[0]
    file = table.files[gone]
    table.change(remove=(gone,))
    table.files[gone] = file

    with pytest.raises(FilesGone):
        table.change(remove=(gone,))


def test_a_change_without_files_only_expires_snapshots(table: ATable) -> None:
    for _ in range(3):
        table.change(add=1)
    before = table.named()[0]

    table.change(expire_before=AT_ONCE)
    table.change(add=1, expire_before=AT_ONCE)
    table.change(add=1, expire_before=AT_ONCE)

    current, objects = table.named()
    assert before < current
    assert objects == table.let_go_in.keys() - table.garbage
