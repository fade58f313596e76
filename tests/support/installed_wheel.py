"""Tidelog's wheel, installed into new environments."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.directories import new_directory

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).parent / "uv"


def run(
    *command: str | Path, said: str = "", status: int = 0, cwd: str | Path = "/", **environment: str
) -> str:
    """The output of a command."""
    ran = subprocess.run(
        [str(part) for part in command],
        input=said,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**inherited(), **environment},
    )
    assert ran.returncode == status, f"{command}: {ran.stdout}\n{ran.stderr}"
    return ran.stdout + ran.stderr


def inherited() -> Mapping[str, str]:
    """The environment without the variables of Tidelog and Python that a developer's shell may have."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TIDELOG_", "PYTHON", "VIRTUAL_ENV", "PYTEST_"))
    }


@contextmanager
def installed_wheel(extras: str = "") -> Iterator[Path]:
    """The folder of commands of a new environment, into which the wheel was installed, with `extras` as pip
    writes them.
    """
    with new_directory("package") as directory:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=120,
        )
        [wheel] = directory.glob("*.whl")
        run(UV, "venv", "--quiet", "--python", sys.executable, directory / "venv")
        python = directory / "venv" / "bin" / "python"
        wanted = f"{wheel}{extras}"
        run(
            UV,
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            "--constraint",
            ROOT / "requirements.lock",
            wanted,
        )
        yield python.parent
