"""Converts a batch to the compression that a topic's compression.type names.

Promises: the records' bytes, sequences, times and offsets stay. No more is decompressed or kept than the
limits allow. CPU-bound; the codecs are native code without the GIL.
"""

from dataclasses import replace

from crc32c import crc32c

from storage.batches.batch_validation import BatchFault, BatchLimits, InvalidBatch, plain_records
from storage.batches.compression import compress
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    Compression,
    ValidBatch,
    with_compression,
    write_header,
)


def recompressed(batch: ValidBatch, compression: Compression, limits: BatchLimits) -> ValidBatch:
    """Returns the batch itself if it has this compression, else a copy. Raises InvalidBatch if the copy would
    be too large."""
    header = batch.header
    if header.compression is compression:
        return batch
    records = compress(plain_records(batch.data, header, limits.max_decompressed_bytes).data, compression)
    size_bytes = HEADER_BYTES + len(records)
    if size_bytes > limits.max_message_bytes:
        raise InvalidBatch(
            BatchFault.TOO_LARGE,
            f"as the topic's compression.type asks for, the batch takes {size_bytes} bytes, which is above the limit "
            f"of {limits.max_message_bytes}",
        )
    changed = replace(with_compression(header, compression), size_bytes=size_bytes, crc=0)
    crc = crc32c(records, crc32c(write_header(changed)[CRC_START:]))
    header = replace(changed, crc=crc)
    return replace(batch, header=header, data=memoryview(write_header(header) + records))
