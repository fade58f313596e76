"""For tests of merging: logs of small real segments, mergers with low thresholds, and the log read back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from compactor.housekeeper import bounds_of
from compactor.merging import MergeDiscoveryJob, Merger
from compactor.metrics import MergeMetrics
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.coordinates import CoordinateRequest, PartitionCoordinates
from sequencer.housekeeping.merge_values import Backlog
from sequencer.topics.topics import Topic
from storage.batches.record_batch import index_batches
from storage.identifiers import Offset, Partition, SegmentId
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER, pending, settings, written
from tests.sequencer.housekeeping.housekeeping import observed

FAN_IN = 4
OBJECT_BYTES = 4_600
RUN_BYTES = 4_000


def merge_settings(**changed: Any) -> HousekeeperSettings:
    """Bytes in place of the defaults' MiB, so that a few records fill several objects and tiers."""
    return settings(
        **{
            "merge_fan_in": FAN_IN,
            "merge_object_bytes": OBJECT_BYTES,
            "merge_run_bytes": RUN_BYTES,
            "merge_memory_bytes": 3 * OBJECT_BYTES,
            "merge_settle_s": 0,
            "merge_target_s": 0.001,
            "merge_runs_per_publish": 5,
            "merge_runs_per_step": 40,
            **changed,
        }
    )


def a_merger(
    sequencer: Sequencer, store: ObjectStore, load: Callable[[], float] = lambda: 0.0, **changed: float
) -> Merger:
    chosen = merge_settings(**changed)

    async def measured_just_now() -> Backlog:
        return (await observed(sequencer, bounds_of(chosen))).backlog

    return Merger(
        sequencer, store, CLUSTER, chosen, MergeMetrics(CollectorRegistry()), measured_just_now, load
    )


async def discover(sequencer: Sequencer, **changed: Any) -> None:
    chosen = merge_settings(**changed)
    job = MergeDiscoveryJob(sequencer, chosen, Merger.policy_of(chosen))
    progress, more = None, True
    while more:
        step = await job.step(progress)
        progress, more = step.progress, step.more


async def merge_everything(sequencer: Sequencer, store: ObjectStore, **changed: Any) -> int:
    """Merges until no tier has enough. Returns the number of merges."""
    await discover(sequencer, **changed)
    merger = a_merger(sequencer, store, **changed)
    merges = 0
    while await merger.merge_once():
        merges += 1
        assert merges < 1000
    return merges


async def a_log(
    sequencer: Sequencer, store: ObjectStore, topic: Topic, segments: int, *, records: int = 2, first: int = 0
) -> list[SegmentId]:
    """Segments with a run in each partition of the topic. A record's time tells its partition."""
    return [
        (
            await written(
                sequencer,
                store,
                *(
                    pending(topic, records, partition=partition, timestamp_ms=10_000 + number)
                    for partition in range(topic.partition_count)
                ),
            )
        ).segment_id
        for number in range(first, first + segments)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """A partition as a reader finds it: each batch's offset, and its bytes after the patched prefix."""

    batches: tuple[tuple[int, bytes], ...]
    runs: int
    high_watermark: int


async def read_back(sequencer: Sequencer, store: ObjectStore, topic: Topic, partition: int = 0) -> ReadBack:
    """Reads all runs by their coordinates, as an agent does; fails if they leave a gap."""
    found = await coordinates(sequencer, topic, partition)
    batches: list[tuple[int, bytes]] = []
    expected = max(found.log_start_offset, found.runs[0].base_offset) if found.runs else found.high_watermark
    for run in found.runs:
        assert run.base_offset <= expected <= run.last_offset + 1
        data = bytes(await store.get(run.object_key, run.position, run.position + run.length))
        offset = int(run.base_offset)
        for batch in index_batches(data, 0, len(data)):
            position, size_bytes = int(batch["position"]), int(batch["size_bytes"])
            batches.append((offset, data[position + 16 : position + size_bytes]))
            offset += int(batch["last_offset_delta"]) + 1
        assert offset == run.last_offset + 1
        expected = Offset(offset)
    assert expected == found.high_watermark
    return ReadBack(batches=tuple(batches), runs=len(found.runs), high_watermark=found.high_watermark)


async def coordinates(sequencer: Sequencer, topic: Topic, partition: int = 0) -> PartitionCoordinates:
    request = CoordinateRequest(
        topic_id=topic.topic_id, partition=Partition(partition), from_offset=Offset(0), max_runs=100_000
    )
    [found] = (await sequencer.coordinates.read([request])).values()
    return found


async def read_all(sequencer: Sequencer, store: ObjectStore, topic: Topic) -> Sequence[ReadBack]:
    return [await read_back(sequencer, store, topic, partition) for partition in range(topic.partition_count)]
