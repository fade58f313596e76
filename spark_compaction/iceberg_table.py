"""Stages a change of a topic's Iceberg table: everything is written under the job's prefix, nothing is
published.

PyIceberg makes manifests and metadata. Instead of a catalog's commit, this writes the metadata file and
remembers its key. The change becomes visible only when `sequencer.history.history.publish` moves the pointer
to that key. So a crash, a lost race or an expired lease leaves objects under a prefix, never a half-changed
table.
"""

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntryStatus
from pyiceberg.serializers import FromByteStream, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import LocationProvider, SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.typedef import Record

from sequencer.history.history_values import Advance, HistoryJob, Publication, RawRange
from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.footers import ExpectedFile, read_footer
from spark_compaction.history_schema import new_history_table
from spark_compaction.iceberg_io import BucketIO
from storage.identifiers import ObjectKey

_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to change in one snapshot. `removed` are data files of the current snapshot."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    summary: Mapping[str, str]
    expire_snapshots_before: datetime
    """Snapshots made before this time, unless current, leave the metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMetadata:
    metadata_key: ObjectKey
    written: frozenset[ObjectKey]
    """Metadata objects that this change wrote and names."""
    reachable: frozenset[ObjectKey]
    """All keys that a retained snapshot names, metadata files included. A live object that is not here is
    unreferenced."""


class HistoryTableFiles:
    """One topic's table, as a job sees it."""

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

    def describe(self, files: Sequence[ExpectedFile]) -> list[DataFile]:
        """Returns Iceberg's entries for new Parquet files, from their footers in the bucket. Raises
        ManifestRefused."""
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self._describe_one, files))

    def _describe_one(self, expected: ExpectedFile) -> DataFile:
        schema = self.metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=read_footer(self._bucket, expected),
            stats_columns=compute_statistics_plan(schema, self.metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
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

    def has_snapshots_before(self, time: datetime) -> bool:
        """True if staging a change would remove snapshots made before `time` from the metadata."""
        return any(
            snapshot.timestamp_ms < time.timestamp() * 1000
            and snapshot.snapshot_id != self.metadata.current_snapshot_id
            for snapshot in self.metadata.snapshots
        )

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
    """Returns the table's location as a key. The jobs' prefixes are below it."""
    return job.prefix.rstrip("/").rpartition("/")[0]


def publication_of(
    staged: StagedMetadata,
    data_keys: Mapping[ObjectKey, datetime | None],
    live: frozenset[ObjectKey],
    *,
    advances: Sequence[Advance] = (),
    raw_ranges: Sequence[RawRange] = (),
) -> Publication:
    """Returns the publish of a staged change: `data_keys` are its new data files, `live` what was referenced
    before."""
    return Publication(
        metadata_key=staged.metadata_key,
        added=dict.fromkeys(staged.written, None) | dict(data_keys),
        unreferenced=sorted(live - staged.reachable),
        advances=advances,
        raw_ranges=raw_ranges,
    )


class _StagingCatalog(NoopCatalog):
    """Its commit writes the metadata file. The sequencer publishes it."""

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
