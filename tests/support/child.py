"""A server as a child process. It ends with its context, and with this process even if that is killed."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidelog.devstack.watchdog import Watchdog

_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05


class DidNotStart(Exception):
    """The message has the end of the program's output."""


@contextmanager
def child(
    command: Sequence[str], log_file: Path, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Its output goes into `log_file`."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    watchdog = Watchdog()
    watchdog.watch(0, process.pid)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        watchdog.close()


def wait_until_open(process: "subprocess.Popen[bytes]", port: int, timeout_s: float, log_file: Path) -> None:
    """Waits until it listens there. Raises DidNotStart, at once if it has ended."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(_POLL_S)
    said = log_file.read_text(errors="replace")[-2_000:]
    raise DidNotStart(f"It did not listen within {timeout_s:.0f} s (exit status {process.poll()}): {said}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
