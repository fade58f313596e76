"""The columns of a record, as Arrow, Parquet and Spark see it."""

from typing import Any

import pyarrow as pa

_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
_RECORD_FIELDS: list["pa.Field[Any]"] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestamp_type", pa.int32(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(_HEADER), nullable=False),
]

RECORD_SCHEMA = pa.schema(_RECORD_FIELDS)
HISTORY_SCHEMA = pa.schema([pa.field("partition", pa.int32(), nullable=False), *_RECORD_FIELDS])

MICROSECONDS = 1000
"""Microseconds in a millisecond: Kafka's timestamps have milliseconds, Spark's and Iceberg's microseconds."""
