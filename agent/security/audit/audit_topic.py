"""Writes the events of the audit trail to the topic `__tidelog_audit`, through the agent's own write path.

Promises:
- Events of one agent are written in order, each at least once: after an unknown outcome they are written
  again. An event's id, which is its record's key, tells a repeat.
- The topic is created if it is not there, also if it is deleted while the agent runs. What was in it is then
  gone.
- While the store or the database is away, or another topic takes the name, events wait in their buffer
  (`TopicBuffer`).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from agent.security.audit.audit import Entry, TopicBuffer
from agent.topic_directory import TopicDirectory
from agent.write_path.backoff import Backoff
from agent.write_path.write_path import WritePath
from sequencer.commits.commits import Assigned
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.topics.topic_key_cache import TopicKeys, is_sealing
from sequencer.topics.topics import AUDIT_TOPIC, InvalidTopicName, Topic, TopicExists
from storage.batches.record_batch import Compression, ValidBatch, read_header
from storage.encryption.key_wrapping import KeyUnavailable
from storage.identifiers import Partition
from storage.segments.segment_batches import PendingBatch, PendingBatches

log = logging.getLogger("tidelog")

_PARTITIONS: Final = 1
_CONFIG: Final = {"retention.ms": str(90 * 24 * 3_600_000), "message.timestamp.type": "CreateTime"}
"""Administrators may change the topic's configs."""
_GATHER_S: Final = 0.5
_MOST_BATCH_BYTES: Final = 524_288
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


class AuditTopic:
    def __init__(
        self, buffer: TopicBuffer, topics: TopicDirectory, write_path: WritePath, keys: TopicKeys, number: int
    ) -> None:
        """`number` chooses the partition, if an administrator has added some."""
        self._buffer = buffer
        self._topics = topics
        self._write_path = write_path
        self._keys = keys
        self._number = number
        self._drained = asyncio.Event()
        self._draining = False

    async def run(self) -> None:
        """Creates the topic, and writes events until cancelled."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            why_not = await self._step()
            if why_not is None:
                backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                continue
            log.warning("audit events wait for their topic", extra={"reason": why_not})
            await backoff.wait()

    async def drain(self) -> None:
        """Returns when no event waits. The caller bounds the wait."""
        self._draining = True
        self._buffer.filled.set()
        await self._drained.wait()

    async def _step(self) -> str | None:
        """Writes the next events. Returns why they could not be written."""
        try:
            topic = await self._topic()
            if not len(self._buffer):
                if self._draining:
                    self._drained.set()
                await self._buffer.filled.wait()
            if not self._draining:
                await asyncio.sleep(_GATHER_S)
            entries = self._buffer.first(_MOST_BATCH_BYTES)
            if not entries:  # the drain has set the event
                self._buffer.written(0)
                return None
            return await self._write(entries, topic)
        except (SequencerUnavailable, CommitOutcomeUnknown, KeyUnavailable, InvalidTopicName) as error:
            return str(error)

    async def _topic(self) -> Topic:
        """Returns the topic, made if it is missing. Raises SequencerUnavailable, CommitOutcomeUnknown,
        InvalidTopicName.
        """
        found = (await self._topics.by_name([AUDIT_TOPIC])).get(AUDIT_TOPIC)
        while found is None:
            try:
                found = await self._topics.create(AUDIT_TOPIC, _PARTITIONS, _CONFIG, is_agents_own=True)
                log.info("audit topic created", extra={"topic": AUDIT_TOPIC})
            except TopicExists:  # another agent was faster
                found = (await self._topics.fresh([AUDIT_TOPIC])).get(AUDIT_TOPIC)
        return found

    async def _write(self, entries: Sequence[Entry], topic: Topic) -> str | None:
        partition = Partition(self._number % topic.partition_count)
        data = _as_batch(entries)
        if is_sealing(topic):
            data = (await self._keys.to_seal(topic.topic_id)).seal(memoryview(data), partition)
        times_ms = [entry.at_ms for entry in entries]
        batch = ValidBatch(
            header=read_header(data),
            data=memoryview(data),
            min_timestamp_ms=min(times_ms),
            max_timestamp_ms=max(times_ms),
        )
        one = PendingBatch(topic_id=topic.topic_id, partition=partition, batch=batch)
        appended = self._write_path.append(PendingBatches.of([one]))
        await appended.answered()
        [outcome] = appended.outcomes
        if isinstance(outcome, Assigned):
            self._buffer.written(len(entries))
            return None
        self._topics.forget(topic.name)  # it may have been deleted
        return getattr(outcome, "message", "") or type(outcome).__name__


def _as_batch(entries: Sequence[Entry]) -> bytes:
    import pyarrow as pa  # see agent/deferred_imports.py

    from storage.arrow.arrow_encoding import encode_batch
    from storage.arrow.arrow_schema import RECORD_SCHEMA

    columns = {
        "offset": range(len(entries)),
        "timestamp": [entry.at_ms * 1_000 for entry in entries],
        "timestamp_type": [0] * len(entries),
        "key": [entry.event_id.encode() for entry in entries],
        "value": [entry.line for entry in entries],
        "headers": [[] for _ in entries],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in RECORD_SCHEMA]
    return encode_batch(pa.record_batch(arrays, schema=RECORD_SCHEMA), Compression.ZSTD)
