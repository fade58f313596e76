"""Java is looked for before Spark is, and what is wrong is said in a sentence."""

import os
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from benchmarks.once import alone
from spark_compaction.java import JavaMissing, java_version, require_java
from tests.fixtures.spark import SPARK_STARTING
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("what?", None),
    ],
)
def test_the_release_is_read_from_what_java_says(text: str, release: int | None) -> None:
    assert java_version(text) == release


def fake_java(home: Path, says: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


def test_an_old_java_is_refused_with_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaMissing, match=r"is Java 11\. Spark needs Java 17 or newer: install it, or point JAVA_HOME"):
        require_java()


def test_a_new_enough_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    require_java()


def test_a_machine_without_java_is_told_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(JavaMissing, match="no Java found"):
        require_java()


INTERRUPTED_START = """
import os, signal, threading
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings

signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
spark_session(CompactionSettings())
"""


def test_a_start_that_is_interrupted_leaves_no_jvm() -> None:
    mark = {"STARTED_BY_TEST": uuid.uuid4().hex}
    command = [sys.executable, "-c", INTERRUPTED_START]

    with alone(SPARK_STARTING):
        started = subprocess.run(
            command, env={**os.environ, **mark}, capture_output=True, text=True, timeout=200, check=False
        )

    assert "KeyboardInterrupt" in started.stderr
    # A process that was killed is there for a moment longer.
    wait_until(lambda: not any(mark.items() <= _environment(process).items() for process in psutil.process_iter()))


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
