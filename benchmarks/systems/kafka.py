"""Apache Kafka as a system to measure: one broker, its log on the local disk, with its default settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.apache_kafka import apache_kafka
from benchmarks.load.producers import Target
from benchmarks.systems.meters import Meters
from benchmarks.systems.system import System


@contextmanager
def kafka(directory: Path) -> Iterator[System]:
    """Ends with the context."""
    with apache_kafka(directory, {}) as broker:
        host, port = broker.bootstrap.split(":")
        yield System(
            name="kafka",
            targets={"a": Target(host=host, port=int(port))},
            meters=Meters({"a": broker.pid}),
        )
