"""Erasing takes out the records of some keys, and moves nothing else."""

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from kafka.record import MemoryRecords

from storage.arrow.arrow_columns import decode_batches
from storage.arrow.erased_batches import ErasedKeys, ErasedRun, erase_keys, holds_keys
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.compression import compress
from storage.batches.record_batch import (
    Compression,
    empty_batch,
    index_batches,
    read_header,
    with_log_append_time,
)
from tests.storage.builders import ARecord, a_batch, record_bytes

BASE = 1_000
NEVER = 1 << 62


def _batch(
    keys: Sequence[bytes | None],
    codec: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    records = [
        ARecord(key=key, value=b"value of %d" % index * 5, timestamp_delta=index)
        for index, key in enumerate(keys)
    ]
    plain = b"".join(record_bytes(record, index) for index, record in enumerate(records))
    return a_batch(*records, attributes=codec, producer=producer, body=compress(plain, codec))


def _erased(data: bytes, *keys: bytes | None, before: int = NEVER) -> ErasedRun:
    found = erase_keys(data, BASE, ErasedKeys(keys), before=before)
    assert found is not None
    return found


def _rows(data: bytes) -> pa.RecordBatch:
    return decode_batches(data, 0, len(data), BASE)


@pytest.mark.parametrize("codec", list(Compression))
def test_other_records_keep_offset_time_key_value_and_compression(codec: Compression) -> None:
    data = _batch([b"a", b"b", b"a", b"c"], codec) + _batch([b"c", b"a"], codec)

    erased = _erased(data, b"a")

    before, after = _rows(data).to_pylist(), _rows(erased.data).to_pylist()
    assert after == [row for row in before if row["key"] != b"a"]
    assert erased.records == 3
    assert {
        read_header(erased.data, int(each["position"])).compression
        for each in index_batches(erased.data, 0, len(erased.data))
    } == {codec}


def test_a_batch_keeps_its_offsets_and_its_producers_sequence() -> None:
    data = _batch([b"b", b"a"], producer=(7, 3, 41))

    header = read_header(_erased(data, b"a").data)

    assert (header.last_offset_delta, header.record_count) == (1, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 41)
    assert header.max_timestamp_ms == read_header(data).base_timestamp_ms


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_loses_all_its_records_stays_as_an_empty_one(codec: Compression) -> None:
    data = _batch([b"a", b"a"], codec, (7, 3, 41)) + _batch([b"b"])

    erased = _erased(data, b"a").data

    header = read_header(erased)
    assert (header.record_count, header.last_offset_delta, header.base_sequence) == (0, 1, 41)
    assert header.is_erased
    assert not read_header(empty_batch(2, -1)).is_erased
    assert [row["offset"] for row in _rows(erased).to_pylist()] == [BASE + 2]
    assert [len(list(batch)) for batch in MemoryRecords(erased)] == [0, 1]


def test_batches_without_the_keys_keep_their_bytes() -> None:
    first, second = _batch([b"b"] * 3, Compression.ZSTD), _batch([b"a"])

    assert _erased(first + second, b"a").data[: len(first)] == first
    assert erase_keys(first, BASE, ErasedKeys([b"a"]), before=NEVER) is None
    assert not holds_keys(first, BASE, ErasedKeys([b"a"]), before=NEVER)


def test_records_from_the_given_offset_on_stay() -> None:
    data = _batch([b"a", b"a", b"a"])

    erased = _erased(data, b"a", before=BASE + 2)

    assert [row["offset"] for row in _rows(erased.data).to_pylist()] == [BASE + 2]
    assert holds_keys(data, BASE, ErasedKeys([b"a"]), before=BASE + 2)
    assert not holds_keys(erased.data, BASE, ErasedKeys([b"a"]), before=BASE + 2)


def test_records_without_a_key_go_only_when_asked_for() -> None:
    data = _batch([None, b"", b"a"])

    assert [row["key"] for row in _rows(_erased(data, b"").data).to_pylist()] == [None, b"a"]
    assert [row["key"] for row in _rows(_erased(data, None).data).to_pylist()] == [b"", b"a"]


def test_what_was_erased_once_can_be_erased_again() -> None:
    data = _batch([b"a", b"b", b"c", b"b"], Compression.LZ4)

    twice = _erased(_erased(data, b"a").data, b"b")

    assert [(row["offset"], row["key"]) for row in _rows(twice.data).to_pylist()] == [(BASE + 2, b"c")]
    assert erase_keys(twice.data, BASE, ErasedKeys([b"a", b"b"]), before=NEVER) is None


def test_append_time_stays() -> None:
    batch = with_log_append_time(validate_produced(_batch([b"a", b"b"]), BatchLimits()), 5_000)

    assert read_header(_erased(bytes(batch.data), b"b").data).max_timestamp_ms == 5_000


def test_any_choice_of_keys_leaves_exactly_the_others() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(50):
        data = b"".join(
            _batch(
                [rng.choice([None, b"", b"a", b"b", b"c"]) for _ in range(rng.randrange(1, 20))],
                rng.choice(list(Compression)),
            )
            for _ in range(rng.randrange(1, 6))
        )
        keys = rng.sample([None, b"", b"a", b"b", b"c"], rng.randrange(1, 5))
        erased = erase_keys(data, BASE, ErasedKeys(keys), before=NEVER)
        left = [row for row in _rows(data).to_pylist() if row["key"] not in keys]
        assert _rows(data if erased is None else erased.data).to_pylist() == left


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="an erasure takes"):
        ErasedKeys([])
