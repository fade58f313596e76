"""Reading thousands of small objects from the beginning: `python -m benchmarks.catch_up`, with a separate
Postgres and MinIO. A consumer does this if it comes back before the uploads of a 10 ms linger are merged.

The benchmark writes the log as agents would. Then a cold agent serves a librdkafka consumer that reads all of
it, from the store as it is, and from one that answers each request some milliseconds later, as S3 does.
`--set` starts the agent with other settings, in turn with the default ones.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import confluent_kafka

from benchmarks.distant_store import distant
from benchmarks.endpoints import Endpoint, minio
from benchmarks.figures import Figures
from benchmarks.load.batches import full_batches
from benchmarks.systems.meters import scrape, total
from benchmarks.systems.system import System
from benchmarks.systems.tidelog import tidelog
from sequencer.client import Sequencer
from sequencer.commits.commits import SegmentToCommit
from sequencer.settings import SequencerSettings
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.identifiers import Partition, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectStore
from storage.stores.open_store import open_store
from tidelog.embedded.s3_endpoint import S3Endpoint

TAIL_AGE_S: Final = 2.0
_ENVIRONMENT: Final = {"TIDELOG_MERGE_TIERS": "0", "TIDELOG_TAIL_AGE_S": str(TAIL_AGE_S)}
_UPLOADS_AT_ONCE: Final = 16
_SEGMENTS_PER_COMMIT: Final = 64
_RECORD_BYTES: Final = 1_000
_TIMEOUT_S: Final = 300.0
_COUNTERS: Final = {
    "gets": "tidelog_store_gets_total",
    "got_bytes": "tidelog_store_bytes_read_total",
    "fetches": "tidelog_read_fetches_total",
    "asks": "tidelog_read_sequencer_asks_total",
    "asks_ahead": "tidelog_read_sequencer_asks_ahead_total",
    "ahead": "tidelog_read_ahead_loads_total",
    "wasted": "tidelog_read_ahead_bytes_wasted_total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a log. Each upload holds a run of every partition."""

    name: str
    partitions: int
    run_bytes: int

    def uploads(self, log_bytes: int) -> int:
        return max(1, log_bytes // (self.partitions * self.run_bytes))


SHAPES: Final = (
    Shape(name="1 partition", partitions=1, run_bytes=64 << 10),
    Shape(name="12 partitions", partitions=12, run_bytes=8 << 10),
)


async def write_log(
    database_url: str, endpoint: Endpoint, cluster: str, topic: str, shape: Shape, uploads: int
) -> int:
    """Returns the records written."""
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    store = await open_store(endpoint.store_url, endpoint.settings())
    try:
        created = await sequencer.topics.create(topic, shape.partitions, {"retention.ms": "-1"})
        [made] = full_batches(range(1), _RECORD_BYTES, shape.run_bytes)
        batch = validate_produced(made.data, BatchLimits())
        batches = [
            PendingBatch(topic_id=created.topic_id, partition=Partition(each), batch=batch)
            for each in range(shape.partitions)
        ]
        for first in range(0, uploads, _SEGMENTS_PER_COMMIT):
            await _write_some(sequencer, store, cluster, batches, min(_SEGMENTS_PER_COMMIT, uploads - first))
        return made.records * shape.partitions * uploads
    finally:
        await store.close()
        await sequencer.close()


async def _write_some(
    sequencer: Sequencer, store: ObjectStore, cluster: str, batches: Sequence[PendingBatch], uploads: int
) -> None:
    ids = [new_segment_id() for _ in range(uploads)]
    await sequencer.reservations.reserve({one: segment_key(cluster, one) for one in ids}, 900.0, "benchmark")
    sealed = [seal_segment(one, "benchmark", PendingBatches.of(batches)) for one in ids]
    places = asyncio.Semaphore(_UPLOADS_AT_ONCE)

    async def put(number: int) -> None:
        async with places:
            await store.put(segment_key(cluster, ids[number]), sealed[number].chunks)

    await asyncio.gather(*map(put, range(uploads)))
    await sequencer.commits.commit(
        [
            SegmentToCommit(segment_id=one, size_bytes=segment.size_bytes, batches=segment.placed)
            for one, segment in zip(ids, sealed, strict=True)
        ]
    )


def read_all(system: System, topic: str, partitions: int, records: int) -> Figures:
    """One consumer with librdkafka's defaults reads everything and looks at no record."""
    [(zone, target)] = system.targets.items()
    assert system.stack is not None, "it is of this machine"
    http_url = system.stack.agents[0].address.http_url
    before, spent, own_s = _counters(http_url), system.meters.read(), time.process_time()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"{target.host}:{target.port}",
            "group.id": "catch-up",
            "enable.auto.commit": False,
            "enable.metrics.push": False,
        }
    )
    began_s = time.monotonic()
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(partitions)])
    count = size = 0
    try:
        while count < records:
            if time.monotonic() > began_s + _TIMEOUT_S:
                raise TimeoutError(f"{count} of {records} records after {_TIMEOUT_S:g} s")
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    raise RuntimeError(str(message.error()))
                count, size = count + 1, size + len(message)
        took_s = time.monotonic() - began_s
    finally:
        consumer.close()
    grown = {name: value - before[name] for name, value in _counters(http_url).items()}
    used = system.meters.read() - spent
    return {
        "seconds": took_s,
        "mb_per_s": size / took_s / 1e6,
        "agent_cpu_s": used.cpu_s[zone],
        "postgres_cpu_s": used.cpu_s["postgres"],
        "store_cpu_s": used.cpu_s["store"],
        "client_cpu_s": time.process_time() - own_s,
        "size_mb": size / 1e6,
        **grown,
    }


def _counters(http_url: str) -> Mapping[str, float]:
    page = scrape(f"{http_url}/metrics")
    return {name: total(page, sample) for name, sample in _COUNTERS.items()}


@contextmanager
def _reading(directory: Path, endpoint: Endpoint, cluster: str, given: Mapping[str, str]) -> Iterator[System]:
    """A cold agent on the log's database."""
    with tidelog(
        directory, endpoint, environment={**_ENVIRONMENT, "TIDELOG_CLUSTER": cluster, **given}
    ) as system:
        yield system


@contextmanager
def _dev_endpoint(directory: Path) -> Iterator[Endpoint]:
    """The endpoint that `tidelog dev` starts."""
    with S3Endpoint.start(directory) as served:
        (directory / "buckets" / "log").mkdir()
        yield Endpoint(
            name="dev stack's endpoint",
            store_url=served.store_url("log"),
            access_key=served.access_key,
            secret_key=served.secret_key,
            pid=served.process_id,
        )


def main() -> None:
    given = _arguments()
    shapes = [shape for shape in SHAPES if given.partitions in (None, shape.partitions)]
    variants = [("as set", {}), *((one, dict([one.split("=", 1)])) for one in given.set)]
    for shape in shapes:
        with ExitStack() as opened:
            directory = Path(opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            start = _dev_endpoint if given.store == "dev" else minio
            endpoint = opened.enter_context(start(directory / "store"))
            cluster, topic = f"catch-up-{uuid4().hex}", "log"
            uploads = shape.uploads(given.megabytes * 1_000_000)
            with _reading(directory / "stack", endpoint, cluster, {}) as system:
                assert system.database_url is not None
                records = asyncio.run(
                    write_log(system.database_url, endpoint, cluster, topic, shape, uploads)
                )
            for delay_ms in given.delay_ms:
                done: dict[str, list[Figures]] = {name: [] for name, _ in variants}
                far = opened.enter_context(distant(endpoint, delay_ms, directory))
                for _ in range(given.rounds):
                    for name, environment in variants:
                        with _reading(directory / "stack", far, cluster, environment) as system:
                            if given.pause:
                                input(f"pids {system.meters.pids}; Enter goes on")
                            done[name].append(read_all(system, topic, shape.partitions, records))
                for name, rounds in done.items():
                    _print(shape, uploads, far, name, rounds)


def _print(shape: Shape, uploads: int, endpoint: Endpoint, name: str, rounds: Sequence[Figures]) -> None:
    middle = {figure: statistics.median(one[figure] for one in rounds) for figure in rounds[0]}
    gb = middle["size_mb"] / 1e3
    each = ", ".join(f"{one['seconds']:.1f}" for one in rounds)
    print(
        f"{shape.name}, {uploads} objects, {endpoint.name}, {name}: {middle['seconds']:.1f} s "
        f"({each}), {middle['mb_per_s']:.0f} MB/s\n"
        f"  CPU s per GB: agent {middle['agent_cpu_s'] / gb:.1f}, store {middle['store_cpu_s'] / gb:.1f}, "
        f"Postgres {middle['postgres_cpu_s'] / gb:.1f}, client {middle['client_cpu_s'] / gb:.1f}\n"
        f"  {middle['gets']:.0f} GETs, {middle['got_bytes'] / middle['size_mb'] / 1e6:.2f} bytes got per "
        "byte read, "
        f"{middle['fetches']:.0f} fetches, {middle['asks']:.0f} asks and {middle['asks_ahead']:.0f} ahead, "
        f"{middle['ahead']:.0f} pages ahead, {middle['wasted'] / 1e6:.1f} MB of them wasted",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catch_up", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--partitions", type=int, choices=[shape.partitions for shape in SHAPES])
    parser.add_argument("--store", choices=("minio", "dev"), default="minio")
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[0.0, 25.0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="TIDELOG_NAME=VALUE")
    parser.add_argument(
        "--pause", action="store_true", help="name the pids before each reading, for a profiler"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
