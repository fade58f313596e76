"""Apache Kafka to compare with: one broker from the jars of Maven Central, by name, on a free loopback port.

The jars come once (53 MB). Log segments lie on the local disk; the broker flushes them as it does by default.
"""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import child, free_port, wait_until_open
from benchmarks.folder import FOLDER
from benchmarks.maven import retrieve

VERSION = "4.1.0"
_MODULES = Path(__file__).with_name("apache_kafka.xml")
_JVM = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
"""As in Kafka's own start script."""
_START_TIMEOUT_S = 90.0
_FORMAT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker."""

    bootstrap: str
    pid: int


def jars() -> str:
    """The class path, downloaded if need be."""
    return f"{retrieve(_MODULES, FOLDER / f'apache-kafka-{VERSION}')}/*"


@contextmanager
def apache_kafka(directory: Path, settings: Mapping[str, str]) -> Iterator[Broker]:
    """A broker that is its own controller, ends with the context. `settings` are server properties."""
    classpath = jars()
    port, controller_port = free_port(), free_port()
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        **settings,
    }
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    _run("-cp", classpath, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(file))
    log_file = directory / "broker.log"
    with child(["java", *_JVM, "-cp", classpath, "kafka.Kafka", str(file)], log_file, {}) as process:
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)
        yield Broker(bootstrap=f"127.0.0.1:{port}", pid=process.pid)


def _run(*arguments: str) -> None:
    subprocess.run(["java", *arguments], check=True, capture_output=True, timeout=_FORMAT_TIMEOUT_S)
