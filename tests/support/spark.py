"""One Spark for all tests of a worker, because its start and first queries take as long as many tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from tests.support.once import alone

SPARK_STARTING = Path(__file__).parents[2] / ".cache" / "spark-start"


@pytest.fixture(scope="session")
def spark() -> Iterator[None]:
    """Starts this process's Spark once. The first run on a machine fetches packages into a cache that two
    processes must not fill at once.
    """
    with alone(SPARK_STARTING), pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        spark_session(CompactionSettings())
    yield
    stop_spark()
