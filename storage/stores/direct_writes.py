"""Files of bytes that their writer will not read back from the operating system, which therefore need not keep them.

Promises that a file is whole and on disk when `write` returns, its name in the directory apart. Where the file system
can, bytes go from memory to the device without a copy in the page cache (`O_DIRECT`): making pages of that cache,
filling them and letting them go costs twice the CPU. Such writes start in memory and in the file at whole blocks, so
bytes are staged in a buffer of ours, and the file's end, less than a block, goes through the page cache. At most
`_STAGED_BYTES` are kept for each thread that writes.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from storage.batches.byte_arrays import Buffer

_BLOCK_BYTES = 4096
"""A multiple of what devices and file systems ask for."""
_STAGED_BYTES = 1 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectWrites:
    """Buffers are kept from file to file: fresh memory costs the kernel as much as the copy into it."""

    def __init__(self) -> None:
        self._buffers: list[mmap.mmap] = []

    def write(self, path: Path, chunks: Sequence[Buffer]) -> None:
        """A file that was not there. Raises OSError, and may leave a part."""
        buffer = self._buffers.pop() if self._buffers else mmap.mmap(-1, _STAGED_BYTES)
        try:
            descriptor = _open_new(path)
            try:
                _write_staged(descriptor, chunks, buffer)
                os.fsync(descriptor)
                _forget(descriptor)
            finally:
                os.close(descriptor)
        finally:
            self._buffers.append(buffer)


def _open_new(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags | _DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL or not _DIRECT:
            raise
        path.unlink(missing_ok=True)  # some make the file before they refuse
        return os.open(path, flags, 0o666)


def _write_staged(descriptor: int, chunks: Sequence[Buffer], buffer: mmap.mmap) -> None:
    staged, written, filled = np.frombuffer(buffer, np.uint8), memoryview(buffer), 0
    for chunk in chunks:
        rest = np.frombuffer(chunk, np.uint8)
        while len(rest):
            taken = rest[: len(staged) - filled]
            staged[filled : filled + len(taken)] = taken  # without the GIL
            filled, rest = filled + len(taken), rest[len(taken) :]
            if filled == len(staged):
                _write_all(descriptor, written)
                filled = 0
    whole = filled - filled % _BLOCK_BYTES
    _write_all(descriptor, written[:whole])
    _use_page_cache(descriptor)
    _write_all(descriptor, written[whole:filled])


def _write_all(descriptor: int, rest: memoryview) -> None:
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not _is_direct(descriptor):
                raise
            _use_page_cache(descriptor)  # the device's blocks are larger, or a part was written that ends within one


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT)


def _use_page_cache(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_DIRECT)


def _forget(descriptor: int) -> None:
    """What is in the page cache all the same. The system takes the same memory for the next object: writing to memory
    it has never used costs it five times the CPU.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
