"""A run's offsets come out whole: as rows, or as ranges that would not decode."""

import itertools
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from sequencer.history.history_values import RunToCompact
from spark_compaction.tasks import DecodedRows, UndecodableRange, decode_run
from storage.arrow.aborted_batches import AbortedTransaction, columns_of
from storage.arrow.arrow_columns import RECORD_SCHEMA, encode_batch
from storage.arrow.arrow_encoding import encode_span
from storage.arrow.erased_batches import ErasedKeys, erase_keys
from storage.batches.record_batch import HEADER_BYTES, Compression, empty_batch, marker_batch
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import TopicKey
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import (
    BytePosition,
    KeyId,
    ObjectKey,
    Offset,
    Partition,
    ProducerId,
    SegmentId,
    TopicId,
)
from tests.storage.builders import ARecord, a_batch

BASE = 100
NO_ABORTS = columns_of(())


def batch(records: int) -> bytes:
    columns: dict[str, list[Any]] = {
        "offset": list(range(records)),
        "timestamp": [None] * records,
        "timestamp_type": [0] * records,
        "key": [None] * records,
        "value": [bytes([n % 256]) * 10 for n in range(records)],
        "headers": [[]] * records,
    }
    return encode_batch(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA), Compression.NONE)


BATCHES = [batch(5), batch(1), batch(4)]
DATA = b"".join(BATCHES)


def run(from_offset: int = BASE, last_offset: int = BASE + 9, length: int = len(DATA)) -> RunToCompact:
    return RunToCompact(
        partition=Partition(0),
        from_offset=Offset(from_offset),
        base_offset=Offset(BASE),
        last_offset=Offset(last_offset),
        end_offset=Offset(last_offset + 1),
        segment_id=SegmentId(UUID(int=1)),
        object_key=ObjectKey("key"),
        position=BytePosition(0),
        length=length,
    )


def decoded(run: RunToCompact, data: bytes, in_store: bytes | None = None) -> list[tuple[str, int, int]]:
    """The events as (kind, first offset, end offset); checks that rows carry the offsets of their event."""
    stored = data if in_store is None else in_store
    events = []
    for event in decode_run(run, data, lambda start, end: stored[start:end], NO_ABORTS):
        kind = "rows" if isinstance(event, DecodedRows) else "raw"
        if isinstance(event, DecodedRows):
            assert event.rows.column("offset").to_pylist() == list(
                range(event.first_offset, event.end_offset)
            )
        events.append((kind, event.first_offset, event.end_offset))
    return events


def flipped(position: int) -> bytes:
    data = bytearray(DATA)
    data[position] ^= 0xFF
    return bytes(data)


def test_a_sound_run_is_rows() -> None:
    assert decoded(run(), DATA) == [("rows", 100, 110)]


@pytest.mark.parametrize("from_offset", range(BASE, BASE + 10))
def test_rows_begin_where_history_ends(from_offset: int) -> None:
    assert decoded(run(from_offset=from_offset), DATA) == [("rows", from_offset, 110)]


def test_a_damaged_batch_costs_itself_alone() -> None:
    damaged = flipped(len(BATCHES[0]) + len(BATCHES[1]) - 1)

    assert decoded(run(), damaged) == [("rows", 100, 105), ("raw", 105, 106), ("rows", 106, 110)]


def test_bytes_damaged_on_the_way_are_read_again() -> None:
    assert decoded(run(), flipped(len(BATCHES[0]) - 1), in_store=DATA) == [
        ("rows", 100, 105),
        ("rows", 105, 106),
        ("rows", 106, 110),
    ]
    assert decoded(run(), DATA[:-7], in_store=DATA) == [("rows", 100, 110)]


@pytest.mark.parametrize("data", [b"", DATA[:-1], flipped(8)])
def test_a_run_that_cannot_be_walked_stays_raw_whole(data: bytes) -> None:
    [event] = decode_run(run(from_offset=103), data, lambda start, end: data[start:end], NO_ABORTS)

    assert isinstance(event, UndecodableRange)
    assert (event.first_offset, event.end_offset) == (103, 110)
    assert event.reason.startswith("key at byte 0: ")


def test_a_run_whose_batches_are_not_as_many_offsets_stays_raw() -> None:
    assert decoded(run(last_offset=BASE + 10), DATA) == [("raw", 100, 111)]


def _erased(*batches: bytes) -> bytes:
    """The batches without the records of the key `gone`."""
    data = b"".join(batches)
    erased = erase_keys(data, BASE, ErasedKeys([b"gone"]), before=1 << 62)
    return data if erased is None else erased.data


def _keyed(*keys: bytes) -> bytes:
    columns: dict[str, list[Any]] = {
        "offset": list(range(len(keys))),
        "timestamp": [None] * len(keys),
        "timestamp_type": [0] * len(keys),
        "key": list(keys),
        "value": [b"value"] * len(keys),
        "headers": [[]] * len(keys),
    }
    return encode_batch(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA), Compression.NONE)


@pytest.mark.parametrize("from_offset", range(BASE, BASE + 6))
def test_erased_records_are_gaps_that_batches_account_for(from_offset: int) -> None:
    data = _erased(_keyed(b"gone", b"a", b"gone"), _keyed(b"gone"), _keyed(b"b", b"gone"))

    [event] = decode_run(
        run(from_offset=from_offset, last_offset=BASE + 5, length=len(data)),
        data,
        lambda _, __: data,
        NO_ABORTS,
    )

    assert isinstance(event, DecodedRows)
    left = [offset for offset in (BASE + 1, BASE + 4) if offset >= from_offset]
    assert event.rows.column("offset").to_pylist() == left
    assert (event.first_offset, event.end_offset) == (from_offset, BASE + 6)
    assert event.empty_offsets == BASE + 6 - from_offset - len(left)


def test_an_empty_batch_that_a_cleaning_left_is_a_gap() -> None:
    nothing = pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA)
    cleaned = encode_span(nothing, Compression.NONE, base_offset=BASE, last_offset=BASE + 1, batch_bytes=1000)
    data = cleaned + batch(2)

    [event] = decode_run(run(last_offset=BASE + 3, length=len(data)), data, lambda _, __: data, NO_ABORTS)

    assert isinstance(event, DecodedRows)
    assert event.rows.column("offset").to_pylist() == [BASE + 2, BASE + 3]
    assert (event.first_offset, event.end_offset, event.empty_offsets) == (BASE, BASE + 4, 2)


def test_an_empty_batch_of_what_was_lost_stays_raw() -> None:
    data = _erased(_keyed(b"gone", b"a")) + empty_batch(3, -1)

    events = list(
        decode_run(run(last_offset=BASE + 4, length=len(data)), data, lambda s, e: data[s:e], NO_ABORTS)
    )

    assert [(type(each), each.first_offset, each.end_offset) for each in events] == [
        (DecodedRows, BASE, BASE + 2),
        (UndecodableRange, BASE + 2, BASE + 5),
    ]


def test_aborted_records_and_markers_are_gaps() -> None:
    """Producer 7 aborts offsets 102 to 106, and then commits. Producer 8 commits."""
    aborted = columns_of([AbortedTransaction(Offset(BASE + 6), Offset(BASE + 2), ProducerId(7))])
    batches = [
        batch(2),
        _of_producer(7, 2),
        _of_producer(8, 1),
        _of_producer(7, 1),
        marker_batch(ProducerId(7), 0, is_commit=False, timestamp_ms=0),
        _of_producer(7, 2),
    ]
    data = b"".join(batches)
    whole = run(last_offset=BASE + 8, length=len(data))

    for first, end in itertools.combinations(range(BASE, BASE + 10), 2):
        part = replace(whole, from_offset=Offset(first), end_offset=Offset(end))
        [event] = decode_run(part, data, lambda _, __: data, aborted)

        assert isinstance(event, DecodedRows)
        left = [BASE + offset for offset in (0, 1, 4, 7, 8) if first <= BASE + offset < end]
        assert event.rows.column("offset").to_pylist() == left
        assert (event.first_offset, event.end_offset) == (first, end)
        assert event.empty_offsets == end - first - len(left)


def _of_producer(producer_id: int, records: int) -> bytes:
    return a_batch(*[ARecord() for _ in range(records)], attributes=0x10, producer=(producer_id, 0, 0))


TOPIC = TopicId(UUID(int=5))
KEYS = {KeyId(number): TopicKey(TOPIC, KeyId(number), bytes([number] * 32)) for number in (1, 2)}
ALL_KEYS = TopicKeyring(newest=KEYS[KeyId(2)], by_id=KEYS, refused={})
KEY_ID_LAST_BYTE = HEADER_BYTES + 9


def sealed(*key_ids: int | None) -> bytes:
    """The batches, each sealed with a key, or in the clear."""
    return b"".join(
        batch if key_id is None else KEYS[KeyId(key_id)].seal(batch, 0)
        for batch, key_id in zip(BATCHES, key_ids, strict=True)
    )


def opened(data: bytes, keyring: TopicKeyring | None, in_store: bytes | None = None) -> list[Any]:
    """The values, or (first offset, end offset) of what does not decode."""
    stored = data if in_store is None else in_store
    events = decode_run(run(length=len(data)), data, lambda start, end: stored[start:end], NO_ABORTS, keyring)
    found: list[Any] = []
    for event in events:
        if isinstance(event, DecodedRows):
            found += event.rows.column("value").to_pylist()
        else:
            found.append((event.first_offset, event.end_offset))
    return found


@pytest.mark.parametrize("key_ids", [(1, 1, 1), (1, 2, 1), (None, 1, 2), (1, None, None)], ids=str)
def test_sealed_and_clear_batches_of_a_run_decode_alike(key_ids: tuple[int | None, ...]) -> None:
    assert opened(sealed(*key_ids), ALL_KEYS) == opened(DATA, None)


@pytest.mark.parametrize(
    ("keyring", "reason"),
    [
        (None, "0000000000000001 is needed, and this job was given no keys"),
        (replace(ALL_KEYS, by_id={KeyId(2): KEYS[KeyId(2)]}), "0000000000000001: the topic has no key"),
        (
            replace(ALL_KEYS, by_id={KeyId(2): KEYS[KeyId(2)]}, refused={KeyId(1): "KMS is away"}),
            "0000000000000001: KMS is away",
        ),
    ],
    ids=["no keys", "no such key", "refused"],
)
def test_a_batch_whose_key_is_missing_is_an_error_and_not_a_damaged_one(
    keyring: TopicKeyring | None, reason: str
) -> None:
    with pytest.raises(KeyUnavailable, match=reason):
        opened(sealed(2, 1, None) if keyring else sealed(None, 1, None), keyring)


@pytest.mark.parametrize(
    "position",
    [-1, KEY_ID_LAST_BYTE - len(KEYS[KeyId(1)].seal(BATCHES[2], 0))],
    ids=["records", "id of the key"],
)
def test_a_damaged_sealed_batch_costs_itself_and_is_read_once_more(position: int) -> None:
    """Also one whose key's id was damaged, so that no key has it."""
    whole = sealed(1, 2, 1)
    data = bytearray(whole)
    data[position] ^= 4

    values = opened(DATA, None)

    assert opened(bytes(data), ALL_KEYS) == [*values[:6], (106, 110)]
    assert opened(bytes(data), ALL_KEYS, in_store=whole) == values
