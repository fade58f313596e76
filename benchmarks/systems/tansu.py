"""Tansu: one broker that keeps everything in the bucket, with its default settings."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.endpoints import Endpoint, free_port
from benchmarks.folder import TANSU
from benchmarks.load.producers import Target
from benchmarks.systems.meters import Meters
from benchmarks.systems.store_counters import store_counters
from benchmarks.systems.system import System

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


class TansuDidNotStart(Exception):
    """The message holds what it said."""


@contextmanager
def tansu(directory: Path, endpoint: Endpoint, *, idempotent: bool) -> Iterator[System]:
    """In the endpoint's bucket; ends with the context."""
    if not TANSU.exists():
        raise TansuDidNotStart("There is no Tansu: `make bench-setup` fetches it.")
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    environment = {
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
        "AWS_ENDPOINT": endpoint.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        "RUST_LOG": "error",
    }
    options = ["--storage-engine", f"s3://{endpoint.bucket}/", "--listener-url", url, "--advertised-listener-url", url]
    directory.mkdir(parents=True, exist_ok=True)
    log_file = directory / "tansu.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [str(TANSU), "broker", *options],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _wait_until_open(port, process, log_file)
        yield System(
            name="tansu" if idempotent else "tansu-plain",
            targets={"a": Target(host="127.0.0.1", port=port)},
            meters=Meters({"a": process.pid, "store": endpoint.pid}, [partial(store_counters, endpoint)]),
            endpoint=endpoint,
            idempotent=idempotent,
        )
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_open(port: int, process: "subprocess.Popen[bytes]", log_file: Path) -> None:
    until = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TansuDidNotStart(f"Tansu did not start: {log_file.read_text(errors='replace')[-1000:]}")
