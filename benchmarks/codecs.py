"""`python -m benchmarks.codecs`: validation and decoding of record batches, on one core."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from storage.arrow.arrow_columns import RECORD_SCHEMA, decode_batches, encode_batch
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import Compression

_SECONDS = 1.0
_RECORDS_PER_BATCH = 1_000
"""Each of a bit more than 200 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRate:
    """Rates per second and core, with one batch over and over."""

    compression: str
    validated_bytes: float
    decoded_records: float


def codec_rates(seconds: float) -> list[CodecRate]:
    """Figures for each compression."""
    return [_codec_rate(compression, seconds) for compression in Compression]


def _codec_rate(compression: Compression, seconds: float) -> CodecRate:
    data = encode_batch(_records(), compression)
    size_bytes = len(encode_batch(_records(), Compression.NONE))
    limits = BatchLimits(max_message_bytes=len(data), max_decompressed_bytes=2 * size_bytes)
    validations = _rate(lambda: validate_produced(data, limits), seconds)
    decodings = _rate(lambda: decode_batches(data, 0, len(data), 0), seconds)
    return CodecRate(
        compression=compression.name.lower(),
        validated_bytes=validations * size_bytes,
        decoded_records=decodings * _RECORDS_PER_BATCH,
    )


def _records() -> pa.RecordBatch:
    """Half noise, half repetition: as compressible as JSON."""
    noise = random.Random(1)
    columns = {
        "offset": range(_RECORDS_PER_BATCH),
        "timestamp": [1_700_000_000_000_000 + number * 1_000 for number in range(_RECORDS_PER_BATCH)],
        "timestamp_type": [0] * _RECORDS_PER_BATCH,
        "key": [b"key-%d" % (number % 100) for number in range(_RECORDS_PER_BATCH)],
        "value": [noise.randbytes(100) + b"value " * 16 for _ in range(_RECORDS_PER_BATCH)],
        "headers": [[]] * _RECORDS_PER_BATCH,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in RECORD_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _rate(work: Callable[[], object], seconds: float) -> float:
    """Calls per second, without the first one, which may compile."""
    work()
    calls, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        work()
        calls += 1
    return calls / elapsed


def main() -> None:
    table = Table(
        "compression", "validation MB/s", "decoded records/s", title="one core", title_justify="left"
    )
    for rate in codec_rates(_SECONDS):
        table.add_row(rate.compression, f"{rate.validated_bytes / 1e6:,.0f}", f"{rate.decoded_records:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
