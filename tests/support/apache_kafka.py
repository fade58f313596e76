"""Apache Kafka to compare with: a broker, or several, from the jars of Maven Central, by name, on free
loopback ports.

The jars are fetched once (53 MB). Log segments are on the local disk, and the broker flushes them as by
default.
"""

import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.child import child, free_port, wait_until_open
from tests.support.folder import FOLDER
from tests.support.java import Java
from tests.support.maven import retrieve
from tests.support.waiting import wait_until

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
def apache_kafka(
    directory: Path, settings: Mapping[str, str], classpath: str = "", port: int = 0
) -> Iterator[Broker]:
    """A broker that is its own controller. It ends with the context. `settings` are server properties.
    `classpath`: its jars and more. `port`: that `settings` name.
    """
    classpath = classpath or jars()
    port, controller_port = port or free_port(), free_port()
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
    _run(
        "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(file)
    )
    log_file = directory / "broker.log"
    with child(["java", *_JVM, "-cp", classpath, "kafka.Kafka", str(file)], log_file, {}) as process:
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)
        yield Broker(bootstrap=f"127.0.0.1:{port}", pid=process.pid)


class ClusterBroker:
    """One of several brokers. Tests can kill, freeze and restart it."""

    def __init__(self, classpath: str, file: Path, port: int, log_folder: Path) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._command = ["java", *_JVM, "-cp", classpath, "kafka.Kafka", str(file)]
        self._port = port
        self._log_folder = log_folder
        self._starts = 0
        self._running = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        log_file = self._log_folder / f"broker-{self._port}-{self._starts}.log"
        self._process = self._running.enter_context(child(self._command, log_file, {}))
        wait_until_open(self._process, self._port, _START_TIMEOUT_S, log_file)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the broker was started"
        self._process.send_signal(number)

    def mend(self) -> None:
        """Resume it, or start it again if it has ended."""
        assert self._process is not None, "the broker was started"
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return
        self._running.close()
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self._running.close()


@contextmanager
def kafka_with_acls(directory: Path, java: Java) -> Iterator[tuple[str, str]]:
    """A broker with the StandardAuthorizer. Yields the address at which clients are User:ANONYMOUS, and the
    one at which they are User:admin, who may do everything.
    """
    classpath = replace(java, classpath=jars()).compiled(Path(__file__).with_name("ListenerPrincipals.java"))
    port, inside_port, controller_port = free_port(), free_port(), free_port()
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},INSIDE://127.0.0.1:{inside_port},"
        f"CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},INSIDE://127.0.0.1:{inside_port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "principal.builder.class": "ListenerPrincipals",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "group.initial.rebalance.delay.ms": "0",
    }
    with apache_kafka(directory, settings, classpath.classpath, port):
        wait_until(lambda: _is_open(inside_port), _START_TIMEOUT_S)
        yield f"127.0.0.1:{port}", f"127.0.0.1:{inside_port}"


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def kafka_cluster(directory: Path, brokers: int) -> Iterator[Sequence[ClusterBroker]]:
    """Brokers with their defaults, and a separate controller. They end with the context."""
    classpath = jars()
    controller_port = free_port()
    voters = {
        "controller.quorum.voters": f"100@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
    }
    protocols = {"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"}
    controller = {
        "process.roles": "controller",
        "node.id": "100",
        "listeners": f"CONTROLLER://127.0.0.1:{controller_port}",
        **voters,
        **protocols,
    }
    with ExitStack() as started:
        file = _formatted(classpath, directory / "controller", controller)
        log_file = directory / "controller.log"
        command = ["java", *_JVM, "-cp", classpath, "kafka.Kafka", str(file)]
        process = started.enter_context(child(command, log_file, {}))
        wait_until_open(process, controller_port, _START_TIMEOUT_S, log_file)
        running = []
        for number in range(1, brokers + 1):
            port = free_port()
            properties = {
                "process.roles": "broker",
                "node.id": str(number),
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                **voters,
                **protocols,
            }
            file = _formatted(classpath, directory / f"broker-{number}", properties)
            broker = ClusterBroker(classpath, file, port, directory)
            started.callback(broker.stop)
            broker.start()
            running.append(broker)
        yield running


def _formatted(classpath: str, directory: Path, properties: Mapping[str, str]) -> Path:
    """Writes the file of a server's properties, and prepares its directory."""
    directory.mkdir(parents=True)
    file = directory / "server.properties"
    lines = {**properties, "log.dirs": str(directory / "data")}
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    _run(
        "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(file)
    )
    return file


def _run(*arguments: str) -> None:
    subprocess.run(["java", *arguments], check=True, capture_output=True, timeout=_FORMAT_TIMEOUT_S)
