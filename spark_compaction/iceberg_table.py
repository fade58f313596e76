"""Stages a change of a topic's Iceberg table: everything is written under the job's prefix, nothing is
published.

PyIceberg makes manifests and metadata. Instead of a catalog's commit, this writes the metadata file and
remembers its key. The change becomes visible only when `sequencer.history.history.publish` moves the pointer
to that key. So a crash, a lost race or an expired lease leaves objects under a prefix, never a half-changed
table.

A topic's history as an Iceberg table. `parquet_schema` has the same columns for the files.

A record without a timestamp (Kafka's -1) has a null timestamp. Tables are sorted by (partition, offset) and
have no partition spec: a file holds contiguous offsets of one Kafka partition, so its column bounds prune as
well as a spec would, and a later layout may put several partitions into one file. Bounds and counts are kept
for partition, offset, timestamp and timestamp_type. All else is payload, which may be encrypted; manifests
never are.

The bucket for PyIceberg: Iceberg locations in, objects of the bucket out.

Promises:
- It deletes nothing. PyIceberg would clean up after a failed commit, but only the garbage collector deletes
  objects (docs/design/history.md#unreferenced-files).
- It remembers what was written, so that a publish can record it.
"""

import io
import random
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Literal, Self
from uuid import uuid4

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromByteStream, ToOutputFile
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from sequencer.history.history_values import HistoryJob, Publication, StagedVersion, TableFile, TableVersion
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.footers import ExpectedFile, has_full_footer, last_offset, read_footer, row_groups
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import ObjectKey, Offset, Partition
from storage.stores.object_store import ObjectNotFound

_HEADER = StructType(
    NestedField(9, "key", StringType(), required=True),
    NestedField(10, "value", BinaryType(), required=False),
)

ICEBERG_SCHEMA = Schema(
    NestedField(1, "partition", IntegerType(), required=True),
    NestedField(2, "offset", LongType(), required=True),
    NestedField(3, "timestamp", TimestamptzType(), required=False),
    NestedField(
        4,
        "timestamp_type",
        IntegerType(),
        required=True,
        doc="0: the producer's time, 1: the log's (append) time",
    ),
    NestedField(5, "key", BinaryType(), required=False),
    NestedField(6, "value", BinaryType(), required=False),
    NestedField(7, "headers", ListType(8, _HEADER, element_required=True), required=True),
)

TIMESTAMP_FIELD = 3

ROWS_PROPERTY: Final = "tidelog.rows"
"""A property of the table: ALL_RECORDS, which is the default, or LAST_RECORDS, if the topic is compacted by
key."""
ALL_RECORDS: Final = "records"
LAST_RECORDS: Final = "last-of-each-key"

_MAX_METADATA_FILES = 20

_PROPERTIES = {
    "format-version": "2",
    "write.format.default": "parquet",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.default": "none",
    **{
        f"write.metadata.metrics.column.{name}": "full"
        for name in ("partition", "offset", "timestamp", "timestamp_type")
    },
    "write.metadata.previous-versions-max": str(_MAX_METADATA_FILES),
    # A publish that lost a race must be planned anew, never repeated on a newer table: its offsets may be
    # there already.
    "commit.retry.num-retries": "0",
    # Only the garbage collector deletes objects: Iceberg's own procedures refuse to expire files or to purge
    # this table.
    "gc.enabled": "false",
}


def new_history_table(location: str) -> TableMetadata:
    """Returns an empty history table at `location`."""
    order = SortOrder(
        SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST),
        SortField(2, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST),
    )
    return new_table_metadata(
        schema=ICEBERG_SCHEMA,
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=order,
        location=location,
        properties=dict(_PROPERTIES),
    )


_RANGE_BUFFER_BYTES = 256 << 10


class BucketIO(FileIO):
    def __init__(self, address: BucketAddress, bucket: Bucket) -> None:
        super().__init__()
        self._address = address
        self._bucket = bucket
        self.written: list[ObjectKey] = []

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._address.key_of(location), self._bucket)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._address.key_of(location), self._bucket, self.written)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Does nothing: the garbage collector finds the object under the job's prefix."""


class _Input(InputFile):
    def __init__(self, location: str, key: ObjectKey, bucket: Bucket) -> None:
        super().__init__(location)
        self._key = key
        self._bucket = bucket

    def __len__(self) -> int:
        return self._bucket.size(self._key)

    def exists(self) -> bool:
        try:
            self._bucket.size(self._key)
        except ObjectNotFound:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - the library's signature
        """Metadata is read whole; of a data file only the requested ranges are read."""
        if not self._location.endswith(".parquet"):
            return io.BytesIO(self._bucket.get(self._key))
        return io.BufferedReader(_Ranges(self._key, self._bucket), _RANGE_BUFFER_BYTES)


class _Output(OutputFile):
    def __init__(self, location: str, key: ObjectKey, bucket: Bucket, written: list[ObjectKey]) -> None:
        super().__init__(location)
        self._key = key
        self._bucket = bucket
        self._written = written

    def __len__(self) -> int:
        return self._bucket.size(self._key)

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _Input(self._location, self._key, self._bucket)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 - names are never used twice
        self._written.append(self._key)
        return _Upload(self._key, self._bucket)


class _Upload(io.BytesIO):
    """Put as one object when closed without an error."""

    def __init__(self, key: ObjectKey, bucket: Bucket) -> None:
        super().__init__()
        self._key = key
        self._bucket = bucket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self._bucket.put(self._key, self.getvalue())
        super().close()


class _Ranges(io.RawIOBase):
    def __init__(self, key: ObjectKey, bucket: Bucket) -> None:
        self._key = key
        self._bucket = bucket
        self._size = bucket.size(key)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._bucket.get(self._key, self._at, min(self._at + len(target), self._size))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)


_READERS: Final = 8
_MERGED_AT_ONCE: Final = 8
_FULL_MANIFEST_FILES: Final = 4096
"""A power of `_MERGED_AT_ONCE`. Larger manifests are left as they are."""
_FORMAT: Final[Literal[2]] = 2
_CODEC: Final = "deflate"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION: Final = "tidelog.version"
"""In a snapshot's summary: the version of the table that added it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A new data file: its row in the sequencer, and Iceberg's entry for it."""

    file: TableFile
    entry: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """Columns for fields of keys and values (`spark_compaction.typed`), behind those of the record."""

    base: Schema
    """The schema that was changed."""
    schema: Schema
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to change in one snapshot. `removed` are data files of the current snapshot."""

    added: Sequence[AddedFile] = ()
    removed: Sequence[TableFile] = ()
    summary: Mapping[str, str]
    expire_snapshots_before: datetime
    """Snapshots made before this time, unless current, leave the metadata."""
    schema: SchemaChange | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class FilesGone(Exception):
    """A file to be removed is not in the table: another job replaced it first."""


class SchemaChanged(Exception):
    """Another job changed the table's schema first, so that columns of the files would not be its own."""


class HistoryTableFiles:
    """One version of a topic's table, as a job sees it."""

    def __init__(self, address: BucketAddress, bucket: Bucket, job: HistoryJob, on: TableVersion) -> None:
        self._address = address
        self._bucket = bucket
        self._job = job
        self._on = on
        self.metadata = self._load()

    def describe(
        self, files: Sequence[ExpectedFile], keyring: TopicKeyring | None, schema: Schema | None = None
    ) -> list[AddedFile]:
        """New Parquet files, from their footers in the bucket. Raises ManifestRefused.

        `keyring`: of a topic that is encrypted. `schema`: the one that they were written with, if it is not
        the table's.
        """
        describe = partial(self._describe_one, schema or self.metadata.schema(), keyring)
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(describe, files))

    def _describe_one(
        self, schema: Schema, keyring: TopicKeyring | None, expected: ExpectedFile
    ) -> AddedFile:
        footer = read_footer(self._bucket, expected, keyring)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(schema, self.metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        sizes = statistics.column_sizes
        for field_id in [each for each in sizes if each > ICEBERG_SCHEMA.highest_field_id]:
            del sizes[field_id]  # a thousand of them would make large manifests
        entry = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._address.location(expected.object_key),
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=expected.size_bytes,
            sort_order_id=self.metadata.default_sort_order_id,
            spec_id=self.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file = TableFile(
            object_key=expected.object_key,
            partition=Partition(expected.partition),
            first_offset=Offset(expected.first_offset),
            last_offset=Offset(last_offset(footer)),
            row_count=expected.row_count,
            size_bytes=expected.size_bytes,
            is_full=expected.is_full or has_full_footer(footer),
            oldest=_time(entry.lower_bounds),
            newest=_time(entry.upper_bounds),
            has_untimed=(entry.null_value_counts or {}).get(TIMESTAMP_FIELD, 0) > 0,
            row_groups=row_groups(footer),
            written_at=expected.written_at,
        )
        return AddedFile(file=file, entry=entry)

    def has_snapshots_before(self, time: datetime) -> bool:
        """Whether staging a change would take snapshots made before `time` out of the metadata."""
        return bool(self._snapshots_before(time))

    def stage(self, change: Change) -> StagedVersion:
        """Writes the manifests, the manifest list and the metadata file of the changed table. Raises
        FilesGone or SchemaChanged.
        """
        return _Staging(self._address, self._bucket, self._job, self._on, self.metadata).stage(
            change, self._snapshots_before(change.expire_snapshots_before)
        )

    def publication(self, change: Change) -> Publication:
        """Stages a change, and returns what publishes it. Raises as `stage`."""
        return Publication(
            version=self.stage(change),
            added=[each.file for each in change.added],
            removed=[file.object_key for file in change.removed],
        )

    def _snapshots_before(self, time: datetime) -> list[Snapshot]:
        current = self.metadata.current_snapshot_id
        return [
            snapshot
            for snapshot in self.metadata.snapshots
            if snapshot.timestamp_ms < time.timestamp() * 1000 and snapshot.snapshot_id != current
        ]

    def _load(self) -> TableMetadata:
        if self._on.metadata_key is None:
            return new_history_table(self._address.location(table_prefix(self._job)))
        return FromByteStream.table_metadata(io.BytesIO(self._bucket.get(self._on.metadata_key)))


def table_prefix(job: HistoryJob) -> str:
    """Returns the table's location as a key. The jobs' prefixes are below it."""
    return job.prefix.rstrip("/").rpartition("/")[0]


class _Staging:
    """One change on its way into the bucket."""

    def __init__(
        self,
        address: BucketAddress,
        bucket: Bucket,
        job: HistoryJob,
        on: TableVersion,
        metadata: TableMetadata,
    ) -> None:
        self._address = address
        self._job = job
        self._on = on
        self._metadata = metadata
        self._io = BucketIO(address, bucket)
        self._number = on.number + 1
        self._sequence_number = metadata.next_sequence_number()
        self._snapshot_id = random.getrandbits(62)  # Iceberg's ids are positive; two of a table must differ
        self._let_go: list[str] = []
        """Locations of metadata objects that the current snapshot names and the new one does not."""
        self._removed: list[DataFile] = []

    def stage(self, change: Change, expired: Sequence[Snapshot]) -> StagedVersion:
        updates: list[TableUpdate] = []
        if change.schema is not None:
            self._metadata = _with_schema(self._metadata, change.schema)
        self._metadata = _with_properties(self._metadata, change.properties)
        if change.added or change.removed:
            updates += self._new_snapshot(change)
        if expired:
            ids = [snapshot.snapshot_id for snapshot in expired]
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}))
        before = self._on.metadata_key
        metadata = update_table_metadata(
            self._metadata,
            tuple(updates),
            metadata_location=self._address.location(before) if before else None,
        )
        oldest_version = min([self._number, *map(_version_that_added, metadata.snapshots)])
        metadata = metadata.model_copy(
            update={  # a metadata file is garbage once no snapshot of its time is retained
                "metadata_log": [
                    each
                    for each in metadata.metadata_log
                    if _version_of(each.metadata_file) >= oldest_version
                ]
            }
        )
        key = ObjectKey(f"{self._job.prefix}{_metadata_name(self._number)}")
        ToOutputFile.table_metadata(metadata, self._io.new_output(self._address.location(key)))
        let_go = {self._address.key_of(location) for location in self._let_go}
        return StagedVersion(
            on=self._on,
            metadata_key=key,
            sequence_number=self._sequence_number,
            written=tuple(self._io.written),
            let_go=sorted(let_go | {before} if before else let_go),
            oldest_version=oldest_version,
        )

    def _new_snapshot(self, change: Change) -> list[TableUpdate]:
        parent = self._metadata.current_snapshot()
        manifests = list(parent.manifests(self._io)) if parent is not None else []
        before = {manifest.manifest_path for manifest in manifests}
        if change.removed:
            manifests = self._without(manifests, change.removed)
        manifests = self._merged([each for each in manifests if _live_files(each) or self._is_new(each)])
        if change.added:
            manifests.append(self._write(added=[each.entry for each in change.added]))
        self._let_go += before - {manifest.manifest_path for manifest in manifests}
        location = self._location(f"snap-{self._snapshot_id}-{uuid4()}.avro")
        parent_id = parent.snapshot_id if parent is not None else None
        if parent is not None:
            self._let_go.append(parent.manifest_list)
        with write_manifest_list(
            _FORMAT,
            self._io.new_output(location),
            self._snapshot_id,
            parent_id,
            self._sequence_number,
            _CODEC,
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot.model_validate(
            {
                "snapshot-id": self._snapshot_id,
                "parent-snapshot-id": parent_id,
                "sequence-number": self._sequence_number,
                "timestamp-ms": max(time.time_ns() // 1_000_000, self._metadata.last_updated_ms),
                "manifest-list": location,
                "summary": self._summary(change, parent),
                "schema-id": self._metadata.current_schema_id,
            }
        )
        main = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": self._snapshot_id}
        return [AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(main)]

    def _without(self, manifests: Sequence[ManifestFile], removed: Sequence[TableFile]) -> list[ManifestFile]:
        """The manifests with the removed files' entries marked as deleted. A manifest that has none stays as
        it is.
        """
        live = [manifest for manifest in manifests if _live_files(manifest)]
        begins = [manifest.min_sequence_number or 0 for manifest in live]
        wanted: dict[str, set[str]] = {}
        for file in removed:
            position = bisect_right(begins, file.sequence_number) - 1
            if position < 0:
                raise FilesGone(f"no manifest has {file.object_key}")
            wanted.setdefault(live[position].manifest_path, set()).add(
                self._address.location(file.object_key)
            )
        return [
            self._rewritten(manifest, wanted[manifest.manifest_path])
            if manifest.manifest_path in wanted
            else manifest
            for manifest in manifests
        ]

    def _rewritten(self, manifest: ManifestFile, removed: set[str]) -> ManifestFile:
        entries = self._entries(manifest)
        deleted = [entry for entry in entries if entry.data_file.file_path in removed]
        if len(deleted) != len(removed):
            raise FilesGone(f"{manifest.manifest_path} has {len(deleted)} of {len(removed)} files to remove")
        self._removed += [entry.data_file for entry in deleted]
        return self._write(
            existing=[entry for entry in entries if entry.data_file.file_path not in removed], deleted=deleted
        )

    def _merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Neighbours of a size become one of the next size, so that they stay in the order of sequence
        numbers.
        """
        merged = list(manifests)
        size = _MERGED_AT_ONCE
        while size <= _FULL_MANIFEST_FILES:
            merged = [each for group in self._groups(merged, size) for each in self._as_one(group)]
            size *= _MERGED_AT_ONCE
        return merged

    def _groups(self, manifests: Sequence[ManifestFile], size: int) -> Iterator[Sequence[ManifestFile]]:
        """Neighbours with fewer than `size` files each. A larger manifest, or one of this change, is
        alone.
        """
        group: list[ManifestFile] = []
        for manifest in manifests:
            if self._is_new(manifest) or _live_files(manifest) >= size:
                yield group
                yield [manifest]
                group = []
            else:
                group.append(manifest)
        yield group

    def _as_one(self, group: Sequence[ManifestFile]) -> Iterable[ManifestFile]:
        if len(group) < _MERGED_AT_ONCE:
            return group
        with ThreadPoolExecutor(_READERS) as pool:
            return [
                self._write(existing=[entry for each in pool.map(self._entries, group) for entry in each])
            ]

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(self._io, discard_deleted=True)

    def _write(
        self,
        *,
        added: Iterable[DataFile] = (),
        existing: Iterable[ManifestEntry] = (),
        deleted: Iterable[ManifestEntry] = (),
    ) -> ManifestFile:
        output = self._io.new_output(self._location(f"{uuid4()}-m.avro"))
        schema = self._metadata.schema()
        with write_manifest(
            _FORMAT, UNPARTITIONED_PARTITION_SPEC, schema, output, self._snapshot_id, _CODEC
        ) as writer:
            for file in added:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
            for entry in existing:
                writer.existing(entry)
            for entry in deleted:
                writer.delete(entry)
        return writer.to_manifest_file()

    def _is_new(self, manifest: ManifestFile) -> bool:
        return manifest.added_snapshot_id == self._snapshot_id

    def _location(self, name: str) -> str:
        return self._address.location(ObjectKey(f"{self._job.prefix}{name}"))

    def _summary(self, change: Change, parent: Snapshot | None) -> Summary:
        if not change.removed:
            operation = Operation.APPEND
        else:
            operation = Operation.OVERWRITE if change.added else Operation.DELETE
        counted = SnapshotSummaryCollector()
        schema = self._metadata.schema()
        for each in change.added:
            counted.add_file(each.entry, schema)
        for entry in self._removed:
            counted.remove_file(entry, schema)
        own = {**change.summary, _VERSION: str(self._number)}
        return update_snapshot_summaries(
            Summary(operation, **counted.build(), **own), parent.summary if parent is not None else None
        )


def _with_schema(metadata: TableMetadata, change: SchemaChange) -> TableMetadata:
    updates: list[TableUpdate] = []
    current = {field.field_id: field for field in metadata.schema().fields}
    if any(current.get(field.field_id) != field for field in change.schema.fields):
        if metadata.schema().fields != change.base.fields:
            raise SchemaChanged("another job changed the table's columns first")
        schema = Schema(*change.schema.fields, schema_id=max(each.schema_id for each in metadata.schemas) + 1)
        updates += [AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate.model_validate({"schema-id": -1})]
    changed = update_table_metadata(metadata, tuple(updates)) if updates else metadata
    return _with_properties(changed, change.properties)


def _with_properties(metadata: TableMetadata, properties: Mapping[str, str]) -> TableMetadata:
    changed = {name: value for name, value in properties.items() if metadata.properties.get(name) != value}
    return update_table_metadata(metadata, (SetPropertiesUpdate(updates=changed),)) if changed else metadata


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _version_that_added(snapshot: Snapshot) -> int:
    assert snapshot.summary is not None
    return int(snapshot.summary[_VERSION] or 0)


def _metadata_name(version: int) -> str:
    return f"{version:05d}.metadata.json"


def _version_of(metadata_location: str) -> int:
    return int(metadata_location.rpartition("/")[2].partition(".")[0])


def _time(bounds: Mapping[int, bytes] | None) -> datetime | None:
    if not bounds or TIMESTAMP_FIELD not in bounds:
        return None
    microseconds: int = from_bytes(LongType(), bounds[TIMESTAMP_FIELD])  # type: ignore[assignment]
    return _EPOCH + timedelta(microseconds=microseconds)
