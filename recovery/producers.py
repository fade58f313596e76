"""Rebuilds producers' states from the headers of batches at known offsets, so that a retry of an acknowledged
batch is recognised as a duplicate.
"""

from dataclasses import dataclass, field

from recovery.plan import PartitionKey
from sequencer.journal.recovery import RecoverySession
from storage.batches.record_batch import BatchHeader
from storage.identifiers import NO_PRODUCER_ID

_LARGEST_SEQUENCE = (1 << 31) - 1


@dataclass(slots=True)
class SeenBatches:
    """Columns of idempotent producers' batches; other batches are ignored."""

    topic_ids: list[object] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    base_offsets: list[int] = field(default_factory=list)
    max_timestamps: list[int] = field(default_factory=list)

    def add(self, key: PartitionKey, header: BatchHeader, base_offset: int) -> None:
        if header.producer_id == NO_PRODUCER_ID:
            return
        # Not by the count of records, of which some may have been erased.
        last_sequence = (header.base_sequence + header.last_offset_delta) & _LARGEST_SEQUENCE
        self.topic_ids.append(key[0])
        self.partitions.append(key[1])
        self.producer_ids.append(header.producer_id)
        self.epochs.append(header.producer_epoch)
        self.sequences.append(header.base_sequence << 31 | last_sequence)
        self.base_offsets.append(base_offset)
        self.max_timestamps.append(header.max_timestamp_ms)

    async def remember(self, session: RecoverySession) -> None:
        """Adds them to the producers' states in the database."""
        if self.topic_ids:
            await session.run("replay_producers", **{name: getattr(self, name) for name in self.__slots__})
