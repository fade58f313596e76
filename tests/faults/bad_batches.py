"""Record batches that must be refused, each with the errors that a client may get.

The errors are Apache Kafka 4.1's where it names the cause. Where Kafka says only UNKNOWN_SERVER_ERROR (a
compression that does not exist, compressed bytes that are none) or accepts what can never be Parquet, the
nearest code that says what is wrong is wanted.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass

import cramjam
from kafka import errors

from tests.faults.wire import HEADER_BYTES, Batch, record, varint

CORRUPT = errors.CorruptRecordError.errno
INVALID = errors.InvalidRecordError.errno
TOO_LARGE = errors.MessageSizeTooLargeError.errno
COMPRESSION = errors.UnsupportedCompressionTypeError.errno
FORMAT = errors.UnsupportedForMessageFormatError.errno
TIMESTAMP = errors.InvalidTimestampError.errno
TRANSACTION = frozenset(
    {errors.InvalidTxnStateError.errno, errors.TransactionalIdAuthorizationFailedError.errno, INVALID, 48, 49}
)
BAD_BYTES = frozenset({CORRUPT, INVALID})

GOOD = Batch()
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """Bytes given as a partition's records, and the error codes that answer them."""

    data: bytes
    errors: frozenset[int]


def _bad(data: bytes, *errors: int) -> Bad:
    return Bad(data=data, errors=frozenset(errors))


def _header_section(count: int, *parts: bytes) -> bytes:
    return varint(count) + b"".join(parts)


def bad_batches() -> Mapping[str, Bad]:
    """By what is wrong with them."""
    good, encoded = GOOD, GOOD.encoded()
    flipped = bytearray(encoded)
    flipped[-2] ^= 0x40
    bad = {
        "wrong CRC": _bad(good.but(crc=1).encoded(), CORRUPT),
        "a bit flipped on the way": _bad(bytes(flipped), CORRUPT),
        "nothing": _bad(b"", *BAD_BYTES),
        "half a header": _bad(encoded[: HEADER_BYTES // 2], *BAD_BYTES),
        "cut short": _bad(encoded[:-3], *BAD_BYTES),
        "bytes after the batch": _bad(encoded + b"\x00", *BAD_BYTES),
        "two batches": _bad(encoded * 2, INVALID),
        "length too short": _bad(good.but(length=10).encoded(), *BAD_BYTES),
        "length too long": _bad(good.but(length=100_000).encoded(), *BAD_BYTES),
        "length negative": _bad(good.but(length=-1).encoded(), *BAD_BYTES),
        "magic 1": _bad(good.but(magic=1).encoded(), INVALID, FORMAT, CORRUPT),
        "magic 3": _bad(good.but(magic=3).encoded(), CORRUPT, INVALID, FORMAT),
        "magic negative": _bad(good.but(magic=-2).encoded(), CORRUPT, INVALID, FORMAT),
        "no records": _bad(good.but(count=0, records=b"", last_offset_delta=0).encoded(), INVALID),
        "fewer records than counted": _bad(good.but(count=2).encoded(), INVALID),
        "more records than counted": _bad(
            good.but(records=record(b"a") + record(b"b", delta=1)).encoded(), *BAD_BYTES
        ),
        "negative count": _bad(good.but(count=-1, last_offset_delta=-2).encoded(), INVALID),
        "two billion records": _bad(good.but(count=2**31 - 1).encoded(), INVALID),
        "last offset delta disagrees": _bad(good.but(last_offset_delta=5).encoded(), INVALID),
        "base offset that is not 0": _bad(good.but(base_offset=7).encoded(), INVALID),
        "offset deltas not in order": _bad(
            good.but(count=2, records=record(b"a", delta=1) + record(b"b", delta=0)).encoded(), INVALID
        ),
        "control batch": _bad(good.but(attributes=0x20).encoded(), INVALID),
        "transactional without a transaction": Bad(
            data=good.but(attributes=0x10).encoded(), errors=TRANSACTION
        ),
        "sequence missing": _bad(good.but(producer_id=5, producer_epoch=0).encoded(), INVALID),
        "timestamp before all time": _bad(good.but(base_timestamp=-5).encoded(), TIMESTAMP),
        "timestamp after all time": _bad(good.but(base_timestamp=253_402_300_800_000).encoded(), TIMESTAMP),
        "record length past the end": _bad(good.but(records=varint(1000) + b"abc").encoded(), *BAD_BYTES),
        "record length negative": _bad(good.but(records=varint(-7) + b"abcdefg").encoded(), *BAD_BYTES),
        "varints without end": _bad(good.but(records=b"\xff" * 40).encoded(), *BAD_BYTES),
        "value longer than the record": _bad(
            good.but(records=varint(9) + b"\x00\x00\x00\x01" + varint(500) + b"abc").encoded(), *BAD_BYTES
        ),
        "a million headers announced": _bad(
            good.but(records=record(b"a", headers=varint(1_000_000))).encoded(), *BAD_BYTES
        ),
        "negative headers": _bad(good.but(records=record(b"a", headers=varint(-1))).encoded(), *BAD_BYTES),
        "header without a name": _bad(
            good.but(records=record(b"a", headers=_header_section(1, varint(-1), varint(-1)))).encoded(),
            *BAD_BYTES,
        ),
        "header name that is no text": _bad(
            good.but(
                records=record(b"a", headers=_header_section(1, varint(1), b"\xff", varint(-1)))
            ).encoded(),
            INVALID,
        ),
        "larger than the topic allows": _bad(good.but(records=record(b"x" * 2 * _MIB)).encoded(), TOO_LARGE),
    }
    return {**bad, **_badly_compressed(), **_bombs()}


def _badly_compressed() -> Mapping[str, Bad]:
    garbage = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    unknown = {
        f"compression {code}": _bad(GOOD.but(attributes=code).encoded(), COMPRESSION, INVALID)
        for code in (5, 6, 7)
    }
    none = {
        f"no {name} at all": _bad(GOOD.but(attributes=code, records=b"\x00garbage" * 9).encoded(), *BAD_BYTES)
        for name, code in garbage.items()
    }
    empty = {
        f"empty {name}": _bad(GOOD.but(attributes=code, records=b"").encoded(), *BAD_BYTES)
        for name, code in garbage.items()
    }
    cut = {
        "gzip cut short": _bad(
            GOOD.but(attributes=1, records=gzip.compress(record(b"v" * 900))[:-9]).encoded(), *BAD_BYTES
        ),
        "zstd cut short": _bad(
            GOOD.but(attributes=4, records=bytes(cramjam.zstd.compress(record(b"v" * 900)))[:-3]).encoded(),
            *BAD_BYTES,
        ),
    }
    return unknown | none | empty | cut


def _bombs() -> Mapping[str, Bad]:
    """Small on the wire, 100 MiB and more when decompressed."""
    refusals = (TOO_LARGE, INVALID, CORRUPT)
    zeros = bytes(64 * _MIB)
    one = varint(1 << 30) + b"\x00" * 8
    gzipped = gzip.compress(one) + gzip.compress(zeros, 9) * 6
    zstd = bytes(cramjam.zstd.compress(one)) + bytes(cramjam.zstd.compress(zeros, 19)) * 16
    lz4 = bytes(cramjam.lz4.compress(one + zeros * 2))
    snappy = bytes(cramjam.snappy.compress_raw(one + bytes(18 * _MIB)))
    bombs = {"gzip": (1, gzipped), "snappy": (2, snappy), "lz4": (3, lz4), "zstd": (4, zstd)}
    return {
        f"{name} bomb": _bad(GOOD.but(attributes=code, records=data).encoded(), *refusals)
        for name, (code, data) in bombs.items()
    }
