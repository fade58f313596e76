"""Log compaction with something in its way: damage, lost objects, erasures, huge or odd records."""

import random
from datetime import datetime
from typing import Any

import pytest

from compactor import cleaning
from compactor.merging import ClaimLost
from compactor.retention_jobs import RetentionJob
from sequencer.housekeeping.merge_values import SwapsDone
from storage.arrow.arrow_columns import decode_batches, decode_pieces
from storage.arrow.arrow_encoding import encode_span
from storage.batches.record_batch import Compression
from storage.identifiers import Offset, Partition
from tests.compactor.builders import settings as small_steps
from tests.compactor.merging import merge_everything
from tests.compactor.test_cleaning import NOTHING_LATER, Place, Row, clear_and_sealed, place
from tests.spark_compaction.log import Sent, one

__all__ = ["place"]

MILLION = 1 << 20


async def whole_rows(place: Place) -> list[tuple[Any, ...]]:
    """Every record with all that belongs to it, as `Log.expected` has it."""
    key = (place.topic_id, Partition(0))
    rows: list[tuple[Any, ...]] = []
    for each in await place.sequencer.cleanings.runs(key, Offset(0), Offset(1 << 62), 10_000):
        run = each.run
        data = await place.bytes_of(each)
        for row in decode_batches(data, 0, len(data), run.base_offset).to_pylist():
            names = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
            rows.append((0, *(row[name] for name in names)))
    return rows


def comparable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """With times of any zone, and headers with their duplicates."""
    return [
        tuple(
            field.replace(tzinfo=None)
            if isinstance(field, datetime)
            else [(header["key"], header["value"]) for header in field]
            if isinstance(field, list)
            else field
            for field in row
        )
        for row in rows
    ]


@clear_and_sealed
@pytest.mark.parametrize("waiting_bytes", [1, 32 << 20])
async def test_what_stays_equals_what_was_written(
    place: Place, monkeypatch: pytest.MonkeyPatch, waiting_bytes: int
) -> None:
    monkeypatch.setattr(cleaning, "_WAITING_BYTES", waiting_bytes)
    await place.topic()
    chance = random.Random(5)
    for _ in range(40):
        sent = [
            Sent(
                key=b"%d" % chance.randrange(40),
                value=chance.choice((None, b"", b"x", chance.randbytes(3000))),
                timestamp_ms=chance.choice((-1, 0, 1, 1_700_000_000_000, 253_402_300_799_999)),
                headers=chance.choice(((), (("h", None), ("h", b""), ("h", None), ("", b"x")))),
            )
            for _ in range(chance.randint(1, 5))
        ]
        appended = chance.choice((None, None, 1_700_000_000_123, 1_700_000_000_999))
        codec = chance.choice(list(Compression))
        key = None if place.sealing is None else place.sealing.next_key()
        place.log.sealing = {} if key is None else {"orders": key}
        await place.log.write("orders", one(0, *sent, compression=codec, append_time_ms=appended))
    written = place.log.expected["orders"]
    last = {row[4]: row[1] for row in written}

    assert await place.clean(merge_run_bytes=MILLION)

    assert comparable(await whole_rows(place)) == comparable(
        [row for row in written if last[row[4]] == row[1]]
    )
    assert await place.is_healthy()


async def test_few_bytes_that_stand_for_many_are_cleaned_in_pieces(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together do not fit into one column, and would take the agent's memory."""
    monkeypatch.setattr(cleaning, "_WAITING_BYTES", 4 * MILLION)
    most: list[int] = []

    def measured(rows: Any, *given: Any, **named: Any) -> bytes:
        most.append(rows.nbytes)
        return encode_span(rows, *given, **named)

    monkeypatch.setattr(cleaning, "encode_span", measured)
    await place.topic()
    for number in range(12):
        sent = [Sent(key=b"%d" % number, value=bytes(5 * MILLION)), Sent(key=b"again", value=b"")]
        await place.log.write("orders", one(0, *sent, compression=Compression.ZSTD))

    assert await place.clean(merge_run_bytes=MILLION, merge_object_bytes=MILLION)

    rows = await place.read()
    assert [key for _, key, _ in rows] == [b"%d" % number for number in range(12)] + [b"again"]
    assert max(most) < 12 * MILLION
    key = (place.topic_id, Partition(0))
    [run] = await place.sequencer.cleanings.runs(key, Offset(0), Offset(24), 10)
    data = await place.store.get(run.object_key, run.run.position, run.run.position + run.run.length)
    pieces = list(decode_pieces(data, 0, piece_bytes=MILLION))
    assert len(pieces) >= 12
    assert pieces[-1][1] == 24


async def harm(place: Place, offset: int, *, is_lost: bool = False) -> None:
    """Flips the last bit of the run that holds the offset, or deletes its object."""
    key = (place.topic_id, Partition(0))
    [run] = await place.sequencer.cleanings.runs(key, Offset(offset), Offset(offset + 1), 1)
    if is_lost:
        await place.store.delete([run.object_key])
        return
    data = bytearray(await place.store.get(run.object_key))
    data[run.run.position + run.run.length - 1] ^= 1
    await place.store.put(run.object_key, [bytes(data)])


async def rows_but(place: Place, harmed: int) -> list[Row]:
    """What is there but for the run that holds this offset."""
    rows: list[Row] = []
    key = (place.topic_id, Partition(0))
    for each in await place.sequencer.cleanings.runs(key, Offset(0), Offset(1 << 62), 1000):
        run = each.run
        if not run.base_offset <= harmed <= run.last_offset:
            data = await place.store.get(each.object_key, run.position, run.position + run.length)
            found = decode_batches(data, 0, len(data), run.base_offset).to_pylist()
            rows += [(row["offset"], row["key"], row["value"]) for row in found]
    return rows


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_tombstone_stays_while_damage_keeps_older_records(place: Place, is_lost: bool) -> None:
    """Its key would come back: the run of the older record is in the same stretch as the damage."""
    await place.topic(delete_retention_ms="60000")
    await place.write((b"a", b"1"))
    await place.write((b"b", b"1"))
    await place.write((b"a", None), (b"a", None), (b"c", random.randbytes(2000)))
    await harm(place, 1, is_lost=is_lost)

    assert await place.clean(merge_run_bytes=1024)
    for _ in range(3):
        await place.let_time_pass(61)
        await place.clean(merge_run_bytes=1024)

    assert await rows_but(place, 1) == [place.written[0], place.written[3], place.written[4]]
    assert not await place.clean(merge_run_bytes=1024)  # though the tombstone is old


async def test_a_partition_with_a_lost_object_is_not_cleaned_again_and_again(place: Place) -> None:
    await place.topic()
    await place.write((b"a", b"1"))
    await place.write((b"b", b"1"), (b"b", b"2"))
    await harm(place, 0, is_lost=True)

    assert await place.clean()
    assert not await place.clean()
    await place.write((b"b", b"3"), (b"b", random.randbytes(2000)))
    assert await place.clean(merge_run_bytes=1024)
    assert await rows_but(place, 0) == [*place.written[1:3], place.written[4]]


async def test_a_cleaning_that_is_outrun_each_time_pauses(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> SwapsDone:
        return SwapsDone(places=frozenset())

    await place.topic()
    await place.write((b"a", b"1"), (b"a", b"2"))
    await place.discover()
    monkeypatch.setattr(place.sequencer.merges, "publish", refused)

    with pytest.raises(ClaimLost, match="each of 5"):
        await place.cleaner().clean_once()


async def test_a_partition_whose_cleaners_die_goes_behind_the_others(place: Place) -> None:
    await place.topic()
    await place.write((b"a", b"1"))
    await place.discover()
    other = await place.sequencer.topics.create("other", 1, NOTHING_LATER)
    await place.sequencer.cleanings.mark_due([(other.topic_id, Partition(0))])

    claims = [await place.sequencer.cleanings.claim(0) for _ in range(3)]

    first, second = (place.topic_id, 0), (other.topic_id, 0)
    assert [claim.state.key for claim in claims if claim is not None] == [first, second, first]


async def test_what_retention_dropped_counts_as_clean_no_more(place: Place) -> None:
    """Otherwise a log that keeps its size by retention is never cleaned again."""
    await place.topic(min_cleanable_dirty_ratio="0.5")
    values = [(b"%d" % number, random.randbytes(2000)) for number in range(20)]
    await place.write(*values)
    assert await place.clean()
    await place.sequencer.retention.delete_records(place.topic_id, Partition(0), Offset(20))
    for _ in range(2):
        await place.write(*values[:9])
    retention = RetentionJob(place.sequencer, small_steps())
    await retention.step(None)

    assert await place.clean()
    assert await place.read() == place.written[29:]


async def test_a_run_that_is_clean_in_part_can_be_too_old(place: Place) -> None:
    await place.topic(min_cleanable_dirty_ratio="0.95", max_compaction_lag_ms="3600000")
    for number in range(16):
        await place.write(*((b"%d %d" % (number, key), random.randbytes(80)) for key in range(5)))
        if number == 2:
            assert await place.clean()
    await merge_everything(place.sequencer, place.store)
    runs = await place.sequencer.cleanings.runs((place.topic_id, Partition(0)), Offset(14), Offset(15), 1)
    assert runs[0].run.last_offset > 14

    assert await place.clean()

    [state] = await place.sequencer.cleanings.page((place.topic_id, Partition(-1)), 1)
    assert state.clean_to == 80
    assert not await place.clean()
