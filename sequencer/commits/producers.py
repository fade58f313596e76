"""Producer ids for idempotence (InitProducerId without a transactional id; KIP-98, KIP-360).

Promise: no producer id is given out twice. An id exists as soon as it is drawn. What it has written is in
`producer_state`, per partition, which the commit maintains.
"""

from dataclasses import dataclass
from uuid import UUID

from sequencer.database.database import Database
from sequencer.database.lanes import Lane
from sequencer.database.named_sql import load_statements
from storage.identifiers import NO_PRODUCER_ID, Partition, ProducerId, TopicId

SQL = load_statements("producers")

LAST_EPOCH = 32767
"""The epoch is an int16 in the protocol. Kafka keeps the last one for fencing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    producer_id: ProducerId
    producer_epoch: int


ProducerKey = tuple[TopicId, Partition, ProducerId]
BEFORE_ALL: ProducerKey = (TopicId(UUID(int=0)), Partition(-1), NO_PRODUCER_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryStep:
    expired: int
    next_after: ProducerKey | None
    """Where the next step continues; None: every row was examined."""


class Producers:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def new_producer_id(self) -> ProducerId:
        """Returns a producer id that was never given out. If the response is lost, only the id is lost."""
        [row] = await self._database.run(SQL["new_producer_id"])
        return ProducerId(row.producer_id)

    async def initialize(
        self, producer_id: ProducerId = NO_PRODUCER_ID, producer_epoch: int = -1
    ) -> ProducerIdentity:
        """Returns a new identity. For a producer that names its own (KIP-360), returns its next epoch, or a
        new identity once the epochs are used up.
        """
        if producer_id >= 0 and 0 <= producer_epoch < LAST_EPOCH - 1:
            return ProducerIdentity(producer_id=producer_id, producer_epoch=producer_epoch + 1)
        return ProducerIdentity(producer_id=await self.new_producer_id(), producer_epoch=0)

    async def expire(self, unused_for_s: float, cap: int, after: ProducerKey | None = None) -> ExpiryStep:
        """Examines the next `cap` rows in key order, and forgets producers unused for this long."""
        topic_id, partition, producer_id = after or BEFORE_ALL
        [row] = await self._database.on(Lane.HOUSEKEEPING).run(
            SQL["expire_producer_state"],
            after_topic_id=topic_id,
            after_partition=partition,
            after_producer_id=producer_id,
            unused_for_s=unused_for_s,
            cap=cap,
        )
        if row.looked_at < cap:
            return ExpiryStep(expired=row.expired, next_after=None)
        return ExpiryStep(expired=row.expired, next_after=(row.topic_id, row.partition, row.producer_id))
