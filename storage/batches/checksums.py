"""Computes the CRC32C of bytes that lie back to back from the CRC32Cs of their parts, without reading the
bytes.

A checksum is a remainder of polynomials over GF(2). To append n bytes, multiply it by x^(8n) and add the
checksum of those bytes. Multiplication by x^(8 * 2^k) is linear, so 32 numbers describe it: the images of the
32 bits.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.native.arguments import LONG_ROWS_IN, LONGS_OUT
from storage.native.kernels import helper, kernel

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's polynomial with its bits reversed."""
_BITS: Final = 32

# Columns of a part.
WHOLE, CHECKSUM, LENGTH = 0, 1, 2
PART_COLUMNS: Final = 3


@helper
def _appended(checksum: Any, length: int, powers: NDArray[np.int64]) -> Any:
    """Returns the checksum multiplied by x^(8 * length). `powers` is int64 of shape (32, 32)."""
    power = 0
    while length:
        if length & 1:
            product = np.int64(0)
            bit = 0
            while checksum:
                if checksum & 1:
                    product ^= powers[power, bit]
                checksum >>= 1
                bit += 1
            checksum = product
        length >>= 1
        power += 1
    return checksum


@kernel(LONG_ROWS_IN, LONG_ROWS_IN, LONGS_OUT)
def _combine(parts: NDArray[np.int64], powers: NDArray[np.int64], wholes: NDArray[np.int64]) -> Any:
    wholes[:] = 0
    for part in range(parts.shape[0]):
        whole = parts[part, WHOLE]
        appended = _appended(wholes[whole], parts[part, LENGTH], powers)
        wholes[whole] = appended ^ parts[part, CHECKSUM]
    return 0


def combined(parts: NDArray[np.int64], count: int) -> list[int]:
    """Returns the CRC32Cs of `count` wholes. `parts` (int64, shape (parts, 3)) has, in the order of the
    bytes: the whole that a part belongs to, the part's CRC32C, and its length, which is below 2^32.
    """
    wholes = np.empty(count, np.int64)
    _combine(parts, _powers(), wholes)
    return wholes.tolist()


@cache
def _powers() -> NDArray[np.int64]:
    """Row k of the result (int64, shape (32, 32)) has the image of each bit under multiplication by
    x^(8 * 2^k)."""
    by_x = [_POLYNOMIAL, *(1 << bit for bit in range(_BITS - 1))]
    power = by_x
    for _ in range(3):
        power = _twice(power)
    rows = [power]
    while len(rows) < _BITS:
        rows.append(_twice(rows[-1]))
    return np.array(rows, np.int64)


def _twice(power: list[int]) -> list[int]:
    return [_image(power, image) for image in power]


def _image(power: list[int], value: int) -> int:
    product = 0
    for bit in range(_BITS):
        if value >> bit & 1:
            product ^= power[bit]
    return product
