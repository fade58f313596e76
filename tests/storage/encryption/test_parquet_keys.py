"""Parquet files whose records are encrypted read with the topic's key, and with no other."""

import pickle
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.encryption.parquet_keys import CLEAR_COLUMNS, key_id_of, key_metadata, to_decrypt, to_encrypt
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import KeyId, TopicId

TOPIC, OTHER = TopicId(UUID(int=1)), TopicId(UUID(int=2))
SECRET = bytes(range(32))
KEY = TopicKey(TOPIC, KeyId(17), SECRET)
COLUMNS = [*CLEAR_COLUMNS, "value"]


def a_table() -> pa.Table:
    numbers = pa.array(range(100), pa.int64())
    values = pa.array([b"a secret %d" % number for number in range(100)])
    return pa.table([numbers, numbers, numbers, numbers, values], names=COLUMNS)


def a_file(key: TopicKey | None = KEY) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    encryption: Any = None if key is None else to_encrypt(key, COLUMNS)
    with pq.ParquetWriter(
        sink, a_table().schema, compression="none", encryption_properties=encryption, write_page_checksum=True
    ) as writer:
        writer.write_table(a_table(), row_group_size=50)
        if key is not None:
            writer.add_key_value_metadata(key_metadata(key))
    return sink.getvalue()


def read(file: pa.Buffer, *keys: TopicKey, columns: list[str] | None = None) -> pa.Table:
    decryption = to_decrypt({key.key_id: key for key in keys})
    return pq.ParquetFile(pa.BufferReader(file), decryption_properties=decryption).read(columns=columns)


def test_a_file_reads_with_its_key_in_another_process_and_hides_its_values() -> None:
    file = a_file()

    assert read(file, pickle.loads(pickle.dumps(KEY))).equals(a_table())
    assert b"a secret" not in file.to_pybytes()
    assert b"a secret" in a_file(None).to_pybytes()


def test_offsets_their_bounds_and_the_key_id_need_no_key() -> None:
    metadata = pq.read_metadata(pa.BufferReader(a_file()))
    bounds: Any = metadata.row_group(1).column(1).statistics

    assert (bounds.min, bounds.max) == (50, 99)
    assert key_id_of(metadata) == KEY.key_id
    assert pq.ParquetFile(pa.BufferReader(a_file())).read(columns=["offset"]).num_rows == 100
    assert key_id_of(pq.read_metadata(pa.BufferReader(a_file(None)))) is None


def test_a_file_in_the_clear_reads_with_keys_at_hand() -> None:
    assert read(a_file(None), KEY).equals(a_table())


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [TopicKey(TOPIC, KeyId(18), SECRET)],
        [TopicKey(OTHER, KeyId(17), SECRET)],
        [TopicKey(TOPIC, KeyId(17), bytes(32))],
    ],
    ids=["no key", "another id", "another topic", "another secret"],
)
def test_values_do_not_read_with_another_key(keys: list[TopicKey]) -> None:
    with pytest.raises((OSError, ValueError), match=r"key|decrypt"):
        read(a_file(), *keys, columns=["value"])


def test_a_changed_byte_of_an_encrypted_column_is_an_error() -> None:
    data = bytearray(a_file().to_pybytes())
    chunk = pq.read_metadata(
        pa.BufferReader(bytes(data)), decryption_properties=to_decrypt({KEY.key_id: KEY})
    )
    position = chunk.row_group(1).column(4).data_page_offset + 60
    data[position] ^= 1
    with pytest.raises(OSError, match=r"(?i)decrypt|tag|checksum|length"):
        read(pa.py_buffer(bytes(data)), KEY, columns=["value"])
