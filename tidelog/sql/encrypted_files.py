"""The rows of an encrypted topic's files, decrypted a batch at a time: for DuckDB and for Spark's executors.

Promises:
- Only the wanted columns are read, of row groups whose bounds in the clear may pass.
- At a time there are one column chunk of each column and one batch of `_BATCH_BYTES` in memory.
- Rows of which no encrypted column is wanted need no key.
- A column is found by its field id, so files may be older than a column.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_compaction.history_file import PARQUET_SCHEMA, decryption_of, typed_columns
from spark_compaction.typed.columns import leaf_type
from storage.encryption.parquet_keys import CLEAR_COLUMNS, check_name
from storage.encryption.topic_keyring import ReadKeyring
from tidelog.sql.catalog import Column
from tidelog.sql.engine import NotInDuckDB
from tidelog.sql.scan_filters import Bounds, MayPass

_BATCH_BYTES: Final = 8 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELD_ID: Final = b"PARQUET:field_id"
_BOUNDED: Final = ("partition", "offset", "timestamp")
_COUNTED: Final = "offset"
"""Read where a file has none of the wanted columns: it says how many rows there are."""


def decrypted_rows(
    path: str,
    source: Callable[[], Any],
    keyring: ReadKeyring | None,
    schema: pa.Schema,
    may_pass: MayPass,
) -> Iterator[pa.RecordBatch]:
    """The rows of the file `path` with the columns of `schema`, which have field ids. `source` opens it.
    `may_pass` says of a row group's bounds if a row of it may be needed. Raises KeyUnavailable, SealBroken
    for another file than `path` names, and what pyarrow raises for a damaged file.
    """
    file = pq.ParquetFile(source(), page_checksum_verification=True)
    check_name(file.metadata, path)
    wanted = {_id(field) for field in schema}
    own = [field.name for field in file.schema_arrow if _id(field) in wanted] or [_COUNTED]
    if not set(own) <= set(CLEAR_COLUMNS):
        decryption = decryption_of(keyring, file.metadata, path)
        if decryption is not None:
            file = pq.ParquetFile(source(), decryption_properties=decryption, page_checksum_verification=True)
    groups = [number for number in range(file.num_row_groups) if may_pass(_bounds(file.metadata, number))]
    if not groups:
        return
    size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
    rows = sum(file.metadata.row_group(number).num_rows for number in groups)
    per_batch = max(1, rows * _BATCH_BYTES // max(size, _BATCH_BYTES))
    for batch in file.iter_batches(batch_size=per_batch, row_groups=groups, columns=own, use_threads=False):
        columns = typed_columns(batch.schema, batch.columns, list(schema))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The columns as Arrow has them. Raises NotInDuckDB for a type that it lacks."""
    return pa.schema([_field(column) for column in columns])


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
