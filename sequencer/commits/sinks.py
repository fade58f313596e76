"""Sinks: batches that many producers wrote, each committed as one and once
(docs/design/transactions.md#several-as-one).

A sink is a name. Its tasks write in transactions and leave them open; then one call commits all of them.

Promises:
- A batch is committed as a whole or not at all.
- A batch of a streaming query is committed once, whoever repeats it: its number, or a later one, is recorded
  with the commit. A run without a query commits once.
- A run that commits has the sink's name from then on. The run that had it before is refused.
- Once a batch is committed, the sink's other open transactions are aborted: those of attempts that lost.
- Each call may be repeated after CommitOutcomeUnknown.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sequencer.commits.coordinates import RunCoordinate
from sequencer.commits.transactions import (
    EndCause,
    Ended,
    ProducerOfTransactions,
    Transactions,
    end_parameters,
    end_to_write,
    markers_of,
)
from sequencer.database.database import CommitOutcomeUnknown, Database, SequencerUnavailable
from sequencer.database.lanes import Lane
from sequencer.database.named_sql import load_statements
from storage.identifiers import ProducerId

log = logging.getLogger("tidelog")

SQL = load_statements("sinks")

MAX_TRANSACTIONS = 2_000
"""Of one batch. They are committed in one transaction of Postgres."""
_MAX_LEFT = 2_000
"""Transactions of attempts that lost, which one call aborts. Others time out."""
_COMMITTED, _COMMITTED_BEFORE, _FENCED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBatch:
    """A micro-batch of a streaming query. `query_id` is that of its checkpoint."""

    query_id: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """What the tasks of a batch wrote. The transactional ids of this writer are `id_prefix` and two numbers,
    such as `3-0`.
    """

    sink_name: str
    run_id: str
    id_prefix: str
    query_batch: QueryBatch | None
    """None: the run commits only once."""
    transactions: Sequence[ProducerOfTransactions]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommitted:
    """`markers`: those that this call wrote."""

    is_repeat: bool
    markers: tuple[RunCoordinate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFenced:
    """Another run has taken the sink's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsLost:
    """These are not open any more: they timed out, or newer producers have their ids. Nothing was
    committed.
    """

    transactional_ids: tuple[str, ...]


class Sinks:
    def __init__(self, database: Database, transactions: Transactions) -> None:
        self._database = database
        self._transactions = transactions

    async def commit(self, batch: SinkBatch) -> SinkCommitted | SinkFenced | TransactionsLost:
        # Looked for before the commit: a later transaction may belong to the next batch.
        left = await self._open_under(batch.id_prefix)
        now_ms = time.time_ns() // 1_000_000
        ends = [
            end_to_write(producer, is_commit=True, cause=EndCause.CLIENT_2, timestamp_ms=now_ms)
            for producer in batch.transactions
        ]
        parameters = end_parameters(ends)
        del parameters["are_commits"], parameters["causes"]
        rows = await self._database.write(
            SQL["commit"],
            sink_name=batch.sink_name,
            run_id=batch.run_id,
            id_prefix=batch.id_prefix,
            query_id=None if batch.query_batch is None else batch.query_batch.query_id,
            batch_id=None if batch.query_batch is None else batch.query_batch.batch_id,
            **parameters,
        )
        outcome = rows[0].outcome
        if outcome == _FENCED:
            return SinkFenced()
        if outcome == _COMMITTED_BEFORE:
            # What else is open may belong to a later batch: the repeat may be late.
            aborted = await self._abort(batch.transactions)
            return SinkCommitted(is_repeat=True, markers=aborted)
        if outcome != _COMMITTED:
            lost = tuple(batch.transactions[number - 1].transactional_id for number in rows[0].lost)
            return TransactionsLost(transactional_ids=lost)
        written = tuple(
            marker for row in rows if row.place is not None for marker in markers_of(row, ends[row.place - 1])
        )
        if rows[0].left_prefix:
            left = [*left, *await self._open_under(rows[0].left_prefix)]
        ended = set(batch.transactions)
        aborted = await self._abort(producer for producer in left if producer not in ended)
        return SinkCommitted(is_repeat=False, markers=written + aborted)

    async def abort(self, batch: SinkBatch) -> tuple[RunCoordinate, ...]:
        """Aborts the batch's transactions, and all that are open under its prefix unless another run has the
        sink's name. Returns the markers. What was committed stays committed.
        """
        left = await self._open_under(batch.id_prefix)
        owners = await self._database.read(SQL["owner"], sink_name=batch.sink_name)
        if owners and owners[0].run_id not in ("", batch.run_id):
            left = []
        return await self._abort([*batch.transactions, *left])

    async def forget(self, unused_for_s: float, cap: int) -> int:
        """Forgets sinks and their queries that committed nothing for this long. Returns how many."""
        [row] = await self._database.on(Lane.HOUSEKEEPING).run(
            SQL["forget"], unused_for_s=unused_for_s, cap=cap
        )
        return int(row.forgotten)

    async def _open_under(self, id_prefix: str) -> list[ProducerOfTransactions]:
        rows = await self._database.read(
            SQL["open_under"], id_prefix=id_prefix, id_end=_end_of(id_prefix), cap=_MAX_LEFT
        )
        return [
            ProducerOfTransactions(
                transactional_id=row.transactional_id,
                producer_id=ProducerId(row.producer_id),
                producer_epoch=row.producer_epoch,
            )
            for row in rows
        ]

    async def _abort(self, producers: Iterable[ProducerOfTransactions]) -> tuple[RunCoordinate, ...]:
        """Those that it cannot abort time out."""
        aborted = await asyncio.gather(*(self._abort_one(producer) for producer in dict.fromkeys(producers)))
        return tuple(marker for markers in aborted for marker in markers)

    async def _abort_one(self, producer: ProducerOfTransactions) -> Sequence[RunCoordinate]:
        try:
            ended = await self._transactions.end(producer, is_commit=False, cause=EndCause.FENCE)
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            log.warning(
                "a transaction of a sink stays open until it times out",
                extra={"transactional_id": producer.transactional_id, "error": str(error)},
            )
            return ()
        return ended.markers if isinstance(ended, Ended) else ()


def _end_of(id_prefix: str) -> str:
    """Returns the least text that is greater than all texts with this prefix, whose last character is
    ASCII.
    """
    return id_prefix[:-1] + chr(ord(id_prefix[-1]) + 1)
