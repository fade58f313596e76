"""The columns of a history file: Parquet with Iceberg's field ids, which `history_schema` gives the table."""

from typing import Any

import pyarrow as pa


def _field(field_id: int, name: str, kind: pa.DataType, *, nullable: bool) -> "pa.Field[Any]":
    return pa.field(name, kind, nullable=nullable, metadata={"PARQUET:field_id": str(field_id)})


PARQUET_SCHEMA = pa.schema(
    [
        _field(1, "partition", pa.int32(), nullable=False),
        _field(2, "offset", pa.int64(), nullable=False),
        _field(3, "timestamp", pa.timestamp("us", tz="UTC"), nullable=True),
        _field(4, "timestamp_type", pa.int32(), nullable=False),
        _field(5, "key", pa.binary(), nullable=True),
        _field(6, "value", pa.binary(), nullable=True),
        _field(
            7,
            "headers",
            pa.list_(
                _field(
                    8,
                    "element",
                    pa.struct(
                        [_field(9, "key", pa.string(), nullable=False), _field(10, "value", pa.binary(), nullable=True)]
                    ),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
    ]
)
