"""Batches before and after they have a place in a segment, as columns of numbers. So a segment of a thousand
batches does not cost a thousand objects.

The columns are an int64 array of shape (COLUMNS, batches), the same for both stages. A batch without a place
has no POSITION. `PendingBatch` and `PlacedBatch` are one batch as a value, to fill the columns and to read
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage.batches.record_batch import ValidBatch
from storage.identifiers import BytePosition, Partition, ProducerId, TopicId

TOPIC: Final = 0
"""Index into `topic_ids`."""
PARTITION: Final = 1
POSITION: Final = 2
LENGTH: Final = 3
RECORDS: Final = 4
MIN_TIMESTAMP: Final = 5
MAX_TIMESTAMP: Final = 6
PRODUCER_ID: Final = 7
PRODUCER_EPOCH: Final = 8
BASE_SEQUENCE: Final = 9
CRC: Final = 10
"""As in the batch's header."""
TRANSACTION: Final = 11
"""A `BatchTransaction`."""
COLUMNS: Final = 12


class BatchTransaction(IntEnum):
    """Whether a batch is in a transaction of its producer."""

    NONE = 0
    ADDED = 1
    """The producer has added the partition to the transaction before."""
    ADDS_ITSELF = 2
    """The batch adds its partition (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatch:
    """A valid batch without a place in a segment and without an offset."""

    topic_id: TopicId
    partition: Partition
    batch: ValidBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBatch:
    """A batch with a place in a segment and still without an offset."""

    topic_id: TopicId
    partition: Partition
    position: BytePosition
    length: int
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    transaction: BatchTransaction = BatchTransaction.NONE


def column_of(batch: ValidBatch, topic: int = 0, partition: int = 0) -> tuple[int, ...]:
    """Returns the numbers of one batch, in the columns' order."""
    header = batch.header
    return (
        topic,
        partition,
        0,
        len(batch.data),
        header.record_count,
        batch.min_timestamp_ms,
        batch.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.crc,
        BatchTransaction.ADDED if header.is_transactional else BatchTransaction.NONE,
    )


def is_same_partition(columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns for each batch but the first whether it has the same partition as the one before: bool of shape
    (batches - 1,)."""
    topics, partitions = columns[TOPIC], columns[PARTITION]
    return (topics[1:] == topics[:-1]) & (partitions[1:] == partitions[:-1])  # type: ignore[no-any-return]


def first_of_each(is_next: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Returns the index of the first of each group among `count`: int64. `is_next` (bool, shape (count - 1,))
    says for each but the first whether it belongs to the group of the one before."""
    return np.concatenate(([0], np.flatnonzero(~is_next) + 1)) if count else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingBatches:
    """Batches without a place, in order; `data[i]` has the bytes of column `i`."""

    topic_ids: tuple[TopicId, ...]
    columns: NDArray[np.int64]
    data: Sequence[memoryview]

    @classmethod
    def of(cls, batches: Sequence[PendingBatch]) -> "PendingBatches":
        topics: dict[TopicId, int] = {}
        columns = np.empty((COLUMNS, len(batches)), np.int64)
        for index, one in enumerate(batches):
            columns[:, index] = column_of(
                one.batch, topics.setdefault(one.topic_id, len(topics)), one.partition
            )
        return cls(topic_ids=tuple(topics), columns=columns, data=[one.batch.data for one in batches])

    @classmethod
    def joined(cls, parts: "Sequence[tuple[PendingBatches, int, int]]") -> "PendingBatches":
        """Joins the batches `[start, end)` of each, one after another."""
        topics: dict[TopicId, int] = {}
        numbers: list[int] = []
        first_numbers: list[int] = []
        data: list[memoryview] = []
        for batches, start, end in parts:
            first_numbers.append(len(numbers))
            numbers += [topics.setdefault(topic_id, len(topics)) for topic_id in batches.topic_ids]
            data += batches.data[start:end]
        columns = np.concatenate([batches.columns[:, start:end] for batches, start, end in parts], axis=1)
        columns[TOPIC] += np.repeat(first_numbers, [end - start for _, start, end in parts])
        columns[TOPIC] = np.take(numbers, columns[TOPIC])
        return cls(topic_ids=tuple(topics), columns=columns, data=data)

    def __len__(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedBatches:
    """The batches of a segment; `topic_ids` ascend."""

    topic_ids: tuple[TopicId, ...]
    columns: NDArray[np.int64]

    @classmethod
    def of(cls, batches: Sequence[PlacedBatch]) -> "PlacedBatches":
        topic_ids = sorted({one.topic_id for one in batches})
        numbers = {topic_id: number for number, topic_id in enumerate(topic_ids)}
        columns = np.empty((COLUMNS, len(batches)), np.int64)
        for index, one in enumerate(batches):
            columns[:, index] = (
                numbers[one.topic_id],
                one.partition,
                one.position,
                one.length,
                one.record_count,
                one.min_timestamp_ms,
                one.max_timestamp_ms,
                one.producer_id,
                one.producer_epoch,
                one.base_sequence,
                0,
                one.transaction,
            )
        return cls(topic_ids=tuple(topic_ids), columns=columns)

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def __iter__(self) -> Iterator[PlacedBatch]:
        return map(self._batch, self.columns.T.tolist())

    def __getitem__(self, index: int) -> PlacedBatch:
        return self._batch(self.columns[:, index].tolist())

    def _batch(self, column: list[int]) -> PlacedBatch:
        return PlacedBatch(
            topic_id=self.topic_ids[column[TOPIC]],
            partition=Partition(column[PARTITION]),
            position=BytePosition(column[POSITION]),
            length=column[LENGTH],
            record_count=column[RECORDS],
            min_timestamp_ms=column[MIN_TIMESTAMP],
            max_timestamp_ms=column[MAX_TIMESTAMP],
            producer_id=ProducerId(column[PRODUCER_ID]),
            producer_epoch=column[PRODUCER_EPOCH],
            base_sequence=column[BASE_SEQUENCE],
            transaction=BatchTransaction(column[TRANSACTION]),
        )
