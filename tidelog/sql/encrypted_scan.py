"""The files of an encrypted topic for DuckDB, which cannot decrypt them: an Arrow data set that decrypts row
groups as they are scanned.

DuckDB asks it for columns and a filter at each scan, and drops the filters that it hands over.

Promises:
- Only the columns that a scan needs are read, and only row groups whose bounds in the clear may pass.
- A scan holds one column chunk of each column, and a few batches of `_BATCH_BYTES`.
- A scan that needs no encrypted column needs no key. Without the key of a file the statement fails, and says
  how to give it.
- A column is found by its field id, so files may be older than a column.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_compaction.history_file import PARQUET_SCHEMA, typed_columns
from spark_compaction.typed.columns import leaf_type
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.parquet_keys import CLEAR_COLUMNS
from storage.encryption.sealed_batches import SealBroken
from storage.encryption.topic_keyring import ReadKeyring, decryption_of
from storage.stores.object_store import ObjectNotFound, StoreUnavailable
from tidelog.sql.bucket_files import BucketFiles, OpenFile
from tidelog.sql.catalog import Column, Table
from tidelog.sql.engine import NotInDuckDB, StatementFailed
from tidelog.sql.scan_filters import Bounds, MayPass

_BATCH_BYTES: Final = 8 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELD_ID: Final = b"PARQUET:field_id"
_BOUNDED: Final = ("partition", "offset", "timestamp")
_COUNTED: Final = "offset"
"""Read where a file has none of the wanted columns: it says how many rows there are."""


class EncryptedScan(ds.InMemoryDataset):
    """The rows of some files. DuckDB takes it for one of pyarrow's data sets, and calls `scanner` for each
    scan of a statement.
    """

    _parts: "_Parts"

    def scanner(  # type: ignore[override]
        self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any
    ) -> ds.Scanner:
        parts = self._parts
        names = parts.schema.names if columns is None else list(columns)
        if filter is not None:
            # An expression does not list its columns. A name too many costs time, one too few is an error.
            text = str(filter)
            names += [name for name in parts.schema.names if name not in names and name in text]
        schema = pa.schema([parts.schema.field(name) for name in names])
        return ds.Scanner.from_batches(
            parts.batches(schema),
            schema=schema,
            columns=None if columns is None else list(columns),
            filter=filter,
            batch_readahead=1,
            use_threads=False,
        )


def encrypted_scan(
    table: Table, paths: Sequence[str], keyring: ReadKeyring, may_pass: MayPass, files: BucketFiles
) -> EncryptedScan:
    """`may_pass` says of a row group's bounds if a row of it may be needed. A scan that fails leaves the
    reason in `files.failure`. Raises NotInDuckDB for a type that Arrow lacks.
    """
    schema = pa.schema([_field(column) for column in table.columns])
    scan = EncryptedScan(pa.Table.from_batches([], schema=schema))  # type: ignore[call-arg]  # stubs lack it
    scan._parts = _Parts(schema, tuple(paths), keyring, may_pass, files)
    return scan


@dataclass(frozen=True, slots=True)
class _Parts:
    schema: pa.Schema
    paths: tuple[str, ...]
    keyring: ReadKeyring
    may_pass: MayPass
    files: BucketFiles

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, with the columns of `schema`."""
        for path in self.paths:
            try:
                yield from self._of_file(path, schema)
            except Exception as error:
                if self.files.failure is None:
                    self.files.failure = _said(path, error)
                raise

    def _of_file(self, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = _opened(self.files, path, None)
        wanted = {_id(field) for field in schema}
        own = [field.name for field in file.schema_arrow if _id(field) in wanted] or [_COUNTED]
        if not set(own) <= set(CLEAR_COLUMNS):
            decryption = decryption_of(self.keyring, file.metadata)
            if decryption is not None:
                file = _opened(self.files, path, decryption)
        groups = [
            number for number in range(file.num_row_groups) if self.may_pass(_bounds(file.metadata, number))
        ]
        if not groups:
            return
        size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
        rows = sum(file.metadata.row_group(number).num_rows for number in groups)
        per_batch = max(1, rows * _BATCH_BYTES // max(size, _BATCH_BYTES))
        for batch in file.iter_batches(
            batch_size=per_batch, row_groups=groups, columns=own, use_threads=False
        ):
            columns = typed_columns(batch.schema, batch.columns, list(schema))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _opened(files: BucketFiles, path: str, decryption: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(OpenFile(files, path), mode="r"),
        decryption_properties=decryption,
        page_checksum_verification=True,
    )


def _bounds(metadata: pq.FileMetaData, number: int) -> dict[str, Bounds]:
    """Of the columns in the clear: to ask for those of others would end the process."""
    found: dict[str, Bounds] = {}
    group = metadata.row_group(number)
    for place in range(min(len(_BOUNDED), metadata.num_columns)):
        name = metadata.schema.column(place).path
        if name in _BOUNDED:
            bounds: Any = group.column(place).statistics
            if bounds is not None and bounds.has_min_max:
                found[name] = Bounds(_number(bounds.min), _number(bounds.max))
    return found


def _number(value: Any) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else int(value)


def _said(path: str, error: Exception) -> Exception:
    """The error for people."""
    if isinstance(error, KeyUnavailable):
        clear = ", ".join(CLEAR_COLUMNS)
        return StatementFailed(f"The {error}.", f"Without the key only {clear} can be read.")
    if isinstance(error, ObjectNotFound | StoreUnavailable):
        return error
    if isinstance(error, SealBroken | pa.ArrowException | OSError | ValueError):
        return StatementFailed(f"{path} is damaged, or its key is another: {error}")
    return error


def _id(field: "pa.Field[Any]") -> bytes:
    return (field.metadata or {}).get(_FIELD_ID, b"")


def _field(column: Column) -> "pa.Field[Any]":
    """The column as Arrow has it."""
    record = next((field for field in PARQUET_SCHEMA if _id(field) == str(column.field_id).encode()), None)
    if column.kind is None and record is not None:
        return record.with_name(column.name).with_nullable(True)
    return _with_id(column.name, column.kind, column.field_id)


def _with_id(name: str, kind: Any, field_id: int) -> "pa.Field[Any]":
    return pa.field(name, _arrow(kind), metadata={_FIELD_ID: str(field_id).encode()})


def _arrow(kind: Any) -> Any:
    """Arrow's type of an Iceberg type."""
    if isinstance(kind, str):
        if kind == "time":
            return pa.time64("us")
        if kind == "timestamp_ns":
            return pa.timestamp("ns")
        if kind.startswith("fixed["):
            return pa.binary(int(kind[len("fixed[") : -1]))
        try:
            return leaf_type(kind.replace(" ", ""))
        except KeyError:
            raise NotInDuckDB(f"a column has the type {kind}") from None
    if kind["type"] == "struct":
        return pa.struct([_with_id(each["name"], each["type"], each["id"]) for each in kind["fields"]])
    if kind["type"] == "list":
        return pa.list_(_with_id("element", kind["element"], kind["element-id"]))
    key = _with_id("key", kind["key"], kind["key-id"]).with_nullable(False)
    return pa.map_(key, _with_id("value", kind["value"], kind["value-id"]))
