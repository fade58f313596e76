"""The suite notices secrets of its fixtures in what tests print."""

import os
import subprocess
import sys
from pathlib import Path

_TEST = """
import logging
import subprocess
from tests.support.secret_watch import watch

def test_quiet():
    watch("zq-a-long-secret")

def test_printed():
    print("the key is zq-a-long-secret!")

def test_logged():
    logging.getLogger("x").warning("zq-a-long-secret")

def test_said_by_a_process():
    subprocess.run(["echo", "zq-a-long-secret"])
"""


def test_a_test_that_says_a_secret_of_a_fixture_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TEST)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.secret_watch", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "3 failed, 1 passed" in done.stdout, done.stdout
