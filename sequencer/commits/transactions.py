"""Transactions: who has a transactional id, what an open transaction holds, and its end
(docs/design/transactions.md).

Promises:
- Every call is one transaction in Postgres, so any agent may make it.
- A transaction ends in all its partitions and groups at once.
- Each call may be repeated after CommitOutcomeUnknown: the repeat returns what the first one did.
- A tenant has about as many transactional ids as its limit says. Producers that start at the same time may
  pass it by as many.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Literal
from uuid import UUID

from sequencer.commits.coordinates import PartitionKey, RunCoordinate
from sequencer.commits.producers import LAST_EPOCH, ProducerIdentity
from sequencer.database.array_parameters import Int4Array, Int8Array, TextArray, UuidArray
from sequencer.database.database import Database, Row
from sequencer.database.lanes import Lane
from sequencer.database.named_sql import load_statements
from sequencer.database.shared_statement import SharedStatement
from sequencer.groups.committed_offsets import OffsetCommit, commit_parameters
from sequencer.tenants.tenant_limits import MOST_TRANSACTIONAL_IDS
from sequencer.tenants.tenant_names import tenant_of
from sequencer.tenants.tenant_room import check_room
from storage.arrow.aborted_batches import AbortedTransaction
from storage.batches.record_batch import marker_batch
from storage.identifiers import BytePosition, Offset, Partition, ProducerId, TopicId, new_segment_id
from storage.segments.keys import inline_key

SQL = load_statements("transactions")

_NO_TIMESTAMP_MS = -1
_ENDS_PER_STATEMENT = 64
_STATEMENTS_OF_ENDS = 2
_BEFORE_ALL = (TopicId(UUID(int=0)), Partition(-1)), Offset(-1)
_NOTHING = ProducerIdentity(producer_id=ProducerId(-1), producer_epoch=-1)


class TransactionRefusal(IntEnum):
    """Why a step was not done. The values are those of the stored functions."""

    FENCED = 1
    """A newer producer has the transactional id, or the transaction ran out of time."""
    UNKNOWN_PRODUCER = 2
    """The transactional id belongs to another producer id, or is not known."""
    NOTHING_TO_END = 3
    """There is no open transaction, or the last one ended the other way."""
    OPEN = 4
    """An earlier transaction is still open."""


class OffsetVerdict(IntEnum):
    """The values are those of the function `commit_pending_offsets`."""

    DONE = 0
    NOT_COORDINATOR = 1
    UNKNOWN_MEMBER = 2
    ILLEGAL_GENERATION = 3
    STALE_MEMBER_EPOCH = 4
    FENCED = 5
    UNKNOWN_PRODUCER = 6
    NOT_IN_TRANSACTION = 7


class EndCause(Enum):
    """Who ends a transaction, and what follows for the producer's epoch."""

    CLIENT = "client"
    """The epoch stays (transaction.version 0 and 1)."""
    CLIENT_2 = "client2"
    """The epoch rises (transaction.version 2, KIP-890)."""
    FENCE = "fence"
    """Another producer takes over, or an administrator aborts: the producer cannot go on."""
    RESTART = "restart"
    """The producer itself starts again: the epoch rises, and the producer may ask for it."""
    TIMEOUT = "timeout"
    """As RESTART, if the transaction has run out of time. Else it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOfTransactions:
    """A producer as its requests name it."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    missing: Sequence[PartitionKey]
    """Partitions that do not exist; then nothing was added. In a verification: those not in the
    transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    identity: ProducerIdentity
    """Which the producer has from now on."""
    markers: tuple[RunCoordinate, ...]
    """The markers that this call wrote. A repeat writes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    producer: ProducerOfTransactions
    timeout_ms: int
    last_end: Literal["commit", "abort"] | None
    started_ms: int | None
    """By the database's clock; None: no transaction is open."""
    partitions: Sequence[PartitionKey]
    """Of the open transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    transactional_id: str
    producer_id: ProducerId
    last_end: Literal["commit", "abort"] | None
    open_for_ms: int | None
    """None: no transaction is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetStep:
    forgotten: int
    next_after: str | None
    """Where the next step continues; None: every row was examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetAbortedStep:
    forgotten: int
    next_after: tuple[PartitionKey, Offset] | None
    """Where the next step continues: a partition, and a marker there. None: every row was examined."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TransactionEnd:
    producer: ProducerOfTransactions
    is_commit: bool
    cause: EndCause
    marker: bytes


def end_to_write(
    producer: ProducerOfTransactions, *, is_commit: bool, cause: EndCause, timestamp_ms: int
) -> TransactionEnd:
    """Returns an end with its marker."""
    raised = 0 if cause is EndCause.CLIENT else 1
    return TransactionEnd(
        producer=producer,
        is_commit=is_commit,
        cause=cause,
        marker=marker_batch(
            producer.producer_id,
            min(producer.producer_epoch + raised, LAST_EPOCH),
            is_commit=is_commit,
            timestamp_ms=timestamp_ms,
        ),
    )


def end_parameters(ends: Sequence[TransactionEnd]) -> dict[str, Any]:
    """Returns the parameters of the statement `end`."""
    return {
        "transactional_ids": TextArray(end.producer.transactional_id for end in ends),
        "producer_ids": Int8Array(end.producer.producer_id for end in ends),
        "producer_epochs": Int4Array(end.producer.producer_epoch for end in ends),
        "are_commits": [end.is_commit for end in ends],
        "causes": TextArray(end.cause.value for end in ends),
        "marker_segments": UuidArray(new_segment_id() for _ in ends),
        "marker_keys": TextArray(inline_key(end.marker) for end in ends),
        "markers_bytes": Int4Array(len(end.marker) for end in ends),
    }


class Transactions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._ends = SharedStatement(self._end, most=_ENDS_PER_STATEMENT, at_once=_STATEMENTS_OF_ENDS)

    async def initialize(
        self, transactional_id: str, timeout_ms: int, identity: ProducerIdentity = _NOTHING
    ) -> ProducerIdentity | TransactionRefusal | ProducerOfTransactions:
        """Returns the identity of a producer that starts, or of one that goes on (KIP-360: `identity` is the
        one that it has). Returns the producer whose open transaction must be aborted first, with
        EndCause.FENCE, or EndCause.RESTART if it goes on itself. Raises TenantLimitReached if the tenant may
        not have one more transactional id.
        """
        tenant = tenant_of(transactional_id)
        if tenant is not None:
            await check_room(
                self._database,
                SQL["has_room"],
                tenant,
                most=MOST_TRANSACTIONAL_IDS,
                what="transactional ids",
                transactional_id=transactional_id,
            )
        [row] = await self._database.write(
            SQL["initialize"],
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )
        if row.verdict == TransactionRefusal.OPEN:
            return ProducerOfTransactions(
                transactional_id=transactional_id,
                producer_id=ProducerId(row.producer_id),
                producer_epoch=row.producer_epoch,
            )
        return TransactionRefusal(row.verdict) if row.verdict else _identity(row)

    async def add(
        self,
        producer: ProducerOfTransactions,
        partitions: Sequence[PartitionKey] = (),
        group_ids: Sequence[str] = (),
        *,
        only_verifies: bool = False,
    ) -> Added | TransactionRefusal:
        """Adds partitions and groups to the producer's transaction, which begins with the first."""
        ordered = sorted(set(partitions))
        [row] = await self._database.write(
            SQL["add"],
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topic_ids=UuidArray(topic_id for topic_id, _ in ordered),
            partitions=Int4Array(partition for _, partition in ordered),
            group_ids=TextArray(sorted(set(group_ids), key=str.encode)),
            only_verifies=only_verifies,
        )
        if row.verdict:
            return TransactionRefusal(row.verdict)
        return Added(missing=[ordered[number - 1] for number in row.missing])

    async def end(
        self, producer: ProducerOfTransactions, *, is_commit: bool, cause: EndCause
    ) -> Ended | TransactionRefusal:
        """Commits or aborts the producer's open transaction. Ends that wait at the same time share a
        statement.
        """
        end = end_to_write(
            producer, is_commit=is_commit, cause=cause, timestamp_ms=time.time_ns() // 1_000_000
        )
        row = await self._ends.answer_to(end)
        if row.verdict:
            return TransactionRefusal(row.verdict)
        return Ended(identity=_identity(row), markers=markers_of(row, end))

    async def _end(self, ends: Sequence[TransactionEnd]) -> Sequence[Row]:
        return await self._database.write(SQL["end"], **end_parameters(ends))

    async def commit_offsets(
        self, producer: ProducerOfTransactions, commit: OffsetCommit, *, adds_group: bool
    ) -> OffsetVerdict:
        """Takes a group's offsets into the producer's transaction. `adds_group`: the request adds its group
        itself (KIP-890)."""
        [row] = await self._database.write(
            SQL["commit_offsets"],
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            adds_group=adds_group,
            **commit_parameters([commit]),
        )
        return OffsetVerdict(row.verdict)

    async def expired(self, cap: int) -> list[ProducerOfTransactions]:
        """Returns producers whose open transactions have run out of time."""
        return [
            _producer(row) for row in await self._database.on(Lane.HOUSEKEEPING).read(SQL["expired"], cap=cap)
        ]

    async def forget(self, unused_for_s: float, cap: int, after: str | None = None) -> ForgetStep:
        """Examines the next `cap` transactional ids, and forgets those unused for this long."""
        async with self._database.on(Lane.HOUSEKEEPING).transaction() as connection:
            look = {"after": after or "", "unused_for_s": unused_for_s, "cap": cap}
            [looked] = await (await connection.execute(SQL["lock_unused"], look)).fetchall()
            judge = {"transactional_ids": TextArray(looked.locked), "unused_for_s": unused_for_s}
            [gone] = await (await connection.execute(SQL["forget"], judge)).fetchall()
        return ForgetStep(
            forgotten=gone.forgotten, next_after=looked.last_id if looked.looked_at >= cap else None
        )

    async def forget_aborted(
        self, cap: int, after: tuple[PartitionKey, Offset] | None = None
    ) -> ForgetAbortedStep:
        """Examines the next `cap` aborted transactions, and forgets those that end below the log start."""
        (topic_id, partition), offset = after or _BEFORE_ALL
        [row] = await self._database.on(Lane.HOUSEKEEPING).run(
            SQL["forget_aborted"],
            after_topic_id=topic_id,
            after_partition=partition,
            after_offset=offset,
            cap=cap,
        )
        if row.looked_at < cap:
            return ForgetAbortedStep(forgotten=row.forgotten, next_after=None)
        reached = (TopicId(row.topic_id), Partition(row.partition)), Offset(row.last_offset)
        return ForgetAbortedStep(forgotten=row.forgotten, next_after=reached)

    async def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
        """Unknown ids are left out."""
        rows = await self._database.read(SQL["describe"], transactional_ids=TextArray(transactional_ids))
        return {
            row.transactional_id: TransactionDescription(
                producer=_producer(row),
                timeout_ms=row.timeout_ms,
                last_end=row.ended,
                started_ms=row.started_ms if row.is_open else None,
                partitions=[
                    (TopicId(topic_id), Partition(partition))
                    for topic_id, partition in zip(row.topic_ids or (), row.partitions or (), strict=True)
                ],
            )
            for row in rows
        }

    async def page(self, cap: int, after: str = "") -> Sequence[TransactionListing]:
        """Returns the next `cap` transactional ids in order."""
        return _listings(await self._database.read(SQL["list"], after=after, cap=cap))

    async def of_producers(self, producer_ids: Sequence[ProducerId]) -> Sequence[TransactionListing]:
        """Returns the transactional ids that have these producer ids now, in order. Name each once."""
        return _listings(
            await self._database.read(SQL["list_of_producers"], producer_ids=Int8Array(producer_ids))
        )

    async def of_producer(self, producer_id: ProducerId) -> ProducerOfTransactions | None:
        rows = await self._database.read(SQL["by_producer"], producer_ids=Int8Array([producer_id]))
        return _producer(rows[0]) if rows else None

    async def ids_of(self, producer_ids: Sequence[ProducerId]) -> dict[ProducerId, str]:
        """Returns the transactional ids of those producer ids that have one now."""
        rows = await self._database.read(SQL["by_producer"], producer_ids=Int8Array(producer_ids))
        return {ProducerId(row.producer_id): row.transactional_id for row in rows}

    async def adopt(self, producer_id: ProducerId, producer_epoch: int) -> ProducerOfTransactions | None:
        """Gives a transactional id to an open transaction that has none, so that it can be ended. None: there
        is no such transaction."""
        rows = await self._database.run(SQL["adopt"], producer_id=producer_id, producer_epoch=producer_epoch)
        return _producer(rows[0]) if rows else None

    async def open_offsets(self, key: PartitionKey) -> dict[ProducerId, Offset]:
        """Returns where the open transactions of producers begin in a partition."""
        rows = await self._database.read(SQL["open_offsets"], topic_id=key[0], partition=key[1])
        return {ProducerId(row.producer_id): Offset(row.first_offset) for row in rows}


def _identity(row: Row) -> ProducerIdentity:
    return ProducerIdentity(producer_id=ProducerId(row.producer_id), producer_epoch=row.producer_epoch)


def _listings(rows: Sequence[Row]) -> Sequence[TransactionListing]:
    return [
        TransactionListing(
            transactional_id=row.transactional_id,
            producer_id=ProducerId(row.producer_id),
            last_end=row.ended,
            open_for_ms=None if row.started_ms is None else max(0, row.now_ms - row.started_ms),
        )
        for row in rows
    ]


def _producer(row: Row) -> ProducerOfTransactions:
    return ProducerOfTransactions(
        transactional_id=row.transactional_id,
        producer_id=ProducerId(row.producer_id),
        producer_epoch=row.producer_epoch,
    )


def markers_of(row: Row, end: TransactionEnd) -> tuple[RunCoordinate, ...]:
    columns = (
        row.topic_ids,
        row.partition_numbers,
        row.marker_offsets,
        row.first_offsets,
        row.first_unstables,
    )
    producer_id = end.producer.producer_id
    key, size_bytes = inline_key(end.marker), len(end.marker)
    return tuple(
        RunCoordinate(
            topic_id=topic_id,
            partition=partition,
            base_offset=offset,
            last_offset=offset,
            object_key=key,
            object_size_bytes=size_bytes,
            position=BytePosition(0),
            length=size_bytes,
            min_timestamp_ms=_NO_TIMESTAMP_MS,
            max_timestamp_ms=_NO_TIMESTAMP_MS,
            first_unstable=first_unstable,
            aborted=None if end.is_commit else AbortedTransaction(offset, first_offset, producer_id),
        )
        for topic_id, partition, offset, first_offset, first_unstable in zip(*columns, strict=True)
    )
