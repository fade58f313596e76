"""What a page costs from a peer and from the store, and what it costs to cut batches out of it.

`python -m benchmarks.read_path`. Everything runs in one process, with its own S3 endpoint. CPU seconds are of
this process, so a peer's figure includes its server and its client.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from agent.read_path.slice_batches import take_batches
from cache_ring.pages.run_bytes import RunBytes
from cache_ring.pages.store_pages import StorePages
from cache_ring.peers.page_protocol import ReadRange
from cache_ring.peers.peer_client import PeerClient
from cache_ring.peers.peer_server import PeerServer
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import AgentAddress, LiveAgent, PeerSecret
from sequencer.commits.coordinates import RunCoordinate
from storage.batches.record_batch import HEADER_BYTES
from storage.identifiers import BytePosition, NodeId, Offset, Partition, TopicId, new_segment_id
from storage.segments.keys import segment_key
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tidelog.embedded.s3_endpoint import S3Endpoint

PAGE_BYTES = 8 << 20
SIZES = (4 << 10, 64 << 10, 1 << 20, PAGE_BYTES)
SECRET = PeerSecret(value=os.urandom(32))


def secrets() -> tuple[PeerSecret, ...]:
    return (SECRET,)


async def timed(work: Callable[[], Awaitable[object]], times: int) -> tuple[float, float]:
    """Milliseconds and CPU milliseconds per call, one after another."""
    await work()
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        await work()
    return (time.perf_counter() - started) * 1000 / times, (time.process_time() - cpu) * 1000 / times


async def peer_against_store(store: ObjectStore, console: Console) -> None:
    key = segment_key("tidelog", new_segment_id())
    await store.put(key, [os.urandom(PAGE_BYTES)])
    settings = CacheRingSettings()
    pages = StorePages(store, store, settings)
    server = PeerServer(pages, settings, secrets, ("tidelog/",))
    port = await server.start("127.0.0.1", 0)
    address = AgentAddress(
        zone="a", kafka_host="", kafka_port=1, peer_host="127.0.0.1", peer_port=port, http_url=""
    )
    agent = LiveAgent(node_id=NodeId(1), incarnation=1, address=address)
    client = PeerClient(settings, secrets)
    table = Table(
        "bytes",
        "peer ms",
        "peer CPU ms",
        "store ms",
        "store CPU ms",
        "peer/store",
        "peer/store CPU",
        title="a range, from a peer and from the store",
    )
    for size in SIZES:
        request = ReadRange(object_key=key, object_size_bytes=PAGE_BYTES, start=0, end=size)
        peer = await timed(partial(client.read_range, agent, request, 5.0), 50)
        direct = await timed(partial(store.get, key, 0, size), 50)
        ratios = [f"{one / other:.2f}" for one, other in zip(peer, direct, strict=True)]
        table.add_row(f"{size:,}", *(f"{value:.2f}" for value in (*peer, *direct)), *ratios)
    console.print(table)
    client.close()
    await server.close()
    await pages.close()


def a_run_of(batch_bytes: int) -> tuple[RunCoordinate, memoryview]:
    """8 MiB of batches of one record each. Only their sizes are right, because nothing else is read."""
    count = PAGE_BYTES // batch_bytes
    batch = bytearray(batch_bytes)
    batch[8:12] = (batch_bytes - 12).to_bytes(4, "big")
    run = RunCoordinate(
        topic_id=TopicId(new_segment_id()), partition=Partition(0),
        base_offset=Offset(0), last_offset=Offset(count - 1),
        object_key=segment_key("tidelog", new_segment_id()), object_size_bytes=PAGE_BYTES,
        position=BytePosition(0),
        length=count * batch_bytes, min_timestamp_ms=0, max_timestamp_ms=0,
    )  # fmt: skip
    return run, memoryview(bytes(batch) * count)


def slicing(console: Console) -> None:
    table = Table(
        "batch bytes", "index µs", "slice 1 MiB µs", "chunks", title="cutting 1 MiB out of an 8 MiB run"
    )
    for batch_bytes in (HEADER_BYTES + 39, 512, 1024, 2048, 4096, 16_384, 131_072):
        run, data = a_run_of(batch_bytes)
        indexed = RunBytes.of(run, [data])
        assert indexed is not None

        def cut(indexed: RunBytes = indexed) -> int:
            return len(take_batches([indexed], 100, 1 << 60, 1 << 20, first_whatever_its_size=True).chunks)

        costs = (_microseconds(partial(RunBytes.of, run, [data])), _microseconds(cut))
        table.add_row(f"{batch_bytes:,}", *(f"{cost:.0f}" for cost in costs), str(cut()))
    console.print(table)


def _microseconds(step: Callable[[], object]) -> float:
    step()
    started = time.perf_counter()
    for _ in range(20):
        step()
    return (time.perf_counter() - started) / 20 * 1e6


async def main() -> None:
    console = Console(width=140)
    slicing(console)
    directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
    with S3Endpoint.start(directory) as endpoint:
        store = await open_store(
            endpoint.store_url("bench", "x"),
            StoreSettings(s3_access_key=endpoint.access_key, s3_secret_key=SecretStr(endpoint.secret_key)),
        )
        await store.ensure_bucket()  # type: ignore[attr-defined]
        await peer_against_store(store, console)
        await store.close()
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
