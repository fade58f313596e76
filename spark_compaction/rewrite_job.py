"""A Spark job that rewrites files of a topic's history: what merges, TTL, erasures and tables of
compacted topics have in common."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType

import pyarrow as pa

from sequencer.history.history_values import HistoryJob
from spark_compaction.bucket import BucketAddress
from spark_compaction.iceberg_table import HistoryTableFiles
from spark_compaction.job import run_in_spark
from spark_compaction.rewrite_tasks import (
    REWRITTEN_COLUMNS,
    Rewrite,
    RewriteContext,
    RewrittenFile,
    rewrite_table,
    run_rewrites,
)
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_compaction.state.key_files import KeyFiles
from spark_compaction.typed.topic_typing import table_columns
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import Offset, Partition
from storage.threads import Threads


async def run_rewrite_job(
    settings: CompactionSettings,
    threads: Threads,
    address: BucketAddress,
    job: HistoryJob,
    rewrites: Sequence[Rewrite],
    *,
    keyring: TopicKeyring | None,
    cutoff: datetime | None = None,
    deleted_to: Mapping[Partition, Offset] = MappingProxyType({}),
    erased_keys: tuple[bytes | None, ...] = (),
    erased_to: Mapping[Partition, Offset] = MappingProxyType({}),
    keys: Mapping[Partition, KeyFiles] = MappingProxyType({}),
    on_tasks_done: Callable[[int], None] = lambda _: None,
) -> list[RewrittenFile]:
    """Returns what the tasks wrote under the job's prefix. Left out are records older than `cutoff`, those
    below `deleted_to`, those of `erased_keys` below `erased_to`, and those that `keys` replace. `keyring`
    opens and encrypts the files of a topic that is encrypted.

    Raises SparkJobFailed, SparkUnavailable, JavaMissing, or KeyUnavailable if the key of a file is missing.
    """

    def schema() -> pa.Schema:
        table = HistoryTableFiles(address, address.open(), job, job.table)
        return table_columns(table.metadata, settings.history_columns).file_schema()

    context = RewriteContext(
        address=address,
        prefix=job.prefix,
        topic_id=job.topic_id,
        cutoff=cutoff,
        row_group_bytes=settings.parquet_row_group_bytes,
        file_bytes=settings.parquet_file_bytes,
        keyring=keyring,
        schema=await threads.run(schema),
        erased_keys=erased_keys,
        keys=keys,
    )
    rows = await run_in_spark(
        await threads.run(spark_session, settings),
        rewrite_table(rewrites, cutoff, deleted_to, erased_to),
        function=partial(run_rewrites, context),
        result_columns=REWRITTEN_COLUMNS,
        on_tasks_done=on_tasks_done,
        executor_wait_s=settings.spark_executor_wait_s,
    )
    written = [RewrittenFile(**row) for row in rows]
    unreadable = next((row.unreadable for row in written if row.unreadable), None)
    if unreadable is not None:
        raise KeyUnavailable(unreadable)
    return written
