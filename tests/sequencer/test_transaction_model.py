"""Random transactions from several connections, every answer and every partition compared with the model's.

A step runs one to three operations at once. Their answers, and what readers see afterwards, must be those of
the model for at least one order of the operations.
"""

import asyncio
import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from sequencer.client import Sequencer
from sequencer.commits.commits import (
    CommitRequest,
    Committed,
    SegmentRefused,
    SegmentToCommit,
    commit_request,
)
from sequencer.commits.coordinates import CoordinateRequest, PartitionKey
from sequencer.commits.producers import LAST_EPOCH, ProducerIdentity
from sequencer.commits.transactions import (
    Added,
    EndCause,
    Ended,
    ProducerOfTransactions,
    TransactionRefusal,
)
from sequencer.groups.committed_offsets import CommittedOffset, OffsetCommit, OffsetQuery
from sequencer.settings import SequencerSettings
from storage.identifiers import NodeId, Offset, Partition, ProducerId
from storage.segments.segment_batches import BatchTransaction
from tests.sequencer.builders import ABatch, a_key, a_segment
from tests.sequencer.model import ModelPartition, ModelSegment
from tests.sequencer.test_model import (
    SHAKY,
    Clients,
    Commit,
    DeleteTopic,
    MoveLogStart,
    judged_request,
    perform,
)
from tests.sequencer.transaction_model import NO_IDENTITY, Marker, Seen, TransactionModel

EXAMPLES, STEPS = 40, 30
PARTITIONS = 3
PRODUCERS = 3
GROUPS = 2
LONG_MS = 600_000

_names = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    transactional_id: str
    identity: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    transactional_id: str
    identity: ProducerIdentity
    keys: tuple[PartitionKey, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    transactional_id: str
    identity: ProducerIdentity
    group: str
    coordinator_epoch: int
    key: PartitionKey
    offset: int
    adds_group: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    transactional_id: str
    identity: ProducerIdentity
    is_commit: bool
    cause: EndCause


Operation = Start | Add | Offsets | End | Commit | MoveLogStart | DeleteTopic


def _producer(transactional_id: str, identity: ProducerIdentity) -> ProducerOfTransactions:
    return ProducerOfTransactions(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )


async def _perform(clients: Clients, operation: Operation) -> Any:
    """The answer in the model's terms."""
    transactions = clients.steady.transactions
    match operation:
        case Start(transactional_id=name, identity=identity):
            started = await transactions.initialize(name, LONG_MS, identity)
            return TransactionRefusal.OPEN if isinstance(started, ProducerOfTransactions) else started
        case Add(transactional_id=name, identity=identity, keys=keys, groups=groups):
            added = await transactions.add(_producer(name, identity), keys, groups)
            return list(added.missing) if isinstance(added, Added) else added
        case Offsets(transactional_id=name, identity=identity):
            commit = OffsetCommit(
                group_id=operation.group,
                coordinator_epoch=operation.coordinator_epoch,
                offsets=[(*operation.key, CommittedOffset(offset=Offset(operation.offset)))],
            )
            return await transactions.commit_offsets(
                _producer(name, identity), commit, adds_group=operation.adds_group
            )
        case End(transactional_id=name, identity=identity):
            ended = await transactions.end(
                _producer(name, identity), is_commit=operation.is_commit, cause=operation.cause
            )
            if not isinstance(ended, Ended):
                return ended
            return ended.identity, [
                Marker((run.topic_id, run.partition), run.base_offset, run.first_unstable, run.aborted)
                for run in ended.markers
            ]
        case _:
            return await perform(clients, operation)


def _expected(model: TransactionModel, operation: Operation, answer: Any) -> Any:
    """Applies the operation to the model, and returns the model's answer."""
    match operation:
        case Start(transactional_id=name, identity=identity):
            return model.initialize(name, identity, _drawn(answer))
        case Add(transactional_id=name, identity=identity, keys=keys, groups=groups):
            return model.add(name, identity, keys, groups)
        case Offsets(transactional_id=name, identity=identity, adds_group=adds_group):
            place = operation.group, operation.key
            return model.commit_offset(name, identity, place, operation.offset, adds_group=adds_group)
        case End(transactional_id=name, identity=identity, cause=cause):
            drawn = _drawn(answer[0]) if isinstance(answer, tuple) else ProducerId(-2)
            return model.end(name, identity, cause, drawn, is_commit=operation.is_commit)
        case Commit(segments=segments):
            return tuple(
                _with_first_unstables(model, said, found)
                for said, found in zip(model.commit(segments), answer, strict=True)
            )
        case DeleteTopic(name=name, keys=keys):
            model.delete_topic(keys)
            return name
        case MoveLogStart(key=key, before=before):
            if not model.partitions[key].live:
                return "UnknownPartition"
            if before > model.partitions[key].end:
                return "BeyondHighWatermark"
            model.move_log_start(key, before)
            return "Moved"


def _with_first_unstables(
    model: TransactionModel, said: Committed | SegmentRefused, found: Committed | SegmentRefused
) -> Committed | SegmentRefused:
    """What the commit says of open transactions, if it is not a repeat."""
    if isinstance(said, SegmentRefused) or isinstance(found, SegmentRefused):
        return said
    return replace(
        said,
        runs=tuple(
            run._replace(
                first_unstable=model.first_unstable((run.topic_id, run.partition)) if found.is_news else -1
            )
            for run in said.runs
        ),
    )


def _drawn(answer: Any) -> ProducerId:
    return answer.producer_id if isinstance(answer, ProducerIdentity) else ProducerId(-2)


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self, runner: asyncio.Runner, clients: Clients) -> None:
        super().__init__()
        self.runner = runner
        self.clients = clients
        self.sequencer = clients.steady
        self.model = TransactionModel()
        self.topics: dict[str, tuple[PartitionKey, ...]] = {}
        self.identities: dict[str, list[ProducerIdentity]] = {}
        """That each transactional id ever had, newest last."""
        self.epochs: dict[str, int] = {}
        self.sent: dict[tuple[PartitionKey, ProducerId, int], list[ABatch]] = {}

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            name = f"topic-{next(_names)}"
            topic = self.runner.run(self.sequencer.topics.create(name, PARTITIONS, {}))
            keys = tuple((topic.topic_id, Partition(number)) for number in range(PARTITIONS))
            self.topics[name] = keys
            self.model.partitions.update({key: ModelPartition() for key in keys})
        for _ in range(PRODUCERS):
            name = f"producer-{next(_names)}"
            self.identities[name] = []
            self._run_at_once([Start(transactional_id=name, identity=NO_IDENTITY)])
        for _ in range(GROUPS):
            name = f"group-{next(_names)}"
            claimed = self.runner.run(self.sequencer.groups.claim(name, NodeId(1), create=True))
            assert claimed is not None
            self.epochs[name] = claimed.coordinator_epoch

    @rule(data=st.data())
    def alone(self, data: st.DataObject) -> None:
        self._run_at_once([self._operation(data)])

    @rule(data=st.data(), count=st.integers(2, 3))
    def at_once(self, data: st.DataObject, count: int) -> None:
        self._run_at_once([self._operation(data) for _ in range(count)])

    @rule(producer=st.integers(0, PRODUCERS - 1))
    def almost_use_up_the_epochs(self, producer: int) -> None:
        name = list(self.identities)[producer]
        own = self.model.transactions[name]
        if own.is_open or own.identity.producer_epoch >= LAST_EPOCH - 2:
            return
        self.runner.run(
            self.sequencer.database.run(
                "UPDATE transactions SET producer_epoch = %(epoch)s WHERE transactional_id = %(name)s",
                epoch=LAST_EPOCH - 2,
                name=name,
            )
        )
        own.identity = ProducerIdentity(producer_id=own.identity.producer_id, producer_epoch=LAST_EPOCH - 2)
        self.identities[name].append(own.identity)

    def _run_at_once(self, operations: list[Operation]) -> None:
        if sum(isinstance(operation, DeleteTopic) for operation in operations) > 1:
            return  # the second deletion of a topic is an error, which another test asks for
        answers = self.runner.run(self._perform_all(operations))
        found = self.runner.run(self._look())
        differences = []
        for order in itertools.permutations(range(len(operations))):
            model = copy.deepcopy(self.model)
            pairs = [(_expected(model, operations[i], answers[i]), answers[i]) for i in order]
            pairs.append((self._seen_by(model), found))
            difference = next((pair for pair in pairs if pair[0] != pair[1]), None)
            if difference is None:
                self.model = model
                break
            differences.append(
                f"in order {order} the model says\n{difference[0]}\nand Postgres\n{difference[1]}"
            )
        else:
            raise AssertionError("\n".join([str(operations), *differences]))
        for name, own in self.model.transactions.items():
            if own.identity not in self.identities[name]:
                self.identities[name].append(own.identity)

    async def _perform_all(self, operations: Sequence[Operation]) -> list[Any]:
        return await asyncio.gather(*(_perform(self.clients, operation) for operation in operations))

    async def _look(self) -> Any:
        keys = list(self.model.partitions)
        requests = [
            CoordinateRequest(topic_id=key[0], partition=key[1], from_offset=Offset(0), max_runs=1000)
            for key in keys
        ]
        read = await self.sequencer.coordinates.read(requests)
        bounds = await self.sequencer.coordinates.bounds(keys)
        seen: list[Seen | None] = []
        for key in keys:
            found = read.get(key)
            assert (found is None) == (key not in bounds)
            if found is None:
                seen.append(None)
                continue
            assert found.last_stable_offset == bounds[key].last_stable_offset
            seen.append(
                Seen(
                    log_start=found.log_start_offset,
                    last_stable=found.last_stable_offset,
                    high_watermark=found.high_watermark,
                    runs=tuple((int(run.base_offset), int(run.last_offset)) for run in found.runs),
                    aborted=found.aborted or (),
                )
            )
        queries = [
            OffsetQuery(group_id=group, coordinator_epoch=None, partitions=None) for group in self.epochs
        ]
        fetched = await self.sequencer.committed_offsets.fetch(queries)
        offsets = {
            (group, key): committed.offset
            for group, of_group in zip(self.epochs, fetched, strict=True)
            for key, committed in (of_group or {}).items()
        }
        described = await self.sequencer.transactions.describe(list(self.identities))
        transactions = {
            name: (
                ProducerIdentity(
                    producer_id=one.producer.producer_id, producer_epoch=one.producer.producer_epoch
                ),
                one.last_end,
                one.started_ms is not None,
                set(one.partitions),
            )
            for name, one in described.items()
        }
        return seen, offsets, transactions

    def _seen_by(self, model: TransactionModel) -> Any:
        live = {key for key, partition in model.partitions.items() if partition.live}
        offsets = {place: offset for place, offset in model.offsets.items() if place[1] in live}
        ends = {None: None, True: "commit", False: "abort"}
        transactions = {
            name: (own.identity, ends[own.ended], own.is_open, set(own.first_offsets))
            for name, own in model.transactions.items()
        }
        return [model.seen(key) for key in model.partitions], offsets, transactions

    def _operation(self, data: st.DataObject) -> Operation:
        kind = data.draw(
            st.sampled_from(
                ["write"] * 8 + ["end"] * 6 + ["add"] * 3 + ["offsets"] * 2 + ["start", "log start", "delete"]
            )
        )
        name = data.draw(st.sampled_from(list(self.identities)))
        identity = self._identity(data, name)
        keys = list(self.model.partitions)
        key = data.draw(st.sampled_from(keys))
        if kind == "start":
            asked = data.draw(st.sampled_from([NO_IDENTITY, identity]))
            return Start(transactional_id=name, identity=asked)
        if kind == "add":
            added = data.draw(st.lists(st.sampled_from(keys), max_size=3, unique=True))
            groups = data.draw(st.lists(st.sampled_from(list(self.epochs)), max_size=1))
            return Add(transactional_id=name, identity=identity, keys=tuple(added), groups=tuple(groups))
        if kind == "offsets":
            group = data.draw(st.sampled_from(list(self.epochs)))
            return Offsets(
                transactional_id=name,
                identity=identity,
                group=group,
                coordinator_epoch=self.epochs[group],
                key=key,
                offset=data.draw(st.integers(0, 9)),
                adds_group=data.draw(st.booleans()),
            )
        if kind == "end":
            cause = data.draw(st.sampled_from([*EndCause, EndCause.CLIENT, EndCause.CLIENT_2]))
            is_commit = data.draw(st.booleans()) and cause in (EndCause.CLIENT, EndCause.CLIENT_2)
            return End(transactional_id=name, identity=identity, is_commit=is_commit, cause=cause)
        if kind == "log start":
            before = self.model.partitions[key].end - data.draw(st.integers(-1, 6))
            return MoveLogStart(key=key, before=Offset(max(0, before)))
        written = self._write(data, name)
        live = [topic for topic, of_it in self.topics.items() if self.model.partitions[of_it[0]].live]
        if kind == "delete" and len(live) > 1:
            return DeleteTopic(name=live[0], keys=self.topics[live[0]])
        return written

    def _identity(self, data: st.DataObject, name: str) -> ProducerIdentity:
        """Mostly the one that it has, else an older one: a zombie, or a repeated request."""
        back = data.draw(st.sampled_from([1, 1, 1, 1, 1, 2, 2, 3]))
        known = self.identities[name]
        return known[-min(back, len(known))]

    def _write(self, data: st.DataObject, name: str) -> Commit:
        batches = [
            self._batch(data, data.draw(st.sampled_from([name, *self.identities])))
            for _ in range(data.draw(st.integers(1, 4)))
        ]
        segment = a_segment(batches)
        key = a_key(segment.segment_id)
        self.runner.run(self.sequencer.reservations.reserve({segment.segment_id: key}, 600.0, "test"))
        self.model.segments[segment.segment_id] = ModelSegment(object_key=key)
        delay_ms = data.draw(st.sampled_from([None] * 7 + [1.0]))
        return Commit(segments=(segment,), interrupted_after_ms=delay_ms)

    def _batch(self, data: st.DataObject, name: str) -> ABatch:
        key = data.draw(st.sampled_from(list(self.model.partitions)))
        records, is_plain, is_repeat = data.draw(
            st.tuples(
                st.integers(1, 3),
                st.sampled_from([False] * 4 + [True]),
                st.sampled_from([False] * 3 + [True]),
            )
        )
        transaction = data.draw(st.sampled_from([BatchTransaction.ADDED, BatchTransaction.ADDS_ITSELF]))
        identity = self._identity(data, name)
        if is_plain:
            return ABatch(topic_id=key[0], partition=key[1], records=records)
        sent = self.sent.setdefault((key, identity.producer_id, identity.producer_epoch), [])
        if sent and is_repeat:
            return sent[-1]
        known = self.model.partitions[key].producers.get(identity.producer_id)
        follows = known is not None and known.epoch == identity.producer_epoch
        batch = ABatch(
            topic_id=key[0],
            partition=key[1],
            records=records,
            producer_id=identity.producer_id,
            epoch=identity.producer_epoch,
            sequence=known.accepted[-1][1] + 1 if follows and known is not None else 0,
            transaction=transaction,
        )
        sent.append(batch)
        return batch


@pytest.mark.parametrize(
    "request_of", [commit_request, judged_request], ids=["in turn where it can be", "judged"]
)
def test_every_transaction_is_the_models_whatever_the_connections_do(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    request_of: Callable[[Sequence[SegmentToCommit]], CommitRequest],
) -> None:
    monkeypatch.setattr("sequencer.commits.commits.commit_request", request_of)
    with asyncio.Runner() as runner:
        clients = Clients(
            steady=runner.run(Sequencer.open(database_url, SequencerSettings())),
            shaky=runner.run(Sequencer.open(f"{database_url}&application_name={SHAKY}", SequencerSettings())),
        )

        class Machine(TransactionMachine):
            def __init__(self) -> None:
                super().__init__(runner, clients)

        try:
            run_state_machine_as_test(
                Machine,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    print_blob=True,
                    # Shrinking takes minutes; add it by hand.
                    phases=[Phase.explicit, Phase.reuse, Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
            for client in (clients.steady, clients.shaky):
                assert client.database.counters.deadlocks == 0, "the lock order was broken"
                assert client.database.counters.serialization_failures == 0
        finally:
            runner.run(clients.steady.close())
            runner.run(clients.shaky.close())
