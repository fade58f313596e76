"""How the numba kernels are compiled: eagerly, for one signature each, without the GIL, and kept on disk.

Promises that importing a kernel compiles nothing once its cache is there. The cache lies beside the source, or where
that is read-only in the user's cache directory or in NUMBA_CACHE_DIR; where none of them can be written, each process
compiles for itself (a few seconds).
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit, types

Function = TypeVar("Function", bound=Callable[..., Any])

LONG = types.int64
BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
"""Input bytes are always read-only views (`byte_arrays.as_byte_array`)."""
BYTES_OUT = types.Array(types.uint8, 1, "C")
LONGS_IN = types.Array(types.int64, 1, "C", readonly=True)
LONGS_OUT = types.Array(types.int64, 1, "C")
INTS_IN = types.Array(types.int32, 1, "C", readonly=True)
INTS_OUT = types.Array(types.int32, 1, "C")
LONG_ROWS_IN = types.Array(types.int64, 2, "C", readonly=True)
LONG_ROWS_OUT = types.Array(types.int64, 2, "C")


def signature(results: tuple[Any, ...], *arguments: Any) -> Any:
    """The signature of a kernel that returns a tuple of `results`."""
    return types.Tuple(results)(*arguments)  # type: ignore[no-untyped-call]


def kernel(signature: Any) -> Callable[[Function], Function]:
    """Compile a function for `signature` alone; it runs without the GIL."""

    def compiled(function: Function) -> Function:
        try:
            return cast(Function, njit(signature, cache=True, nogil=True, boundscheck=False)(function))
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            return cast(Function, njit(signature, nogil=True, boundscheck=False)(function))

    return compiled
