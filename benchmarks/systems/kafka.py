"""Apache Kafka as a system to measure: one broker, its log on the local disk, with its default settings,
except for how soon it deletes the files of a deleted topic."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load.producers import Target
from benchmarks.systems.meters import Meters
from benchmarks.systems.system import System
from tests.support.apache_kafka import apache_kafka

_SETTINGS = {"log.segment.delete.delay.ms": "500", "log.initial.task.delay.ms": "500"}
"""Deletes files at once after a workload. Otherwise they would fill the page cache."""
_SETTLING_S = 45.0
"""After a thousand partitions were created, Kafka lags for half a minute and then catches up."""


@contextmanager
def kafka(directory: Path) -> Iterator[System]:
    """Ends with the context."""
    with apache_kafka(directory, _SETTINGS) as broker:
        host, port = broker.bootstrap.split(":")
        yield System(
            name="kafka",
            targets={"a": Target(host=host, port=int(port))},
            meters=Meters({"a": broker.pid}),
            drops_topics=True,
            settling_s=_SETTLING_S,
        )
