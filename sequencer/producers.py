"""Producer ids for idempotence (InitProducerId without a transactional id; KIP-98, KIP-360).

Promises that no producer id is given out twice. An id exists from the moment it is drawn; what it has written lives per
partition in `producer_state`, kept by the commit.
"""

from dataclasses import dataclass

from sequencer.database import Database
from sequencer.named_sql import load_statements
from storage.identifiers import NO_PRODUCER_ID, ProducerId

SQL = load_statements("producers")

LAST_EPOCH = 32767
"""An int16 on the wire; Kafka keeps the last one for fencing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    producer_id: ProducerId
    producer_epoch: int


class Producers:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def new_producer_id(self) -> ProducerId:
        """A producer id that was never given out. A lost answer loses the id, no more."""
        [row] = await self._database.fetch(SQL["new_producer_id"])
        return ProducerId(row.producer_id)

    async def initialize(self, producer_id: ProducerId = NO_PRODUCER_ID, producer_epoch: int = -1) -> ProducerIdentity:
        """A fresh identity; or, for a producer that names its own (KIP-360), its next epoch, and a fresh one once the
        epochs are used up.
        """
        if producer_id >= 0 and 0 <= producer_epoch < LAST_EPOCH - 1:
            return ProducerIdentity(producer_id=producer_id, producer_epoch=producer_epoch + 1)
        return ProducerIdentity(producer_id=await self.new_producer_id(), producer_epoch=0)

    async def expire(self, unused_for_s: float, cap: int) -> int:
        """Forgets what producers unused for so long have written, at most `cap` rows; returns how many went."""
        [row] = await self._database.fetch(SQL["expire_producer_state"], unused_for_s=unused_for_s, cap=cap)
        return int(row.expired)
