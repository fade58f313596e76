"""The table of an encrypted topic for Spark, whose Iceberg reader cannot decrypt its files: a data source
over the files of one snapshot.

The driver gets the topic's keys from the bucket. They travel with the tasks, and are in no option.

Promises:
- Pushed filters on partition, offset and timestamp leave out files and row groups. Spark applies all others.
- Files are read by tasks of about `source_task_bytes`.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.history_file import list_offsets
from spark_source.options import settings_options
from spark_source.pushed_filters import narrowed
from spark_source.reading import WHOLE_FILE_BYTES, RangedObject
from spark_source.settings import SourceSettings
from spark_source.source import takes_filters
from spark_source.topic_keys import SourceKeys
from spark_source.window import Window, offsets_between
from storage.encryption.topic_keyring import ReadKeyring
from storage.identifiers import TopicId
from tidelog.process.environment import Environment
from tidelog.sql.catalog import Column, DataFile
from tidelog.sql.encrypted_files import arrow_schema, decrypted_rows
from tidelog.sql.scan_filters import FileBounds

NAME: Final = "tidelog_encrypted_table"
SCAN: Final = "scan"
"""The option that names a local file with a pickled TableScan."""
_BOUNDED: Final = ("partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan:
    """A table's snapshot."""

    topic: str
    topic_id: TopicId
    columns: tuple[Column, ...]
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    files: tuple[DataFile, ...]
    keyring: ReadKeyring = field(repr=False)


class EncryptedTable(DataSource):
    """`tidelog sql` registers it in its own session."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        options = dict(self.options)
        settings = Environment.of_process().with_options(settings_options(options)).read(SourceSettings)
        scan: TableScan = pickle.loads(Path(options[SCAN]).read_bytes())  # of this session's own directory
        return (FilteringScanReader if takes_filters() else ScanReader)(scan, settings, schema)


class ScanPartition(InputPartition):
    def __init__(self, task: _Task) -> None:
        super().__init__(task)


class ScanReader(DataSourceReader):
    def __init__(self, scan: TableScan, settings: SourceSettings, schema: StructType) -> None:
        self._topic, self._topic_id, self._columns = scan.topic, scan.topic_id, scan.columns
        self._files: tuple[DataFile, ...] = scan.files
        self._settings = settings
        self._schema = schema
        self._window = Window()

    def partitions(self) -> Sequence[InputPartition]:
        files = [file for file in self._files if _may_hold(self._window, file.bounds)]
        keys = [file.key for file in files]
        keyring = SourceKeys(self._settings).of_topic(self._topic, self._topic_id, keys)
        return [ScanPartition(_Task(files=group, keyring=keyring)) for group in self._groups(files)]

    def _groups(self, files: Iterable[DataFile]) -> Iterator[tuple[DataFile, ...]]:
        group: list[DataFile] = []
        for file in files:
            if group and sum(each.size_bytes for each in (*group, file)) > self._settings.source_task_bytes:
                yield tuple(group)
                group = []
            group.append(file)
        if group:
            yield tuple(group)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Where nothing is planned, Spark reads one partition, which is None.
        return iter(()) if partition is None else self._rows(partition.value)

    def _rows(self, task: _Task) -> Iterator[pa.RecordBatch]:
        bucket = BucketAddress.of(self._settings.store_url, self._settings).open()
        wanted = to_arrow_schema(self._schema)
        needed = {*wanted.names, *(_BOUNDED if self._window != Window() else ())}
        schema = arrow_schema([column for column in self._columns if column.name in needed])
        may_pass = partial(_may_hold, self._window)
        for file in task.files:
            source = _source(bucket, file)
            for rows in decrypted_rows(file.key, source, task.keyring, schema, may_pass):
                own = _within(self._window, rows)
                if own.num_rows:
                    columns = [for_spark(own.column(each.name), each.type) for each in wanted]
                    yield pa.RecordBatch.from_arrays(columns, names=wanted.names)


class FilteringScanReader(ScanReader):
    """With `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        self._window, left = narrowed(self._window, filters)
        return left


def _source(bucket: Bucket, file: DataFile) -> Callable[[], Any]:
    if file.size_bytes > WHOLE_FILE_BYTES:
        return lambda: pa.PythonFile(RangedObject(bucket, file.key, file.size_bytes), mode="r")
    data = bucket.get(file.key)
    return lambda: pa.BufferReader(data)


def _may_hold(window: Window, bounds: FileBounds) -> bool:
    """False if no row within the bounds is in the window."""
    partitions, offsets, times = (bounds.get(name) for name in _BOUNDED)
    wanted = window.partitions
    if partitions is not None and wanted is not None:
        has_some = any(partitions.low <= number <= partitions.high for number in wanted)
        if not has_some:
            return False
    if offsets is not None:
        if offsets.high < window.from_offset:
            return False
        if window.to_offset is not None and offsets.low >= window.to_offset:
            return False
    return times is None or window.may_hold(times.low // 1000, times.high // 1000)


def _within(window: Window, rows: pa.RecordBatch) -> pa.RecordBatch:
    if window == Window():
        return rows
    end = window.to_offset if window.to_offset is not None else (1 << 63) - 1
    found = window.only(offsets_between(rows, window.from_offset, end))
    if window.partitions is None:
        return found
    return found.filter(pc.is_in(found.column("partition"), pa.array(sorted(window.partitions), pa.int32())))


def for_spark(column: Any, kind: Any) -> Any:
    """A column as Spark reads it from Iceberg: UUIDs are text."""
    if column.type.equals(kind):
        return column
    if column.type.equals(pa.uuid()):
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        arrays = [for_spark(column.field(number), each.type) for number, each in enumerate(fields)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())
    if pa.types.is_map(kind):
        maps: Any = pa.MapArray
        items = for_spark(column.items, kind.item_type)
        return maps.from_arrays(list_offsets(column), column.keys, items, type=kind)
    if pa.types.is_list(kind):
        lists: Any = pa.ListArray
        return lists.from_arrays(list_offsets(column), for_spark(column.values, kind.value_type), type=kind)
    return column.cast(kind)
