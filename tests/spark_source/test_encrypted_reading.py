"""Tasks of the data source over sealed runs and encrypted files: with keys, without, and with damage."""

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_compaction.bucket import LocalBucket
from spark_compaction.history_file import HistoryFile
from spark_source.agents import Piece
from spark_source.planning import DataLoss, PlannedRead, ReadContext, plan_reads
from spark_source.reading import WHOLE_FILE_BYTES, read_task
from spark_source.settings import SourceSettings
from spark_source.window import Window
from storage.arrow.arrow_schema import HISTORY_SCHEMA, RECORD_SCHEMA
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import SealBroken, TopicKey
from storage.encryption.topic_keyring import ReadKeyring
from storage.identifiers import KeyId, ObjectKey, Partition, TopicId
from tests.agent.running import a_batch
from tests.storage.encryption.test_parquet_keys import TOPIC

OLD, NEW = TopicKey(TOPIC, KeyId(17), bytes(32)), TopicKey(TOPIC, KeyId(18), bytes(range(32)))
KEYS = ReadKeyring(by_id={OLD.key_id: OLD, NEW.key_id: NEW}, refused={}, topic="orders", reason="no such key")
NONE = ReadKeyring(by_id={}, refused={}, topic="orders", reason="set TIDELOG_ENCRYPTION_PROVIDER")
CLEAR = ("partition", "offset", "timestamp", "timestamp_type")


class Log:
    """Partition 3 of a topic in a directory: each addition is an object with the next offsets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bucket = LocalBucket(path)
        self.pieces: list[Piece] = []
        self.end = 0

    def add_run(self, *values: bytes, key: TopicKey | None = None) -> None:
        """Each value is a batch."""
        batches = [a_batch(value) for value in values]
        data = b"".join(batches if key is None else [key.seal(batch, 3) for batch in batches])
        self._put("raw", ObjectKey(f"tidelog/segments/00/{self.end}"), data, len(values))

    def add_file(self, *values: bytes, key: TopicKey | None = None) -> None:
        file = HistoryFile(
            self.bucket,
            f"tidelog/history/{self.end}/",
            TopicId(TOPIC),
            Partition(3),
            row_group_bytes=1 << 20,
            topic_key=key,
        )
        count = len(values)
        columns: dict[str, Any] = {
            "offset": range(self.end, self.end + count),
            "timestamp": [0] * count,
            "timestamp_type": [0] * count,
            "key": [b"key"] * count,
            "value": list(values),
            "headers": [[]] * count,
        }
        file.add(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA))
        written = file.close()
        self._add("parquet", written.object_key, written.size_bytes, count)

    def _put(self, kind: str, key: ObjectKey, data: bytes, count: int) -> None:
        self.bucket.put(key, data)
        self._add(kind, key, len(data), count)

    def _add(self, kind: str, key: ObjectKey, length: int, count: int) -> None:
        self.pieces.append(
            Piece(
                kind=kind,  # type: ignore[arg-type]
                first_offset=self.end,
                end_offset=self.end + count,
                object_key=key,
                position=0,
                length=length,
                base_offset=self.end,
                last_offset=self.end + count - 1,
                min_timestamp_ms=0,
                max_timestamp_ms=0,
            )
        )
        self.end += count

    def damage(self, number: int, at: int) -> None:
        path = self.path / self.pieces[number].object_key
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    def replace(self, number: int, data: bytes) -> None:
        """As someone who may write to the bucket."""
        (self.path / self.pieces[number].object_key).write_bytes(data)

    def stored(self, number: int) -> bytes:
        return (self.path / self.pieces[number].object_key).read_bytes()

    def read(
        self,
        keys: ReadKeyring,
        *columns: str,
        pieces: slice = slice(None),
        window: Window | None = None,
        fail_on_data_loss: bool = True,
    ) -> pa.Table:
        context = ReadContext(
            settings=SourceSettings(store_url=f"file://{self.path}"),
            columns=columns or tuple(HISTORY_SCHEMA.names),
            window=window or Window(),
            fail_on_data_loss=fail_on_data_loss,
        )
        own = {("orders", 3): self.pieces[pieces]}
        tasks: list[PlannedRead] = plan_reads(
            own, task_bytes=1 << 40, min_partitions=1, keyrings={"orders": keys}
        )
        return pa.Table.from_batches(
            [rows for task in pickle.loads(pickle.dumps(tasks)) for rows in read_task(context, task)]
        )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Runs and files in the clear and of two keys, in turn."""
    made = Log(tmp_path)
    made.add_file(b"0", b"1")
    made.add_file(b"2", b"3", key=OLD)
    made.add_file(b"4", key=NEW)
    made.add_run(b"5", b"6")
    made.add_run(b"7", b"8", b"9", key=OLD)
    made.add_run(b"10", key=NEW)
    return made


def numbers(end: int) -> list[bytes]:
    return [b"%d" % number for number in range(end)]


def test_clear_and_encrypted_objects_of_two_keys_read_as_one_log(log: Log) -> None:
    found = log.read(KEYS)

    assert found.column("value").to_pylist() == numbers(11)
    assert found.column("offset").to_pylist() == list(range(11))
    assert log.read(KEYS, "value", window=Window(from_ms=0)).column("value").to_pylist()[:5] == numbers(5)


def test_without_keys_columns_in_the_clear_of_files_are_read_and_others_name_the_fix(log: Log) -> None:
    files = slice(0, 3)
    assert log.read(NONE, *CLEAR, pieces=files).column("offset").to_pylist() == list(range(5))
    assert log.read(NONE, "value", pieces=slice(0, 1)).column("value").to_pylist() == numbers(2)
    assert log.read(NONE, pieces=slice(3, 4)).num_rows == 2
    for pieces in (slice(1, 2), slice(4, 5)):
        for lossy in (True, False):
            with pytest.raises(KeyUnavailable, match=r"'orders'.*TIDELOG_ENCRYPTION_PROVIDER"):
                log.read(NONE, "offset", "value", pieces=pieces, fail_on_data_loss=lossy)


def test_a_destroyed_key_fails_what_it_encrypted_and_nothing_else(log: Log) -> None:
    left = replace(KEYS, by_id={NEW.key_id: NEW})

    assert log.read(left, "value", pieces=slice(2, 4)).column("value").to_pylist() == [b"4", b"5", b"6"]
    assert log.read(left, "value", pieces=slice(5, 6)).column("value").to_pylist() == [b"10"]
    for number in (1, 4):
        with pytest.raises(KeyUnavailable, match="0000000000000011: no such key"):
            log.read(left, "value", pieces=slice(number, number + 1), fail_on_data_loss=False)


def test_a_damaged_sealed_batch_is_lost_alone(log: Log) -> None:
    log.damage(4, log.pieces[4].length // 2)  # in the second of three batches

    with pytest.raises(DataLoss, match=r"offsets \[8, 9\) do not decode"):
        log.read(KEYS)
    found = log.read(KEYS, fail_on_data_loss=False)

    assert found.column("offset").to_pylist() == [*range(8), 9, 10]
    assert found.column("value").to_pylist() == [*numbers(8), b"9", b"10"]


def test_a_damaged_encrypted_file_is_an_error_and_never_another_value(log: Log) -> None:
    path = log.path / log.pieces[1].object_key
    whole = path.read_bytes()
    for at in range(4, len(whole) - 8, 23):
        path.write_bytes(whole)
        log.damage(1, at)
        try:
            found = log.read(KEYS, pieces=slice(1, 2))
        except (OSError, ValueError, pa.ArrowException, KeyUnavailable, SealBroken):
            continue
        assert found.column("value").to_pylist() == [b"2", b"3"], at


def a_file(tmp_path: Path, first: int, key: TopicKey | None, topic_id: TopicId = TOPIC) -> bytes:
    """A file with two records, from the offset `first` on."""
    other = Log(tmp_path / uuid4().hex)
    other.end = first
    other.add_file(b"forged", b"forged", key=key and TopicKey(topic_id, key.key_id, bytes(32)))
    return other.stored(0)


@pytest.mark.parametrize("columns", [("value",), ("offset",)], ids=["with the key", "without a key"])
@pytest.mark.parametrize(
    ("first", "key", "topic_id"),
    [(2, None, TOPIC), (2, OLD, TOPIC), (4, OLD, TOPIC), (2, OLD, TopicId(UUID(int=9)))],
    ids=["in the clear", "older", "of other offsets", "of another topic"],
)
def test_another_file_in_the_place_of_an_encrypted_one_is_refused(
    log: Log, tmp_path: Path, first: int, key: TopicKey | None, topic_id: TopicId, columns: tuple[str, ...]
) -> None:
    log.replace(1, a_file(tmp_path, first, key, topic_id))

    for lossy in (True, False):
        with pytest.raises(SealBroken, match=r"00003-0{19}2-.*0011\.parquet"):
            log.read(KEYS, *columns, pieces=slice(1, 2), fail_on_data_loss=not lossy)
    assert log.read(KEYS, *columns, pieces=slice(2, 3)).num_rows == 1


def test_offsets_that_someone_changed_in_an_encrypted_file_are_refused(log: Log, tmp_path: Path) -> None:
    """Parquet does not sign columns in the clear: their pages can be put in from another file."""
    sound, forged = log.stored(1), a_file(tmp_path, 3, None)

    def chunk(data: bytes) -> slice:
        offsets = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(1)
        return slice(offsets.data_page_offset, offsets.data_page_offset + offsets.total_compressed_size)

    changed = bytearray(sound)
    changed[chunk(sound)] = forged[chunk(forged)]
    assert len(changed) == len(sound)
    log.replace(1, bytes(changed))

    for columns in (("value",), ("offset",)):
        with pytest.raises(ValueError, match="not those from 2 to 3"):
            log.read(KEYS, *columns, pieces=slice(1, 2))


def test_a_large_encrypted_file_is_read_by_ranges(tmp_path: Path) -> None:
    log = Log(tmp_path)
    values = [os.urandom(1 << 18) for _ in range(40)]
    log.add_file(*values, key=NEW)
    assert log.pieces[0].length > WHOLE_FILE_BYTES

    assert log.read(KEYS, "value").column("value").to_pylist() == values
    cut = replace(log.pieces[0], first_offset=30, end_offset=31)
    log.pieces = [cut]
    assert log.read(KEYS, "value").column("value").to_pylist() == [values[30]]
    assert log.read(NONE, "offset").column("offset").to_pylist() == [30]
