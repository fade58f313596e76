"""Writes rows to topics through Kafka producers, a producer per task: idempotent, with acks of all.

Promises:
- At least once: a task ends well only if the log has every row of it. A task that Spark repeats writes its
  rows again, so a row may come twice. The sink writes without transactions.
- Rows of a task keep their order within a partition.
- What cannot be written (a column, a type, a missing topic) is refused before anything is.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_source.agents import Agents
from spark_source.options import InvalidOption
from spark_source.settings import SourceSettings

log = logging.getLogger("tidelog")

_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_FULL_QUEUE_WAIT_S = 1.0


class NotWritten(Exception):
    """The log did not take a row. Spark repeats the task, or fails the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """It travels to the executors."""

    topic: str | None
    """For rows without a column `topic`."""
    producer: Mapping[str, str]
    flush_timeout_s: float


def write_context(settings: SourceSettings, options: Mapping[str, str], schema: StructType) -> WriteContext:
    """Raises InvalidOption."""
    given = {name.lower(): value for name, value in options.items()}
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in kinds.items():
        if kind not in _KINDS.get(name, ()):
            known = ", ".join(f"{each} {' or '.join(allowed)}" for each, allowed in _KINDS.items())
            raise InvalidOption(f"column {name} {kind} cannot be written; what can is {known}")
    if "value" not in kinds:
        raise InvalidOption("there is no column value")
    if "topic" not in kinds and not given.get("topic"):
        raise InvalidOption('name where to write: option "topic", or a column topic')
    log.warning("tidelog: this sink writes at least once: rows of a task that is repeated come twice")
    own = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    bootstrap = settings.bootstrap or Agents(settings).bootstrap()
    fixed = {"bootstrap.servers": bootstrap, "enable.idempotence": "true", "acks": "all"}
    return WriteContext(
        topic=given.get("topic"),
        producer={"compression.type": "zstd", "linger.ms": "20", **own, **fixed},
        flush_timeout_s=settings.source_flush_timeout_s,
    )


class Writer(DataSourceArrowWriter):
    def __init__(self, context: WriteContext) -> None:
        self._context = context

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        write_rows(self._context, iterator)
        return WriterCommitMessage()


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, context: WriteContext) -> None:
        self._context = context

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        write_rows(self._context, iterator)
        return WriterCommitMessage()


def write_rows(context: WriteContext, batches: Iterable[pa.RecordBatch]) -> None:
    """Returns once the log has all rows. Raises NotWritten."""
    from confluent_kafka import Producer

    task = _TaskWriter(context, Producer(dict(context.producer)))
    for batch in batches:
        task.write(batch)
    task.finish()


class _TaskWriter:
    def __init__(self, context: WriteContext, producer: Any) -> None:
        self._context = context
        self._producer = producer
        self._failure = ""

    def write(self, batch: pa.RecordBatch) -> None:
        for record in _records(batch, self._context.topic):
            self._produce(record)
        self._check()

    def finish(self) -> None:
        left = self._producer.flush(self._context.flush_timeout_s)
        self._check()
        if left:
            raise NotWritten(
                f"{left} rows were not acknowledged within {self._context.flush_timeout_s:g} s "
                "(sourceFlushTimeoutS)"
            )

    def _produce(self, record: Mapping[str, Any]) -> None:
        until_s = time.monotonic() + self._context.flush_timeout_s
        while True:
            try:
                self._producer.produce(**record, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(_FULL_QUEUE_WAIT_S)
                self._check()
                if time.monotonic() > until_s:
                    raise NotWritten("the producer's queue stays full: is an agent there?") from None
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and not self._failure:
            self._failure = f"topic {message.topic()!r}, partition {message.partition()}: {error.str()}"

    def _check(self) -> None:
        if self._failure:
            raise NotWritten(self._failure)


def _records(batch: pa.RecordBatch, topic: str | None) -> Iterator[dict[str, Any]]:
    """The producer's arguments for each row."""
    names = batch.schema.names
    columns = {name: batch.column(name).to_pylist() for name in names if name != "timestamp"}
    if "timestamp" in names:
        microseconds = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        columns["timestamp"] = [
            None if micros is None else micros // 1000 for micros in microseconds.to_pylist()
        ]
    for row in zip(*columns.values(), strict=True):
        record = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        if "headers" in record:
            record["headers"] = [(header["key"], header["value"]) for header in record["headers"]]
        record.setdefault("topic", topic)
        if record["topic"] is None:
            raise NotWritten('a row has no topic, and option "topic" is not set')
        yield record
