"""The S3 endpoint of all measurements: a MinIO with one drive."""

import asyncio
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import SecretStr

from storage.stores.object_store import StoreSettings, StoreUrl
from storage.stores.s3_store import S3Store
from tests.support.child import child, free_port, wait_until_open
from tests.support.folder import MINIO

_USER = "tidelog"
_BUCKET = "benchmarks"
_START_TIMEOUT_S = 30.0
_POLL_S = 0.05
_ENVIRONMENT = {"MINIO_BROWSER": "off", "MINIO_PROMETHEUS_AUTH_TYPE": "public"}


class NoEndpoint(Exception):
    """MinIO did not start. The message has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A bucket on a running endpoint, and the keys to it."""

    name: str
    store_url: str
    access_key: str
    secret_key: str
    pid: int

    @property
    def url(self) -> str:
        """The URL of the endpoint, without a bucket."""
        return self.store_url.split("endpoint=")[1]

    @property
    def bucket(self) -> str:
        return _BUCKET

    @property
    def metrics_url(self) -> str:
        """Requests by kind, as of now. (MinIO's older metrics page is up to ten seconds old.)"""
        return f"{self.url}/minio/metrics/v3/api/requests"

    def settings(self) -> StoreSettings:
        return StoreSettings(s3_access_key=self.access_key, s3_secret_key=SecretStr(self.secret_key))

    def as_environment(self) -> dict[str, str]:
        """For agents."""
        return {
            "TIDELOG_STORE_URL": self.store_url,
            "TIDELOG_S3_ACCESS_KEY": self.access_key,
            "TIDELOG_S3_SECRET_KEY": self.secret_key,
        }


def minio_binary() -> str:
    """The MinIO that `make bench-setup` built, else the one on PATH. Raises NoEndpoint."""
    found = str(MINIO) if MINIO.exists() else shutil.which("minio")
    if found is None:
        raise NoEndpoint("There is no MinIO: `make bench-setup` builds it (it needs Go).")
    return found


@contextmanager
def minio(directory: Path) -> Iterator[Endpoint]:
    """A MinIO with one drive on a free loopback port, that ends with the context."""
    port, secret = free_port(), secrets.token_hex(16)
    command = [
        minio_binary(),
        "server",
        "--quiet",
        "--address",
        f"127.0.0.1:{port}",
        str(directory / "drive"),
    ]
    environment = {**_ENVIRONMENT, "MINIO_ROOT_USER": _USER, "MINIO_ROOT_PASSWORD": secret}
    log_file = directory / "minio.log"
    url = f"s3://{_BUCKET}/?endpoint=http://127.0.0.1:{port}"
    with child(command, log_file, environment) as process:
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)
        endpoint = Endpoint(name="MinIO", store_url=url, access_key=_USER, secret_key=secret, pid=process.pid)
        _wait_until_ready(endpoint.url, log_file)
        asyncio.run(_make_bucket(endpoint))
        yield endpoint


def _wait_until_ready(url: str, log_file: Path) -> None:
    """Waits until MinIO serves. It listens earlier, but refuses requests, and clients then pause longer and
    longer.
    """
    until = time.monotonic() + _START_TIMEOUT_S
    with httpx.Client(verify=False, timeout=2.0) as client:
        while time.monotonic() < until:
            with suppress(httpx.TransportError):
                if client.get(f"{url}/minio/health/cluster").status_code == 200:
                    return
            time.sleep(_POLL_S)
    raise NoEndpoint(f"MinIO did not start: {log_file.read_text(errors='replace')[-2000:]}")


async def _make_bucket(endpoint: Endpoint) -> None:
    store = await S3Store.open(StoreUrl.parse(endpoint.store_url), endpoint.settings())
    try:
        await store.ensure_bucket()
    finally:
        await store.close()
