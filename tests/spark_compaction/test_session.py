"""Java is looked for before Spark is, and what is wrong is said in a sentence."""

import os
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from spark_compaction.java import JavaMissing, java_version, require_java
from spark_compaction.session import SparkUnavailable, refuse_remote
from spark_compaction.settings import CompactionSettings
from tests.support.once import alone
from tests.support.spark import SPARK_STARTING
from tests.support.waiting import wait_until
from tidelog.errors import UserError
from tidelog.process.environment import Environment
from tidelog.spark_errors import spark_command


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

    with pytest.raises(
        JavaMissing, match=r"is Java 11\. Spark needs Java 17 or newer: install it, or point JAVA_HOME"
    ):
        require_java()


def test_a_new_enough_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    require_java()


def test_a_machine_without_java_is_told_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    wait_until(
        lambda: not any(mark.items() <= _environment(process).items() for process in psutil.process_iter())
    )


KILLED_JVM = """
import asyncio, os, signal
import pyarrow as pa
from pyspark import SparkContext
from spark_compaction.job import SparkJobFailed, run_in_spark
from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings

def slowly(batches):
    import time
    for batch in batches:
        time.sleep(0.5)
        yield batch

def kill(_):
    os.kill(SparkContext._active_spark_context._gateway.proc.pid, signal.SIGKILL)

async def run(on_tasks_done):
    settings = CompactionSettings(spark_packages="")
    session = await asyncio.to_thread(spark_session, settings)
    table = pa.table({"number": [1, 2]})
    columns = "number long"
    return await run_in_spark(
        session,
        table,
        function=slowly,
        result_columns=columns,
        on_tasks_done=on_tasks_done,
        executor_wait_s=60.0,
    )

async def main():
    try:
        await run(kill)
    except SparkJobFailed as failed:
        print("failed:", failed)
    print("again:", sorted(row["number"] for row in await run(lambda _: None)))
    kill(0)

asyncio.run(main())
stop_spark()
print("stopped")
"""


def test_a_killed_jvm_fails_its_job_and_the_next_job_starts_another() -> None:
    with alone(SPARK_STARTING):
        done = subprocess.run(
            [sys.executable, "-c", KILLED_JVM], capture_output=True, text=True, timeout=200, check=False
        )

    assert "failed: Spark does not answer" in done.stdout, done.stderr
    assert "again: [1, 2]" in done.stdout
    assert "stopped" in done.stdout
    assert done.returncode == 0


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_a_connect_server_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SparkUnavailable, match="TIDELOG_SPARK_MASTER names the Spark Connect server sc://x:1"
    ):
        refuse_remote(CompactionSettings(spark_master="sc://x:1"))

    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002/;token=secret")
    reaches = {"TIDELOG_DATABASE_URL": "postgresql://nowhere", "TIDELOG_STORE_URL": "s3://nowhere"}
    with (
        pytest.raises(
            UserError, match="SPARK_REMOTE names the Spark Connect server sc://host:15002,"
        ) as said,
        spark_command(Environment.of_process().with_variables(reaches), "database_url", "store_url"),
    ):
        raise AssertionError("the command began")
    assert "secret" not in str(said.value)
