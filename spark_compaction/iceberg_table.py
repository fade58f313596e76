"""Stages a change of a topic's Iceberg table: everything is written under the job's prefix, nothing is
published.

PyIceberg makes manifests and metadata. Instead of a catalog's commit, this writes the metadata file and
remembers its key. The change becomes visible only when `sequencer.history.history.publish` moves the pointer
to that key. So a crash, a lost race or an expired lease leaves objects under a prefix, never a half-changed
table.
"""

import io
import random
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from uuid import uuid4

from pyiceberg.conversions import from_bytes
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
from pyiceberg.serializers import FromByteStream, ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from sequencer.history.history_values import HistoryJob, StagedVersion, TableFile, TableVersion
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.footers import ExpectedFile, last_offset, read_footer
from spark_compaction.history_schema import TIMESTAMP_FIELD, new_history_table
from spark_compaction.iceberg_io import BucketIO
from storage.identifiers import ObjectKey, Offset, Partition

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
class Change:
    """What to change in one snapshot. `removed` are data files of the current snapshot."""

    added: Sequence[AddedFile] = ()
    removed: Sequence[TableFile] = ()
    summary: Mapping[str, str]
    expire_snapshots_before: datetime
    """Snapshots made before this time, unless current, leave the metadata."""


class FilesGone(Exception):
    """A file to be removed is not in the table: another job replaced it first."""


class HistoryTableFiles:
    """One version of a topic's table, as a job sees it."""

    def __init__(self, address: BucketAddress, bucket: Bucket, job: HistoryJob, on: TableVersion) -> None:
        self._address = address
        self._bucket = bucket
        self._job = job
        self._on = on
        self.metadata = self._load()

    def describe(self, files: Sequence[ExpectedFile]) -> list[AddedFile]:
        """New Parquet files, from their footers in the bucket. Raises ManifestRefused."""
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self._describe_one, files))

    def _describe_one(self, expected: ExpectedFile) -> AddedFile:
        schema = self.metadata.schema()
        footer = read_footer(self._bucket, expected)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(schema, self.metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
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
            is_full=expected.is_full,
            oldest=_time(entry.lower_bounds),
            newest=_time(entry.upper_bounds),
            has_untimed=(entry.null_value_counts or {}).get(TIMESTAMP_FIELD, 0) > 0,
            written_at=expected.written_at,
        )
        return AddedFile(file=file, entry=entry)

    def has_snapshots_before(self, time: datetime) -> bool:
        """Whether staging a change would take snapshots made before `time` out of the metadata."""
        return bool(self._snapshots_before(time))

    def stage(self, change: Change) -> StagedVersion:
        """Writes the manifests, the manifest list and the metadata file of the changed table. Raises FilesGone."""
        return _Staging(self._address, self._bucket, self._job, self._on, self.metadata).stage(
            change, self._snapshots_before(change.expire_snapshots_before)
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
        self, address: BucketAddress, bucket: Bucket, job: HistoryJob, on: TableVersion, metadata: TableMetadata
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
        if change.added or change.removed:
            updates += self._new_snapshot(change)
        if expired:
            ids = [snapshot.snapshot_id for snapshot in expired]
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}))
        before = self._on.metadata_key
        metadata = update_table_metadata(
            self._metadata, tuple(updates), metadata_location=self._address.location(before) if before else None
        )
        oldest_version = min([self._number, *map(_version_that_added, metadata.snapshots)])
        metadata = metadata.model_copy(
            update={  # a metadata file is garbage once no snapshot of its time is retained
                "metadata_log": [
                    each for each in metadata.metadata_log if _version_of(each.metadata_file) >= oldest_version
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
            _FORMAT, self._io.new_output(location), self._snapshot_id, parent_id, self._sequence_number, _CODEC
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
        """The manifests with the removed files' entries marked as deleted. A manifest that has none stays as it is."""
        live = [manifest for manifest in manifests if _live_files(manifest)]
        begins = [manifest.min_sequence_number or 0 for manifest in live]
        wanted: dict[str, set[str]] = {}
        for file in removed:
            position = bisect_right(begins, file.sequence_number) - 1
            if position < 0:
                raise FilesGone(f"no manifest has {file.object_key}")
            wanted.setdefault(live[position].manifest_path, set()).add(self._address.location(file.object_key))
        return [
            self._rewritten(manifest, wanted[manifest.manifest_path]) if manifest.manifest_path in wanted else manifest
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
        """Neighbours of a size become one of the next size, so that they stay in the order of sequence numbers."""
        merged = list(manifests)
        size = _MERGED_AT_ONCE
        while size <= _FULL_MANIFEST_FILES:
            merged = [each for group in self._groups(merged, size) for each in self._as_one(group)]
            size *= _MERGED_AT_ONCE
        return merged

    def _groups(self, manifests: Sequence[ManifestFile], size: int) -> Iterator[Sequence[ManifestFile]]:
        """Neighbours with fewer than `size` files each. A larger manifest, or one of this change, is alone."""
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
            return [self._write(existing=[entry for each in pool.map(self._entries, group) for entry in each])]

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
        with write_manifest(_FORMAT, UNPARTITIONED_PARTITION_SPEC, schema, output, self._snapshot_id, _CODEC) as writer:
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
