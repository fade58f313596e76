"""Apicurio Registry as released: a schema registry that keeps everything in topics (its storage `kafkasql`).

It comes from Maven Central by name, once (155 MB), into `.cache/schema-registry`. `schema_registry.xml` in
this folder names the version. It needs a newer Java than Tidelog: the caller says which.
"""

import hashlib
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.child import child, free_port, wait_until_open
from tests.support.java import JVM_OPTIONS
from tests.support.maven import retrieve
from tests.support.once import made_once
from tests.support.waiting import wait_until

_MODULES = Path(__file__).with_name("schema_registry.xml")
_FOLDER = Path(__file__).parents[2] / ".cache" / "schema-registry"
_START_TIMEOUT_S = 180.0
_REQUEST_TIMEOUT_S = 20.0
_ATTEMPTS = 3


def registry_application() -> Path:
    """The folder of the application, downloaded and unpacked if need be."""
    return made_once(_FOLDER / hashlib.sha256(_MODULES.read_bytes()).hexdigest()[:16], _unpack)


def _unpack(folder: Path) -> None:
    archives = folder.with_name("archives")
    (archive,) = retrieve(_MODULES, archives).glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    shutil.rmtree(archives)


class SchemaRegistry:
    """A registry at one address. Its memory is empty at each start: what it knows is in its topics."""

    def __init__(self, java: Path, application: Path, servers: str, directory: Path) -> None:
        self._port, self._health_port = free_port(), free_port()
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self._port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": self._health_port,
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": servers,
            # A start waits for a whole poll several times. The default is 5 seconds.
            "apicurio.kafkasql.consumer.poll.timeout": 500,
        }
        properties = [f"-D{name}={value}" for name, value in options.items()]
        self._command = [str(java), *JVM_OPTIONS, *properties, "-jar", str(application / "quarkus-run.jar")]
        self._directory = directory
        self._starts = 0
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """For clients that speak Confluent's API."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        """Returns when it has read its topics."""
        self._starts += 1
        log_file = self._directory / f"registry-{self._starts}.log"
        process = self._running.enter_context(child(self._command, log_file, {}))
        wait_until_open(process, self._health_port, _START_TIMEOUT_S, log_file)
        wait_until(self._is_ready, _START_TIMEOUT_S)

    def stop(self) -> None:
        """Ends it with SIGTERM."""
        self._running.close()

    def version(self) -> str:
        """Of the program."""
        info = _get(f"http://127.0.0.1:{self._port}/apis/registry/v3/system/info")
        found: str = info.raise_for_status().json()["version"]
        return found

    def versions(self, subject: str) -> dict[int, int]:
        """The id of each version's schema."""
        numbers = self._get(f"/subjects/{subject}/versions")
        return {number: self._get(f"/subjects/{subject}/versions/{number}")["id"] for number in numbers}

    def _is_ready(self) -> bool:
        return _get(f"http://127.0.0.1:{self._health_port}/health/ready").is_success

    def _get(self, path: str) -> Any:
        return _get(f"{self.url}{path}").raise_for_status().json()


def _get(url: str) -> httpx.Response:
    """Asks again where the answer is lost: the registry once logged one and never sent it."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(httpx.ReadTimeout):
            return httpx.get(url, timeout=_REQUEST_TIMEOUT_S)
    return httpx.get(url, timeout=_REQUEST_TIMEOUT_S)


@contextmanager
def schema_registry(java: Path, servers: str, directory: Path) -> Iterator[SchemaRegistry]:
    """A running registry. It ends with the context."""
    registry = SchemaRegistry(java, registry_application(), servers, directory)
    try:
        registry.start()
        yield registry
    finally:
        registry.stop()
