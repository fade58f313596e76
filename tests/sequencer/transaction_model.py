"""The right answers about transactions, as a small pure model beside that of commits: one step after another,
without SQL (docs/design/transactions.md)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sequencer.commits.commits import (
    Assigned,
    BatchOutcome,
    Committed,
    Duplicate,
    FencedEpoch,
    InvalidTransaction,
    SegmentRefused,
    SegmentToCommit,
    WrittenBefore,
)
from sequencer.commits.coordinates import PartitionKey
from sequencer.commits.producers import LAST_EPOCH, ProducerIdentity
from sequencer.commits.transactions import EndCause, OffsetVerdict, TransactionRefusal
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import Offset, ProducerId
from storage.segments.segment_batches import BatchTransaction, PlacedBatch
from tests.sequencer.model import ModelPartition, ModelSequencer

NO_IDENTITY = ProducerIdentity(producer_id=ProducerId(-1), producer_epoch=-1)


class Marker(NamedTuple):
    key: PartitionKey
    offset: int
    first_unstable: int
    aborted: AbortedTransaction | None


class Seen(NamedTuple):
    """What a reader is told of a partition."""

    log_start: int
    last_stable: int
    high_watermark: int
    runs: tuple[tuple[int, int], ...]
    aborted: tuple[AbortedTransaction, ...]


@dataclass(slots=True)
class ModelTransaction:
    """A transactional id. Its transaction is open while it has partitions or groups."""

    identity: ProducerIdentity
    last_identity: ProducerIdentity = NO_IDENTITY
    ended: bool | None = None
    """Whether the last one committed."""
    first_offsets: dict[PartitionKey, int | None] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    pending: dict[tuple[str, PartitionKey], int] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return bool(self.first_offsets or self.groups)


@dataclass(slots=True)
class TransactionModel(ModelSequencer):
    transactions: dict[str, ModelTransaction] = field(default_factory=dict)
    aborted: dict[PartitionKey, list[AbortedTransaction]] = field(default_factory=dict)
    offsets: dict[tuple[str, PartitionKey], int] = field(default_factory=dict)
    added: dict[ProducerId, set[PartitionKey]] = field(default_factory=dict)
    marker_runs: dict[PartitionKey, list[tuple[int, int]]] = field(default_factory=dict)

    def initialize(
        self, transactional_id: str, asked: ProducerIdentity, drawn: ProducerId
    ) -> ProducerIdentity | TransactionRefusal:
        """`drawn`: the producer id that Postgres gave out, if it needed one."""
        own = self.transactions.get(transactional_id)
        if own is None:
            own = ModelTransaction(ProducerIdentity(producer_id=drawn, producer_epoch=0))
            self.transactions[transactional_id] = own
            return own.identity
        if asked not in (NO_IDENTITY, own.identity, own.last_identity):
            return self._refusal(own, asked)
        if own.is_open:
            return TransactionRefusal.OPEN
        is_used_up = own.identity.producer_epoch >= LAST_EPOCH  # only for fencing
        if asked != NO_IDENTITY and asked == own.last_identity and not is_used_up:
            return own.identity
        own.last_identity = asked
        own.identity = self._raised(own.identity, drawn)
        own.ended = None
        return own.identity

    def add(
        self,
        transactional_id: str,
        asked: ProducerIdentity,
        keys: Sequence[PartitionKey],
        groups: Sequence[str],
    ) -> TransactionRefusal | list[PartitionKey]:
        own = self.transactions[transactional_id]
        if asked != own.identity:
            return self._refusal(own, asked)
        missing = [key for key in sorted(set(keys)) if not self.partitions[key].live]
        if not missing:
            for key in keys:
                own.first_offsets.setdefault(key, None)
            own.groups.update(groups)
        return missing

    def commit_offset(
        self,
        transactional_id: str,
        asked: ProducerIdentity,
        place: tuple[str, PartitionKey],
        offset: int,
        *,
        adds_group: bool,
    ) -> OffsetVerdict:
        own = self.transactions[transactional_id]
        if asked != own.identity:
            known = {own.identity.producer_id, own.last_identity.producer_id}
            return OffsetVerdict.FENCED if asked.producer_id in known else OffsetVerdict.UNKNOWN_PRODUCER
        if not adds_group and place[0] not in own.groups:
            return OffsetVerdict.NOT_IN_TRANSACTION
        own.groups.add(place[0])
        own.pending[place] = offset
        return OffsetVerdict.DONE

    def end(
        self,
        transactional_id: str,
        asked: ProducerIdentity,
        cause: EndCause,
        drawn: ProducerId,
        *,
        is_commit: bool,
    ) -> TransactionRefusal | tuple[ProducerIdentity, list[Marker]]:
        own = self.transactions[transactional_id]
        if asked != own.identity:
            if cause is EndCause.CLIENT_2 and asked == own.last_identity and own.ended is is_commit:
                return own.identity, []
            return self._refusal(own, asked)
        is_in_time = cause is EndCause.TIMEOUT  # no transaction of the model runs out of time
        if is_in_time or (not own.is_open and not (cause is EndCause.CLIENT_2 and not is_commit)):
            if cause is EndCause.CLIENT and own.ended is is_commit:
                return own.identity, []
            return TransactionRefusal.NOTHING_TO_END
        first_offsets, own.first_offsets = own.first_offsets, {}
        markers = [
            self._mark(key, first, own.identity.producer_id, is_commit=is_commit)
            for key, first in sorted(first_offsets.items())
            if first is not None and self.partitions[key].live
        ]
        if is_commit:
            self.offsets.update(own.pending)
        own.groups.clear()
        own.pending.clear()
        if cause is not EndCause.CLIENT:
            own.last_identity = NO_IDENTITY if cause is EndCause.FENCE else own.identity
            if cause is EndCause.CLIENT_2:
                own.identity = self._raised(own.identity, drawn)
            else:
                epoch = min(own.identity.producer_epoch + 1, LAST_EPOCH)
                own.identity = ProducerIdentity(producer_id=own.identity.producer_id, producer_epoch=epoch)
        own.ended = is_commit
        return own.identity, markers

    def seen(self, key: PartitionKey) -> Seen | None:
        partition = self.partitions[key]
        if not partition.live:
            return None
        runs = [(int(run.base_offset), int(run.last_offset)) for run in partition.runs]
        runs += [run for run in self.marker_runs.get(key, []) if run[1] >= partition.log_start]
        runs.sort()
        return Seen(
            log_start=partition.log_start,
            last_stable=max(partition.log_start, self.first_unstable(key, partition.end)),
            high_watermark=partition.end,
            runs=tuple(runs),
            aborted=tuple(
                entry
                for entry in self.aborted.get(key, [])
                if runs and runs[0][0] <= entry.last_offset and entry.first_offset <= runs[-1][1]
            ),
        )

    def commit(self, segments: Sequence[SegmentToCommit]) -> tuple[Committed | SegmentRefused, ...]:
        # A partition that a batch of this very commit adds is not added for its other batches.
        self.added = {own.identity.producer_id: set(own.first_offsets) for own in self.transactions.values()}
        return ModelSequencer.commit(self, segments)

    def _judge(self, batch: PlacedBatch) -> BatchOutcome:
        key = (batch.topic_id, batch.partition)
        partition = self.partitions.get(key)
        if batch.transaction is BatchTransaction.NONE or partition is None or not partition.live:
            return ModelSequencer._judge(self, batch)
        refusal = self._transaction_refusal(batch, key)
        if refusal is not None:
            return self._known_before(batch, partition) or refusal
        outcome = ModelSequencer._judge(self, batch)
        if isinstance(outcome, Assigned):
            own = self._of_producer(batch.producer_id)
            assert own is not None
            if own.first_offsets.get(key) is None:
                own.first_offsets[key] = outcome.base_offset
        return outcome

    def _transaction_refusal(self, batch: PlacedBatch, key: PartitionKey) -> BatchOutcome | None:
        own = self._of_producer(batch.producer_id)
        if own is None or own.identity.producer_epoch < batch.producer_epoch:
            return InvalidTransaction()
        if own.identity.producer_epoch > batch.producer_epoch:
            return FencedEpoch()
        if batch.transaction is BatchTransaction.ADDED and key not in self.added[batch.producer_id]:
            return InvalidTransaction()
        return None

    def _known_before(self, batch: PlacedBatch, partition: ModelPartition) -> BatchOutcome | None:
        """The answer to a batch that was accepted once, while its transaction was open."""
        known = partition.producers.get(batch.producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            return None
        state, end = list(known.accepted), partition.end
        outcome = ModelSequencer._judge(self, batch)
        if isinstance(outcome, Assigned):
            known.accepted, partition.end = state, end
        return outcome if isinstance(outcome, Duplicate | WrittenBefore) else None

    def _of_producer(self, producer_id: ProducerId) -> ModelTransaction | None:
        owners = [own for own in self.transactions.values() if own.identity.producer_id == producer_id]
        return owners[0] if owners else None

    def _mark(self, key: PartitionKey, first: int, producer_id: ProducerId, *, is_commit: bool) -> Marker:
        partition = self.partitions[key]
        offset, partition.end = partition.end, partition.end + 1
        self.marker_runs.setdefault(key, []).append((offset, offset))
        unstable = self.first_unstable(key)
        entry = None if is_commit else AbortedTransaction(Offset(offset), Offset(first), producer_id)
        if entry is not None:
            self.aborted.setdefault(key, []).append(entry)
        return Marker(key, offset, unstable, entry)

    def first_unstable(self, key: PartitionKey, default: int = -1) -> int:
        firsts = [own.first_offsets.get(key) for own in self.transactions.values()]
        return min((first for first in firsts if first is not None), default=default)

    def _refusal(self, own: ModelTransaction, asked: ProducerIdentity) -> TransactionRefusal:
        known = {own.identity.producer_id, own.last_identity.producer_id}
        return (
            TransactionRefusal.FENCED if asked.producer_id in known else TransactionRefusal.UNKNOWN_PRODUCER
        )

    def _raised(self, identity: ProducerIdentity, drawn: ProducerId) -> ProducerIdentity:
        if identity.producer_epoch >= LAST_EPOCH - 1:
            return ProducerIdentity(producer_id=drawn, producer_epoch=0)
        return ProducerIdentity(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch + 1)
