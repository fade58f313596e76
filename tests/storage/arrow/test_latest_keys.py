"""Which records log compaction keeps: passes for ranges of hashes decide what one pass would."""

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.latest_keys import SLOT_BYTES, LatestKeys
from tests.support.seeds import seeds

Row = tuple[bytes | None, bytes | None]


def rows_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"offset": offset, "timestamp_type": 0, "key": key, "value": value, "headers": []}
            for offset, (key, value) in enumerate(rows)
        ],
        RECORD_SCHEMA,
    )


def offsets_kept(rows: Sequence[Row], slots: int, end: int, tombstones_to: int) -> tuple[list[int], int]:
    """The offsets that stay after all passes, and how many passes there were."""
    latest, passes = LatestKeys(slots * SLOT_BYTES), 0
    left = rows_of(rows)
    while True:
        passes += 1
        offsets = left.column("offset").to_numpy()
        latest.put(left.slice(0, int(np.searchsorted(offsets, end))))
        kept, tombstone = latest.kept(left, tombstones_to=tombstones_to, end=end)
        left = left.filter(pa.array(kept))
        tombstones = [
            row["offset"]
            for row in left.to_pylist()
            if row["offset"] < end and row["key"] is not None and row["value"] is None
        ]
        assert tombstone == (tombstones or [-1])[0]
        if not latest.next_pass():
            return [int(offset) for offset in left.column("offset").to_numpy()], passes


def expected(rows: Sequence[Row], end: int, tombstones_to: int) -> list[int]:
    last = {key: offset for offset, (key, _) in enumerate(rows[:end])}
    return [
        offset
        for offset, (key, value) in enumerate(rows)
        if offset >= end
        or (key is not None and last[key] == offset and (value is not None or offset >= tombstones_to))
    ]


def test_all_passes_together_keep_the_latest_record_of_each_key() -> None:
    [seed] = seeds(1)
    chance = random.Random(seed)
    most_passes = 0
    for _ in range(60):
        keys = chance.choice((5, 100, 2000))
        rows: list[Row] = [
            (
                None if chance.random() < 0.02 else b"%d" % chance.randrange(keys),
                None if chance.random() < 0.2 else b"value",
            )
            for _ in range(chance.randrange(2000))
        ]
        end = chance.randint(0, len(rows))
        tombstones_to = chance.randint(0, end)

        found, passes = offsets_kept(rows, chance.choice((16, 64, 4096)), end, tombstones_to)

        assert found == expected(rows, end, tombstones_to), seed
        most_passes = max(most_passes, passes)
    assert most_passes >= 16


@pytest.mark.parametrize(("keys", "most"), [(11, 1), (12, 4), (700, 256)])
def test_a_table_takes_as_few_passes_as_its_slots_allow(keys: int, most: int) -> None:
    rows: list[Row] = [(b"%d" % key, b"") for key in range(keys)]
    found, passes = offsets_kept(rows, 16, keys, 0)
    assert len(found) == keys
    assert keys / 11 <= passes <= most


def test_entries_of_several_tables_make_the_table_of_all_records() -> None:
    [seed] = seeds(1)
    chance = random.Random(seed)
    for _ in range(50):
        keys = [b"%d" % number for number in range(chance.choice((3, 40)))]
        rows = rows_of([(chance.choice([None, *keys]), b"") for _ in range(chance.randrange(200))])
        whole, parts = LatestKeys(1024 * SLOT_BYTES), []
        whole.put(rows)
        cuts = sorted(chance.randrange(rows.num_rows + 1) for _ in range(3))
        for start, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
            part = LatestKeys(1024 * SLOT_BYTES, whole.secret)
            part.put(rows.slice(start, end - start))
            parts.append(part.entries())
        chance.shuffle(parts)
        joined = LatestKeys(1024 * SLOT_BYTES, whole.secret)
        for entries in parts:
            joined.put_entries(entries)
        assert sorted(joined.entries().tolist()) == sorted(whole.entries().tolist()), seed


def test_entries_for_which_there_is_no_room_wait_for_the_next_pass() -> None:
    rows = rows_of([(b"%d" % number, b"") for number in range(100)])
    source, few = LatestKeys(1024 * SLOT_BYTES), None
    source.put(rows)
    few = LatestKeys(16 * SLOT_BYTES, source.secret)
    found: list[list[int]] = []
    while True:
        few.put_entries(source.entries())
        found += few.entries().tolist()
        if not few.next_pass():
            break
    assert sorted(found) == sorted(source.entries().tolist())


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"", "a3817f04ba25a8e66df67214c7550293"),
        (b"\0", "da87c1d86b99af44347659119b22fc45"),
        (b"\0\1", "8177228da4a45dc7fca38bdef60affe4"),
    ],
)
def test_keys_are_hashed_as_the_authors_of_siphash_do(key: bytes, hashed: str) -> None:
    """Their vectors of SipHash-2-4 with 128 bits, for the secret 00 01 .. 0f."""
    latest = LatestKeys(16 * SLOT_BYTES, secret=bytes(range(16)))

    latest.put(rows_of([(key, b"value")]))

    [slot] = latest._table[latest._table[:, 2] != 0]
    low, high = (int.from_bytes(bytes.fromhex(half), "little") for half in (hashed[:16], hashed[16:]))
    assert slot.view(np.uint64).tolist() == [high, low, 1]
