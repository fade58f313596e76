"""Log compaction by agents: what a consumer reads from the start is what a model says, at every moment."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from compactor.cleaning import Cleaner, CleaningDiscoveryJob
from compactor.cleaning_rules import MOST_MARKS, is_due, tombstones_to, with_mark
from compactor.doctor import DoctorSettings, examine
from compactor.journal_writer import JournalWriter
from compactor.metrics import CleaningMetrics
from sequencer.client import Sequencer
from sequencer.housekeeping.cleanings import CleaningState, CleanMark, RunToClean
from sequencer.topics.topic_config import TopicConfig
from storage.arrow.arrow_columns import decode_batches
from storage.arrow.latest_keys import LatestKeys
from storage.batches.record_batch import Compression
from storage.identifiers import Offset, Partition, TopicId
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER
from tests.compactor.builders import settings as small_steps
from tests.compactor.merging import merge_everything
from tests.compactor.sealing import Sealing
from tests.spark_compaction.log import Log, Sent, one
from tests.support.seeds import seeds

NO_GRACE = {"garbage_grace_s": 1e-4, "ownership_ratchet_s": 1e-5}
NOTHING_LATER = {"min.cleanable.dirty.ratio": "0", "cleanup.policy": "compact"}
Row = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


@dataclass(kw_only=True)
class Place:
    """A compacted topic and who cleans it."""

    sequencer: Sequencer
    store: ObjectStore
    log: Log
    sealing: Sealing | None = None
    written: list[Row] = field(default_factory=list)
    settings: Mapping[str, object] = field(default_factory=lambda: NO_GRACE)
    topic_id: TopicId = field(init=False)

    async def topic(self, **config: str) -> None:
        given = {**NOTHING_LATER, **{name.replace("_", "."): value for name, value in config.items()}}
        if self.sealing is not None:
            given["tidelog.encryption"] = "on"
        topic = await self.sequencer.topics.create("orders", 1, given)
        self.topic_id = self.log.topic_ids["orders"] = topic.topic_id
        if self.sealing is not None:
            await self.sealing.begin(topic.topic_id)
        self.log.expected["orders"] = []

    async def write(
        self, *pairs: tuple[bytes | None, bytes | None], timestamp_ms: int = 1_700_000_000_000
    ) -> None:
        """One segment with one batch."""
        sent = [Sent(key=key, value=value, timestamp_ms=timestamp_ms) for key, value in pairs]
        seal = None if self.sealing is None else self.sealing.next_key()
        self.log.sealing = {} if seal is None else {"orders": seal}
        await self.log.write("orders", one(0, *sent, compression=Compression.LZ4))
        for key, value in pairs:
            self.written.append((len(self.written), key, value))

    def cleaner(self, **changed: object) -> Cleaner:
        own = small_steps(**{**self.settings, **changed})
        metrics = CleaningMetrics(CollectorRegistry())
        keys = None if self.sealing is None else self.sealing.keys
        return Cleaner(self.sequencer, self.store, CLUSTER, own, metrics, keys=keys)

    async def discover(self) -> int:
        """How many partitions are due."""
        job = CleaningDiscoveryJob(self.sequencer, small_steps(**self.settings))
        progress, due = None, 0
        while True:
            step = await job.step(progress)
            due, progress = due + step.done["due"], step.progress
            if not step.more:
                return due

    async def clean(self, **changed: object) -> bool:
        """False if nothing was due."""
        await self.discover()
        return await self.cleaner(**changed).clean_once()

    async def read(self, start: int = 0) -> list[Row]:
        """What lies in the runs, which tile the offsets."""
        key = (self.topic_id, Partition(0))
        end = (await self.sequencer.coordinates.bounds([key]))[key].high_watermark
        runs = await self.sequencer.cleanings.runs(key, Offset(start), end, 10_000)
        rows: list[Row] = []
        reached: int = runs[0].run.base_offset if runs else end
        for each in runs:
            run = each.run
            assert run.base_offset == reached
            reached = run.last_offset + 1
            data = await self.bytes_of(each)
            found = decode_batches(data, 0, len(data), run.base_offset).to_pylist()
            rows += [(row["offset"], row["key"], row["value"]) for row in found]
        assert reached == end
        return rows

    async def bytes_of(self, each: RunToClean) -> memoryview:
        """The run's batches, in the clear."""
        run = each.run
        data = await self.store.get(each.object_key, run.position, run.position + run.length)
        return memoryview(data) if self.sealing is None else await self.sealing.opened(self.topic_id, data)

    async def is_healthy(self) -> bool:
        diagnosis = await examine(self.sequencer, self.store, CLUSTER, True, DoctorSettings())
        print(diagnosis)
        return diagnosis.is_healthy

    async def let_time_pass(self, seconds: float) -> None:
        """As if the marks were older."""
        await self.sequencer.database.run(
            "UPDATE cleanings SET marks_ms = "
            "ARRAY(SELECT m - %(ms)s FROM unnest(marks_ms) WITH ORDINALITY AS d (m, n) ORDER BY n)",
            ms=int(seconds * 1000),
        )


@pytest.fixture
def place(sequencer: Sequencer, store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    is_sealed = getattr(request, "param", "clear") == "sealed"
    sealing = Sealing(sequencer, store, tmp_path) if is_sealed else None
    log = Log(sequencer=sequencer, store=store)
    return Place(sequencer=sequencer, store=store, log=log, sealing=sealing)


clear_and_sealed = pytest.mark.parametrize("place", ["clear", "sealed"], indirect=True)


def latest(rows: Sequence[Row], end: int | None = None) -> list[Row]:
    """The last row of each key, tombstones too, of those below `end`, and all others."""
    end = len(rows) if end is None else end
    last = {key: offset for offset, key, _ in rows if offset < end}
    return [row for row in rows if row[0] >= end or (row[1] is not None and last[row[1]] == row[0])]


@clear_and_sealed
async def test_the_latest_record_of_each_key_stays_where_it_is(place: Place) -> None:
    await place.topic()
    await place.write((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    await place.write((b"b", None), (b"c", b"1"), (b"", b"empty key"))
    await place.write((b"c", b"2"), (b"", b"again"))

    assert await place.clean()

    assert await place.read() == [(2, b"a", b"2"), (3, b"b", None), (6, b"c", b"2"), (7, b"", b"again")]
    assert not await place.clean()  # nothing is dirty
    assert await place.is_healthy()


@clear_and_sealed
async def test_tombstones_go_once_they_were_clean_for_their_time(place: Place) -> None:
    await place.topic(delete_retention_ms="60000")
    await place.write((b"a", b"1"), (b"b", b"1"), (b"a", None))
    assert await place.clean()
    assert await place.read() == [(1, b"b", b"1"), (2, b"a", None)]
    assert not await place.clean()

    await place.let_time_pass(61)

    assert await place.clean()  # without anything dirty
    assert await place.read() == [(1, b"b", b"1")]
    assert not await place.clean()
    await place.write((b"c", b"1"), (b"b", None))
    assert await place.clean()
    assert await place.read() == [(3, b"c", b"1"), (4, b"b", None)]  # a new tombstone waits by itself
    assert await place.is_healthy()


async def test_tombstones_stay_as_long_as_agents_may_read_what_was_there_before(place: Place) -> None:
    place.settings = {"garbage_grace_s": 600}
    await place.topic(delete_retention_ms="0")
    await place.write((b"a", b"1"), (b"b", b"1"), (b"a", None))
    assert await place.clean()
    await place.let_time_pass(590)
    assert not await place.clean()

    await place.let_time_pass(11)

    assert await place.clean()
    assert await place.read() == [(1, b"b", b"1")]


@clear_and_sealed
async def test_records_younger_than_the_lag_stay(place: Place) -> None:
    now_ms = int(time.time() * 1000)
    await place.topic(min_compaction_lag_ms="3600000")
    await place.write((b"a", b"1"), (b"a", b"2"), timestamp_ms=now_ms - 7_200_000)
    await place.write((b"a", b"3"), (b"b", b"1"), timestamp_ms=now_ms)
    await place.write((b"b", b"2"), timestamp_ms=now_ms - 7_200_000)

    assert await place.clean()

    assert await place.read() == latest(place.written, end=2)
    await place.clean()
    assert await place.read() == latest(place.written, end=2)


async def test_a_log_is_cleaned_when_enough_of_it_is_dirty_or_waited_too_long(place: Place) -> None:
    now_ms = int(time.time() * 1000)
    await place.topic(min_cleanable_dirty_ratio="0.5", max_compaction_lag_ms="3600000")
    values = [(b"%d" % number, random.randbytes(2000)) for number in range(20)]
    await place.write(*values, timestamp_ms=now_ms)
    assert await place.clean()
    await place.write((b"1", b"x"), timestamp_ms=now_ms)
    assert not await place.clean()  # a thousandth of it

    await place.write((b"2", b"x"), timestamp_ms=now_ms - 7_200_000)  # not the oldest
    assert not await place.clean()
    await place.write(*values, timestamp_ms=now_ms)
    assert await place.clean()
    await place.write((b"3", b"x"), timestamp_ms=now_ms - 7_200_000)
    assert await place.clean()
    assert await place.read() == latest(place.written)


async def test_a_cleaning_of_one_pass_lists_its_dirty_runs_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists all runs once more when it goes over the log, and looks at each stretch before it is
    swapped."""
    await place.topic()
    for number in range(20):
        await place.write((b"a", f"{number}".encode()))
    listed: list[int] = []
    runs = place.sequencer.cleanings.runs

    async def noted(*asked: Any) -> Sequence[RunToClean]:
        found = await runs(*asked)
        listed.extend(each.run.base_offset for each in found)
        return found

    monkeypatch.setattr(place.sequencer.cleanings, "runs", noted)
    assert await place.clean()

    assert listed == [*range(20)] * 3
    monkeypatch.undo()
    assert await place.read() == [(19, b"a", b"19")]


async def test_a_cleaning_ends_before_the_first_run_that_the_journal_does_not_have(place: Place) -> None:
    await place.topic()
    await place.sequencer.ownership.ratchet(place.store, CLUSTER)
    journal = JournalWriter(place.sequencer, place.store, CLUSTER, small_steps())
    await place.write((b"a", b"1"))
    await place.write((b"a", b"2"))
    await journal.write_entry()
    await place.write((b"a", b"3"))
    await place.write((b"b", b"4"))

    assert await place.clean()
    assert await place.read() == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"b", b"4")]
    await place.clean()
    assert await place.read() == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"b", b"4")]
    await journal.write_entry()
    assert await place.clean()
    assert await place.read() == [(2, b"a", b"3"), (3, b"b", b"4")]


@clear_and_sealed
async def test_more_keys_than_fit_take_several_passes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.topic()
    chance = random.Random(3)
    for _ in range(10):
        await place.write(*((b"%d" % chance.randrange(300), b"%d" % chance.random()) for _ in range(60)))
    passes = 0
    next_pass = LatestKeys.next_pass

    def counted(latest: LatestKeys) -> bool:
        nonlocal passes
        passes += 1
        return next_pass(latest)

    monkeypatch.setattr(LatestKeys, "next_pass", counted)
    assert await place.clean(clean_keys_bytes=1024)

    assert passes >= 16  # of 22 keys at most
    assert await place.read() == latest(place.written)
    assert not await place.clean()


async def test_a_cleaning_of_too_many_passes_ends_earlier_and_the_next_one_goes_on(place: Place) -> None:
    await place.topic()
    for number in range(20):
        await place.write(*((b"%d" % key, b"%d" % number) for key in range(60 * number, 60 * number + 90)))
    small = {"clean_keys_bytes": 1024, "merge_run_bytes": 1024}  # 22 keys at most
    reached = []
    while await place.clean(**small):
        state = (await place.sequencer.cleanings.page((place.topic_id, Partition(-1)), 1))[0]
        reached.append(state.clean_to)
        assert {row[1:] for row in latest(place.written)} <= {row[1:] for row in await place.read()}

    assert len(reached) >= 3
    assert reached == sorted(set(reached))
    assert reached[-1] == len(place.written)
    assert await place.read() == latest(place.written)


@pytest.mark.parametrize("run_bytes", [1024, 1 << 20])
@clear_and_sealed
async def test_stretches_that_are_merged_meanwhile_are_cleaned_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    """A merge may also join the runs of several stretches."""
    await place.topic()
    for number in range(16):
        await place.write((b"a", random.randbytes(500)), (b"%d" % number, b"own"))
    publish = place.sequencer.merges.publish
    merged: list[int] = []

    async def merge_first(*given: object, **named: object) -> object:
        if not merged:
            merged.append(0)
            merged[0] = await merge_everything(place.sequencer, place.store)
        return await publish(*given, **named)  # type: ignore[arg-type]

    cleaner = place.cleaner(merge_run_bytes=run_bytes)
    await place.discover()
    monkeypatch.setattr(place.sequencer.merges, "publish", merge_first)

    assert await cleaner.clean_once()

    assert merged[0] > 0
    assert await place.read() == latest(place.written)
    assert not await place.clean()
    assert await place.is_healthy()


@clear_and_sealed
async def test_a_cleaning_that_is_killed_between_two_objects_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.topic(delete_retention_ms="0")
    for number in range(30):
        await place.write((b"%d" % (number % 7), random.randbytes(900)), (b"dead", None))
    publish = place.sequencer.merges.publish
    published: list[int] = []

    async def third(*given: object, **named: object) -> object:
        published.append(1)
        if len(published) == 3:
            raise asyncio.CancelledError
        return await publish(*given, **named)  # type: ignore[arg-type]

    small = {"merge_run_bytes": 2048, "merge_object_bytes": 2048}
    await place.discover()
    monkeypatch.setattr(place.sequencer.merges, "publish", third)
    with pytest.raises(asyncio.CancelledError):
        await place.cleaner(**small).clean_once()
    monkeypatch.undo()

    half = await place.read()
    assert set(latest(place.written)) <= set(half) < set(place.written)
    assert await place.clean(**small)
    assert await place.read() == latest(place.written)
    await place.let_time_pass(1)
    assert await place.clean(**small)  # the tombstone, whose time is over
    assert await place.read() == [row for row in latest(place.written) if row[2] is not None]
    assert await place.is_healthy()


async def test_two_cleaners_clean_two_partitions_and_never_one(place: Place) -> None:
    await place.topic()
    await place.write((b"a", b"1"), (b"a", b"2"))
    await place.discover()

    done = await asyncio.gather(*(place.cleaner().clean_once() for _ in range(4)))

    assert sorted(done) == [False, False, False, True]
    assert await place.read() == [(1, b"a", b"2")]


@clear_and_sealed
async def test_a_damaged_run_stays_and_the_rest_is_cleaned(place: Place) -> None:
    await place.topic()
    for number in range(3):
        await place.write((b"a", b"%d" % number), (b"b", b"%d" % number))
    key = (place.topic_id, Partition(0))
    [_, middle, _] = await place.sequencer.cleanings.runs(key, Offset(0), Offset(6), 10)
    data = bytearray(await place.store.get(middle.object_key))
    data[middle.run.position + middle.run.length - 1] ^= 1
    await place.store.put(middle.object_key, [bytes(data)])

    assert await place.clean(merge_run_bytes=1024)  # a stretch per run would be smaller yet

    runs = await place.sequencer.cleanings.runs(key, Offset(0), Offset(6), 10)
    assert middle.object_key in {run.object_key for run in runs}


async def test_keyless_records_of_earlier_days_go(place: Place) -> None:
    await place.topic(cleanup_policy="delete")
    await place.write((None, b"1"), (b"a", b"1"), (None, b"2"))
    assert not await place.clean()  # it is no compacted topic
    await place.sequencer.topics.alter_config("orders", NOTHING_LATER)

    assert await place.clean()
    assert await place.read() == [(1, b"a", b"1")]

    await place.sequencer.topics.alter_config("orders", {"cleanup.policy": "delete"})
    await place.write((b"a", b"2"), (b"a", b"3"))
    assert not await place.clean()
    assert len(await place.read()) == 3


async def test_a_deleted_topic_leaves_nothing(place: Place) -> None:
    await place.topic()
    await place.write((b"a", b"1"), (b"a", b"2"))
    await place.discover()
    await place.sequencer.topics.delete("orders")

    assert not await place.cleaner().clean_once()


@pytest.mark.timeout(300)
@clear_and_sealed
async def test_random_logs_read_as_the_model_says(place: Place) -> None:
    [seed] = seeds(1)
    chance = random.Random(seed)
    await place.topic(delete_retention_ms="100000")
    gone_to = 0
    for _ in range(40):
        what = chance.choice(("write", "write", "write", "clean", "clean", "merge", "delete", "age"))
        if what == "write":
            for _ in range(chance.randint(1, 4)):
                await place.write(*(a_pair(chance) for _ in range(chance.choice((1, 3, 40)))))
        elif what == "clean":
            sizes = {
                "merge_run_bytes": chance.choice((1024, 4096)),
                "merge_object_bytes": chance.choice((4096, 1 << 20)),
                "clean_keys_bytes": chance.choice((1024, 1 << 20)),
            }
            while await place.clean(**sizes):
                pass
        elif what == "merge":
            await merge_everything(place.sequencer, place.store)
        elif what == "age":
            await place.let_time_pass(chance.choice((1, 101)))
        elif place.written:
            gone_to = chance.randint(gone_to, len(place.written))
            await place.sequencer.retention.delete_records(place.topic_id, Partition(0), Offset(gone_to))
        found = await place.read(gone_to)
        found = [row for row in found if row[0] >= gone_to]
        state = (await place.sequencer.cleanings.page((place.topic_id, Partition(-1)), 1))[0]
        # Every record is as written; of the clean part each key's last one is there, unless it is a
        # tombstone, and nothing that is not the last.
        below = [row for row in place.written if row[0] < state.clean_to]
        must = [row for row in latest(below) if row[0] >= gone_to]
        dirty = [row for row in place.written if row[0] >= max(gone_to, state.clean_to)]
        kept = [row for row in found if row[0] < state.clean_to]
        assert [row for row in found if row[0] >= state.clean_to] == dirty, (seed, what)
        assert [row for row in kept if row[2] is not None] == [row for row in must if row[2] is not None], (
            seed,
            what,
        )
        assert set(kept) <= set(must), (seed, what)
    assert await place.is_healthy()


def a_pair(chance: random.Random) -> tuple[bytes | None, bytes | None]:
    key = b"%d" % chance.randrange(chance.choice((3, 30, 300)))
    return key, chance.choice((None, b"", chance.randbytes(chance.choice((3, 100)))))


# --- the rules


def a_state(**changed: object) -> CleaningState:
    state = CleaningState(
        topic_id=TopicId(UUID(int=1)),
        partition=Partition(0),
        config={},
        log_start_offset=Offset(0),
        local_start_offset=Offset(0),
        high_watermark=Offset(100),
        cleanable_to=Offset(100),
        size_bytes=1000,
        clean_to=Offset(50),
        clean_bytes=500,
        marks=(),
        oldest_tombstone=None,
        now_ms=1_000_000,
        oldest_dirty_ms=None,
    )
    return replace(state, **changed)  # type: ignore[arg-type]


def test_the_rules_at_their_bounds() -> None:
    config = TopicConfig.of({"cleanup.policy": "compact", "delete.retention.ms": "1000"})
    assert is_due(a_state(clean_bytes=499), config)
    assert not is_due(a_state(), config)
    assert not is_due(a_state(high_watermark=Offset(50)), config)
    assert not is_due(a_state(log_start_offset=Offset(100)), config)
    marks = (CleanMark(offset=Offset(20), since_ms=999_000), CleanMark(offset=Offset(50), since_ms=999_001))
    assert tombstones_to(a_state(marks=marks), config) == 20
    assert tombstones_to(a_state(marks=marks, local_start_offset=Offset(1)), config) == 0
    assert is_due(a_state(marks=marks, oldest_tombstone=Offset(19), clean_bytes=999), config)
    assert not is_due(a_state(marks=marks, oldest_tombstone=Offset(20), clean_bytes=999), config)


def test_marks_are_few_and_never_say_more_than_was_clean() -> None:
    config = TopicConfig.of({"cleanup.policy": "compact", "delete.retention.ms": "100000"})
    chance = random.Random(1)
    state, cleaned = a_state(marks=(), now_ms=0), []
    for number in range(1, 200):
        now_ms = state.now_ms + chance.randrange(1, 3000)
        cleaned.append((number, now_ms))
        state = replace(state, now_ms=now_ms)
        state = replace(state, marks=tuple(with_mark(state, Offset(number), now_ms, config)))
        assert len(state.marks) <= MOST_MARKS
        assert state.marks[-1] == CleanMark(offset=Offset(number), since_ms=now_ms)
        may_go = tombstones_to(state, config)
        assert may_go <= max((to for to, at in cleaned if at <= now_ms - 100_000), default=0)
        if now_ms > 150_000:
            assert may_go > max((to for to, at in cleaned if at <= now_ms - 130_000), default=0) - 20
