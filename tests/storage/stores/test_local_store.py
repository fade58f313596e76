"""What a directory promises beyond the contract: a kill leaves nothing half written, and faults are named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.identifiers import ObjectKey
from storage.segments.keys import checked_key
from storage.stores.object_store import ObjectNotFound, ObjectStore, StoreSettings, StoreUnavailable
from storage.stores.open_store import open_store

KEY = checked_key("cluster/segments/ab/one")

_KILLED_WHILE_WRITING = """
import asyncio, os, signal, sys
from storage.stores.object_store import StoreSettings
from storage.stores.open_store import open_store

class Chunks(list):
    def __iter__(self):
        yield b"x" * 100_000
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = await open_store(sys.argv[1], StoreSettings())
    await store.put("cluster/segments/ab/one", Chunks([b"", b""]))

asyncio.run(main())
"""


@pytest.fixture
async def local(tmp_path: Path) -> ObjectStore:
    return await open_store(f"file://{tmp_path}/store", StoreSettings())


def _kill_while_writing(directory: Path) -> None:
    command = [sys.executable, "-c", _KILLED_WHILE_WRITING, f"file://{directory}"]
    killed = subprocess.run(command, cwd=Path(__file__).parents[3], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL


async def test_a_writer_killed_in_the_middle_leaves_no_object(local: ObjectStore, tmp_path: Path) -> None:
    _kill_while_writing(tmp_path / "store")

    with pytest.raises(ObjectNotFound):
        await local.get(KEY)
    assert [info.key async for info in local.list("")] == []
    assert len(list((tmp_path / "store" / ".uploads").iterdir())) == 1


async def test_a_writer_killed_in_the_middle_leaves_the_older_object(
    local: ObjectStore, tmp_path: Path
) -> None:
    await local.put(KEY, [b"older"])

    _kill_while_writing(tmp_path / "store")

    assert await local.get(KEY) == b"older"


async def test_what_a_killed_writer_left_is_swept_after_an_hour(tmp_path: Path) -> None:
    uploads = tmp_path / "store" / ".uploads"
    uploads.mkdir(parents=True)
    (uploads / "fresh").write_bytes(b"x")
    (uploads / "abandoned").write_bytes(b"x")
    os.utime(uploads / "abandoned", (time.time() - 7200,) * 2)

    await open_store(f"file://{tmp_path}/store", StoreSettings())

    assert [path.name for path in uploads.iterdir()] == ["fresh"]


async def test_the_directory_of_uploads_is_not_for_objects(local: ObjectStore) -> None:
    with pytest.raises(ValueError, match=r"lies in \.uploads"):
        await local.put(ObjectKey(".uploads/x"), [b""])


async def test_two_stores_of_one_directory_share_their_objects(local: ObjectStore, tmp_path: Path) -> None:
    other = await open_store(f"file://{tmp_path}/store", StoreSettings())
    await local.put(KEY, [b"x"])

    assert await other.get(KEY) == b"x"


async def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreUnavailable, match=f"cannot use the store's directory {tmp_path}/file/store"):
        await open_store(f"file://{tmp_path}/file/store", StoreSettings())


async def test_a_key_below_an_object_is_named_as_the_fault_it_is(local: ObjectStore) -> None:
    await local.put(checked_key("a"), [b"x"])

    with pytest.raises(StoreUnavailable, match="cannot use the store's directory"):
        await local.put(checked_key("a/b"), [b"y"])


async def test_a_probe_notices_that_the_directory_is_gone(local: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")

    with pytest.raises(StoreUnavailable, match="cannot write into the store's directory"):
        await local.probe()
