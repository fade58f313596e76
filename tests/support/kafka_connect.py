"""Kafka Connect and MirrorMaker 2, as Apache Kafka releases them: workers and mirrors as processes.

Their jars come from Maven Central by name, once (36 MB), into `.cache/kafka-connect`.
`kafka_connect.xml` in this folder names the versions.
"""

import hashlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.child import child, free_port, wait_until_open
from tests.support.java import JVM_OPTIONS
from tests.support.maven import retrieve
from tests.support.waiting import wait_until

_MODULES = Path(__file__).with_name("kafka_connect.xml")
_FOLDER = Path(__file__).parents[2] / ".cache" / "kafka-connect"
_START_TIMEOUT_S = 180.0
_ASK_TIMEOUT_S = 100.0
"""A worker itself answers with an error after 90 seconds."""
_LOG_SETTINGS = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnect:
    """The class path of Connect."""

    classpath: str
    version: str

    def command(self, main: str, log_settings: Path, *arguments: str) -> list[str]:
        log = f"-Dlog4j2.configurationFile={log_settings}"
        return ["java", *JVM_OPTIONS, log, "-cp", self.classpath, main, *arguments]


def connect_jars() -> KafkaConnect:
    """Downloaded if need be."""
    jars = retrieve(_MODULES, _FOLDER / hashlib.sha256(_MODULES.read_bytes()).hexdigest()[:16])
    (runtime,) = jars.glob("connect-runtime-*.jar")
    return KafkaConnect(classpath=f"{jars}/*", version=runtime.stem.removeprefix("connect-runtime-"))


class Worker:
    """One worker of a distributed Connect cluster."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes]", running: ExitStack) -> None:
        self.url = url
        self._process = process
        self._running = running

    @property
    def name(self) -> str:
        """As statuses name it."""
        return self.url.removeprefix("http://")

    def is_ready(self) -> bool:
        """True once it is a member of the group and has read Connect's topics. It listens earlier."""
        return httpx.get(f"{self.url}/health", timeout=_ASK_TIMEOUT_S).is_success

    def stop(self) -> None:
        """Ends it as an operator does: SIGTERM. Returns when it has ended."""
        self._running.close()

    def kill(self) -> None:
        """SIGKILL. Returns when it has ended."""
        self._process.kill()
        self._process.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops all its threads, as a machine that hangs, and lets them go on when the context ends."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def put_connector(self, name: str, config: Mapping[str, str]) -> None:
        """Creates it or changes it."""
        self._ask("PUT", f"/connectors/{name}/config", config)

    def status(self, name: str) -> dict[str, Any]:
        """Of a connector and its tasks. Empty while the worker knows none, or is rebalancing."""
        answer = httpx.get(f"{self.url}/connectors/{name}/status", timeout=_ASK_TIMEOUT_S)
        if answer.status_code in (404, 409):
            return {}
        found: dict[str, Any] = _success(answer).json()
        return found

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """What a connector has committed."""
        found: list[dict[str, Any]] = self._ask("GET", f"/connectors/{name}/offsets")["offsets"]
        return found

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """Tries again while the workers are rebalancing: Connect then answers 409."""
        until = time.monotonic() + _ASK_TIMEOUT_S
        while True:
            answer = httpx.request(method, f"{self.url}{path}", json=body, timeout=_ASK_TIMEOUT_S)
            if answer.status_code != 409 or time.monotonic() > until:
                return _success(answer).json()
            time.sleep(0.2)


def _success(answer: httpx.Response) -> httpx.Response:
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer} {answer.text}"
    return answer


@contextmanager
def workers(
    connect: KafkaConnect, directory: Path, count: int, settings: Mapping[str, str]
) -> Iterator[Sequence[Worker]]:
    """A distributed cluster of workers that end with the context. `settings` are worker properties."""
    with ExitStack() as all_running:
        started = []
        for number in range(count):
            port, running = free_port(), all_running.enter_context(ExitStack())
            given = {
                "listeners": f"http://127.0.0.1:{port}",
                "rest.advertised.host.name": "127.0.0.1",
                "key.converter": "org.apache.kafka.connect.storage.StringConverter",
                "value.converter": "org.apache.kafka.connect.storage.StringConverter",
                "plugin.discovery": "service_load",
                **settings,
            }
            folder = directory / f"worker-{number}"
            file, log_settings = properties(folder, given)
            main = "org.apache.kafka.connect.cli.ConnectDistributed"
            log_file = folder / "worker.log"
            command = connect.command(main, log_settings, str(file))
            process = running.enter_context(child(command, log_file, {}))
            started.append((Worker(f"http://127.0.0.1:{port}", process, running), process, port, log_file))
        for worker, process, port, log_file in started:
            wait_until_open(process, port, _START_TIMEOUT_S, log_file)
            wait_until(worker.is_ready, _START_TIMEOUT_S)
        yield [worker for worker, *_ in started]


@contextmanager
def mirror_maker(connect: KafkaConnect, directory: Path, settings: Mapping[str, str]) -> Iterator[Path]:
    """MirrorMaker 2 as a dedicated process, which ends with the context. Yields its log."""
    file, log_settings = properties(directory, settings)
    command = connect.command("org.apache.kafka.connect.mirror.MirrorMaker", log_settings, str(file))
    log_file = directory / "mirror.log"
    with child(command, log_file, {}):
        yield log_file


def properties(folder: Path, settings: Mapping[str, str]) -> tuple[Path, Path]:
    """Writes the properties and the settings of the log."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log_settings = folder / "server.properties", folder / "log4j2.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    log_settings.write_text(_LOG_SETTINGS)
    return file, log_settings
