"""CRC32Cs of bytes that lie back to back, made of those of their parts without looking at the bytes.

A checksum is a remainder of polynomials over GF(2): to append n bytes multiplies it by x^(8n) and adds theirs. The
multiplications by x^(8 * 2^k) are linear, hence 32 numbers each: the images of the 32 bits.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.native.arguments import LONG_ROWS_IN, LONGS_OUT
from storage.native.kernels import helper, kernel

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, its bits reversed."""
_BITS: Final = 32

# Columns of a part.
WHOLE, CHECKSUM, LENGTH = 0, 1, 2
PART_COLUMNS: Final = 3


@helper
def _appended(checksum: Any, length: int, powers: NDArray[np.int64]) -> Any:
    """The checksum multiplied by x^(8 * length)."""
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
    """The CRC32Cs of `count` wholes. Rows of parts: which whole a part belongs to, its CRC32C and its length, which is
    below 2^32; in the order in which they lie.
    """
    wholes = np.empty(count, np.int64)
    _combine(parts, _powers(), wholes)
    return wholes.tolist()


@cache
def _powers() -> NDArray[np.int64]:
    """Row k: what multiplying by x^(8 * 2^k) makes of each bit."""
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
