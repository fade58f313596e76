"""A standalone Spark cluster on loopback, from the pyspark package: a master and workers, as processes.

Workers, and the executors that they start, get a bare environment: no variable of Tidelog, so that an
executor has nothing but what comes with its tasks. Everything ends with the context, by process id.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil
import pyspark

from tests.support.child import free_port, wait_until_open
from tests.support.spark import LIGHT_JAVA, archive_classes
from tidelog.devstack.watchdog import Watchdog

ROOT = Path(__file__).resolve().parents[2]
SUBMITTED = ROOT / "infra" / "spark" / "tidelog_submit.py"
SPARK_HOME = Path(pyspark.__path__[0])
_HOST = "127.0.0.1"
_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 20.0
_EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(kw_only=True)
class SparkCluster:
    directory: Path
    master_port: int
    master_page: int
    watchdog: Watchdog
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def master(self) -> str:
        return f"spark://{_HOST}:{self.master_port}"

    @property
    def workers(self) -> list[str]:
        return sorted(name for name in self.processes if name.startswith("worker-"))

    def start_worker(self, name: str) -> None:
        """One core and 1 GiB. A worker is started again under its old name."""
        port, page = free_port(), free_port()
        self._start(
            name,
            [
                "org.apache.spark.deploy.worker.Worker",
                *("--host", _HOST, "--port", str(port), "--webui-port", str(page)),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / name), self.master),
            ],
            port,
        )

    def wait_for_workers(self, count: int) -> None:
        """Until the master has so many workers alive."""
        until = time.monotonic() + _START_TIMEOUT_S
        while (alive := self._alive_workers()) != count:
            if time.monotonic() > until:
                raise TimeoutError(f"{alive} workers are alive, not {count}")
            time.sleep(0.1)

    def executors(self, worker: str | None = None) -> list[psutil.Process]:
        """The JVMs of executors, of one worker or of all."""
        found = []
        for name in self.workers if worker is None else [worker]:
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self.processes[name].pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if _EXECUTOR_CLASS in process.cmdline():
                            found.append(process)
        return found

    def kill_worker(self, name: str) -> None:
        """SIGKILLs the worker and its executors: a machine that is lost."""
        process = self.processes[name]
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(process.pid).children(recursive=True)
            for each in below:
                with contextlib.suppress(psutil.Error):
                    each.kill()
        process.kill()
        process.wait(_STOP_TIMEOUT_S)

    def submit(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log_file: Path,
        *,
        script: Path = SUBMITTED,
        conf: Mapping[str, str] = MappingProxyType({}),
    ) -> "subprocess.Popen[bytes]":
        """spark-submit of `script`. It leads a process group, so that a driver is killed whole."""
        options = {
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": LIGHT_JAVA,
            "spark.task.maxFailures": "4",
            **conf,
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master]
        for name, value in options.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(script), *arguments]
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**bare_environment(), "TIDELOG_SPARK_PACKAGES": "", **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.watchdog.watch(0, process.pid)
        return process

    def start_master(self) -> None:
        self._start(
            "master",
            [
                "org.apache.spark.deploy.master.Master",
                *("--host", _HOST, "--port", str(self.master_port), "--webui-port", str(self.master_page)),
            ],
            self.master_port,
        )

    def stop(self) -> None:
        for name in self.workers:
            self.kill_worker(name)
        for process in self.processes.values():
            process.kill()
            process.wait(_STOP_TIMEOUT_S)

    def _start(self, name: str, arguments: Sequence[str], port: int) -> None:
        log_file = self.directory / f"{name}.log"
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                env={**bare_environment(), "SPARK_DAEMON_MEMORY": "256m"},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.watchdog.watch(0, process.pid)
        self.processes[name] = process
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)

    def _alive_workers(self) -> int:
        """-1: the master does not answer now."""
        page = f"http://{_HOST}:{self.master_page}/json/"
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(page, timeout=5) as answer:
            return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
        return -1


def bare_environment() -> dict[str, str]:
    """What Spark's processes need of this machine: where Java, Python and our code are."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": _HOST,
        "JDK_JAVA_OPTIONS": LIGHT_JAVA,
    }


@contextmanager
def spark_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """A master and its workers, of one core each."""
    directory.mkdir(parents=True, exist_ok=True)
    archive_classes()
    watchdog = Watchdog()
    cluster = SparkCluster(
        directory=directory, master_port=free_port(), master_page=free_port(), watchdog=watchdog
    )
    try:
        cluster.start_master()
        for number in range(workers):
            cluster.start_worker(f"worker-{number + 1}")
        cluster.wait_for_workers(workers)
        yield cluster
    finally:
        cluster.stop()
        watchdog.close()
