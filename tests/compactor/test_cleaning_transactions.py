"""Log compaction with transactions: before, during and after each cleaning, consumers of committed data and
all others read what a model says.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from agent.read_path.slice_batches import take_committed
from cache_ring.pages.run_bytes import RunBytes
from compactor.garbage_jobs import GarbageScanJob
from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Committed, SegmentToCommit
from sequencer.commits.coordinates import CoordinateRequest, PartitionCoordinates, RunCoordinate
from sequencer.commits.transactions import ProducerOfTransactions
from storage.arrow.aborted_batches import AbortedTransaction
from storage.arrow.arrow_columns import RECORD_SCHEMA, decode_batches, encode_batch
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import CRC_START, Compression, read_header, write_header
from storage.identifiers import ObjectKey, Offset, Partition, new_segment_id
from storage.segments.keys import is_inline, segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.inline_objects import InlineObjects
from storage.stores.object_store import ObjectNotFound, ObjectStore
from tests.compactor.builders import CLUSTER
from tests.compactor.builders import settings as small_steps
from tests.compactor.merging import merge_everything
from tests.compactor.sealing import Sealing
from tests.compactor.test_cleaning import NOTHING_LATER, Place, Row, a_pair, clear_and_sealed
from tests.compactor.test_garbage_jobs import finish
from tests.sequencer.commits.test_transactions import a_producer, end, of
from tests.sequencer.housekeeping.housekeeping import count
from tests.spark_compaction.log import LEASE_S, Log, sealed
from tests.support.seeds import seeds

_TRANSACTIONAL = 0x10
_ABORT_KEY = b"\x00\x00\x00\x00"
Pair = tuple[bytes | None, bytes | None]


@dataclass(kw_only=True, eq=False)
class Writer:
    """A producer with a transactional id."""

    producer: ProducerOfTransactions
    sequence: int = 0
    open_rows: list[Row] = field(default_factory=list)
    """Of the transaction that is open."""


@dataclass(kw_only=True)
class Transactions(Place):
    """A compacted topic with transactions, and the model of what is in it."""

    rows: list[Row] = field(default_factory=list)
    """All records; offsets have gaps where markers are."""
    aborted: set[int] = field(default_factory=set)
    """Offsets of records of transactions that were aborted."""
    ever_aborted: list[AbortedTransaction] = field(default_factory=list)
    """Also those that were forgotten, which agents may still know."""
    unstable: dict[int, Writer] = field(default_factory=dict)
    """The first offset of each open transaction."""
    lost: dict[ObjectKey, bytes] = field(default_factory=dict)
    """What was in objects that are gone."""

    async def a_writer(self, name: str) -> Writer:
        return Writer(producer=await a_producer(self.sequencer, name))

    async def send(
        self,
        writer: Writer | None,
        *pairs: Pair,
        size: int | None = None,
        timestamp_ms: int = 1_700_000_000_000,
    ) -> None:
        """A segment with a batch of these records, or with several of `size`. Without a writer, they are in
        no transaction."""
        key = (self.topic_id, Partition(0))
        if writer is not None:
            await self.sequencer.transactions.add(writer.producer, [key])
        step = size or len(pairs)
        batches = [
            self._batch(writer, pairs[at : at + step], timestamp_ms) for at in range(0, len(pairs), step)
        ]
        segment_id = new_segment_id()
        object_key = segment_key(CLUSTER, segment_id)
        await self.sequencer.reservations.reserve({segment_id: object_key}, LEASE_S, "test")
        segment = seal_segment(segment_id, "test", PendingBatches.of(batches))
        await self.store.put(object_key, segment.chunks)
        [committed] = await self.sequencer.commits.commit(
            [SegmentToCommit(segment_id=segment_id, size_bytes=segment.size_bytes, batches=segment.placed)]
        )
        assert isinstance(committed, Committed)
        first = committed.outcomes[0]
        assert isinstance(first, Assigned), first
        rows = [(first.base_offset + number, *pair) for number, pair in enumerate(pairs)]
        self.rows += rows
        if writer is not None:
            if not writer.open_rows:
                self.unstable[first.base_offset] = writer
            writer.open_rows += rows

    def _batch(self, writer: Writer | None, pairs: Sequence[Pair], timestamp_ms: int) -> PendingBatch:
        encoded = encode_batch(records_of(pairs, timestamp_ms), Compression.LZ4)
        if writer is not None:
            encoded = transactional(encoded, writer)
            writer.sequence += len(pairs)
        valid = validate_produced(encoded, BatchLimits())
        pending = PendingBatch(topic_id=self.topic_id, partition=Partition(0), batch=valid)
        key = None if self.sealing is None else self.sealing.next_key()
        return pending if key is None else sealed(pending, key)

    async def end(self, writer: Writer, *, is_commit: bool) -> None:
        if not writer.open_rows:
            return
        ended = await end(self.sequencer, writer.producer, is_commit=is_commit)
        if not is_commit:
            self.aborted |= {offset for offset, _, _ in writer.open_rows}
            [marker], first = ended.markers, Offset(writer.open_rows[0][0])
            self.ever_aborted += [AbortedTransaction(marker.base_offset, first, writer.producer.producer_id)]
        del self.unstable[writer.open_rows[0][0]]
        writer.producer = of(writer.producer.transactional_id, ended.identity)
        writer.open_rows, writer.sequence = [], 0

    async def clean(self, **changed: object) -> bool:
        """A second after the last cleaning: what it called clean may go without a retention."""
        await self.let_time_pass(1)
        return await super().clean(**changed)

    async def lose(self, key: ObjectKey) -> None:
        """As if the object were damaged."""
        self.lost[key] = bytes(await self.store.get(key))
        await self.store.delete([key])

    async def find_again(self) -> None:
        for key, data in self.lost.items():
            await self.store.put(key, [data])
        await self.sequencer.database.run("DELETE FROM cleanings")

    # --- what consumers see

    async def look(self, from_offset: int = 0, max_runs: int = 10_000) -> PartitionCoordinates:
        request = CoordinateRequest(
            topic_id=self.topic_id,
            partition=Partition(0),
            from_offset=Offset(from_offset),
            max_runs=max_runs,
        )
        return (await self.sequencer.coordinates.read([request]))[self.topic_id, Partition(0)]

    async def consume(
        self, start: int, *, read_committed: bool, most_bytes: int = 1 << 20, is_stale: bool = False
    ) -> list[Row]:
        """What a client reads from `start` on, in responses of `most_bytes`. If `is_stale`, the agent still
        knows aborted transactions that were forgotten."""
        rows: list[Row] = []
        offset = start
        while True:
            view = await self.look(offset, 1 + most_bytes // 200)
            limit = view.last_stable_offset if read_committed else view.high_watermark
            if offset >= limit:
                return rows
            runs = [run_bytes(run, await self._bytes_of(run)) for run in view.runs]
            assert all(run is not None for run in runs)
            found = [run for run in runs if run is not None and run.run.base_offset < limit]
            known = self.ever_aborted if is_stale else view.aborted or ()
            overlapping = [entry for entry in known if entry.last_offset >= offset]
            out, aborted = take_committed(
                found,
                offset,
                limit,
                most_bytes,
                overlapping if read_committed else (),
                first_whatever_its_size=True,
            )
            data = b"".join(bytes(chunk) for chunk in out.chunks)
            rows += [row for row in client_rows(data, aborted) if row[0] >= offset]
            assert out.end_offset > offset
            offset = out.end_offset

    async def _bytes_of(self, run: RunCoordinate) -> bytes:
        key, at, length = run.object_key, run.position, run.length
        try:
            data = bytes(await self.store.get(key, at, at + length))
        except ObjectNotFound:
            data = self.lost[key][at : at + length]
        return data if self.sealing is None else bytes(await self.sealing.opened(self.topic_id, data))

    # --- the model

    def seen(self, *, read_committed: bool, end: int) -> list[Row]:
        """What was written below `end`, without what such readers do not see."""
        if not read_committed:
            return [row for row in self.rows if row[0] < end]
        stable = min([end, *self.unstable])
        return [row for row in self.rows if row[0] < stable and row[0] not in self.aborted]

    async def clean_to(self) -> int:
        [state] = await self.sequencer.cleanings.page((self.topic_id, Partition(-1)), 1)
        return state.clean_to

    async def check(
        self, seed: object, *, gone_to: int = 0, loose_to: int = 0, is_damaged: bool = False
    ) -> None:
        """Compares both sorts of readers with the model. Up to `loose_to` a cleaning may have removed what a
        later record replaces. Damage keeps records that should have gone."""
        end, clean_to = (await self.look()).high_watermark, await self.clean_to()
        committed = self.seen(read_committed=True, end=end)
        for read_committed in (True, False):
            written = self.seen(read_committed=read_committed, end=end)
            removed_to = max(clean_to, loose_to)
            kept = committed_below(committed, removed_to)
            must = [row for row in kept if row[2] is not None or row[0] >= clean_to]
            must += [row for row in written if row[0] >= removed_to]
            may = committed_below(committed, clean_to) + [row for row in written if row[0] >= clean_to]
            if is_damaged:
                may = written
            chance = random.Random(repr(seed))
            found = await self.consume(
                gone_to,
                read_committed=read_committed,
                most_bytes=chance.choice((1 << 20, 1 << 20, 2000, 400)),
                is_stale=chance.random() < 0.5,
            )
            assert found == sorted(set(found)), seed
            assert {row for row in must if row[0] >= gone_to} <= set(found), (seed, read_committed)
            assert set(found) <= set(may), (seed, read_committed)


def committed_below(committed: Sequence[Row], end: int) -> list[Row]:
    """The last committed record of each key below `end`."""
    last = {key: offset for offset, key, _ in committed if offset < end}
    return [row for row in committed if row[0] < end and last[row[1]] == row[0]]


def records_of(pairs: Sequence[Pair], timestamp_ms: int) -> pa.RecordBatch:
    fields = {"timestamp": timestamp_ms * 1000, "timestamp_type": 0, "headers": []}
    rows = [fields | {"offset": at, "key": key, "value": value} for at, (key, value) in enumerate(pairs)]
    return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)


def transactional(encoded: bytes, writer: Writer) -> bytes:
    header = read_header(encoded)
    changed = replace(
        header,
        attributes=header.attributes | _TRANSACTIONAL,
        producer_id=writer.producer.producer_id,
        producer_epoch=writer.producer.producer_epoch,
        base_sequence=writer.sequence,
    )
    body = encoded[len(write_header(header)) :]
    checked = crc32c((write_header(changed) + body)[CRC_START:])
    return write_header(replace(changed, crc=checked)) + body


def client_rows(data: bytes, aborted: Sequence[AbortedTransaction]) -> Iterator[Row]:
    """As Kafka's consumer does it (CompletedFetch): from the first offset of an entry on a producer's records
    are left out, until its marker comes."""
    waiting = sorted(aborted, key=lambda entry: entry.first_offset)
    producers: set[int] = set()
    position = 0
    while position < len(data):
        header = read_header(data, position)
        batch = data[position : position + header.size_bytes]
        position += header.size_bytes
        while waiting and waiting[0].first_offset <= header.base_offset + header.last_offset_delta:
            producers.add(waiting.pop(0).producer_id)
        if header.is_control:
            if _ABORT_KEY in batch[61:]:
                producers.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in producers:
            continue
        for row in decode_batches(batch, 0, len(batch), header.base_offset).to_pylist():
            yield row["offset"], row["key"], row["value"]


def run_bytes(run: RunCoordinate, data: bytes) -> RunBytes | None:
    """Opened batches are shorter than what lies in the segment."""
    return RunBytes.of(run._replace(length=len(data)), [memoryview(data)])


@pytest.fixture
async def place(
    sequencer: Sequencer, store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest
) -> Transactions:
    inline = InlineObjects(store)
    is_sealed = getattr(request, "param", "clear") == "sealed"
    sealing = Sealing(sequencer, store, tmp_path) if is_sealed else None
    log = Log(sequencer=sequencer, store=inline)
    return Transactions(sequencer=sequencer, store=inline, log=log, sealing=sealing)


async def markers(place: Transactions) -> list[int]:
    """The offsets of markers in the log."""
    found: list[int] = []
    for run in (await place.look()).runs:
        data, offset, position = await place._bytes_of(run), run.base_offset, 0
        while position < len(data):
            header = read_header(data, position)
            if header.is_control:
                found.append(offset)
            position, offset = position + header.size_bytes, Offset(offset + header.last_offset_delta + 1)
    return found


@clear_and_sealed
async def test_an_aborted_record_is_not_the_last_of_its_key_and_goes(place: Transactions) -> None:
    await place.topic()
    writer = await place.a_writer("tx")
    await place.send(writer, (b"a", b"committed"), (b"b", b"committed"))
    await place.end(writer, is_commit=True)
    await place.send(writer, (b"a", b"aborted"), (b"c", b"aborted"))
    await place.end(writer, is_commit=False)
    await place.send(None, (b"b", b"plain"))

    assert await place.clean()

    stays = [(0, b"a", b"committed"), (6, b"b", b"plain")]
    assert await place.consume(0, read_committed=True) == stays
    assert await place.consume(0, read_committed=False) == stays
    assert await markers(place) == [2, 5]
    assert await count(place.sequencer, "aborted_transactions") == 1
    assert not await place.clean()
    assert await place.is_healthy()


async def test_markers_and_entries_go_once_all_below_was_clean_for_its_time(place: Transactions) -> None:
    await place.topic(delete_retention_ms="60000")
    writer = await place.a_writer("tx")
    for number in range(6):
        await place.send(writer, (b"%d" % (number % 2), b"%d" % number))
        await place.end(writer, is_commit=number % 3 != 0)
    assert await place.clean()
    assert await markers(place) == [1, 3, 5, 7, 9, 11]
    assert not await place.clean()
    await place.send(writer, (b"new", b""))
    await place.end(writer, is_commit=False)

    await place.let_time_pass(61)
    assert await place.clean()

    assert await markers(place) == [13]
    assert await count(place.sequencer, "aborted_transactions") == 1
    await place.check("markers")
    assert await place.consume(0, read_committed=True) == [(8, b"0", b"4"), (10, b"1", b"5")]
    assert not await place.clean()
    assert await place.is_healthy()


async def test_an_agent_that_knows_a_forgotten_abort_hides_no_later_transaction(place: Transactions) -> None:
    await place.topic(delete_retention_ms="0")
    writer = await place.a_writer("tx")
    await place.send(writer, (b"a", b"aborted"))
    await place.end(writer, is_commit=False)
    assert await place.clean()
    assert await place.clean()
    assert await count(place.sequencer, "aborted_transactions") == 0
    await place.send(writer, (b"a", b"committed"))
    await place.end(writer, is_commit=True)

    assert await place.consume(0, read_committed=True, is_stale=True) == [(2, b"a", b"committed")]


async def test_nothing_beyond_the_last_stable_offset_is_touched(place: Transactions) -> None:
    await place.topic(delete_retention_ms="0")
    one, other = await place.a_writer("one"), await place.a_writer("other")
    await place.send(None, (b"a", b"1"), (b"a", b"2"))
    await place.send(one, (b"a", b"open"), (b"a", b"open, too"))
    await place.send(other, (b"a", b"aborted"))
    await place.end(other, is_commit=False)
    await place.send(None, (b"a", b"3"), (b"a", b"4"))

    assert await place.clean()
    assert await place.clean_to() == 2
    assert await place.consume(0, read_committed=True) == [(1, b"a", b"2")]
    assert len(await place.consume(0, read_committed=False)) == 6
    assert not await place.clean()

    await place.end(one, is_commit=True)
    assert await place.clean()
    assert await place.consume(0, read_committed=True) == [(7, b"a", b"4")]


@clear_and_sealed
async def test_runs_that_a_merge_joins_across_the_end_keep_their_transactions(
    place: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.topic(delete_retention_ms="0")
    one = await place.a_writer("one")
    for _ in range(6):
        await place.send(None, (b"a", random.randbytes(300)), (b"b", None))
    for number in range(6):
        await place.send(one, (b"a", b"open %d" % number))
        await place.send(None, (b"a", random.randbytes(300)))
    publish = place.sequencer.merges.publish
    merged = 0

    async def merge_first(*given: object, **named: object) -> object:
        nonlocal merged
        monkeypatch.undo()
        merged = await merge_everything(place.sequencer, place.store)
        return await publish(*given, **named)  # type: ignore[arg-type]

    await place.discover()
    monkeypatch.setattr(place.sequencer.merges, "publish", merge_first)

    assert await place.cleaner().clean_once()

    assert merged
    assert await place.clean_to() == 12
    first = (await place.look()).runs[0]
    assert first.base_offset == 0
    assert first.last_offset > 12
    await place.check("joined")
    assert len(await place.consume(0, read_committed=True)) == 2
    await place.end(one, is_commit=False)
    await place.check("joined")
    assert len(await place.consume(0, read_committed=True)) == 8
    assert len(await place.consume(0, read_committed=False)) == 14
    assert await place.clean()
    await place.check("joined")
    assert len(await place.consume(0, read_committed=False)) == 1
    assert await place.is_healthy()


@clear_and_sealed
async def test_an_abort_whose_marker_is_beyond_the_end_hides_all_its_records(place: Transactions) -> None:
    await place.topic(delete_retention_ms="0")
    late, holding = await place.a_writer("late"), await place.a_writer("holding")
    await place.send(None, (b"a", b"1"), (b"a", b"2"))
    await place.send(late, (b"a", b"aborted"))
    await place.send(holding, (b"b", b"open"))
    await place.send(late, (b"a", b"aborted, too"))
    await place.end(late, is_commit=False)
    await place.send(late, (b"c", b"open"))

    assert await place.clean()
    assert await place.clean_to() == 3
    await place.check("beyond")
    await place.end(holding, is_commit=True)
    await place.end(late, is_commit=True)
    await place.check("beyond")
    for _ in range(2):
        assert await place.clean()
    await place.check("beyond")
    assert await markers(place) == []
    assert await count(place.sequencer, "aborted_transactions") == 0
    assert not await place.clean()


async def test_a_damaged_stretch_keeps_its_markers_and_entries(place: Transactions) -> None:
    await place.topic(delete_retention_ms="0")
    writer = await place.a_writer("tx")
    for number in range(3):
        await place.send(writer, (b"a", random.randbytes(900)), (b"only %d" % number, b""))
        await place.end(writer, is_commit=number == 0)
    damaged = (await place.look()).runs[2]
    assert damaged.base_offset == 3
    await place.lose(damaged.object_key)

    assert await place.clean(merge_run_bytes=1024)
    await place.check("damaged", is_damaged=True)
    await clean_all(place, merge_run_bytes=1024)
    await place.check("damaged", is_damaged=True)
    assert 5 in await markers(place)
    assert [entry.last_offset for entry in (await place.look(3)).aborted or ()][:1] == [5]

    await place.find_again()
    await clean_all(place)
    await place.check("repaired")
    assert await markers(place) == []
    assert await count(place.sequencer, "aborted_transactions") == 0


async def test_a_cleaning_that_is_killed_between_two_passes_loses_nothing(
    place: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.topic(delete_retention_ms="0")
    chance = random.Random(7)
    writers = [await place.a_writer("one"), await place.a_writer("two")]
    for _ in range(40):
        writer = chance.choice(writers)
        await place.send(writer, *((b"%d" % chance.randrange(60), chance.randbytes(9)) for _ in range(5)))
        if chance.random() < 0.5:
            await place.end(writer, is_commit=chance.random() < 0.5)
    for writer in writers:
        await place.end(writer, is_commit=True)
    stable = (await place.look()).last_stable_offset
    cleaner = place.cleaner(clean_keys_bytes=1024)
    filter_all = cleaner._filter_all
    passes: list[int] = []

    async def second(*given: object) -> None:
        passes.append(1)
        if len(passes) == 2:
            raise asyncio.CancelledError
        await filter_all(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaner, "_filter_all", second)
    await place.discover()
    with pytest.raises(asyncio.CancelledError):
        await cleaner.clean_once()

    await place.check("killed", loose_to=stable)
    assert await place.clean_to() == 0
    assert await place.clean(clean_keys_bytes=1024)
    await place.check("cleaned")
    assert await place.clean(clean_keys_bytes=1024)  # of markers
    assert await markers(place) == []
    await place.check("cleaned")
    assert await place.is_healthy()


async def test_many_aborted_transactions_are_read_in_pages(
    place: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.housekeeping.cleanings._ABORTED_AT_A_TIME", 2)
    await place.topic(delete_retention_ms="0")
    writers = [await place.a_writer(str(number)) for number in range(3)]
    chance = random.Random(2)
    for number in range(30):
        writer = chance.choice(writers)
        await place.send(writer, (b"%d" % (number % 4), b"%d" % number))
        if chance.random() < 0.6:
            await place.end(writer, is_commit=chance.random() < 0.3)
    small = {"merge_run_bytes": 1024, "merge_object_bytes": 2048}
    for _ in range(3):
        await place.clean(**small)
        await place.check("pages")
    for writer in writers:
        await place.end(writer, is_commit=False)
    for _ in range(3):
        await place.clean(**small)
        await place.check("pages")
    assert await count(place.sequencer, "aborted_transactions") == 0


async def clean_all(place: Transactions, **changed: object) -> None:
    """Also after the time of tombstones and markers. What an open transaction holds back stays due."""
    for seconds in (0, 101):
        await place.let_time_pass(seconds)
        for _ in range(3):
            await place.clean(**changed)


@pytest.mark.timeout(600)
@clear_and_sealed
async def test_random_histories_read_as_the_model_says(
    place: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    [seed] = seeds(1)
    chance = random.Random(seed)
    lag_ms = chance.choice((0, 3_600_000))
    await place.topic(delete_retention_ms="100000", min_compaction_lag_ms=str(lag_ms))
    now_ms = int(time.time() * 1000)
    writers = [await place.a_writer(f"writer {number}") for number in range(4)]
    gone_to = loose_to = 0
    publish = place.sequencer.merges.publish

    async def merge() -> None:
        object_bytes = chance.choice((1024, 4600))
        sizes = {"merge_object_bytes": object_bytes, "merge_run_bytes": min(object_bytes, 4000)}
        await merge_everything(place.sequencer, place.store, **sizes)

    for step in range(40):
        what = chance.choice(
            ("send", "send", "send", "end", "end", "clean", "kill", "merge", "delete", "age")
        )
        if what == "send":
            for _ in range(chance.randint(1, 4)):
                pairs = [a_pair(chance) for _ in range(chance.choice((1, 3, 30)))]
                await place.send(
                    chance.choice([None, *writers]),
                    *pairs,
                    size=chance.choice((1, 7, None)),
                    timestamp_ms=now_ms - chance.choice((0, 7_200_000, 7_200_000, 7_200_000)),
                )
        elif what == "end":
            for writer in chance.sample(writers, chance.randint(1, 4)):
                await place.end(writer, is_commit=chance.random() < 0.5)
        elif what in ("clean", "kill"):
            stable = (await place.look()).last_stable_offset
            left = chance.randint(0, 4)

            async def some(*given: object, **named: object) -> object:
                nonlocal left
                left -= 1
                if left < 0 and what == "kill":  # noqa: B023
                    raise asyncio.CancelledError
                if chance.random() < 0.2:
                    await merge()
                return await publish(*given, **named)  # type: ignore[arg-type]

            sizes = {
                "merge_run_bytes": chance.choice((1024, 4096)),
                "merge_object_bytes": chance.choice((4096, 1 << 20)),
                "clean_keys_bytes": chance.choice((4096, 1 << 20)),
            }
            with monkeypatch.context() as patched:
                patched.setattr(place.sequencer.merges, "publish", some)
                try:
                    await place.clean(**sizes)
                except asyncio.CancelledError:
                    loose_to = max(loose_to, stable)
        elif what == "merge":
            await merge()
            await finish(GarbageScanJob(place.sequencer, small_steps()))
        elif what == "age":
            await place.let_time_pass(chance.choice((1, 101)))
        elif place.rows:
            gone_to = chance.randint(gone_to, min(place.rows[-1][0], gone_to + 100))
            await place.sequencer.retention.delete_records(place.topic_id, Partition(0), Offset(gone_to))
        await place.check((seed, step, what), gone_to=gone_to, loose_to=loose_to)
    no_lag = {**NOTHING_LATER, "delete.retention.ms": "100000", "min.compaction.lag.ms": "0"}
    await place.sequencer.topics.alter_config("orders", no_lag)
    objects = {run.object_key for run in (await place.look()).runs if not is_inline(run.object_key)}
    await place.lose(chance.choice(sorted(objects)))
    for step in range(2):
        await clean_all(place, merge_run_bytes=1024)
        await place.check((seed, step, "damaged"), gone_to=gone_to, is_damaged=True)
    for writer in writers:
        await place.end(writer, is_commit=chance.random() < 0.5)
    await clean_all(place, merge_run_bytes=1024)
    await place.check((seed, "damaged"), gone_to=gone_to, is_damaged=True)
    await place.find_again()
    await clean_all(place, clean_keys_bytes=4096)
    await place.check((seed, "end"), gone_to=gone_to)
    assert [marker for marker in await markers(place) if marker >= gone_to] == []
    assert [each for each in (await place.look()).aborted or () if each.last_offset >= gone_to] == []
    assert await place.is_healthy()
