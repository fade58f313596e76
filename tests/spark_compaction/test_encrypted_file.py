"""A history file that is written with a topic's key has no byte of a record in the clear."""

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_compaction import history_file
from spark_compaction.footers import has_full_footer
from spark_compaction.history_file import PARQUET_SCHEMA, FileDiffers, HistoryFile, record_batches
from spark_compaction.typed.columns import Entries, Items, Record, TableColumns, fitted, source_type
from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.arrow.row_groups import footer_bytes
from storage.encryption.parquet_keys import CLEAR_COLUMNS, key_id_of, to_decrypt
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import KeyId, ObjectKey, Partition, TopicId

TOPIC = TopicId(uuid4())
KEY = TopicKey(TOPIC, KeyId(23), bytes(range(32)))
MARKER = b"marker-of-a-secret"
NUMBER = 0x1122334455667788
FIELDS = Record(
    {
        "number": "long",
        "text": "string",
        "record": Record({"text": "string", "id": "uuid"}),
        "list": Items(Record({"text": "string"})),
        "map": Entries("string"),
    }
)
TEXT = MARKER.decode()
VALUE: dict[str, Any] = {
    "number": NUMBER,
    "text": TEXT,
    "record": {"text": TEXT, "id": b"marker-of-a-secr"},
    "list": [{"text": TEXT}],
    "map": [(TEXT, TEXT)],
}


class Puts:
    """Stands for the bucket, which is not what is tried here."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, bytes] = {}

    def put(self, key: ObjectKey, data: memoryview) -> None:
        self.objects[key] = bytes(data)


def typed_schema() -> pa.Schema:
    return TableColumns(last_id=10, most_leaves=100).with_fields("value", FIELDS).file_schema()


def a_file(bucket: Any, key: TopicKey | None, schema: pa.Schema) -> HistoryFile:
    return HistoryFile(bucket, "p/", TOPIC, Partition(3), row_group_bytes=1000, schema=schema, topic_key=key)


def rows(schema: pa.Schema, count: int = 40) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "offset": range(count),
        "timestamp": range(count),
        "timestamp_type": [0] * count,
        "key": [b"%s key %d" % (MARKER, number) for number in range(count)],
        "value": [b"%s value" % MARKER] * count,
        "headers": [[{"key": TEXT, "value": MARKER}]] * count,
    }
    records = pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)
    fields = list(schema)[len(PARQUET_SCHEMA) :]
    kind: Any = pa.struct(fields)
    typed: Any = fitted(pa.array([VALUE] * count, source_type(kind)), kind)
    return pa.RecordBatch.from_arrays(
        [*records.columns, *typed.flatten()], schema=pa.schema([*RECORD_SCHEMA, *fields])
    )


def written(key: TopicKey | None) -> bytes:
    bucket = Puts()
    file = a_file(bucket, key, typed_schema())
    file.add(rows(typed_schema()))
    return bucket.objects[file.close().object_key]


def opened(data: bytes) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(data), decryption_properties=to_decrypt({KEY.key_id: KEY}))


def test_every_column_that_is_not_clear_is_encrypted_and_reads_with_the_key() -> None:
    data = written(KEY)

    found = pa.Table.from_batches(list(record_batches(opened(data), Partition(3), typed_schema())))

    assert found.equals(pa.Table.from_batches([rows(typed_schema())]))
    number = NUMBER.to_bytes(8, "little")
    assert MARKER[:16] not in data
    assert number not in data
    assert MARKER in written(None)
    assert number in written(None)
    names = [path.split(".")[0] for path in history_file.parquet_columns(typed_schema())]
    for name in set(names) - set(CLEAR_COLUMNS):
        with pytest.raises(OSError, match="decrypt"):
            pq.ParquetFile(pa.BufferReader(data)).read(columns=[name])


def test_offsets_bounds_and_the_name_of_the_key_need_no_key() -> None:
    file = pq.ParquetFile(pa.BufferReader(written(KEY)))

    clear = file.read(columns=list(CLEAR_COLUMNS))
    bounds: Any = file.metadata.row_group(1).column(1).statistics

    assert file.num_row_groups > 1
    assert clear.column("offset").to_pylist() == list(range(40))
    assert bounds.has_min_max
    assert key_id_of(file.metadata) == KEY.key_id
    assert file.metadata.metadata is not None
    assert file.metadata.metadata[b"tidelog.last_offset"] == b"%020d" % 39


def test_an_encrypted_file_has_a_page_index_and_no_bloom_filter() -> None:
    group = opened(written(KEY)).metadata.row_group(0)
    keys: Any = group.column(4)  # pyarrow's stubs do not know bloom filters yet

    assert group.column(1).has_offset_index
    assert keys.bloom_filter_offset is None


def test_an_encrypted_file_that_differs_is_not_put(monkeypatch: pytest.MonkeyPatch) -> None:
    made = history_file._table
    monkeypatch.setattr(history_file, "_table", lambda *given: made(*given).slice(1))
    bucket = Puts()
    file = a_file(bucket, KEY, PARQUET_SCHEMA)
    file.add(rows(PARQUET_SCHEMA))

    with pytest.raises(FileDiffers):
        file.close()

    assert bucket.objects == {}


def test_an_encrypted_table_of_a_thousand_columns_has_files_with_bounded_footers() -> None:
    wide = Record({f"field_{number}": "long" for number in range(1000)})
    schema = TableColumns(last_id=10, most_leaves=1000).with_fields("value", wide).file_schema()
    bucket = Puts()
    file = a_file(bucket, KEY, schema)
    records = pa.RecordBatch.from_pydict(
        {name: rows(PARQUET_SCHEMA).column(name) for name in RECORD_SCHEMA.names}
        | {name: list(range(40)) for name in schema.names[len(PARQUET_SCHEMA) :]},
        schema=pa.schema([field for field in schema if field.name != "partition"]),
    )
    added = 0
    while not file.is_complete(1 << 40):
        file.add(records.slice(added, 1))
        added += 1

    data = bucket.objects[file.close().object_key]

    assert footer_bytes(data[-8:]) < 3 << 19
    assert has_full_footer(pq.read_metadata(pa.BufferReader(data)))
