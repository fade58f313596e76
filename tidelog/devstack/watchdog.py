"""Ends a stack's processes when the process that started them is gone, even by kill -9.

The stack starts this process and writes `watch <stage> <pid> <signal>` lines to its standard input. The end
of that input means that the stack is gone. Then the watchdog signals the processes that still run, stage by
stage (agents before the database that they write to), and kills them after a grace period. It identifies a
process by pid and start time, so it never signals another process that got the same pid.
"""

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO

import psutil

_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A process, and the signal that asks it to end."""

    stage: int
    process: psutil.Process
    signal: int


class Watchdog:
    """The stack's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tidelog.devstack.watchdog"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, stage: int, pid: int, ask: signal.Signals = signal.SIGTERM) -> None:
        """From now on, `pid` ends when this process ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"watch {stage} {pid} {int(ask)}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Ends everything that is still watched and running."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=60)


def _read(lines: IO[str]) -> list[Watched]:
    watched: list[Watched] = []
    for line in lines:
        _, stage, pid, ask = line.split()
        with contextlib.suppress(psutil.NoSuchProcess):
            watched.append(Watched(stage=int(stage), process=psutil.Process(int(pid)), signal=int(ask)))
    return watched


def _end(watched: list[Watched]) -> None:
    for stage in sorted({entry.stage for entry in watched}):
        running = [entry for entry in watched if entry.stage == stage and _runs(entry.process)]
        for entry in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                entry.process.send_signal(entry.signal)
        until = time.monotonic() + _GRACE_S
        while any(_runs(entry.process) for entry in running) and time.monotonic() < until:
            time.sleep(0.05)
        for entry in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                entry.process.kill()


def _runs(process: psutil.Process) -> bool:
    """False also for a dead process that was not collected yet (in a container without an init)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _end(_read(sys.stdin))
