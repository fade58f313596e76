"""One Spark for all tests of a worker, because its start and first queries take as long as many tests.

A start takes 16 s of CPU, and 5 s with `LIGHT_JAVA`: a compiler and a garbage collector for short programs,
and an archive of the classes that Spark loads. Every Spark of a test gets it, also of commands that a test
runs.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from tests.support.directories import new_directory
from tests.support.java import SHORT_PROGRAM
from tests.support.once import alone, made_once

_ROOT: Final = Path(__file__).parents[2]
SPARK_STARTING: Final = _ROOT / ".cache" / "spark-start"
_CLASSES: Final = _ROOT / ".cache" / "spark-classes.jsa"
_SHORT_PROGRAM: Final = " ".join(SHORT_PROGRAM)
LIGHT_JAVA: Final = f"{_SHORT_PROGRAM} -XX:SharedArchiveFile={_CLASSES}"
"""Options of a JVM. One that cannot use the archive, or finds none, ignores it."""
_ARCHIVE_TIMEOUT_S: Final = 300
_SHORT_JOB: Final = """
import sys
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings

session = spark_session(CompactionSettings())
rows = session.range(1000, numPartitions=2).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS v")
rows.write.parquet(sys.argv[1])
read = session.read.parquet(sys.argv[1])
read.filter("k > 2").mapInArrow(lambda found: found, read.schema).groupBy("k").count().orderBy("k").collect()
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def archive_classes() -> None:
    """Makes the archive, unless it is there."""
    made_once(_CLASSES, _archive)


def _archive(archive: Path) -> None:
    with new_directory("spark-classes") as directory:
        subprocess.run(
            [sys.executable, "-c", _SHORT_JOB, str(directory / "rows")],
            cwd=_ROOT,
            env={**os.environ, "SPARK_SUBMIT_OPTS": f"{_SHORT_PROGRAM} -XX:ArchiveClassesAtExit={archive}"},
            capture_output=True,
            timeout=_ARCHIVE_TIMEOUT_S,
            check=False,
        )
    archive.touch()


@pytest.fixture(scope="session", autouse=True)
def light_java() -> Iterator[None]:
    """For every Spark that this process or a child of it starts. Its launcher is a JVM, too."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_LAUNCHER_OPTS", _SHORT_PROGRAM)
        environment.setenv("SPARK_SUBMIT_OPTS", LIGHT_JAVA)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[None]:
    """Starts this process's Spark once. The first run on a machine fetches packages into a cache that two
    processes must not fill at once.
    """
    with alone(SPARK_STARTING):
        archive_classes()
        spark_session(CompactionSettings())
    yield
    stop_spark()
