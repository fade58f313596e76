"""Answers administrators' questions about partitions: their sizes, and which producers have written to
them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sequencer.commits.coordinates import PartitionKey
from sequencer.database.array_parameters import Int4Array, UuidArray
from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from storage.identifiers import Partition, ProducerId, TopicId

SQL = load_statements("administration")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """What is remembered of a producer in one partition."""

    producer_id: ProducerId
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int


class Administration:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def sizes(self, topic_ids: Collection[TopicId]) -> dict[PartitionKey, int]:
        """Returns the bytes of records that each live partition of these topics refers to in the store."""
        rows = await self._database.read(SQL["sizes"], topic_ids=list(topic_ids))
        return {(TopicId(row.topic_id), Partition(row.partition)): row.size_bytes for row in rows}

    async def active_producers(
        self, partitions: Sequence[PartitionKey], cap: int
    ) -> dict[PartitionKey, tuple[ActiveProducer, ...]]:
        """Returns at most `cap` idempotent producers of each, by id. Missing partitions are left out."""
        rows = await self._database.read(
            SQL["active_producers"],
            topic_ids=UuidArray(topic_id for topic_id, _ in partitions),
            partitions=Int4Array(partition for _, partition in partitions),
            cap=cap,
        )
        found: dict[PartitionKey, list[ActiveProducer]] = {}
        for row in rows:
            producers = found.setdefault((TopicId(row.topic_id), Partition(row.partition)), [])
            if row.producer_id is not None:
                producers.append(
                    ActiveProducer(
                        producer_id=ProducerId(row.producer_id),
                        producer_epoch=row.producer_epoch,
                        last_sequence=row.last_sequence,
                        last_timestamp_ms=row.last_timestamp_ms,
                    )
                )
        return {key: tuple(producers) for key, producers in found.items()}
