"""`make bench`: all figures in one run of a minute or two, on MinIO if its binary is on PATH and rclone otherwise."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks import offset_commits, parts, raw_store, through_agent
from benchmarks.endpoints import Endpoint, minio, minio_is_here
from benchmarks.report import Figures, show
from tidelog.stack import Stack, StackSettings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=512, help="values produced and consumed (default: 512)")
    parser.add_argument("--seconds", type=float, default=8.0, help="for latency, and for commits (default: 8)")
    arguments = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory,
        _running(Path(directory)) as (stack, endpoint),
    ):
        show(_measure(stack, endpoint, arguments.mebibytes << 20, arguments.seconds, console), console)


@contextmanager
def _running(directory: Path) -> Iterator[tuple[Stack, Endpoint]]:
    """Two agents on the endpoint to measure."""
    if minio_is_here():
        with minio(directory / "minio") as endpoint:
            settings = StackSettings(data_dir=directory / "stack", agent_environment=endpoint.as_environment())
            with Stack(settings) as stack:
                yield stack, endpoint
        return
    with Stack(StackSettings(data_dir=directory / "stack")) as stack:
        where = stack.addresses
        assert where.s3_access_key is not None
        assert where.s3_secret_key is not None
        yield (
            stack,
            Endpoint(
                name="rclone",
                store_url=where.store_url,
                access_key=where.s3_access_key,
                secret_key=where.s3_secret_key,
            ),
        )


def _measure(stack: Stack, endpoint: Endpoint, size_bytes: int, seconds: float, console: Console) -> Figures:
    near, far = stack.agent_in("a"), stack.agent_in("b")
    with console.status("") as status:
        status.update(f"raw PUT and GET on {endpoint.name}")
        raw = raw_store.measure(endpoint)
        status.update("produce")
        topic = through_agent.create_topic(stack)
        produced = through_agent.produce(stack, near, topic, size_bytes)
        status.update("consume")
        consumed_near = through_agent.consume(stack, near, topic)
        consumed_far = through_agent.consume(stack, far, topic)
        status.update("latency")
        latency = through_agent.acknowledgement_latency(near, through_agent.create_topic(stack), seconds)
        status.update("commits, validation and decoding")
        commits = parts.commit_rate(stack.addresses.database_url, seconds)
        codecs = parts.codec_rates(seconds / 8)
        status.update("offset commits, and single-row updates beside them")
        offsets = offset_commits.measure(seconds)
    return Figures(
        endpoint=endpoint.name,
        raw=raw,
        produce=produced,
        consume_near=consumed_near,
        consume_far=consumed_far,
        latency=latency,
        commits=commits,
        codecs=codecs,
        offsets=offsets,
    )


if __name__ == "__main__":
    main()
