"""Arrays in Postgres' binary format, written and read in one piece.

A statement may have thousands of numbers. psycopg's own list adapter dumps them one by one; numpy lays out
the same bytes at once (the format of `array_send`: dimensions, null flag, element type, length, lower bound,
then each element after its length). `commit_kernels` writes the commit's arrays.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, cast
from uuid import UUID

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import Dumper

_HEADER = struct.Struct(">iiiii")
_EMPTY_HEADER = struct.Struct(">iii")
_UUID_LENGTH = struct.pack(">i", 16)
_LENGTH = struct.Struct(">i")
_INT4_OID, _INT8_OID, _UUID_OID, _TEXT_OID, _BYTEA_OID = 23, 20, 2950, 25, 17
_FEW = 24
"""Up to this many numbers `struct` is faster than numpy."""

_INT4 = np.dtype([("length", ">i4"), ("value", ">i4")])
_INT8 = np.dtype([("length", ">i4"), ("value", ">i8")])


class Int4Array(tuple[int, ...]):
    """Becomes `integer[]`."""


class Int8Array(tuple[int, ...]):
    """Becomes `bigint[]`."""


class UuidArray(tuple[UUID, ...]):
    """Becomes `uuid[]`."""


class TextArray(tuple[str, ...]):
    """Becomes `text[]`. Its strings contain no NUL."""


class BytesArray(tuple[bytes, ...]):
    """Becomes `bytea[]`."""


class EncodedArray(bytes):
    """An array that is already in Postgres' format."""


class Int4Encoded(EncodedArray):
    """`integer[]`."""


class Int8Encoded(EncodedArray):
    """`bigint[]`."""


class UuidEncoded(EncodedArray):
    """`uuid[]`."""


class _Int4ArrayDumper(Dumper):
    oid = 1007
    format = pq.Format.BINARY

    def dump(self, obj: Sequence[int]) -> Buffer:
        return encoded_ints(obj)


class _Int8ArrayDumper(Dumper):
    oid = 1016
    format = pq.Format.BINARY

    def dump(self, obj: Sequence[int]) -> Buffer:
        return encoded_longs(obj)


class _UuidArrayDumper(Dumper):
    oid = 2951
    format = pq.Format.BINARY

    def dump(self, obj: Sequence[UUID]) -> Buffer:
        return encoded_uuids(obj)


class _Int4EncodedDumper(_Int4ArrayDumper):
    def dump(self, obj: Any) -> Buffer:
        return cast(Buffer, obj)


class _Int8EncodedDumper(_Int8ArrayDumper):
    def dump(self, obj: Any) -> Buffer:
        return cast(Buffer, obj)


class _UuidEncodedDumper(_UuidArrayDumper):
    def dump(self, obj: Any) -> Buffer:
        return cast(Buffer, obj)


class _TextArrayDumper(Dumper):
    oid = 1009
    format = pq.Format.BINARY

    def dump(self, obj: Sequence[str]) -> Buffer:
        return _varying([value.encode() for value in obj], _TEXT_OID)


class _BytesArrayDumper(Dumper):
    oid = 1001
    format = pq.Format.BINARY

    def dump(self, obj: Sequence[bytes]) -> Buffer:
        return _varying(obj, _BYTEA_OID)


def encoded_ints(values: Sequence[int]) -> bytes:
    return (
        _few_numbers(values, _INT4_OID, "ii", 4)
        if len(values) <= _FEW
        else _numbers(values, _INT4_OID, _INT4, 4)
    )


def encoded_longs(values: Sequence[int]) -> bytes:
    return (
        _few_numbers(values, _INT8_OID, "iq", 8)
        if len(values) <= _FEW
        else _numbers(values, _INT8_OID, _INT8, 8)
    )


def longs_of(encoded: bytes) -> NDArray[np.int64]:
    """Returns the numbers of a `bigint[]` without NULLs: int64."""
    return np.frombuffer(encoded[_HEADER.size :], _INT8)["value"].astype(np.int64)


def encoded_uuids(values: Sequence[UUID]) -> bytes:
    return _header(_UUID_OID, len(values)) + b"".join([_UUID_LENGTH + value.bytes for value in values])


def _varying(values: Sequence[bytes], oid: int) -> bytes:
    elements = b"".join([part for value in values for part in (_LENGTH.pack(len(value)), value)])
    return _header(oid, len(values)) + elements


def _numbers(values: Sequence[int], oid: int, layout: "np.dtype[np.void]", size: int) -> bytes:
    elements = np.empty(len(values), dtype=layout)
    elements["length"] = size
    elements["value"] = values
    return _header(oid, len(values)) + elements.tobytes()


def _few_numbers(values: Sequence[int], oid: int, element: str, size: int) -> bytes:
    if not values:
        return _header(oid, 0)
    elements = [size] * (2 * len(values))
    elements[1::2] = values
    return _few(element, len(values)).pack(1, 0, oid, len(values), 1, *elements)


@cache
def _few(element: str, length: int) -> struct.Struct:
    return struct.Struct(_HEADER.format + element * length)


def _header(oid: int, length: int) -> bytes:
    if length == 0:
        return _EMPTY_HEADER.pack(0, 0, oid)
    return _HEADER.pack(1, 0, oid, length, 1)


psycopg.adapters.register_dumper(Int4Array, _Int4ArrayDumper)
psycopg.adapters.register_dumper(Int8Array, _Int8ArrayDumper)
psycopg.adapters.register_dumper(UuidArray, _UuidArrayDumper)
psycopg.adapters.register_dumper(TextArray, _TextArrayDumper)
psycopg.adapters.register_dumper(BytesArray, _BytesArrayDumper)
psycopg.adapters.register_dumper(Int4Encoded, _Int4EncodedDumper)
psycopg.adapters.register_dumper(Int8Encoded, _Int8EncodedDumper)
psycopg.adapters.register_dumper(UuidEncoded, _UuidEncodedDumper)
