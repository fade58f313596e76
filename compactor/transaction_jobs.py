"""The jobs of transactions (docs/design/transactions.md#jobs): time-outs, unused transactional ids and sinks,
and aborted transactions that retention has passed.
"""

import logging
from uuid import UUID

from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.coordinates import PartitionKey
from sequencer.commits.transactions import EndCause, Ended
from sequencer.database.database import CommitOutcomeUnknown
from storage.identifiers import Offset, Partition, TopicId

log = logging.getLogger("tidelog")


class TransactionTimeoutJob:
    """Aborts transactions whose timeout is over. Their producers' epochs rise. Readers learn of the markers
    by their next poll.
    """

    name = "transaction-timeouts"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.transaction_timeout_interval_s
        self._transactions = sequencer.transactions
        self._cap = settings.transactions_per_step

    async def step(self, progress: str | None) -> Step:
        """Aborts some. One whose end is not known is found again."""
        del progress
        expired = await self._transactions.expired(self._cap)
        aborted = 0
        for producer in expired:
            try:
                ended = await self._transactions.end(producer, is_commit=False, cause=EndCause.TIMEOUT)
            except CommitOutcomeUnknown as error:
                log.warning(
                    "a transaction that timed out may be aborted",
                    extra={"transactional_id": producer.transactional_id, "error": str(error)},
                )
                continue
            aborted += isinstance(ended, Ended)
        # One transaction may have as many expired rows as a step finds.
        return Step(more=aborted > 0, done={"transactions": aborted})


class TransactionalIdExpiryJob:
    """Forgets transactional ids that were not used for long."""

    name = "transactional-id-expiry"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.transactional_id_expiry_interval_s
        self._transactions = sequencer.transactions
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page of all ids."""
        step = await self._transactions.forget(
            self._settings.transactional_id_expiry_s, self._settings.producers_per_step, progress
        )
        return Step(
            progress=step.next_after,
            more=step.next_after is not None,
            done={"transactional_ids": step.forgotten},
        )


class SinkExpiryJob:
    """Forgets sinks, and how far their queries came, if they committed nothing for long."""

    name = "sink-expiry"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.transactional_id_expiry_interval_s
        self._sinks = sequencer.sinks
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        del progress
        forgotten = await self._sinks.forget(
            self._settings.transactional_id_expiry_s, self._settings.producers_per_step
        )
        return Step(more=forgotten > 0, done={"sinks": forgotten})


class AbortedTransactionsJob:
    """Forgets aborted transactions whose markers lie below the log start, or whose topic is gone."""

    name = "aborted-transactions"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.transactional_id_expiry_interval_s
        self._transactions = sequencer.transactions
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page of all of them."""
        step = await self._transactions.forget_aborted(self._settings.producers_per_step, _place(progress))
        reached = step.next_after
        return Step(
            progress=None if reached is None else f"{reached[0][0]}/{reached[0][1]}/{reached[1]}",
            more=reached is not None,
            done={"transactions": step.forgotten},
        )


def _place(progress: str | None) -> tuple[PartitionKey, Offset] | None:
    if progress is None:
        return None
    topic_id, partition, offset = progress.split("/")
    return (TopicId(UUID(topic_id)), Partition(int(partition))), Offset(int(offset))
