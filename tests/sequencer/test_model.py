"""Random histories from several connections, every answer compared with the model's.
 A step runs one to three operations at once. Their answers, and the partitions they leave, must be those of
 the model
for at least one order of the operations: that is what "sequencer" means.
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
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sequencer.client import Sequencer
from sequencer.commits.commits import (
    PARAMETERS,
    RESERVATIONS_SQL,
    CommitRequest,
    Committed,
    SegmentRefused,
    SegmentToCommit,
    commit_request,
)
from sequencer.commits.coordinates import CoordinateRequest, KnownEnd, PartitionKey
from sequencer.database.array_parameters import encoded_ints
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.settings import SequencerSettings
from storage.identifiers import NO_PRODUCER_ID, Offset, Partition, ProducerId, SegmentId
from tests.sequencer.builders import ABatch, a_key, a_segment
from tests.sequencer.model import (
    NEVER_FORGOTTEN,
    SEQUENCES,
    ModelPartition,
    ModelProducer,
    ModelSegment,
    ModelSequencer,
)

SHAKY = "shaky"
EXAMPLES, STEPS = 30, 25
TOPICS_AT_MOST = 3
PARTITIONS = 2
MANY_RUNS = 1000

_names = itertools.count(1)
_producer_ids = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What a batch should be, before it is known which topics, producers and sequences there are."""

    place: int
    producer: int
    records: int
    sequence: str
    epoch_step: int
    timestamp_ms: int


BATCH_SPECS = st.builds(
    BatchSpec,
    place=st.integers(0, TOPICS_AT_MOST * PARTITIONS - 1),
    producer=st.integers(0, 2),
    records=st.integers(1, 3),
    sequence=st.sampled_from(["next"] * 6 + ["again"] * 3 + ["skip", "zero", "none"]),
    epoch_step=st.sampled_from([0] * 8 + [1, 1, -1]),
    timestamp_ms=st.integers(-1, 40),
)
OPERATIONS = (
    ["commit"] * 8 + ["again"] * 4 + ["cut"] * 2 + ["doom", "doom", "log start", "log start", "delete"]
)
SEGMENT_SPECS = st.lists(BATCH_SPECS, min_size=1, max_size=6)
LEASES_S = st.sampled_from([600.0, 600.0, 600.0, -1.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    segments: tuple[SegmentToCommit, ...]
    interrupted_after_ms: float | None
    """When to cut all connections to Postgres while it runs; it is then repeated until its outcome is known.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Doom:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    name: str
    keys: tuple[PartitionKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLogStart:
    key: PartitionKey
    before: Offset


Operation = Commit | Doom | DeleteTopic | MoveLogStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Two pools on one database; the connections of the shaky one are cut now and then."""

    steady: Sequencer
    shaky: Sequencer


async def perform(clients: Clients, operation: Operation) -> Any:
    sequencer = clients.steady
    match operation:
        case Commit(segments=segments, interrupted_after_ms=None):
            return await sequencer.commits.commit(segments)
        case Commit(segments=segments, interrupted_after_ms=float(delay_ms)):
            task = asyncio.create_task(until_known(clients.shaky, segments))
            await asyncio.sleep(delay_ms / 1000)
            await cut_connections(clients)
            return await task
        case Doom():
            rows = await sequencer.database.run(RESERVATIONS_SQL["doom_expired"], cap=1000)
            return [row.segment_id for row in rows]
        case DeleteTopic(name=name):
            return (await sequencer.topics.delete(name)).name
        case MoveLogStart(key=key, before=before):
            moved = await sequencer.retention.delete_records(*key, before_offset=before)
            return type(moved).__name__


async def until_known(
    sequencer: Sequencer, segments: Sequence[SegmentToCommit]
) -> tuple[Committed | SegmentRefused, ...]:
    for _ in range(50):
        try:
            return await sequencer.commits.commit(segments)
        except (CommitOutcomeUnknown, SequencerUnavailable):
            await asyncio.sleep(0.005)
    raise AssertionError("the outcome stayed unknown")


async def cut_connections(clients: Clients) -> None:
    await clients.steady.database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %(name)s",
        name=SHAKY,
    )


def log_starts_in(answer: Any) -> list[list[int | None]]:
    """Of the segments that were committed. Two `Committed` are equal without them."""
    answers = answer if isinstance(answer, tuple) else ()
    return [
        [None] * len(one.outcomes) if one.log_starts is None else one.log_starts.tolist()
        for one in answers
        if isinstance(one, Committed)
    ]


def expected(model: ModelSequencer, operation: Operation, answer: Any) -> Any:
    """Applies the operation to the model; the model's answer. (Which reservations a doom skips is for
    Postgres to say.)
    """
    match operation:
        case Commit(segments=segments):
            return model.commit(segments)
        case Doom():
            known = [segment_id for segment_id in answer if segment_id in model.segments]
            if any(model.segments[segment_id].state != "reserved" for segment_id in known):
                return "only reservations are doomed"
            model.doom(known)
            return answer
        case DeleteTopic(name=name, keys=keys):
            model.delete_topic(keys)
            return name
        case MoveLogStart(key=key, before=before):
            partition = model.partitions[key]
            if not partition.live:
                return "UnknownPartition"
            if before > partition.end:
                return "BeyondHighWatermark"
            model.move_log_start(key, before)
            return "Moved"


def all_partitions(model: ModelSequencer) -> list[Any]:
    return [(model.read(key, 0, MANY_RUNS), model.bounds(key)) for key in model.partitions]


class SequencerMachine(RuleBasedStateMachine):
    """Topics, segments and operations of one example; the database is shared, so names and ids are new each
    time.
    """

    def __init__(self, runner: asyncio.Runner, clients: Clients) -> None:
        super().__init__()
        self.runner = runner
        self.clients = clients
        self.sequencer = clients.steady
        self.model = ModelSequencer()
        self.topics: dict[str, tuple[PartitionKey, ...]] = {}
        self.places: list[PartitionKey] = []
        perhaps_forgotten, never_forgotten = next(_producer_ids), NEVER_FORGOTTEN + next(_producer_ids)
        self.producers = [NO_PRODUCER_ID, ProducerId(perhaps_forgotten), ProducerId(never_forgotten)]
        self.sent: dict[tuple[PartitionKey, ProducerId], list[ABatch]] = {}
        self.everything_sent: dict[tuple[PartitionKey, ProducerId], list[ABatch]] = {}
        self.uncommitted: list[SegmentToCommit] = []
        self.tried: list[SegmentToCommit] = []
        self.expired: set[SegmentId] = set()

    # What exists

    @initialize()
    def create_first_topic(self) -> None:
        self.create_topic()

    @rule()
    @precondition(lambda self: len(self.places) < TOPICS_AT_MOST * PARTITIONS)
    def create_topic(self) -> None:
        name = f"topic-{next(_names)}"
        topic = self.runner.run(self.sequencer.topics.create(name, PARTITIONS, {}))
        keys = tuple((topic.topic_id, Partition(partition)) for partition in range(PARTITIONS))
        self.topics[name] = keys
        self.places.extend(keys)
        self.model.partitions.update({key: ModelPartition() for key in keys})

    @rule(place=st.integers(0, 5), producer=st.integers(1, 2), left=st.integers(0, 9))
    def a_producer_has_almost_used_up_its_sequences(self, place: int, producer: int, left: int) -> None:
        key, producer_id = self.places[place % len(self.places)], self.producers[producer]
        last = SEQUENCES - 1 - left
        if producer_id in self.model.partitions[key].producers:
            return
        statement = self.sequencer.database.run(
            "INSERT INTO producer_state"
            " (topic_id, partition, producer_id, producer_epoch, sequences, base_offsets, max_timestamps)"
            " VALUES (%(topic_id)s, %(partition)s, %(producer_id)s, 0,"
            " ARRAY[%(sequences)s::bigint], ARRAY[0], ARRAY[-1])",
            topic_id=key[0],
            partition=key[1],
            producer_id=producer_id,
            sequences=(last - 1) * SEQUENCES + last,
        )
        self.runner.run(statement)
        state = ModelProducer(epoch=0, accepted=[(last - 1, last, 0, -1)])
        self.model.partitions[key].producers[producer_id] = state
        self.sent[key, producer_id] = [_last_accepted(key, producer_id, state)]

    @rule(specs=SEGMENT_SPECS, lease_s=LEASES_S)
    def seal_and_reserve(self, specs: list[BatchSpec], lease_s: float) -> None:
        """To be committed by a later step, by which time it may be doomed."""
        self.uncommitted.append(self._reserved(specs, lease_s))

    def _reserved(self, specs: list[BatchSpec], lease_s: float) -> SegmentToCommit:
        segment = a_segment([self._batch(spec) for spec in specs])
        key = a_key(segment.segment_id)
        self.runner.run(self.sequencer.reservations.reserve({segment.segment_id: key}, lease_s, "test"))
        self.model.segments[segment.segment_id] = ModelSegment(object_key=key)
        if lease_s < 0:
            self.expired.add(segment.segment_id)
        return segment

    # Operations, alone and at once

    @rule(data=st.data())
    def alone(self, data: st.DataObject) -> None:
        self._run_at_once([self._operation(data)])

    @rule(data=st.data(), count=st.integers(2, 3))
    def at_once(self, data: st.DataObject, count: int) -> None:
        self._run_at_once([self._operation(data) for _ in range(count)])

    def _run_at_once(self, operations: list[Operation]) -> None:
        if len({operation.name for operation in operations if isinstance(operation, DeleteTopic)}) < sum(
            isinstance(operation, DeleteTopic) for operation in operations
        ):
            return  # the second deletion of a topic is an error, which another test asks for
        answers = self.runner.run(self._perform(operations))
        found = self.runner.run(self._look_at_partitions())
        differences = []
        for order in itertools.permutations(range(len(operations))):
            model = copy.deepcopy(self.model)
            pairs = [(expected(model, operations[i], answers[i]), answers[i]) for i in order]
            pairs.extend([(log_starts_in(said), log_starts_in(answer)) for said, answer in pairs])
            pairs.append((all_partitions(model), found))
            difference = next((pair for pair in pairs if pair[0] != pair[1]), None)
            if difference is None:
                self.model = model
                break
            differences.append(
                f"in order {order} the model says\n{difference[0]}\nand Postgres\n{difference[1]}"
            )
        else:
            raise AssertionError("\n".join(differences))
        self._forget(operations)

    @precondition(lambda self: self._expired_reservations())
    @rule()
    def doom_everything_expired(self) -> None:
        waiting = self._expired_reservations()
        doomed = self.runner.run(perform(self.clients, Doom()))
        assert set(doomed) & self.model.segments.keys() == waiting
        self.model.doom(sorted(waiting))

    # Questions

    @rule(place=st.integers(0, 5), back=st.integers(0, 8), max_runs=st.integers(1, 4))
    def read_from_anywhere(self, place: int, back: int, max_runs: int) -> None:
        key = self.places[place % len(self.places)]
        from_offset = Offset(max(0, self.model.partitions[key].end - back))
        request = CoordinateRequest(
            topic_id=key[0], partition=key[1], from_offset=from_offset, max_runs=max_runs
        )
        answer = self.runner.run(self.sequencer.coordinates.read([request]))
        assert answer.get(key) == self.model.read(key, from_offset, max_runs)

    @rule(back=st.integers(0, 8), log_start_known=st.booleans(), epoch_known=st.booleans())
    def poll_everything(self, back: int, log_start_known: bool, epoch_known: bool) -> None:
        known, expected = [], {}
        for key, partition in self.model.partitions.items():
            end = KnownEnd(
                topic_id=key[0],
                partition=key[1],
                known_end=Offset(max(0, partition.end - back)),
                log_start_offset=Offset(partition.log_start if log_start_known else partition.log_start + 1),
                coordinate_epoch=partition.epoch if epoch_known else partition.epoch + 1,
            )
            known.append(end)
            if not (partition.live and end.known_end == partition.end and log_start_known and epoch_known):
                expected[key] = self.model.read(key, end.known_end, MANY_RUNS)
        assert self.runner.run(self.sequencer.coordinates.poll(known, MANY_RUNS)) == expected

    @rule(place=st.integers(0, 5), timestamp_ms=st.integers(-1, 41), back=st.integers(0, 8))
    def look_up_a_time(self, place: int, timestamp_ms: int, back: int) -> None:
        key = self.places[place % len(self.places)]
        from_offset = Offset(max(0, self.model.partitions[key].end - back))
        lookup = self.sequencer.coordinates.candidate_run_for_timestamp(*key, timestamp_ms, from_offset)
        assert self.runner.run(lookup) == self.model.first_run_at(key, timestamp_ms, from_offset)

    @invariant()
    def runs_tile_the_log(self) -> None:
        for partition in self.model.partitions.values():
            ends = [run.last_offset + 1 for run in partition.runs]
            assert [run.base_offset for run in partition.runs[1:]] == ends[:-1]

    # Building

    def _expired_reservations(self) -> set[SegmentId]:
        return {s for s in self.expired if self.model.segments[s].state == "reserved"}

    def _operation(self, data: st.DataObject) -> Operation:
        kind = data.draw(st.sampled_from(OPERATIONS))
        live = sorted(name for name, keys in self.topics.items() if self.model.partitions[keys[0]].live)
        if kind == "doom":
            return Doom()
        if kind == "log start":
            key = data.draw(st.sampled_from(self.places))
            partition = self.model.partitions[key]
            return MoveLogStart(key=key, before=Offset(max(0, partition.end - data.draw(st.integers(-1, 6)))))
        if kind == "delete" and live:
            name = data.draw(st.sampled_from(live))
            return DeleteTopic(name=name, keys=self.topics[name])
        picked = []
        if kind == "again" and (self.tried or self.uncommitted):
            older = [*self.tried[-8:], *self.uncommitted]
            picked = [
                older[i]
                for i in sorted(data.draw(st.sets(st.integers(0, len(older) - 1), min_size=1, max_size=3)))
            ]
        if kind != "again" or not picked or data.draw(st.booleans()):
            specs = data.draw(st.lists(SEGMENT_SPECS, min_size=1, max_size=2))
            picked.extend(self._reserved(batches, data.draw(LEASES_S)) for batches in specs)
        if data.draw(st.integers(0, 19)) == 0:
            # Never reserved.
            picked.append(a_segment([self._batch(spec) for spec in data.draw(SEGMENT_SPECS)]))
        cut_after = data.draw(st.floats(0, 4)) if kind == "cut" else None
        return Commit(segments=tuple(picked), interrupted_after_ms=cut_after)

    def _batch(self, spec: BatchSpec) -> ABatch:
        key = self.places[spec.place % len(self.places)]
        producer_id = self.producers[spec.producer]
        if producer_id == NO_PRODUCER_ID:
            return ABatch(
                topic_id=key[0], partition=key[1], records=spec.records, timestamp_ms=spec.timestamp_ms
            )
        everything = self.everything_sent.setdefault((key, producer_id), [])
        if spec.sequence == "again" and everything:
            return everything[-1 - spec.timestamp_ms % min(7, len(everything))]
        sent = self.sent.setdefault((key, producer_id), [])
        epoch, following = (
            (sent[-1].epoch, (sent[-1].sequence + sent[-1].records) % SEQUENCES) if sent else (0, 0)
        )
        epoch = max(0, epoch + spec.epoch_step)
        sequence = 0 if spec.epoch_step > 0 else following
        sequence = {"skip": (sequence + 5) % SEQUENCES, "zero": 0, "none": -1}.get(spec.sequence, sequence)
        batch = ABatch(
            topic_id=key[0],
            partition=key[1],
            records=spec.records,
            timestamp_ms=spec.timestamp_ms,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
        )
        if spec.sequence in ("next", "again") and spec.epoch_step >= 0:
            sent.append(batch)
        everything.append(batch)
        return batch

    async def _perform(self, operations: Sequence[Operation]) -> list[Any]:
        return await asyncio.gather(*(perform(self.clients, operation) for operation in operations))

    async def _look_at_partitions(self) -> list[Any]:
        keys = list(self.model.partitions)
        requests = [
            CoordinateRequest(topic_id=key[0], partition=key[1], from_offset=Offset(0), max_runs=MANY_RUNS)
            for key in keys
        ]
        coordinates = await self.sequencer.coordinates.read(requests)
        bounds = await self.sequencer.coordinates.bounds(keys)
        return [(coordinates.get(key), bounds.get(key)) for key in keys]

    def _forget(self, operations: Sequence[Operation]) -> None:
        tried = {
            s.segment_id: s
            for operation in operations
            if isinstance(operation, Commit)
            for s in operation.segments
        }
        self.uncommitted = [segment for segment in self.uncommitted if segment.segment_id not in tried]
        known = {segment.segment_id for segment in self.tried}
        self.tried.extend(segment for segment_id, segment in tried.items() if segment_id not in known)
        for key, producer_id in self.sent:
            # A producer goes on from what was accepted; what lies between is rejected, as the model says.
            state = self.model.partitions[key].producers.get(producer_id)
            self.sent[key, producer_id] = [] if state is None else [_last_accepted(key, producer_id, state)]


def _last_accepted(key: PartitionKey, producer_id: ProducerId, state: ModelProducer) -> ABatch:
    base_sequence, last_sequence, _, _ = state.accepted[-1]
    return ABatch(
        topic_id=key[0],
        partition=key[1],
        records=(last_sequence - base_sequence) % SEQUENCES + 1,
        producer_id=producer_id,
        epoch=state.epoch,
        sequence=base_sequence,
    )


def judged_request(segments: Sequence[SegmentToCommit]) -> CommitRequest:
    """As if the client saw at once that not every batch can be accepted: `commit_segments` decides."""
    request = commit_request(segments)
    arrays = dict(zip(PARAMETERS, request.arrays, strict=True))
    arrays["run_first_batches"] = encoded_ints([])
    return replace(request, arrays=list(arrays.values()))


@pytest.mark.parametrize(
    "request_of", [commit_request, judged_request], ids=["in turn where it can be", "judged"]
)
def test_every_answer_is_the_models_whatever_the_connections_do(
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

        class Machine(SequencerMachine):
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
                    phases=[
                        Phase.explicit,
                        Phase.reuse,
                        Phase.generate,
                    ],  # shrinking takes minutes; add it by hand
                    suppress_health_check=list(HealthCheck),
                ),
            )
            for client in (clients.steady, clients.shaky):
                assert client.database.counters.deadlocks == 0, "the lock order was broken"
                assert client.database.counters.serialization_failures == 0
        finally:
            runner.run(clients.steady.close())
            runner.run(clients.shaky.close())
