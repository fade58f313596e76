"""Stages a change of a topic's Iceberg table: everything is written under the job's prefix, nothing is published.

PyIceberg makes manifests and metadata; its catalog's commit is replaced by writing the metadata file and remembering
its key. The change becomes visible when `sequencer.history.publish` moves the pointer to that key, and not before. So a
crash, a lost race or a lapsed lease leaves objects under a prefix, never a half-changed table."""

import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.serializers import FromByteStream, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import LocationProvider, SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.table.update.snapshot import ExpireSnapshots

from sequencer.history import HistoryJob
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.history_schema import new_history_table
from spark_compaction.iceberg_io import BucketIO
from storage.identifiers import ObjectKey

_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to do to a table in one snapshot. `removed` are data files of the current snapshot."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    summary: Mapping[str, str]
    expire_snapshots_before: datetime
    """Snapshots made before and no longer current leave the metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMetadata:
    metadata_key: ObjectKey
    written: frozenset[ObjectKey]
    """Metadata objects that this change wrote and names."""
    reachable: frozenset[ObjectKey]
    """All that a retained snapshot names, the metadata files included; what is live and not here is unreferenced."""


class HistoryTableFiles:
    """One topic's table as a job sees it."""

    def __init__(self, address: BucketAddress, bucket: Bucket, job: HistoryJob, topic_name: str) -> None:
        self._address = address
        self._bucket = bucket
        self._job = job
        self._name = topic_name
        self._io = BucketIO(address, bucket)
        self.metadata = self._load()

    def data_files(self) -> list[DataFile]:
        """The data files of the current snapshot."""
        current = self.metadata.current_snapshot()
        if current is None:
            return []
        return [
            entry.data_file
            for manifest in current.manifests(self._io)
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        ]

    def describe(self, keys: Iterable[ObjectKey]) -> list[DataFile]:
        """Iceberg's entry for new Parquet files, from their footers, read back from the bucket."""

        def describe_one(key: ObjectKey) -> DataFile:
            return parquet_file_to_data_file(self._io, self.metadata, self._address.location(key))

        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(describe_one, keys))

    def stage(self, change: Change) -> StagedMetadata:
        """Writes the manifests and the metadata file of the changed table."""
        catalog = _StagingCatalog(self._job, self._address, self._io)
        table = _StagedTable(self._name, self.metadata, self._job, self._address, self._io, catalog)
        with table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties=dict(change.summary))
            if change.removed:
                with update.overwrite() as overwrite:
                    for data_file in change.removed:
                        overwrite.delete_data_file(data_file)
                    for data_file in change.added:
                        overwrite.append_data_file(data_file)
            elif change.added:
                with update.merge_append() as append:
                    for data_file in change.added:
                        append.append_data_file(data_file)
            ExpireSnapshots(transaction).older_than(change.expire_snapshots_before).commit()
        return self._staged(table.metadata, catalog)

    def key_of(self, data_file: DataFile) -> ObjectKey:
        return self._address.key_of(data_file.file_path)

    def _load(self) -> TableMetadata:
        if self._job.metadata_key is None:
            return new_history_table(self._address.location(table_prefix(self._job)))
        return FromByteStream.table_metadata(io.BytesIO(self._bucket.get(self._job.metadata_key)))

    def _staged(self, metadata: TableMetadata, catalog: "_StagingCatalog") -> StagedMetadata:
        reachable = _reachable(metadata, self._io, self._address) | {catalog.metadata_key}
        return StagedMetadata(
            metadata_key=catalog.metadata_key,
            written=frozenset(self._io.written) & reachable,
            reachable=frozenset(reachable),
        )


def table_prefix(job: HistoryJob) -> str:
    """The table's location as a key: the jobs' prefixes lie below it."""
    return job.prefix.rstrip("/").rpartition("/")[0]


class _StagingCatalog(NoopCatalog):
    """Its commit writes the metadata file; the publish is the sequencer's."""

    def __init__(self, job: HistoryJob, address: BucketAddress, file_io: BucketIO) -> None:
        super().__init__("tidelog")
        self._job = job
        self._address = address
        self._io = file_io
        self.metadata_key = ObjectKey(f"{job.prefix}{job.version + 1:05d}.metadata.json")

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        before = self._address.location(self._job.metadata_key) if self._job.metadata_key else None
        metadata = update_table_metadata(table.metadata, updates, metadata_location=before)
        location = self._address.location(self.metadata_key)
        ToOutputFile.table_metadata(metadata, self._io.new_output(location))
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})


class _StagedTable(Table):
    def __init__(
        self,
        name: str,
        metadata: TableMetadata,
        job: HistoryJob,
        address: BucketAddress,
        file_io: BucketIO,
        catalog: _StagingCatalog,
    ) -> None:
        location = address.location(job.metadata_key) if job.metadata_key else ""
        super().__init__(("topics", name), metadata, location, file_io, catalog)
        self._prefix = address.location(job.prefix.rstrip("/"))

    def location_provider(self) -> LocationProvider:
        return SimpleLocationProvider(self.metadata.location, {"write.metadata.path": self._prefix})


def _reachable(metadata: TableMetadata, file_io: BucketIO, address: BucketAddress) -> set[ObjectKey]:
    lists = {snapshot.manifest_list for snapshot in metadata.snapshots}
    found = {entry.metadata_file for entry in metadata.metadata_log} | lists
    manifests = {
        manifest.manifest_path: manifest for each in metadata.snapshots for manifest in each.manifests(file_io)
    }
    with ThreadPoolExecutor(_READERS) as pool:
        entries = pool.map(
            lambda manifest: manifest.fetch_manifest_entry(file_io, discard_deleted=False), manifests.values()
        )
    found |= manifests.keys()
    found |= {
        entry.data_file.file_path for each in entries for entry in each if entry.status != ManifestEntryStatus.DELETED
    }
    return {address.key_of(location) for location in found}
