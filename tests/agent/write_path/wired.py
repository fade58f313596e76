"""A write path over a real Postgres and a given store, without a listener in front."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.appended_batches import Appended
from agent.write_path.outcomes import WriteOutcome
from agent.write_path.write_path import WritePath
from cache_ring.ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.commits.coordinates import RunCoordinate
from sequencer.topics.topics import Topic
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.identifiers import ObjectKey, Partition
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectStore
from tests.agent.running import RING, a_batch
from tests.cache_ring.builders import an_address


@dataclass(kw_only=True)
class Notified:
    """What the read path would get."""

    objects: dict[ObjectKey, bytes] = field(default_factory=dict)
    runs: list[RunCoordinate] = field(default_factory=list)
    missed_runs: list[RunCoordinate] = field(default_factory=list)

    def put_own(self, object_key: ObjectKey, data: bytes) -> None:
        self.objects[object_key] = data

    def committed(self, runs: Sequence[RunCoordinate]) -> None:
        assert all(run.object_key in self.objects for run in runs), "a run was notified before its bytes"
        self.runs.extend(runs)

    def missed(self, runs: Sequence[RunCoordinate]) -> None:
        """Runs of a repeated commit: the next poll finds them."""
        self.missed_runs.extend(runs)


@dataclass(kw_only=True)
class Writer:
    write_path: WritePath
    notified: Notified
    metrics: Metrics
    sequencer: Sequencer

    def append(
        self, topic: Topic, *sequences: int, producer_id: int = 1, partition: int = 0
    ) -> list[Appended]:
        """Appends idempotent batches of one record each, of these sequences, each as one request."""
        return [
            self.write_path.append(
                PendingBatches.of([pending(topic, sequence, producer_id=producer_id, partition=partition)])
            )
            for sequence in sequences
        ]

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def high_watermark(self, topic: Topic, partition: int = 0) -> int:
        key = (topic.topic_id, Partition(partition))
        return (await self.sequencer.coordinates.bounds([key]))[key].high_watermark


def pending(topic: Topic, sequence: int, *, producer_id: int = 1, partition: int = 0) -> PendingBatch:
    records = a_batch(b"record %d" % sequence, producer=(producer_id, 0, sequence))
    return PendingBatch(
        topic_id=topic.topic_id,
        partition=Partition(partition),
        batch=validate_produced(records, BatchLimits()),
    )


async def outcomes_of(appended: Sequence[Appended]) -> list[WriteOutcome | None]:
    """Returns the outcomes of all batches of all requests, once they are done."""
    async with asyncio.timeout(60):
        await asyncio.gather(*(one.answered() for one in appended))
    assert all(one.is_done for one in appended), "not all outcomes came"
    return [outcome for one in appended for outcome in one.outcomes]


@asynccontextmanager
async def writing(
    sequencer: Sequencer, store: ObjectStore, clock: Callable[[], float] = time.monotonic, **settings: Any
) -> AsyncIterator[Writer]:
    """A write path that runs until the block ends."""
    membership = Membership(sequencer.agents, an_address(), RING)
    notified, metrics = Notified(), Metrics()
    given = {"linger_ms": 5, "upload_backoff_s": 0.001, "commit_backoff_s": 0.01, **settings}
    write_path = WritePath(
        sequencer=sequencer,
        store=store,
        membership=membership,
        settings=AgentSettings(**given),
        metrics=metrics,
        written=notified,
        clock=clock,
    )
    tasks = [asyncio.create_task(membership.run())]
    try:
        await membership.wait_joined(60.0)
        tasks.append(asyncio.create_task(write_path.run()))
        yield Writer(write_path=write_path, notified=notified, metrics=metrics, sequencer=sequencer)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
