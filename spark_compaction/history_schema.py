"""A topic's history as an Iceberg table. `parquet_schema` has the same columns for the files.

A record without a timestamp (Kafka's -1) has a null timestamp. Tables are sorted by (partition, offset) and
have no partition spec: a file holds contiguous offsets of one Kafka partition, so its column bounds prune as
well as a spec would, and a later layout may put several partitions into one file. Bounds are kept for
partition, offset, timestamp and timestamp_type; keys and values are payload.
"""

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
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

_HEADER = StructType(
    NestedField(9, "key", StringType(), required=True),
    NestedField(10, "value", BinaryType(), required=False),
)

ICEBERG_SCHEMA = Schema(
    NestedField(1, "partition", IntegerType(), required=True),
    NestedField(2, "offset", LongType(), required=True),
    NestedField(3, "timestamp", TimestamptzType(), required=False),
    NestedField(
        4, "timestamp_type", IntegerType(), required=True, doc="0: the producer's time, 1: the log's (append) time"
    ),
    NestedField(5, "key", BinaryType(), required=False),
    NestedField(6, "value", BinaryType(), required=False),
    NestedField(7, "headers", ListType(8, _HEADER, element_required=True), required=True),
)

TIMESTAMP_FIELD = 3

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
    # A publish that lost a race must be planned anew, never repeated on a newer table: its offsets may be there
    # already.
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
