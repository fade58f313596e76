"""Temporary directories of processes that ended, and of those that live."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidelog.sql.own_directory import OwnDirectory

KILLED = """
import os, sys, tempfile
tempfile.tempdir = sys.argv[1]
from tidelog.sql.own_directory import OwnDirectory
own = OwnDirectory()
(own.path / "spill").mkdir()
print(own.path, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_left_is_removed_and_what_lives_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()

    first = OwnDirectory()
    second = OwnDirectory()

    assert not left.exists()
    assert first.path.is_dir()
    assert second.path.is_dir()
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []
