"""What sealing and opening batches costs, in CPU seconds per GB of the batches that clients send.

`python -m benchmarks.encryption`. One process. Checked batches are sealed into a segment, and the batches of
a run are cut for a fetch, each with and without encryption in turn.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from uuid import UUID

from kafka.record import MemoryRecordsBuilder
from rich.console import Console
from rich.table import Table

from agent.read_path.slice_batches import take_batches
from cache_ring.pages.run_bytes import RunBytes
from sequencer.commits.coordinates import RunCoordinate
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import BatchHeader, read_header
from storage.encryption.sealed_batches import TopicKey, key_ids, opened
from storage.identifiers import BytePosition, KeyId, Offset, Partition, TopicId, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches

TOPIC = TopicId(UUID(int=1))
PARTITION = Partition(0)
TOTAL_BYTES = 8 << 20
ROUNDS = 9
LIMITS = BatchLimits(max_message_bytes=64 << 20)
SHAPES = ((1, 100), (10, 100), (100, 1_000), (1_000, 1_000))
"""Records per batch, and bytes per record."""


def cpu_s_per_gb(work: Callable[[], object], size_bytes: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / size_bytes * 1e9


def produce(batches: Sequence[bytes], key: TopicKey | None) -> int:
    """Checks the batches and lays them out as a segment. Returns its size."""
    pending = []
    for data in batches:
        batch = validate_produced(data, LIMITS)
        if key is not None:
            sealed = memoryview(key.seal(batch.data, PARTITION))
            header: BatchHeader = read_header(sealed)
            batch = type(batch)(
                header=header,
                data=sealed,
                min_timestamp_ms=batch.min_timestamp_ms,
                max_timestamp_ms=batch.max_timestamp_ms,
            )
        pending.append(PendingBatch(topic_id=TOPIC, partition=PARTITION, batch=batch))
    sealed_segment = seal_segment(new_segment_id(), "1", PendingBatches.of(pending))
    return len(b"".join(sealed_segment.chunks))


def fetch(run: RunCoordinate, data: bytes, key: TopicKey | None) -> int:
    """Cuts a run for a fetch, and opens it with the key. Returns the bytes for clients."""
    indexed = RunBytes.of(run, [memoryview(data)])
    assert indexed is not None
    taken = take_batches([indexed], 0, run.last_offset + 1, 1 << 30, first_whatever_its_size=True)
    if key is None:
        return taken.size_bytes
    batches = b"".join(taken.chunks)
    assert key_ids(batches) == {key.key_id}
    return len(opened(batches, PARTITION, {key.key_id: key}))


def a_batch(records: int, record_bytes: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 26)
    for _ in range(records):
        builder.append(timestamp=1_700_000_000_000, key=None, value=os.urandom(record_bytes))
    builder.close()
    return bytes(builder.buffer())


def a_run(data: bytes, records: int) -> RunCoordinate:
    return RunCoordinate(
        topic_id=TOPIC,
        partition=PARTITION,
        base_offset=Offset(0),
        last_offset=Offset(records - 1),
        object_key=segment_key("tidelog", new_segment_id()),
        object_size_bytes=len(data),
        position=BytePosition(0),
        length=len(data),
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


def main() -> None:
    key = TopicKey(TOPIC, KeyId(1), os.urandom(32))
    table = Table("records", "bytes each", "produce", "sealed", "fetch", "opened", title="CPU s per GB")
    for records, record_bytes in SHAPES:
        batch = a_batch(records, record_bytes)
        batches = [batch] * max(1, TOTAL_BYTES // len(batch))
        size = len(batch) * len(batches)
        plain = b"".join(batches)
        sealed = b"".join(key.seal(one, PARTITION) for one in batches)
        count = records * len(batches)
        works: tuple[Callable[[], object], ...] = (
            partial(produce, batches, None),
            partial(produce, batches, key),
            partial(fetch, a_run(plain, count), plain, None),
            partial(fetch, a_run(sealed, count), sealed, key),
        )
        rounds = [[cpu_s_per_gb(work, size) for work in works] for _ in range(ROUNDS)]
        medians = [median(each) for each in zip(*rounds, strict=True)]
        table.add_row(str(records), str(record_bytes), *(f"{one:.2f}" for one in medians))
    Console().print(table)


if __name__ == "__main__":
    main()
