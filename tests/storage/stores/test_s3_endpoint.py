"""The embedded S3 endpoint as a process: it starts, restarts with its data, and never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from storage.segments.keys import checked_key
from storage.stores.object_store import ObjectStore
from storage.stores.open_store import open_store
from tests.support.s3 import settings_of
from tidelog.embedded.s3_endpoint import EndpointFailed, S3Endpoint

KEY = checked_key("a/b")

_STARTS_ONE_AND_WAITS = """
import signal, sys, time
from pathlib import Path
from tidelog.embedded.s3_endpoint import S3Endpoint
signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
print(S3Endpoint.start(Path(sys.argv[1])).url, flush=True)
time.sleep(600)
"""


async def a_store(endpoint: S3Endpoint) -> ObjectStore:
    return await open_store(endpoint.store_url("bucket"), settings_of(endpoint))


async def test_objects_survive_a_restart_with_the_same_keys(tmp_path: Path) -> None:
    (tmp_path / "buckets" / "bucket").mkdir(parents=True)
    with S3Endpoint.start(tmp_path) as endpoint:
        store = await a_store(endpoint)
        await store.put(KEY, [b"x"])
        await store.close()

    with S3Endpoint.start(tmp_path, secret_key=endpoint.secret_key) as again:
        store = await a_store(again)
        assert await store.get(KEY) == b"x"
        await store.close()

    assert again.secret_key == endpoint.secret_key


def test_it_ends_when_stopped_and_may_be_stopped_twice(tmp_path: Path) -> None:
    endpoint = S3Endpoint.start(tmp_path)
    family = _family(endpoint.process_id)
    servers = [process for process in family if process.name() == "rclone"]
    was_running = endpoint.is_running

    endpoint.stop()
    endpoint.stop()

    assert was_running
    assert servers
    assert not endpoint.is_running
    assert not any(_is_alive(process) for process in servers)
    _wait_until_dead(family)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path, death: signal.Signals) -> None:
    command = [sys.executable, "-c", _STARTS_ONE_AND_WAITS, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"http://127.0.0.1:")
        family = _family(parent.pid)[1:]
        assert any(process.name() == "rclone" for process in family)

        os.kill(parent.pid, death)
        parent.wait(60)

    _wait_until_dead(family)


def test_it_notices_that_its_server_died(tmp_path: Path) -> None:
    with S3Endpoint.start(tmp_path) as endpoint:
        (server,) = [process for process in _family(endpoint.process_id) if process.name() == "rclone"]
        server.kill()
        _wait_until_dead([psutil.Process(endpoint.process_id)])

        assert not endpoint.is_running


def test_a_port_in_use_is_said_with_the_servers_own_words(tmp_path: Path, s3_endpoint: S3Endpoint) -> None:
    port = int(s3_endpoint.url.rpartition(":")[2])

    with pytest.raises(EndpointFailed, match="address already in use"):
        S3Endpoint.start(tmp_path, port=port)


def _family(process_id: int) -> list[psutil.Process]:
    parent = psutil.Process(process_id)
    return [parent, *parent.children(recursive=True)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_until_dead(family: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 60
    while any(_is_alive(process) for process in family):
        assert time.monotonic() < deadline, f"still alive: {family}"
        time.sleep(0.02)
