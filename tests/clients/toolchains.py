"""Builds the programs of the clients in other languages: `python -m tests.clients.toolchains`, or from a
fixture.

Promises that an up-to-date build costs next to nothing, that results lie in folders which git ignores, and
that a language without a toolchain on this machine is named and never skipped in silence. Packages
come by name from each language's own registry, at the versions that its files name.
"""

import concurrent.futures
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.once import alone

HERE = Path(__file__).parent
BUILT = HERE.parents[1] / ".cache" / "clients"
BUILD_TIMEOUT_S = 900
_building = threading.Lock()
_up_to_date: set[str] = set()


class BuildFailed(Exception):
    """The toolchain is there and did not build the program; the message has what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """One language: what must be on PATH, and what makes its programs."""

    language: str
    needs: tuple[str, ...]
    build: tuple[str, ...]
    environment: Mapping[str, str]
    asked: tuple[str, ...] = ()
    """A command that fails if a tool is on PATH without a toolchain, like a fresh rustup's. Empty: PATH says
    it all.
    """
    locked: str | None = None
    """A file whose content says all about what is built: unchanged, there is nothing to do. None: the tool
    knows.
    """

    @property
    def folder(self) -> Path:
        return HERE / self.language

    def missing(self) -> str | None:
        """What this machine lacks first."""
        absent = next((tool for tool in self.needs if shutil.which(tool) is None), None)
        if absent is not None or not self.asked or self.language in _up_to_date:
            return absent
        answer = subprocess.run(self.asked, cwd=self.folder, capture_output=True, timeout=60, check=False)
        return None if answer.returncode == 0 else f"toolchain for {self.asked[0]}"


TOOLCHAINS = {
    toolchain.language: toolchain
    for toolchain in (
        Toolchain(
            language="go",
            needs=("go",),
            # Without debug information linking takes half the time.
            build=(
                "go",
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags=-s -w",
                "-o",
                f"{BUILT}/go/",
                "./cmd/...",
            ),
            environment={"CGO_ENABLED": "0"},
        ),
        Toolchain(
            language="rust",
            needs=("cargo", "cc", "make"),
            asked=("cargo", "--version"),
            build=("cargo", "build", "--quiet"),
            environment={},
        ),
        Toolchain(
            language="node",
            needs=("node", "npm"),
            build=("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
            environment={},
            locked="package-lock.json",
        ),
    )
}


def build(toolchain: Toolchain) -> None:
    """Brings the programs of a language up to date, once in a process. Raises `BuildFailed`."""
    with _building:
        if toolchain.language not in _up_to_date:
            _build(toolchain)
            _up_to_date.add(toolchain.language)


def _build(toolchain: Toolchain) -> None:
    stamp = BUILT / f"{toolchain.language}.built"
    with alone(stamp):
        _build_alone(toolchain, stamp)


def _build_alone(toolchain: Toolchain, stamp: Path) -> None:
    digest = ""
    if toolchain.locked is not None:
        digest = hashlib.sha256((toolchain.folder / toolchain.locked).read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == digest and (toolchain.folder / "node_modules").exists():
            return
    done = subprocess.run(
        toolchain.build,
        cwd=toolchain.folder,
        env=os.environ | toolchain.environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        raise BuildFailed(
            f"{' '.join(toolchain.build)} in {toolchain.folder} ended with {done.returncode}: {said}"
        )
    stamp.write_text(digest)


def _told(toolchain: Toolchain) -> bool:
    missing = toolchain.missing()
    if missing is not None:
        print(f"{toolchain.language}: not built, this machine has no {missing}")
        return True
    began = time.monotonic()
    try:
        _build(toolchain)
    except BuildFailed as failure:
        print(failure, file=sys.stderr)
        return False
    print(f"{toolchain.language}: built in {time.monotonic() - began:.1f} s")
    return True


def main(languages: Sequence[str]) -> int:
    """All languages at once; 1 if a toolchain that is there failed."""
    chosen = [TOOLCHAINS[language] for language in languages or TOOLCHAINS]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return 0 if all(list(pool.map(_told, chosen))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
