"""The kinds of arguments that a kernel takes: 64-bit integers, and C-contiguous arrays of one dtype."""

import ctypes
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Array:
    """An argument that is a C-contiguous array of this dtype and this number of dimensions."""

    dtype: str
    dimensions: int
    is_written: bool

    def parts(self, array: Any) -> tuple[int, ...]:
        """Returns the array's address and its shape, as the machine code takes them. Raises TypeError."""
        flags, shape = array.flags, array.shape
        is_writeable = flags.writeable
        if (
            array.dtype != _TYPES[self.dtype]
            or not flags.c_contiguous
            or len(shape) != self.dimensions
            or (self.is_written and not is_writeable)
        ):
            raise TypeError(f"{array.dtype} of shape {shape} is not {self}")
        if is_writeable and array.size:  # numpy takes three times as long to tell the address
            return (ctypes.addressof(ctypes.c_char.from_buffer(array)), *shape)
        return (array.__array_interface__["data"][0], *shape)


class _Long:
    """An argument that is a 64-bit integer."""


LONG: Final = _Long()
BYTES_IN: Final = Array("uint8", 1, is_written=False)
BYTES_OUT: Final = Array("uint8", 1, is_written=True)
LONGS_IN: Final = Array("int64", 1, is_written=False)
LONGS_OUT: Final = Array("int64", 1, is_written=True)
INTS_IN: Final = Array("int32", 1, is_written=False)
INTS_OUT: Final = Array("int32", 1, is_written=True)
LONG_ROWS_IN: Final = Array("int64", 2, is_written=False)
LONG_ROWS_OUT: Final = Array("int64", 2, is_written=True)

Kind: TypeAlias = Array | _Long

_TYPES: Final = {name: np.dtype(name) for name in ("uint8", "int32", "int64")}
