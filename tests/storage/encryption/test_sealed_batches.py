"""Sealed batches open to what they were, and only where they were sealed for."""

import os
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.arrow.arrow_columns import decode_batches
from storage.batches.batch_validation import (
    BatchFault,
    BatchLimits,
    InvalidBatch,
    check_crc,
    validate_produced,
)
from storage.batches.compression import compress
from storage.batches.record_batch import (
    HEADER_BYTES,
    Compression,
    index_batches,
    marker_batch,
    patched_prefix,
    read_header,
)
from storage.encryption.sealed_batches import SEAL_BYTES, SealBroken, TopicKey, key_ids, opened
from storage.identifiers import KeyId, ProducerId, TopicId
from tests.storage.builders import ARecord, record_bytes
from tests.storage.builders import a_batch as built

TOPIC, OTHER = TopicId(UUID(int=1)), TopicId(UUID(int=2))
SECRET = bytes(range(32))
KEY = TopicKey(TOPIC, KeyId(1), SECRET)
PARTITION = 3


def a_batch(value: bytes = b"a secret", compression: Compression = Compression.NONE) -> bytes:
    record = ARecord(value=value)
    return built(record, attributes=compression, body=bytes(compress(record_bytes(record, 0), compression)))


@given(st.binary(max_size=3000), st.sampled_from(Compression))
@settings(max_examples=60, deadline=None)
def test_a_sealed_batch_opens_to_the_very_same_bytes(value: bytes, compression: Compression) -> None:
    batch = a_batch(value, compression)
    sealed = KEY.seal(batch, PARTITION)

    assert len(sealed) == len(batch) + SEAL_BYTES
    assert TopicKey(TOPIC, KeyId(1), SECRET).open(sealed, PARTITION) == batch


def test_a_sealed_batch_is_a_sound_batch_whose_records_nobody_can_read_or_send() -> None:
    sealed = KEY.seal(a_batch(), PARTITION)
    header = read_header(sealed)

    check_crc(memoryview(sealed), header)
    assert index_batches(sealed, 0, len(sealed))["size_bytes"].tolist() == [len(sealed)]
    assert b"a secret" not in sealed
    with pytest.raises(InvalidBatch) as refused:
        validate_produced(sealed, BatchLimits())
    assert refused.value.fault is BatchFault.UNKNOWN_COMPRESSION


def test_any_changed_byte_but_those_that_are_patched_is_noticed() -> None:
    sealed = KEY.seal(a_batch(), PARTITION)
    for place in [*range(HEADER_BYTES - 40, len(sealed))]:
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(SealBroken):
            KEY.open(changed, PARTITION)


def test_offsets_are_patched_without_the_key() -> None:
    batch = a_batch()
    sealed = KEY.seal(batch, PARTITION)
    moved = patched_prefix(4711, len(sealed), 5) + sealed[16:]

    assert KEY.open(moved, PARTITION) == patched_prefix(4711, len(batch), 5) + batch[16:]


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (TopicKey(TOPIC, KeyId(1), os.urandom(32)), PARTITION),
        (TopicKey(TOPIC, KeyId(2), SECRET), PARTITION),
        (TopicKey(OTHER, KeyId(1), SECRET), PARTITION),
        (KEY, PARTITION + 1),
    ],
)
def test_a_batch_copied_elsewhere_or_under_another_key_is_refused(key: TopicKey, partition: int) -> None:
    with pytest.raises(SealBroken):
        key.open(KEY.seal(a_batch(), PARTITION), partition)


def test_one_batch_sealed_twice_shares_nothing() -> None:
    first, second = KEY.seal(a_batch(), PARTITION), KEY.seal(a_batch(), PARTITION)

    assert first[HEADER_BYTES + 30 :] != second[HEADER_BYTES + 30 :]


def test_sealed_batches_of_several_keys_lie_between_others() -> None:
    marker = marker_batch(ProducerId(1), 0, is_commit=True, timestamp_ms=1)
    keys = {KeyId(1): KEY, KeyId(2): TopicKey(TOPIC, KeyId(2), os.urandom(32))}
    sealed = (
        KEY.seal(a_batch(), PARTITION) + marker + keys[KeyId(2)].seal(a_batch(b"more"), PARTITION) + a_batch()
    )

    assert key_ids(sealed) == {1, 2}
    assert opened(sealed, PARTITION, keys) == a_batch() + marker + a_batch(b"more") + a_batch()
    with pytest.raises(SealBroken):
        key_ids(built(attributes=7, body=b"cut"))


def test_a_reader_without_keys_is_told_what_it_reads() -> None:
    sealed = KEY.seal(a_batch(), PARTITION)

    with pytest.raises(InvalidBatch, match="only agents read these"):
        decode_batches(sealed, 0, len(sealed), base_offset=0)
