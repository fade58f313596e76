"""Bytes as numpy sees them, without a copy."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview


def as_byte_array(buffer: Buffer) -> NDArray[np.uint8]:
    """Returns a read-only view (uint8, shape (bytes,)), even if the buffer is writable."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    array.flags.writeable = False
    return array
