"""One agent as a child process of the development stack: start, wait until it serves, kill, end.

Promises that a child keeps its ports over restarts, that its log is appended to one file, and that `start` either
returns a ready agent or says why there is none, with the end of that log. A child never imports from the directory in
which the command runs (`python -P`): a directory `agent` there is not ours.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tidelog.errors import UserError

_POLL_S = 0.1
_LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAddress:
    """Where one agent of the stack listens."""

    name: str
    zone: str
    host: str
    kafka_port: int
    http_port: int
    peer_port: int

    @property
    def bootstrap(self) -> str:
        """What a Kafka client calls `bootstrap.servers`."""
        return f"{self.host}:{self.kafka_port}"

    @property
    def http_url(self) -> str:
        """Health, metrics and /v1."""
        return f"http://{self.host}:{self.http_port}"


class AgentProcess:
    """An agent that can be killed and started again at the same address."""

    def __init__(self, address: AgentAddress, environment: Mapping[str, str], log_file: Path) -> None:
        self.address = address
        self.log_file = log_file
        self._environment = {**environment, **_variables(address)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The running child's pid."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """How the last child ended; negative is a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def spawn(self) -> int:
        """Starts the child and returns its pid at once; it may need seconds to be ready."""
        if self.pid is not None:
            return self.pid
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidelog", "agent"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the stack alone, which ends its children in order
            )
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Returns when `/ready` says yes; raises `UserError` with the reason when it does not in time."""
        until = time.monotonic() + timeout_s
        reason = "it did not answer"
        # Without certificates: reading the system's for each question would cost more CPU than the agent's start.
        with httpx.Client(verify=False, timeout=2.0) as client:
            while time.monotonic() < until:
                if self.pid is None:
                    raise UserError(f"Agent {self.address.name} ended with status {self.exit_status}.\n{self._tail()}")
                try:
                    answer = client.get(f"{self.address.http_url}/ready")
                except httpx.TransportError as error:
                    reason = str(error)
                else:
                    if answer.status_code == 200:
                        return
                    reason = answer.text
                time.sleep(_POLL_S)
        raise UserError(f"Agent {self.address.name} was not ready in {timeout_s:.0f} s: {reason}\n{self._tail()}")

    def kill(self) -> None:
        """SIGKILL: what a lost machine looks like."""
        self.signal(signal.SIGKILL)
        self.join(timeout_s=10.0)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to a running child."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def join(self, timeout_s: float) -> bool:
        """Waits for the child's end; False if it still runs."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _tail(self) -> str:
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except OSError:
            return f"No log at {self.log_file}."
        return "\n".join([f"The end of {self.log_file}:", *(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])])


def _variables(address: AgentAddress) -> dict[str, str]:
    return {
        "TIDELOG_ZONE": address.zone,
        "TIDELOG_KAFKA_HOST": address.host,
        "TIDELOG_KAFKA_PORT": str(address.kafka_port),
        "TIDELOG_ADVERTISED_HOST": address.host,
        "TIDELOG_ADVERTISED_PORT": str(address.kafka_port),
        "TIDELOG_HTTP_HOST": address.host,
        "TIDELOG_HTTP_PORT": str(address.http_port),
        "TIDELOG_PEER_HOST": address.host,
        "TIDELOG_PEER_PORT": str(address.peer_port),
        "PYTHONUNBUFFERED": "1",
    }
