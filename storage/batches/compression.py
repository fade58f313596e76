"""Decompresses the records of a batch, within a bound.

Promises:
- No more than `limit` bytes are produced or allocated, whatever the input says about itself. A decompression
  bomb is an error.
- Both kinds of snappy are read: raw (librdkafka) and framed (xerial, Kafka's Java client).
- The input is read to its end.
"""

import struct
from typing import Literal

import cramjam
import numpy as np
from numpy.typing import NDArray

from storage.batches.byte_arrays import Buffer, as_byte_array
from storage.batches.record_batch import Compression

ZSTD_LEVEL = 3
"""Kafka's own."""
FAST_ZSTD_LEVEL = 1
"""Three times as fast on text, for about the same size."""
_LZ4_LEVEL = 1
_XERIAL_MAGIC = b"\x82SNAPPY\x00"  # two version numbers follow, both 1
_XERIAL_HEADER_BYTES = 16
_XERIAL_BLOCK_BYTES = 32 << 10
_BLOCK_LENGTH = struct.Struct(">i")
_SNAPPY_MOST_EXPANSION = 24  # a copy of 64 bytes takes 3 bytes
_LZ4_INDEPENDENT_BLOCKS = 0x20
_LEAST_GUESS_BYTES = 1 << 16
_STREAMED: dict[Compression, Literal["gzip", "lz4", "zstd"]] = {
    Compression.GZIP: "gzip",
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
}


class DecompressionFailed(Exception):
    """The bytes are not what the batch's attributes say. `plain_bytes` were decompressed before that
    showed."""

    def __init__(self, message: str, plain_bytes: int = 0) -> None:
        super().__init__(message)
        self.plain_bytes = plain_bytes


class DecompressedTooLarge(Exception):
    """The records have more than `limit` bytes."""


def decompress(data: memoryview, compression: Compression, limit: int) -> NDArray[np.uint8]:
    """Returns the plain bytes, read-only. Raises DecompressionFailed or DecompressedTooLarge."""
    if compression is Compression.NONE:
        plain = as_byte_array(data)
        if len(plain) > limit:
            raise DecompressedTooLarge
        return plain
    plain = _snappy(data, limit) if compression is Compression.SNAPPY else _streamed(data, compression, limit)
    plain.flags.writeable = False
    return plain


def _streamed(data: memoryview, compression: Compression, limit: int) -> NDArray[np.uint8]:
    if compression is Compression.LZ4 and len(data) > 4 and not data[4] & _LZ4_INDEPENDENT_BLOCKS:
        raise DecompressionFailed("lz4 blocks depend on each other, which Kafka's Java client cannot read")
    import pyarrow as pa  # 30 ms and 25 MiB that snappy and plain batches do not need

    room = np.empty(min(limit + 1, max(_LEAST_GUESS_BYTES, 4 * len(data))), np.uint8)
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), _STREAMED[compression]) as stream:
            while size <= limit:
                if size == len(room):
                    # Allocate the limit at once: pages that are never written cost no memory.
                    room, full = np.empty(limit + 1, np.uint8), room
                    room[:size] = full
                count = stream.readinto(room[size:].data)
                if not count:
                    return room[:size]
                size += count
    except OSError as error:
        raise DecompressionFailed(str(error), size) from error
    raise DecompressedTooLarge


def _snappy(data: memoryview, limit: int) -> NDArray[np.uint8]:
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > limit:
            raise DecompressedTooLarge
        if sum(sizes) > _SNAPPY_MOST_EXPANSION * len(data):
            raise DecompressionFailed(f"{len(data)} bytes of snappy cannot hold {sum(sizes)}")
        plain = np.empty(sum(sizes), np.uint8)
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            if cramjam.snappy.decompress_raw_into(block, plain[position : position + size].data) != size:
                raise DecompressionFailed("a snappy block is shorter than it says")
            position += size
    except cramjam.DecompressionError as error:
        raise DecompressionFailed(str(error), _SNAPPY_MOST_EXPANSION * len(data)) from error
    return plain


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    position = _XERIAL_HEADER_BYTES
    blocks = []
    while position < len(data):
        if len(data) - position < _BLOCK_LENGTH.size:
            raise DecompressionFailed("a snappy frame is cut short")
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise DecompressionFailed(f"a snappy frame has a block of {length} bytes")
        blocks.append(data[position : position + length])
        position += length
    return blocks


def compress(data: Buffer, compression: Compression, *, zstd_level: int = ZSTD_LEVEL) -> bytes:
    """Compresses as Kafka's Java client does: snappy framed, lz4 in independent blocks and fast."""
    if compression is Compression.NONE:
        return bytes(data)
    if compression is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if compression is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=zstd_level))
    if compression is Compression.LZ4:
        compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    return _xerial(memoryview(data))


def _xerial(data: memoryview) -> bytes:
    framed = [_XERIAL_MAGIC, struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        framed += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(framed)
