"""The files of an encrypted topic for DuckDB, which cannot decrypt them: an Arrow data set that decrypts row
groups as they are scanned.

DuckDB asks it for columns and a filter at each scan, and drops the filters that it hands over.

Promises:
- A scan reads only the columns that DuckDB asks for, and has a few batches in memory (`encrypted_files.py`).
- Without the key of a file the statement fails, and says how to give it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.parquet_keys import CLEAR_COLUMNS
from storage.encryption.sealed_batches import SealBroken
from storage.encryption.topic_keyring import ReadKeyring
from storage.stores.object_store import ObjectNotFound, StoreUnavailable
from tidelog.sql.bucket_files import BucketFiles, OpenFile
from tidelog.sql.catalog import Table
from tidelog.sql.encrypted_files import arrow_schema, decrypted_rows
from tidelog.sql.engine import StatementFailed
from tidelog.sql.scan_filters import MayPass


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
    schema = arrow_schema(table.columns)
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
                opened = partial(self._open, path)
                yield from decrypted_rows(path, opened, self.keyring, schema, self.may_pass)
            except Exception as error:
                if self.files.failure is None:
                    self.files.failure = _said(path, error)
                raise

    def _open(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(OpenFile(self.files, path), mode="r")


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
