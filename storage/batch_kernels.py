"""Native walks over the bytes of record batches. No decision lies here that a caller could take: kernels say where
and what, not what then.

Promises never to read outside `[start, end)`, whatever the bytes are. Kernels that call each other share this file,
because numba notices a changed source by its own file alone.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from storage.native import BYTES_IN, LONG, LONG_ROWS_OUT, kernel, signature

_HEADER_BYTES = 61


@njit(inline="always")
def _int32_at(data: NDArray[np.uint8], position: int) -> Any:
    return np.int32(
        (np.uint32(data[position]) << np.uint32(24))
        | (np.uint32(data[position + 1]) << np.uint32(16))
        | (np.uint32(data[position + 2]) << np.uint32(8))
        | np.uint32(data[position + 3])
    )


@kernel(signature((LONG_ROWS_OUT, LONG), BYTES_IN, LONG, LONG))
def walk_batches(data: NDArray[np.uint8], start: int, end: int) -> Any:
    """Rows (position, size, last offset delta) of the batches in `[start, end)`, and where a batch does not fit, or
    -1.
    """
    count = 0
    position: Any = start
    while position < end:
        size = np.int64(12) + _int32_at(data, position + 8) if end - position >= _HEADER_BYTES else np.int64(0)
        if size < _HEADER_BYTES or size > end - position:
            return np.empty((0, 3), np.int64), position
        count += 1
        position += size
    rows = np.empty((count, 3), np.int64)
    position = start
    for row in range(count):
        size = np.int64(12) + _int32_at(data, position + 8)
        rows[row, 0] = position
        rows[row, 1] = size
        rows[row, 2] = _int32_at(data, position + 23)
        position += size
    return rows, np.int64(-1)
