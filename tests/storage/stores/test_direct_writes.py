"""A file holds the bytes of all chunks, whatever the sizes of chunks and blocks. An existing file is not
overwritten.
"""

import os
from pathlib import Path

import pytest

from storage.stores.local_store import DirectWrites

_STAGED = 1 << 20


@pytest.mark.parametrize(
    "sizes",
    [
        (),
        (0, 0),
        (1,),
        (4096,),
        (4095, 2),
        (_STAGED,),
        (_STAGED - 1, 0, 2, 4096),
        (3 * _STAGED + 5, 7, _STAGED),
    ],
)
@pytest.mark.parametrize("shared_memory", [False, True])
def test_a_file_holds_the_bytes_of_all_chunks(
    sizes: tuple[int, ...], shared_memory: bool, tmp_path: Path
) -> None:
    directory = Path("/dev/shm") if shared_memory else tmp_path
    if not directory.is_dir():
        pytest.skip("no file system in memory here")
    path, writes = directory / f"tidelog-{os.getpid()}-direct", DirectWrites()
    chunks = [os.urandom(size) for size in sizes]
    try:
        writes.write(path, [memoryview(chunk) for chunk in chunks])

        assert path.read_bytes() == b"".join(chunks)
    finally:
        path.unlink(missing_ok=True)


def test_a_second_file_holds_nothing_of_the_first(tmp_path: Path) -> None:
    writes = DirectWrites()
    writes.write(tmp_path / "first", [b"1" * 10_000])

    writes.write(tmp_path / "second", [b"2" * 5_000])

    assert (tmp_path / "second").read_bytes() == b"2" * 5_000


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"older")

    with pytest.raises(FileExistsError):
        DirectWrites().write(tmp_path / "file", [b"newer"])

    assert (tmp_path / "file").read_bytes() == b"older"
