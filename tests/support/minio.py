"""MinIO for the tests, if `minio` is on PATH or `make bench-setup` has built it. Otherwise its tests are
skipped.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.folder import MINIO
from tests.support.secret_watch import watch
from tidelog.devstack.ports import picked_ports

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MinioEndpoint:
    url: str
    access_key: str
    secret_key: str

    def store_url(self, bucket: str, prefix: str = "") -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.url}"


@pytest.fixture(scope="session")
def minio_endpoint() -> Iterator[MinioEndpoint]:
    """The session's MinIO, without buckets."""
    binary = shutil.which("minio") or shutil.which(MINIO)
    if binary is None:
        pytest.skip("no minio: it is neither on PATH nor built by `make bench-setup`")
    # MinIO does not take port 0.
    with picked_ports(1) as [port]:
        yield from _serving(binary, port)


def _serving(binary: str, port: int) -> Iterator[MinioEndpoint]:
    directory = Path(tempfile.mkdtemp(prefix="tidelog-test-minio-"))
    endpoint = MinioEndpoint(
        url=f"http://127.0.0.1:{port}", access_key="tidelog", secret_key=secrets.token_hex(20)
    )
    watch(endpoint.secret_key)
    process = subprocess.Popen(
        [binary, "server", "--quiet", "--address", endpoint.url.removeprefix("http://"), str(directory)],
        env=os.environ | {"MINIO_ROOT_USER": endpoint.access_key, "MINIO_ROOT_PASSWORD": endpoint.secret_key},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_live(endpoint, process)
        yield endpoint
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(directory, ignore_errors=True)


def _wait_until_live(endpoint: MinioEndpoint, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint.url}/minio/health/live", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"minio did not start within {START_TIMEOUT_S:g} s (exit status {process.poll()})")
