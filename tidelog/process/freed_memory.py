"""Freed memory is kept and used again, so that the kernel need not clear it for every object that goes through.

What an agent reads and writes comes and goes in pieces of megabytes, from threads of several kinds. glibc's malloc
would give many of them back to the kernel and ask for fresh ones, cleared page by page: a third of the CPU that a read
from the store takes. Promises that at most `_KEPT_FREE_BYTES` at the heap's end are kept unused, in one heap rather
than one for each thread; between pieces in use more may lie, which is part of the 200 MiB that `memory_bound.py` allows
beside the named settings.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The numbers of malloc.h."""
_FROM_HEAP_BYTES = 32 << 20
"""What is larger is still given back at once; the most that glibc allows."""
_KEPT_FREE_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Call it early: heaps that threads have by then stay theirs. Does nothing where malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
