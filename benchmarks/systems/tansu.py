"""Tansu: one broker that keeps everything in the bucket, with its default settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.endpoints import Endpoint
from benchmarks.load.producers import Target
from benchmarks.systems.meters import Meters
from benchmarks.systems.store_counters import store_counters
from benchmarks.systems.system import System
from tests.support.child import DidNotStart, child, free_port, wait_until_open
from tests.support.folder import TANSU

_START_TIMEOUT_S = 30.0


@contextmanager
def tansu(directory: Path, endpoint: Endpoint, *, idempotent: bool) -> Iterator[System]:
    """Writes into the endpoint's bucket. It ends with the context."""
    if not TANSU.exists():
        raise DidNotStart("There is no Tansu: `make bench-setup` fetches it.")
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
    options = [
        "--storage-engine",
        f"s3://{endpoint.bucket}/",
        "--listener-url",
        url,
        "--advertised-listener-url",
        url,
    ]
    log_file = directory / "tansu.log"
    with child([str(TANSU), "broker", *options], log_file, environment) as process:
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)
        yield System(
            name="tansu" if idempotent else "tansu-plain",
            targets={"a": Target(host="127.0.0.1", port=port)},
            meters=Meters({"a": process.pid, "store": endpoint.pid}, [partial(store_counters, endpoint)]),
            endpoint=endpoint,
            idempotent=idempotent,
        )
