"""Bytes as numpy sees them, without a copy."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview


def as_byte_array(buffer: Buffer) -> NDArray[np.uint8]:
    """A read-only view, whatever the buffer allows."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    array.flags.writeable = False
    return array
