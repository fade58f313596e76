"""Writes files that their writer will not read back, so that the operating system need not keep them in
memory.

Promises:
- A file is whole and on disk when `write` returns. Its name in the directory may not be.
- At most `_STAGED_BYTES` of buffers are kept for each writing thread.

Where the file system can, bytes go from memory to the device without a copy in the page cache (`O_DIRECT`).
Making, filling and freeing pages of that cache costs twice the CPU. Direct writes start at whole blocks in
memory and in the file, so bytes are staged in an own buffer. The end of the file, less than a block, goes
through the page cache.
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
"""A multiple of what devices and file systems need."""
_STAGED_BYTES = 1 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectWrites:
    """Buffers are kept between files: fresh memory costs the kernel as much as the copy into it."""

    def __init__(self) -> None:
        self._buffers: list[mmap.mmap] = []

    def write(self, path: Path, chunks: Sequence[Buffer]) -> None:
        """Writes a file that does not exist yet. Raises OSError, and may leave a part of the file."""
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
        path.unlink(missing_ok=True)  # some file systems make the file before they refuse
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
            _use_page_cache(descriptor)  # the device's blocks are larger, or the last write ended within a block


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT)


def _use_page_cache(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_DIRECT)


def _forget(descriptor: int) -> None:
    """Drops what is in the page cache anyway. The system then uses the same memory for the next object:
    writing to memory that it never used costs five times the CPU.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
