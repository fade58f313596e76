"""Data sources whose sinks come to harm. Spark's workers import this module."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_tidelog import DefaultSource
from spark_source.agents import Agents
from spark_source.sink import StreamWriter, WriteContext, Writer, write_context
from tests.support.waiting import wait_until

_PATIENCE_S = 120.0
_HEAD_START_S = 15.0
Write = Callable[[Iterator[Any]], WriterCommitMessage]


class Failure:
    """Harms the first task, once or always, by the options `failure` and `marker`."""

    def __init__(self, options: dict[str, str]) -> None:
        self._how = options["failure"]
        self._marker = Path(options["marker"])

    def during(self, write: Write, batches: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if "slow" in self._how:
            return write(self._slowed(batches, context))
        if context.partitionId() != 0 or (self._marker.exists() and "always" not in self._how):
            return write(batches)
        if "midway" in self._how:
            return write(self._halved(batches))
        written = write(batches)
        self._fail()
        return written

    def _halved(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            time.sleep(1.0)  # the producer sends what it has
            self._fail()

    def _slowed(self, batches: Iterator[Any], context: TaskContext) -> Iterator[Any]:
        """The first attempt waits until a second one has begun, and some time more."""
        is_first_task = context.partitionId() == 0
        if is_first_task:
            self._attempt(context.attemptNumber()).touch()
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if is_first_task and context.attemptNumber() == 0:
                wait_until(self._attempt(1).exists, _PATIENCE_S)
                time.sleep(_HEAD_START_S)
            yield batch.slice(batch.num_rows // 2)

    def _attempt(self, number: int) -> Path:
        return self._marker.with_name(f"{self._marker.name}-{number}")

    def _fail(self) -> None:
        self._marker.touch()
        if "killed" in self._how:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("this attempt fails")


class FailingStreamWriter(StreamWriter):
    def __init__(self, context: WriteContext, failure: Failure) -> None:
        super().__init__(context)
        self._failure = failure

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._failure.during(super().write, iterator)


class FailingWriter(Writer):
    def __init__(self, context: WriteContext, failure: Failure) -> None:
        super().__init__(context)
        self._failure = failure

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._failure.during(super().write, iterator)


class LateWriter(StreamWriter):
    """It commits once the agents have aborted a transaction of its batch."""

    def __init__(self, context: WriteContext) -> None:
        super().__init__(context)
        self._late = context

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        assert self._late.topic is not None
        agents, until_s = Agents(self._late.settings), time.monotonic() + _PATIENCE_S
        while not any(each.end_offset for each in agents.topic(self._late.topic).partitions.values()):
            assert time.monotonic() < until_s, "no transaction is aborted"
            time.sleep(0.2)
        super().commit(messages, batchId)


class DyingWriter(StreamWriter):
    """Its driver dies between the commit of the sink and Spark's own."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        super().commit(messages, batchId)
        driver = next(each for each in psutil.Process().parents() if "java" in each.name())
        os.kill(driver.pid, signal.SIGKILL)
        os._exit(1)


class FailingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "failing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        assert not overwrite
        return FailingWriter(_context(self, schema), Failure(dict(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's
        assert not overwrite
        return FailingStreamWriter(_context(self, schema), Failure(dict(self.options)))


class LateSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "late"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's
        assert not overwrite
        return LateWriter(_context(self, schema))


class DyingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's
        assert not overwrite
        return DyingWriter(_context(self, schema))


def _context(source: DefaultSource, schema: StructType) -> WriteContext:
    return write_context(source.settings(), dict(source.options), schema)
