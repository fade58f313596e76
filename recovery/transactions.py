"""Aborts what is open at the end of a recovery (docs/design/recovery.md#transactions).

Promises:
- No record of a transaction that is not known to have committed becomes stable.
- Every producer with a transactional id begins again, with a new producer id.
- What was aborted is listed: it may have been committed after the last entry of the journal.
"""

import time
from collections.abc import Sequence
from typing import Final

from recovery.plan import PartitionKey
from recovery.report import Report
from sequencer.commits.transactions import SQL as TRANSACTIONS_SQL
from sequencer.commits.transactions import (
    EndCause,
    ProducerOfTransactions,
    end_parameters,
    end_to_write,
)
from sequencer.journal.recovery import RecoverySession
from storage.batches.record_batch import BatchHeader
from storage.identifiers import Offset, Partition, ProducerId

_ENDS_AT_ONCE: Final = 64


async def open_transactions(
    session: RecoverySession, batches: Sequence[tuple[PartitionKey, ProducerId, Offset]]
) -> None:
    """Notes batches of transactions whose end is not known."""
    if batches:
        await session.run(
            "open_transactions",
            topic_ids=[key[0] for key, _, _ in batches],
            partitions=[key[1] for key, _, _ in batches],
            producer_ids=[producer_id for _, producer_id, _ in batches],
            base_offsets=[offset for _, _, offset in batches],
        )


async def remember_transactions(
    session: RecoverySession,
    batches: Sequence[tuple[PartitionKey, BatchHeader, Offset]],
    report: Report,
    most_listed: int,
) -> None:
    """Notes batches and markers that only merged objects have, in the order of their offsets. Lists what it
    aborts."""
    for key, header, offset in batches:
        if header.is_control:
            aborted = await session.run(
                "abort_at_marker",
                topic_id=key[0],
                partition=key[1],
                producer_id=header.producer_id,
                offset=offset,
            )
            for row in aborted:
                report.abort(
                    key,
                    header.producer_id,
                    first_offset=row.first_offset,
                    marker_offset=offset,
                    most_listed=most_listed,
                )
        else:
            await open_transactions(session, [(key, ProducerId(header.producer_id), offset)])


async def abort_open_transactions(session: RecoverySession, report: Report, most_listed: int) -> None:
    """Call it in a transaction, once every batch is in the log."""
    for statement in (
        "remove_transactions_without_records",
        "set_first_unstable_offsets",
        "drop_pending_offsets",
        "name_open_producers",
    ):
        await session.run(statement)
    while rows := await session.run("open_producers", cap=_ENDS_AT_ONCE):
        ends = [
            end_to_write(
                ProducerOfTransactions(
                    transactional_id=row.transactional_id,
                    producer_id=ProducerId(row.producer_id),
                    producer_epoch=row.producer_epoch,
                ),
                is_commit=False,
                cause=EndCause.FENCE,
                timestamp_ms=time.time_ns() // 1_000_000,
            )
            for row in rows
        ]
        answers = await session.execute(TRANSACTIONS_SQL["end"], **end_parameters(ends))
        for row, answer in zip(rows, answers, strict=True):
            assert answer.verdict == 0, "no one else works on the log"
            places = zip(
                answer.topic_ids,
                answer.partition_numbers,
                answer.first_offsets,
                answer.marker_offsets,
                strict=True,
            )
            for topic_id, partition, first_offset, marker_offset in places:
                report.abort(
                    (topic_id, Partition(partition)),
                    row.producer_id,
                    first_offset=first_offset,
                    marker_offset=marker_offset,
                    most_listed=most_listed,
                )
    await session.run("forget_transactional_ids")
