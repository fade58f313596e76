"""Batches of random, uncompressed records without keys, as full as a producer's `batch.size` allows."""

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from benchmarks.load.frames import Batch
from storage.arrow.arrow_columns import RECORD_SCHEMA, encode_batch
from storage.batches.record_batch import Compression

_SAMPLE = 64


def full_batches(partitions: range, record_bytes: int, batch_bytes: int) -> list[Batch]:
    """A batch for each partition, with values of `record_bytes`, at most `batch_bytes` large."""
    sample = len(_encode(record_bytes, _SAMPLE))
    per_record = (sample - len(_encode(record_bytes, 0 + 1))) / (_SAMPLE - 1)
    records = max(1, int((batch_bytes - 61) / (per_record + 1)))
    return [
        Batch(partition=partition, records=records, data=_encode(record_bytes, records))
        for partition in partitions
    ]


def _encode(record_bytes: int, records: int) -> bytes:
    pool = os.urandom(record_bytes * records)
    columns: dict[str, Sequence[Any]] = {
        "offset": range(records),
        "timestamp": [1_700_000_000_000_000] * records,
        "timestamp_type": [0] * records,
        "key": [None] * records,
        "value": [pool[start : start + record_bytes] for start in range(0, len(pool), record_bytes)],
        "headers": [[]] * records,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in RECORD_SCHEMA]
    return encode_batch(pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA), Compression.NONE)
