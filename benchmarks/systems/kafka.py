"""Apache Kafka as a system to measure: one broker, its log on the local disk, with its default settings
but for how soon the files of a deleted topic go."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.apache_kafka import apache_kafka
from benchmarks.load.producers import Target
from benchmarks.systems.meters import Meters
from benchmarks.systems.system import System

_SETTINGS = {"log.segment.delete.delay.ms": "500", "log.initial.task.delay.ms": "500"}
"""What is deleted between two workloads goes at once, or the page cache would be full of it."""
_SETTLING_S = 45.0
"""With a thousand new partitions it is behind for half a minute, and then catches up."""


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
