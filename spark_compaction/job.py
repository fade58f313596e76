"""Runs a job on a topic's history: keeps its lease, runs its tasks in Spark, repeats its publish until the
outcome is known.

Promise: a job that fails, or whose process is killed, leaves nothing published, and nothing locked for longer
than a lease.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from sequencer.client import Sequencer
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.history.history_values import (
    HistoryJob,
    Outrun,
    Publication,
    Published,
    PublishRefused,
    TableVersion,
)
from spark_compaction.iceberg_table import FilesGone, SchemaChanged
from spark_compaction.session import has_executors
from storage.stores.object_store import ObjectNotFound
from storage.threads import Threads

_RENEWALS_PER_LEASE = 3
_STAGINGS = 10
_PUBLISH_ATTEMPTS = 20
_PUBLISH_RETRY_S = 0.5
_PROGRESS_INTERVAL_S = 0.25
_CANCEL_TIMEOUT_S = 30.0

TaskFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkJobFailed(Exception):
    """A task failed as often as Spark repeats it, or the job could not run. Nothing was published."""


@asynccontextmanager
async def kept_lease(sequencer: Sequencer, job: HistoryJob, lease_s: float) -> AsyncIterator[None]:
    """Renews the job's hold; ends the job if the block fails. The publish detects an expired lease."""
    renewal = asyncio.create_task(_renew(sequencer, job.job_id, lease_s))
    try:
        yield
    except BaseException:
        with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):  # then its lease ends it
            await sequencer.history.abandon(job.job_id)
        raise
    finally:
        renewal.cancel()
        await asyncio.wait([renewal])  # a cancellation that comes meanwhile is this task's own
        if not renewal.cancelled():
            renewal.result()


async def _renew(sequencer: Sequencer, job_id: UUID, lease_s: float) -> None:
    while True:
        await asyncio.sleep(lease_s / _RENEWALS_PER_LEASE)
        with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):
            if not await sequencer.history.renew(job_id, lease_s):
                return


async def publish_staged(
    sequencer: Sequencer, job: HistoryJob, stage: Callable[[TableVersion], Publication]
) -> Published | PublishRefused:
    """Stages and publishes. Where another job published first, it stages the same change on what that job
    left: the Parquet files stay as they are. Raises as `stage`, CommitOutcomeUnknown or SequencerUnavailable.
    """
    threads = Threads("stage", 1)
    table = job.table
    for _ in range(_STAGINGS):
        try:
            publication = await threads.run(stage, table)
        except (FilesGone, SchemaChanged) as changed:
            return PublishRefused(reason=str(changed), is_of_files=isinstance(changed, FilesGone))
        except ObjectNotFound:  # garbage by now, if other jobs have published since
            now = await sequencer.history.version(job.topic_id)
            if now == table:
                raise
            if now is None:
                return PublishRefused(reason="the topic was deleted")
            table = now
            continue
        outcome = await _publish_until_known(sequencer, job, publication)
        if not isinstance(outcome, Outrun):
            return outcome
        table = outcome.table
    return PublishRefused(reason=f"other jobs published first, {_STAGINGS} times")


async def _publish_until_known(
    sequencer: Sequencer, job: HistoryJob, publication: Publication
) -> Published | Outrun | PublishRefused:
    """Repeats a publish whose answer was lost."""
    for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
        try:
            return await sequencer.history.publish(job, publication)
        except (CommitOutcomeUnknown, SequencerUnavailable):
            if attempt == _PUBLISH_ATTEMPTS:
                raise
            await asyncio.sleep(_PUBLISH_RETRY_S)
    raise AssertionError("the loop returns or raises")


async def run_in_spark(
    session: SparkSession,
    rows: pa.Table,
    *,
    function: TaskFunction,
    result_columns: str,
    on_tasks_done: Callable[[int], None],
    executor_wait_s: float,
) -> list[dict[str, Any]]:
    """Runs one Spark task per row; returns what the tasks yielded. A cancellation cancels the Spark job.

    Raises SparkJobFailed, also after `executor_wait_s` without an executor.
    """
    threads = Threads("spark", 2)  # one for the job, one for questions about it meanwhile
    group = f"tidelog-{uuid4()}"
    work = partial(_collect, session, rows, function, result_columns, group)
    running = asyncio.create_task(threads.run(work))
    running.add_done_callback(_noted)
    seen_s = time.monotonic()
    try:
        while not running.done():
            await asyncio.wait([running], timeout=_PROGRESS_INTERVAL_S)
            on_tasks_done(await threads.run(_tasks_done, session, group, rows.num_rows))
            if await threads.run(has_executors, session):
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > executor_wait_s:
                raise SparkJobFailed(
                    f"Spark's cluster at {session.sparkContext.master} had no executor for "
                    f"{executor_wait_s:g} s (TIDELOG_SPARK_EXECUTOR_WAIT_S): start workers, or free their "
                    "cores and memory"
                )
        return await running
    except (Py4JError, OSError) as gone:
        raise SparkJobFailed(f"Spark does not answer, so its JVM is gone: {gone}") from gone
    finally:
        until_s = time.monotonic() + _CANCEL_TIMEOUT_S
        with contextlib.suppress(Py4JError, OSError):
            while not running.done() and time.monotonic() < until_s:
                # Misses a job that is not submitted yet.
                await threads.run(session.sparkContext.cancelJobGroup, group)
                await asyncio.wait([running], timeout=_PROGRESS_INTERVAL_S)


def _noted(running: "asyncio.Task[Any]") -> None:
    """Its failure is known: a job that outlives its round, as its JVM died, is no error of its own."""
    if not running.cancelled():
        running.exception()


def _collect(
    session: SparkSession, rows: pa.Table, function: TaskFunction, result_columns: str, group: str
) -> list[dict[str, Any]]:
    session.sparkContext.setJobGroup(group, f"tidelog: {rows.num_rows} tasks", interruptOnCancel=True)
    # One Spark task per row: Spark retries a task, and the planner decides what a row covers.
    frame = session.createDataFrame(rows).repartition(rows.num_rows)
    try:
        return [row.asDict() for row in frame.mapInArrow(function, result_columns).collect()]
    except PythonException as error:
        raise SparkJobFailed(f"a Spark task failed: {_last_line(str(error))}") from error
    except (PySparkException, Py4JJavaError) as error:
        raise SparkJobFailed(f"the Spark job failed: {str(error).splitlines()[0]}") from error


def _last_line(trace: str) -> str:
    """Returns the exception at the end of a Python traceback, after its indented frames."""
    lines = [line for line in trace.splitlines() if line.strip()]
    named = [position for position, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[named[-1] + 1 :] if named else lines
    return " ".join(line.strip() for line in after if not line.startswith(" "))[:1000]


def _tasks_done(session: SparkSession, group: str, total: int) -> int:
    """Returns the finished tasks of the stage that runs them. The stage before it only hands them out."""
    tracker = session.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage_id) for job in jobs if job is not None for stage_id in job.stageIds]
    return max(
        (stage.numCompletedTasks for stage in stages if stage is not None and stage.numTasks == total),
        default=0,
    )
