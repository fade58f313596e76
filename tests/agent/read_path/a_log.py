"""A log with real segments in a store and real runs in the sequencer, and the read sides of agents over
it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from agent.read_path.fetch_answer import FetchAnswer, PartitionResult
from agent.read_path.read_decisions import FetchPlan, PartitionPlan
from agent.read_path.settings import ReadPathSettings
from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress
from sequencer.commits.commits import Committed, SegmentToCommit
from sequencer.commits.coordinates import RunCoordinate
from storage.arrow.arrow_columns import RECORD_SCHEMA, decode_batches, encode_batch
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import Compression
from storage.identifiers import ObjectKey, Partition, TopicId, new_segment_id
from storage.segments.keys import merged_key, segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectStore
from tests.agent.read_path.wired import ReadSide, new_peer_server, wire_read_side

RING = CacheRingSettings(
    membership_lease_s=60.0,
    membership_renew_s=0.1,
    membership_margin_s=0.5,
    peer_answer_floor_s=20.0,
    peer_answer_ceiling_s=20.0,
)
READS = ReadPathSettings()
NOON_MS = 1_700_000_000_000


@dataclass(kw_only=True)
class Written:
    """A segment in the store: its key, its bytes and the runs as which it was committed."""

    object_key: ObjectKey
    data: bytes
    runs: tuple[RunCoordinate, ...]


@dataclass(kw_only=True)
class ALog:
    sequencer: Sequencer
    store: ObjectStore
    name: str = "orders"
    topic_id: TopicId = field(init=False)

    async def create(self, partitions: int = 1) -> "ALog":
        self.topic_id = (await self.sequencer.topics.create(self.name, partitions, {})).topic_id
        return self

    async def write(
        self,
        *batches: Sequence[str],
        partition: int = 0,
        timestamps_ms: Sequence[int] | None = None,
        more: Mapping[int, Sequence[str]] | None = None,
        upload: bool = True,
        as_merged: bool = False,
    ) -> Written:
        """One segment with these batches of values, uploaded, then sequenced. `more`: one batch for other
        partitions. `as_merged`: under the key of a merged segment.
        """
        pending = [self._pending(partition, values, timestamps_ms) for values in batches]
        pending += [self._pending(other, values, None) for other, values in (more or {}).items()]
        segment_id = new_segment_id()
        key = merged_key("tidelog", segment_id) if as_merged else segment_key("tidelog", segment_id)
        await self.sequencer.reservations.reserve({segment_id: key}, 60.0, "test")
        sealed = seal_segment(segment_id, "test", PendingBatches.of(pending))
        if upload:
            await self.store.put(key, sealed.chunks)
        [committed] = await self.sequencer.commits.commit(
            [SegmentToCommit(segment_id=segment_id, size_bytes=sealed.size_bytes, batches=sealed.placed)]
        )
        assert isinstance(committed, Committed)
        return Written(object_key=key, data=b"".join(sealed.chunks), runs=committed.runs)

    def plan(self, *offsets: int, **limits: Any) -> FetchPlan:
        """A fetch of partition 0, 1, ... from these offsets."""
        return FetchPlan(
            partitions=tuple(
                PartitionPlan(
                    topic_id=self.topic_id,
                    partition=Partition(partition),
                    offset=offset,
                    max_bytes=limits.get("partition_max_bytes", 1 << 20),
                )
                for partition, offset in enumerate(offsets)
            ),
            max_bytes=limits.get("max_bytes", 50 << 20),
            min_bytes=limits.get("min_bytes", 1),
            read_committed=False,
        )

    def _pending(
        self, partition: int, values: Sequence[str], timestamps_ms: Sequence[int] | None
    ) -> PendingBatch:
        encoded = a_batch(values, timestamps_ms or [NOON_MS] * len(values))
        return PendingBatch(
            topic_id=self.topic_id,
            partition=Partition(partition),
            batch=validate_produced(encoded, BatchLimits(max_message_bytes=1 << 24)),
        )


def a_batch(
    values: Sequence[str], timestamps_ms: Sequence[int], compression: Compression = Compression.NONE
) -> bytes:
    count = len(values)
    columns: dict[str, list[Any]] = {
        "offset": list(range(count)),
        "timestamp": [timestamp * 1000 for timestamp in timestamps_ms],
        "timestamp_type": [0] * count,
        "key": [None] * count,
        "value": [value.encode() for value in values],
        "headers": [[] for _ in range(count)],
    }
    arrays = [pa.array(columns[column.name], type=column.type) for column in RECORD_SCHEMA]
    return encode_batch(pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA), compression)


@asynccontextmanager
async def an_agent_reading(
    sequencer: Sequencer,
    store: ObjectStore,
    zone: str = "a",
    *,
    ring: CacheRingSettings = RING,
    reads: ReadPathSettings = READS,
    polls: bool = True,
) -> AsyncIterator[ReadSide]:
    """An agent's read side, joined to the ring. `polls`: whether it polls the sequencer and subscribes."""
    peer_server, pages = new_peer_server(sequencer, store, store, "tidelog", ring)
    port = await peer_server.start("127.0.0.1", 0)
    address = AgentAddress(
        zone=zone,
        kafka_host="127.0.0.1",
        kafka_port=port,
        peer_host="127.0.0.1",
        peer_port=port,
        http_url=f"http://127.0.0.1:{port}",
    )
    side = wire_read_side(
        sequencer=sequencer,
        peer_server=peer_server,
        store_pages=pages,
        address=address,
        ring_settings=ring,
        read_settings=reads,
    )
    running = asyncio.create_task(side.run() if polls else side.membership.run())
    try:
        await side.membership.wait_joined(timeout_s=15.0)
        yield side
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await side.membership.leave()
        await side.close()


def values_of(result: PartitionResult) -> list[tuple[int, str]]:
    """Returns offset and value of every record, as a client decodes them: offsets come from the batches
    themselves.
    """
    data = b"".join(bytes(chunk) for chunk in result.chunks)
    assert len(data) == result.size_bytes
    found: list[tuple[int, str]] = []
    position = 0
    while position < len(data):
        base_offset = int.from_bytes(data[position : position + 8], "big")
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        assert data[position + 12 : position + 16] == bytes(4), "the leader epoch is 0"
        records = decode_batches(data, position, position + size, base_offset)
        offsets: list[Any] = records.column("offset").to_pylist()
        values: list[Any] = records.column("value").to_pylist()
        found += [(offset, value.decode()) for offset, value in zip(offsets, values, strict=True)]
        position += size
    return found


@dataclass(slots=True)
class AReader:
    """Stands for a client's connection."""

    is_gone: bool = False


SOMEBODY = AReader()


async def read_now(
    side: ReadSide, plan: FetchPlan, wait_s: float = 0.0, reader: AReader = SOMEBODY
) -> Sequence[PartitionResult]:
    answer: FetchAnswer = await side.reads.fetch(plan, wait_s, reader=reader)
    answer.release()
    return answer.results
