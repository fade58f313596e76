"""Runs in Spark's executors before those of `tasks.py`: reads the runs of a task, and writes its key file.

Promise: what does not decode and what is missing is reported. The driver compares it with what the later task
meets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa

from spark_compaction.bucket import Bucket, BucketAddress
from spark_compaction.planner import PlannedTask
from spark_compaction.state.key_files import KeyFile, KeyWriter
from spark_compaction.tasks import UndecodableRange, decode_run, read_ahead, rereading, task_of
from storage.arrow.aborted_batches import columns_of
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import ObjectKey, TopicId
from storage.stores.object_store import StoreUnavailable

NOTED_COLUMNS = (
    "task_id int, kind string, records long, raw_offsets long, reached long, object_key string, "
    "entries long, crc32c long, reason string"
)
_FIELDS: list["pa.Field[Any]"] = [
    pa.field("task_id", pa.int32()),
    pa.field("kind", pa.string()),
    pa.field("records", pa.int64()),
    pa.field("raw_offsets", pa.int64()),
    pa.field("reached", pa.int64()),
    pa.field("object_key", pa.string()),
    pa.field("entries", pa.int64()),
    pa.field("crc32c", pa.int64()),
    pa.field("reason", pa.string()),
]
_SCHEMA = pa.schema(_FIELDS)
_MAX_REASON = 1000
_NO_OBJECT = ObjectKey("")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedTask:
    """What a task found. `missing`: an object is not there. `failed`: the task failed. Then there is no key
    file."""

    task_id: int
    kind: Literal["keys", "missing", "failed"]
    records: int = 0
    raw_offsets: int = 0
    """That did not decode."""
    reached: int = 0
    object_key: ObjectKey = _NO_OBJECT
    entries: int = 0
    crc32c: int = 0
    reason: str = ""

    @property
    def key_file(self) -> KeyFile:
        return KeyFile(object_key=self.object_key, entries=self.entries, crc32c=self.crc32c)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyContext:
    """What all tasks of a job share. It travels to the executors."""

    address: BucketAddress
    prefetch_runs: int
    secrets: Mapping[TopicId, bytes]
    keyrings: Mapping[TopicId, TopicKeyring]
    """Of the topics that are encrypted."""


def run_key_tasks(context: KeyContext, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function given to `mapInArrow`. Takes what `tasks.task_table` makes."""
    bucket = context.address.open()
    for batch in batches:
        for row in batch.to_pylist():
            topic_id = TopicId(UUID(row["topic_id"]))
            noted = _noted(context, bucket, row["prefix"], topic_id, task_of(row))
            yield pa.RecordBatch.from_pylist([asdict(noted)], schema=_SCHEMA)


def noted_tasks(rows: Sequence[dict[str, Any]]) -> dict[int, NotedTask]:
    """What the driver collected, by task ids."""
    return {row["task_id"]: NotedTask(**row) for row in rows}


def _noted(
    context: KeyContext, bucket: Bucket, prefix: str, topic_id: TopicId, task: PlannedTask
) -> NotedTask:
    """Raises StoreUnavailable."""
    reached = int(task.from_offset)
    try:
        keys, aborted = KeyWriter(context.secrets[topic_id]), columns_of(task.aborted)
        keyring = context.keyrings.get(topic_id)
        records = raw_offsets = 0
        for run, data in read_ahead(bucket, task, context.prefetch_runs):
            if data is None:
                reason = f"object {run.object_key} is not in the bucket"
                return NotedTask(task_id=task.task_id, kind="missing", reached=reached, reason=reason)
            for event in decode_run(run, data, rereading(bucket, run), aborted, keyring):
                reached = event.end_offset
                if isinstance(event, UndecodableRange):
                    raw_offsets += event.end_offset - event.first_offset
                else:
                    keys.add(event.rows)
                    records += event.rows.num_rows
        file = keys.close(bucket, prefix)
    except StoreUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this task's alone
        reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
        return NotedTask(task_id=task.task_id, kind="failed", reached=reached, reason=reason)
    return NotedTask(
        task_id=task.task_id,
        kind="keys",
        records=records,
        raw_offsets=raw_offsets,
        reached=reached,
        object_key=file.object_key,
        entries=file.entries,
        crc32c=file.crc32c,
    )
