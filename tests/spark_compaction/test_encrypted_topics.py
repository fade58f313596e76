"""The history of topics with tidelog.encryption: whole, and with no byte of a record in the clear."""

import asyncio
import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog

from sequencer.client import Sequencer
from sequencer.history.history_values import PublishRefused, TableFile
from sequencer.topics.topic_key_cache import new_version
from spark_compaction.bucket import BucketAddress
from spark_compaction.compact import TopicCompaction, expected_file
from spark_compaction.history_file import PARQUET_SCHEMA
from spark_compaction.iceberg_table import Change, HistoryTableFiles
from spark_compaction.job_keys import open_job_keys
from spark_compaction.manifest import ManifestRefused, verify_manifest
from spark_compaction.planner import plan_tasks
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_compaction.tasks import TaskContext, manifest_rows, run_tasks, task_table
from spark_compaction.ttl import TopicExpiry, expire_history
from storage.batches.record_batch import Compression
from storage.encryption.key_objects import KeyObjects
from storage.encryption.key_wrapping import FileKeys
from storage.encryption.parquet_keys import CLEAR_COLUMNS, key_id_of, to_decrypt
from storage.encryption.sealed_batches import TopicKey
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import Offset, Partition
from storage.stores.object_store import ObjectStore
from tests.spark_compaction.log import CLUSTER, EPOCH, Log, Sent, one, records
from tests.spark_compaction.reading import compact, compact_one, iceberg_rows, written_rows
from tests.spark_compaction.test_faults import begun
from tests.spark_compaction.test_service import complete, serving
from tests.support.key_file import key_line

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
MARKER = b"marker-of-a-secret-7Qx2"
NUMBER = 0x1122334455667788
DAY_MS = 86_400_000
NOW = datetime(2024, 1, 10, tzinfo=UTC)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(key_line("first"))
    return path


@pytest.fixture
def encrypting(settings: CompactionSettings, key_file: Path) -> CompactionSettings:
    """Settings of a job that has the key encryption key."""
    return settings.model_copy(update={"encryption_provider": "file", "encryption_key": str(key_file)})


def write(key_file: Path, text: str) -> None:
    key_file.write_text(text)


def hidden(key_file: Path) -> str:
    text = key_file.read_text()
    key_file.unlink()
    return text


async def keyring_of(settings: CompactionSettings, log: Log, topic: str) -> TopicKeyring:
    found = await log.sequencer.topics.by_name([topic])
    async with open_job_keys(settings, log.sequencer) as keys:
        keyring = await keys.of(found[topic])
    assert keyring is not None
    return keyring


async def seal(settings: CompactionSettings, log: Log, topic: str) -> TopicKey:
    """From here on, batches are sealed with the topic's newest key."""
    log.sealing[topic] = (await keyring_of(settings, log, topic)).newest
    return log.sealing[topic]


async def rotate(settings: CompactionSettings, log: Log, topic: str) -> TopicKey:
    """As `tidelog keys rotate`, and `seal`."""
    topic_id, rows = log.topic_ids[topic], log.sequencer.topic_keys
    newest = await rows.newest(topic_id)
    assert newest is not None
    wrapping = FileKeys(Path(settings.encryption_key))
    await new_version(rows, KeyObjects(log.store, CLUSTER), wrapping, topic_id, newest.version + 1)
    return await seal(settings, log, topic)


async def files_of(log: Log, topic: str, partition: int = 0) -> Sequence[TableFile]:
    return await log.sequencer.history.files_from(log.topic_ids[topic], Partition(partition), Offset(0), 1000)


async def stored_files(log: Log, topic: str, partition: int = 0) -> list[bytes]:
    return [bytes(await log.store.get(file.object_key)) for file in await files_of(log, topic, partition)]


async def key_ids(log: Log, topic: str) -> list[int | None]:
    """Of each file of partition 0: the key that encrypts it."""
    return [key_id_of(pq.read_metadata(pa.BufferReader(data))) for data in await stored_files(log, topic)]


async def history(settings: CompactionSettings, log: Log, topic: str, partitions: int = 1) -> list[Any]:
    """All rows of the files, opened with the topic's keys."""
    decryption = to_decrypt((await keyring_of(settings, log, topic)).by_id)
    rows: list[Any] = []
    for partition in range(partitions):
        for data in await stored_files(log, topic, partition):
            file = pq.ParquetFile(pa.BufferReader(data), decryption_properties=decryption)
            table = file.read(columns=PARQUET_SCHEMA.names)
            rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return rows


async def expire(settings: CompactionSettings, topic: str) -> TopicExpiry:
    [report] = (await asyncio.to_thread(expire_history, settings, [topic], None, NOW)).topics
    return report


def waits_of(report: TopicCompaction) -> tuple[str, bool]:
    return report.waits, report.advanced


async def test_a_log_of_clear_and_sealed_batches_comes_into_files_of_the_newest_key(
    log: Log, encrypting: CompactionSettings
) -> None:
    await log.topic("orders", partitions=2)
    await log.write("orders", one(0, *records(10)), one(1, *records(3)))
    await log.sequencer.topics.alter_config("orders", {"tidelog.encryption": "on"})
    first = await seal(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10, 10)), one(1, *records(3, 3)))
    second = await rotate(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10, 20)))

    report = await compact_one(encrypting, "orders")

    assert (report.rows, report.failed, report.raw_ranges) == (36, (), ())
    assert await history(encrypting, log, "orders", partitions=2) == written_rows(log, "orders")
    assert set(await key_ids(log, "orders")) == {second.key_id} != {first.key_id}
    session = await asyncio.to_thread(spark_session, encrypting)
    configured = str(session.sparkContext.getConf().getAll())
    for key in (first, second):
        assert key._secret.hex() not in configured
        assert base64.b64encode(key._secret).decode() not in configured


async def written_merged_and_expired(
    log: Log, settings: CompactionSettings, topic: str, **config: str
) -> None:
    """A topic with the marker in keys, values, headers and columns of JSON, through all jobs."""
    await log.topic(topic, 1, tidelog_value_format="json", retention_ms=str(DAY_MS), **config)
    if config:
        await seal(settings, log, topic)
    now_ms = int(NOW.timestamp() * 1000)
    for _ in range(2):
        sent = [
            Sent(
                key=b"%s %d" % (MARKER, number),
                value=json.dumps({"text": MARKER.decode(), "number": NUMBER}).encode(),
                headers=((MARKER.decode(), MARKER),),
                timestamp_ms=now_ms - number * DAY_MS,
            )
            for number in range(3)
        ]
        await log.write(topic, one(0, *sent, compression=Compression.NONE))
        await compact_one(settings.model_copy(update={"parquet_merge_files": 2}), topic)
    assert (await expire(settings, topic)).files_rewritten == 1


async def objects_with_the_marker(store: ObjectStore) -> set[str]:
    """What kinds of objects have it."""
    found = set()
    for key in [info.key async for info in store.list("")]:
        data = bytes(await store.get(key))
        if MARKER[:20] in data or NUMBER.to_bytes(8, "little") in data:
            found.add("segments" if "/segments/" in key else key.rpartition(".")[2])
    return found


def manifest_statistics(settings: CompactionSettings, topic: str) -> set[int]:
    """The fields of which the manifests have counts or bounds."""
    keys = {}
    if settings.s3_access_key is not None and settings.s3_secret_key is not None:
        keys = {
            "s3.access-key-id": settings.s3_access_key,
            "s3.secret-access-key": settings.s3_secret_key.get_secret_value(),
        }
    catalog = RestCatalog("tidelog", uri=f"{settings.http_url}/iceberg", **keys)
    files = [task.file for task in catalog.load_table(("topics", topic)).scan().plan_files()]
    assert files
    known = set[int]()
    for file in files:
        for each in (file.lower_bounds, file.upper_bounds, file.value_counts, file.null_value_counts):
            known |= set(each or ())
    return known


async def test_no_object_of_an_encrypted_topic_has_a_byte_of_a_record(
    log: Log, encrypting: CompactionSettings, store: ObjectStore
) -> None:
    """Segments, Parquet with columns of JSON, merged and rewritten files, manifests: all that is there."""
    await written_merged_and_expired(log, encrypting, "secret", tidelog_encryption="on")
    assert await objects_with_the_marker(store) == set()
    assert await asyncio.to_thread(manifest_statistics, encrypting, "secret") == {1, 2, 3, 4}
    assert len(await history(encrypting, log, "secret")) == 4

    await written_merged_and_expired(log, encrypting, "open")
    assert await objects_with_the_marker(store) == {"segments", "parquet"}


async def test_a_topic_waits_for_a_key_encryption_key_and_others_go_on(
    log: Log, settings: CompactionSettings, encrypting: CompactionSettings, key_file: Path
) -> None:
    await log.topic("orders", tidelog_encryption="on")
    await log.topic("plain")
    await seal(encrypting, log, "orders")
    for topic in ("orders", "plain"):
        await log.write(topic, one(0, *records(10)))

    without = {report.topic: report for report in (await compact(settings)).topics}
    text = hidden(key_file)
    away = await compact_one(encrypting, "orders")
    [shown] = await log.sequencer.history.shown("orders")
    write(key_file, text)
    there = await compact_one(encrypting, "orders")

    assert "TIDELOG_ENCRYPTION_PROVIDER" in without["orders"].waits
    assert (without["orders"].advanced, without["plain"].rows) == (False, 10)
    assert str(key_file) in away.waits
    assert shown.waits == away.waits
    assert waits_of(there) == ("", True)
    assert await history(encrypting, log, "orders") == written_rows(log, "orders")
    [shown] = await log.sequencer.history.shown("orders")
    assert shown.waits is None


async def test_a_partition_whose_old_key_is_missing_fails_and_loses_nothing(
    log: Log, encrypting: CompactionSettings, key_file: Path
) -> None:
    """A key encryption key that went too early: rotated topics write with the new one."""
    old, new = hidden(key_file), key_line("second")
    write(key_file, old)
    await log.topic("orders", partitions=2, tidelog_encryption="on")
    first = await seal(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10)))
    write(key_file, new + old)
    await rotate(encrypting, log, "orders")
    await log.write("orders", one(1, *records(10)))
    write(key_file, new)

    report = await compact_one(encrypting, "orders")
    write(key_file, new + old)
    later = await compact_one(encrypting, "orders")

    [failed] = report.failed
    assert (failed.partition, report.rows, report.raw_ranges) == (0, 10, ())
    assert f"{first.key_id:016x}" in failed.reason
    assert "has no key named file:first" in failed.reason
    assert (later.rows, later.failed) == (10, ())
    assert await history(encrypting, log, "orders", partitions=2) == written_rows(log, "orders")


async def test_after_a_topics_keys_are_destroyed_only_what_they_sealed_is_left_out(
    log: Log, encrypting: CompactionSettings
) -> None:
    topic_id = await log.topic("orders", partitions=2, tidelog_encryption="on")
    await log.topic("plain")
    destroyed = await seal(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10)))
    await log.write("plain", one(0, *records(10)))
    await log.sequencer.database.run("DELETE FROM topic_keys WHERE topic_id = %(id)s", id=topic_id)
    await seal(encrypting, log, "orders")
    await log.write("orders", one(1, *records(10)))

    reports = {report.topic: report for report in (await compact(encrypting)).topics}

    [failed] = reports["orders"].failed
    assert (failed.partition, reports["orders"].rows, reports["plain"].rows) == (0, 10, 10)
    assert f"{destroyed.key_id:016x}: the topic has no key of this id" in failed.reason
    await log.sequencer.topics.delete("orders")
    assert [report.topic for report in (await compact(encrypting)).topics] == ["plain"]


async def test_a_topic_stays_encrypted_when_it_is_switched_off(
    log: Log, encrypting: CompactionSettings
) -> None:
    await log.topic("orders", tidelog_encryption="on")
    key = await seal(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10)))
    await log.sequencer.topics.alter_config("orders", {"tidelog.encryption": "off"})
    del log.sealing["orders"]
    await log.write("orders", one(0, *records(10, 10)))

    await compact_one(encrypting, "orders")

    assert set(await key_ids(log, "orders")) == {key.key_id}
    assert await history(encrypting, log, "orders") == written_rows(log, "orders")


async def test_a_topic_that_was_never_encrypted_needs_no_provider(
    log: Log, settings: CompactionSettings
) -> None:
    """Tools set configs to their defaults, too."""
    await log.topic("orders", tidelog_encryption="off")
    await log.write("orders", one(0, *records(10)))

    await compact_one(settings, "orders")

    assert await key_ids(log, "orders") == [None]


async def test_clear_files_stay_until_a_merge_encrypts_them_with_the_newest_key(
    log: Log, settings: CompactionSettings, encrypting: CompactionSettings
) -> None:
    """Files in the clear, of an old key and of the newest one become one file."""
    await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    await compact_one(settings, "orders")
    await log.sequencer.topics.alter_config("orders", {"tidelog.encryption": "on"})
    assert await iceberg_rows(settings, "orders") == written_rows(log, "orders")
    first = await seal(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10, 10)))
    await compact_one(encrypting, "orders")
    second = await rotate(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10, 20)))
    await compact_one(encrypting, "orders")
    assert await key_ids(log, "orders") == [None, first.key_id, second.key_id]
    assert await history(encrypting, log, "orders") == written_rows(log, "orders")
    three_at_once = {"parquet_merge_files": 3}

    without = await compact_one(settings.model_copy(update=three_at_once), "orders")
    merged = await compact_one(encrypting.model_copy(update=three_at_once), "orders")

    assert "TIDELOG_ENCRYPTION_PROVIDER" in without.waits
    assert (without.merged_files, merged.merged_files, merged.waits) == (0, 3, "")
    assert await key_ids(log, "orders") == [second.key_id]
    assert await history(encrypting, log, "orders") == written_rows(log, "orders")
    [shown] = await log.sequencer.history.shown("orders")
    assert shown.waits is None


async def test_ttl_rewrites_with_the_newest_key_and_without_keys_drops_whole_files(
    log: Log, settings: CompactionSettings, encrypting: CompactionSettings
) -> None:
    await log.topic("orders", tidelog_encryption="on", retention_ms=str(2 * DAY_MS))
    await seal(encrypting, log, "orders")
    now_ms = int(NOW.timestamp() * 1000)
    await log.write("orders", one(0, *records(10, timestamp_ms=now_ms - 3 * DAY_MS)))
    await compact_one(encrypting, "orders")
    mixed = [
        Sent(timestamp_ms=now_ms - (3 if n % 2 else 1) * DAY_MS, value=str(n).encode()) for n in range(20)
    ]
    await log.write("orders", one(0, *mixed))
    await compact_one(encrypting, "orders")
    second = await rotate(encrypting, log, "orders")

    without = await expire(settings, "orders")
    with_keys = await expire(encrypting, "orders")

    assert "TIDELOG_ENCRYPTION_PROVIDER" in without.waits
    assert (without.files_dropped, without.files_rewritten, without.files_deferred) == (1, 0, 1)
    assert (with_keys.files_rewritten, with_keys.rows_expired, with_keys.waits) == (1, 10, "")
    assert await key_ids(log, "orders") == [second.key_id]
    cutoff = NOW - timedelta(days=2)
    kept = [row for row in written_rows(log, "orders") if row[2] >= cutoff]
    assert await history(encrypting, log, "orders") == kept


async def test_ttl_of_a_file_whose_key_is_missing_waits_and_keeps_the_file(
    log: Log, encrypting: CompactionSettings, key_file: Path
) -> None:
    old, new = hidden(key_file), key_line("second")
    write(key_file, old)
    await log.topic("orders", tidelog_encryption="on", retention_ms=str(2 * DAY_MS))
    first = await seal(encrypting, log, "orders")
    now_ms = int(NOW.timestamp() * 1000)
    sent = [Sent(timestamp_ms=now_ms - days * DAY_MS) for days in (3, 1)]
    await log.write("orders", one(0, *sent))
    await compact_one(encrypting, "orders")
    write(key_file, new + old)
    await rotate(encrypting, log, "orders")
    write(key_file, new)

    report = await expire(encrypting, "orders")

    assert f"{first.key_id:016x}" in report.waits
    assert (report.files_rewritten, report.files_deferred, report.rows_expired) == (0, 1, 0)
    assert await key_ids(log, "orders") == [first.key_id]


async def test_a_job_that_dies_between_its_files_and_its_publish_loses_nothing(
    log: Log, encrypting: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders", tidelog_encryption="on")
    await seal(encrypting, log, "orders")
    await log.write("orders", one(0, *records(10)))
    killed = await begun(encrypting, sequencer, "orders", lease_s=60)
    keyring = await keyring_of(encrypting, log, "orders")
    address = BucketAddress.of(encrypting.store_url, encrypting)
    context = TaskContext(
        address=address,
        prefetch_runs=4,
        row_group_bytes=256,
        file_bytes=1 << 30,
        keyrings={killed.job.topic_id: keyring},
    )
    tasks = plan_tasks(killed.runs, killed.aborted, task_bytes=1 << 30, job_bytes=1 << 30)
    table = task_table([(killed.job, task) for task in tasks])
    answers = await asyncio.to_thread(lambda: list(run_tasks(context, table.to_batches())))
    rows = manifest_rows([row for batch in answers for row in batch.to_pylist()])
    verified = verify_manifest(tasks, rows)
    files = HistoryTableFiles(address, address.open(), killed.job, killed.job.table)
    expected = [expected_file(file, 1 << 30) for file in verified.files]
    added = await asyncio.to_thread(files.describe, expected, keyring)
    with pytest.raises(ManifestRefused, match="not encrypted as its topic is"):
        await asyncio.to_thread(files.describe, expected, None)
    await sequencer.database.run("UPDATE history_jobs SET lease_until = clock_timestamp()")

    report = await compact_one(encrypting, "orders")
    late = files.publication(Change(added=added, summary={}, expire_snapshots_before=EPOCH))

    assert report.rows == 10
    assert isinstance(await sequencer.history.publish(killed.job, late), PublishRefused)
    assert await history(encrypting, log, "orders") == written_rows(log, "orders")


async def test_what_agents_know_of_a_files_row_groups_is_right_without_its_keys(
    log: Log, encrypting: CompactionSettings
) -> None:
    """With `tidelog.history=log`: agents read ranges of row groups that the publish recorded."""
    await log.topic("orders", tidelog_encryption="on", tidelog_history="log", local_retention_ms="0")
    key = await seal(encrypting, log, "orders")
    await log.write("orders", one(0, *records(200)))
    small = encrypting.model_copy(update={"parquet_row_group_bytes": 2048})

    await compact_one(small, "orders")

    [data] = await stored_files(log, "orders")
    [row] = await log.sequencer.database.read("SELECT row_groups FROM history_files")
    known = [row.row_groups[start : start + 3] for start in range(0, len(row.row_groups), 4)]
    metadata = pq.read_metadata(pa.BufferReader(data), decryption_properties=to_decrypt({key.key_id: key}))
    assert len(known) == metadata.num_row_groups > 1
    for number, (_, position, length) in enumerate(known):
        group = metadata.row_group(number)
        first, last = group.column(0), group.column(7)
        assert position == (first.dictionary_page_offset or first.data_page_offset)
        end = (last.dictionary_page_offset or last.data_page_offset) + last.total_compressed_size
        assert position + length == end
    clear = pq.ParquetFile(pa.BufferReader(data)).read(columns=list(CLEAR_COLUMNS))
    assert clear.column("offset").to_pylist() == list(range(200))


async def test_the_table_of_a_topic_that_is_compacted_by_key_is_encrypted(
    log: Log, encrypting: CompactionSettings, key_file: Path
) -> None:
    """Its files are rewritten without replaced rows, which needs the keys of older files."""
    old, new = hidden(key_file), key_line("second")
    write(key_file, old)
    await log.topic("state", cleanup_policy="compact", tidelog_encryption="on")
    first = await seal(encrypting, log, "state")
    await log.write("state", one(0, Sent(key=b"a", value=b"1"), Sent(key=b"b", value=b"1")))
    await compact_one(encrypting, "state")
    assert await key_ids(log, "state") == [first.key_id]
    write(key_file, new + old)
    second = await rotate(encrypting, log, "state")
    await log.write("state", one(0, Sent(key=b"a", value=b"2")))
    write(key_file, new)

    without = await compact_one(encrypting, "state")
    write(key_file, new + old)
    with_keys = await compact_one(encrypting, "state")

    assert f"{first.key_id:016x}" in without.waits
    assert (without.advanced, with_keys.advanced, with_keys.rewritten_files) == (False, True, 1)
    assert await key_ids(log, "state") == [second.key_id] * 2
    rows = await history(encrypting, log, "state")
    assert [(row[4], row[5]) for row in rows] == [(b"b", b"1"), (b"a", b"2")]


async def test_the_service_goes_on_with_other_topics_and_with_this_one_once_its_key_is_there(
    log: Log, encrypting: CompactionSettings, key_file: Path
) -> None:
    config = {"tidelog_history_freshness_ms": "1", "retention_ms": "-1"}
    await log.topic("orders", 1, tidelog_encryption="on", **config)
    await log.topic("plain", 1, **config)
    await seal(encrypting, log, "orders")
    for topic in ("orders", "plain"):
        await log.write(topic, one(0, *records(10)))
    text = hidden(key_file)
    quick = encrypting.model_copy(update={"encryption_retry_s": 0.1, "history_poll_s": 0.1})

    async with serving(quick) as registry:
        await complete(log.sequencer, "plain")
        async with asyncio.timeout(60):
            while registry.get_sample_value("tidelog_history_waiting", {"topic": "orders"}) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        write(key_file, text)
        await complete(log.sequencer, "orders")

    assert await history(encrypting, log, "orders") == written_rows(log, "orders")
