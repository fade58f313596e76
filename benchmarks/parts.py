"""The parts alone, in this process: commits in the sequencer, validation and decoding of record batches."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from sequencer.client import Sequencer
from sequencer.commits import Committed, SegmentToCommit
from storage.arrow_columns import RECORD_SCHEMA, decode_batches, encode_batch
from storage.batch_validation import BatchLimits, validate_produced
from storage.identifiers import NO_PRODUCER_ID, BytePosition, Partition, SegmentId, TopicId, new_segment_id
from storage.keys import segment_key
from storage.record_batch import Compression
from storage.segment import PlacedBatch

BATCHES_PER_COMMIT = 64
_RECORDS_PER_BATCH = 1_000
"""Of 200 bytes and a bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRate:
    """Per second, one commit after the other, each of one segment with a batch for each of 64 partitions."""

    commits: float
    batches: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRate:
    """Per second and core, of one batch over and over."""

    compression: str
    validated_bytes: float
    decoded_records: float


def commit_rate(database_url: str, seconds: float) -> CommitRate:
    return asyncio.run(_commit_rate(database_url, seconds))


async def _commit_rate(database_url: str, seconds: float) -> CommitRate:
    sequencer = await Sequencer.open(database_url)
    try:
        topic = await sequencer.topics.create(f"commits-{os.urandom(4).hex()}", BATCHES_PER_COMMIT, {})
        segments = [new_segment_id() for _ in range(int(seconds * 1_000))]
        await sequencer.reservations.reserve({i: segment_key("bench", i) for i in segments}, 600.0, "benchmarks")
        done, started = 0, time.perf_counter()
        for segment_id in segments:
            (outcome,) = await sequencer.commits.commit([_segment(segment_id, topic.topic_id)])
            assert isinstance(outcome, Committed)
            done += 1
            if time.perf_counter() - started > seconds:
                break
        elapsed = time.perf_counter() - started
        await sequencer.topics.delete(topic.name)
    finally:
        await sequencer.close()
    return CommitRate(commits=done / elapsed, batches=done * BATCHES_PER_COMMIT / elapsed)


def _segment(segment_id: SegmentId, topic_id: TopicId) -> SegmentToCommit:
    length, now_ms = 10_000, time.time_ns() // 1_000_000
    batches = tuple(
        PlacedBatch(
            topic_id=topic_id,
            partition=Partition(partition),
            position=BytePosition(100 + partition * length),
            length=length,
            record_count=50,
            min_timestamp_ms=now_ms,
            max_timestamp_ms=now_ms,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=-1,
        )
        for partition in range(BATCHES_PER_COMMIT)
    )
    return SegmentToCommit(segment_id=segment_id, size_bytes=200 + BATCHES_PER_COMMIT * length, batches=batches)


def codec_rates(seconds: float) -> list[CodecRate]:
    """For each compression."""
    return [_codec_rate(compression, seconds) for compression in Compression]


def _codec_rate(compression: Compression, seconds: float) -> CodecRate:
    data = encode_batch(_records(), compression)
    size_bytes = len(encode_batch(_records(), Compression.NONE))
    limits = BatchLimits(max_message_bytes=len(data), max_decompressed_bytes=2 * size_bytes)
    validations = _rate(lambda: validate_produced(data, limits), seconds)
    decodings = _rate(lambda: decode_batches(data, 0, len(data), 0), seconds)
    return CodecRate(
        compression=compression.name.lower(),
        validated_bytes=validations * size_bytes,
        decoded_records=decodings * _RECORDS_PER_BATCH,
    )


def _records() -> pa.RecordBatch:
    """Half noise, half repetition: as compressible as JSON."""
    noise = random.Random(1)
    columns = {
        "offset": range(_RECORDS_PER_BATCH),
        "timestamp": [1_700_000_000_000_000 + number * 1_000 for number in range(_RECORDS_PER_BATCH)],
        "timestamp_type": [0] * _RECORDS_PER_BATCH,
        "key": [b"key-%d" % (number % 100) for number in range(_RECORDS_PER_BATCH)],
        "value": [noise.randbytes(100) + b"value " * 16 for _ in range(_RECORDS_PER_BATCH)],
        "headers": [[]] * _RECORDS_PER_BATCH,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in RECORD_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _rate(work: Callable[[], object], seconds: float) -> float:
    """Calls per second, the first (which may compile) apart."""
    work()
    calls, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        work()
        calls += 1
    return calls / elapsed
