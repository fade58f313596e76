"""Writes rows to topics through Kafka producers, a producer per task: idempotent, with acks of all.

Promises:
- With the option `kafka.transactional.id`, exactly once. Each attempt of a task writes in a transaction and
  leaves it open (`spark_source/task_transaction.py`). The driver commits those of a micro-batch, or of a
  batch write, as one. A micro-batch that Spark repeats is committed once.
- Without it, at least once: a task ends well only if the log has every row of it. A task that Spark repeats
  writes its rows again, so a row may come twice.
- Rows of a task keep their order within a partition.
- What cannot be written (a column, a type, a missing topic) is refused before anything is.
"""

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_source.agents import Agents, AgentsUnavailable, RequestRefused
from spark_source.options import InvalidOption
from spark_source.settings import SourceSettings
from spark_source.task_transaction import (
    NotWritten,
    OpenTransaction,
    TaskTransaction,
    attempt_of_task,
    micro_batch,
    reason_of,
)

log = logging.getLogger("tidelog")

_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_SINK_NAME: Final = re.compile(r"[^\x00]{1,200}")
_OF_SINKS: Final = "tidelog-sink"
"""In the transactional ids of all sinks. Agents end no others for a sink."""
_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""By default: the longest that agents allow by default."""
_FULL_QUEUE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """It travels to the executors."""

    topic: str | None
    """For rows without a column `topic`."""
    producer: Mapping[str, str]
    flush_timeout_s: float
    settings: SourceSettings
    sink_name: str | None = None
    """None: the sink writes without transactions."""


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
    own = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    sink_name = own.pop("transactional.id", None)
    if sink_name is None:
        log.warning(
            "tidelog: this sink writes at least once: rows of a task that is repeated come twice. Option "
            "kafka.transactional.id makes it exactly once"
        )
    elif not _SINK_NAME.fullmatch(sink_name):
        raise InvalidOption(f"kafka.transactional.id: {sink_name[:200]!r}; a name has 1 to 200 characters")
    else:
        log.info("tidelog: this sink writes exactly once, under the name %s", sink_name)
        own.setdefault("transaction.timeout.ms", str(_TRANSACTION_TIMEOUT_MS))
    bootstrap = settings.bootstrap or Agents(settings).bootstrap()
    fixed = {"bootstrap.servers": bootstrap, "enable.idempotence": "true", "acks": "all"}
    return WriteContext(
        topic=given.get("topic"),
        producer={"compression.type": "zstd", "linger.ms": "20", **own, **fixed},
        flush_timeout_s=settings.source_flush_timeout_s,
        settings=settings,
        sink_name=sink_name,
    )


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task reports to the driver."""

    transaction: OpenTransaction | None = None
    """None: it wrote no row, or the sink writes without transactions."""
    query_id: str = ""
    run_id: str = ""
    """Of the streaming query; Spark's driver does not show them to `commit`."""


class Writer(DataSourceArrowWriter):
    """A batch write. Spark sends the same object to the tasks and to the commit."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context
        self._run_id = str(uuid4())

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        name = self._context.sink_name
        return Written(write_rows(self._context, iterator, None if name is None else f"{name}-{_OF_SINKS}-"))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._context.sink_name is not None:
            Agents(self._context.settings).commit_sink(self._batch(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._context.sink_name is not None:
            _abort(self._context, self._batch(messages))

    def _batch(self, messages: Sequence[WriterCommitMessage | None]) -> dict[str, Any]:
        name = self._context.sink_name
        return {
            "sink": name,
            "run_id": self._run_id,
            "id_prefix": f"{name}-{_OF_SINKS}-",
            "transactions": _transactions(messages),
        }


class StreamWriter(DataSourceStreamArrowWriter):
    """Spark makes one in each process that plans, writes or commits."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        name = self._context.sink_name
        if name is None:
            return Written(write_rows(self._context, iterator))
        query_id, run_id = micro_batch()
        return Written(
            write_rows(self._context, iterator, f"{name}-{_OF_SINKS}-{query_id}-"), query_id, run_id
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        batch = self._batch(messages, batchId)
        if batch is not None and Agents(self._context.settings).commit_sink(batch) == "before":
            log.warning("tidelog: micro-batch %d was committed before; its repeat was aborted", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        batch = self._batch(messages, batchId)
        if batch is not None:
            _abort(self._context, batch)

    def _batch(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> dict[str, Any] | None:
        """None: the sink writes without transactions, or no task has ended well."""
        name = self._context.sink_name
        written = next((each for each in messages if isinstance(each, Written)), None)
        if name is None or written is None:
            return None
        return {
            "sink": name,
            "run_id": written.run_id,
            "id_prefix": f"{name}-{_OF_SINKS}-{written.query_id}-",
            "query_id": written.query_id,
            "batch_id": batch_id,
            "transactions": _transactions(messages),
        }


def _transactions(messages: Iterable[WriterCommitMessage | None]) -> list[dict[str, Any]]:
    return [
        asdict(each.transaction)
        for each in messages
        if isinstance(each, Written) and each.transaction is not None
    ]


def _abort(context: WriteContext, batch: Mapping[str, Any]) -> None:
    """What it cannot abort times out. Spark reports why it aborts."""
    try:
        Agents(context.settings).abort_sink(batch)
    except (AgentsUnavailable, RequestRefused) as error:
        log.warning("tidelog: transactions of the sink stay open until they time out: %s", error)


def write_rows(
    context: WriteContext, batches: Iterable[pa.RecordBatch], id_prefix: str | None = None
) -> OpenTransaction | None:
    """Returns once the log has all rows: the transaction that has them, which is open, if `id_prefix` begins
    its id. Raises NotWritten.
    """
    from confluent_kafka import Producer

    if id_prefix is None:
        task = _TaskWriter(context, Producer(dict(context.producer)))
        task.write_all(batches)
        return None
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    transactional_id = f"{id_prefix}{attempt_of_task()}"
    with TaskTransaction(context.producer, transactional_id, context.flush_timeout_s) as transaction:
        task = _TaskWriter(context, transaction.producer)
        task.write_all(chain((first,), filled))
        return transaction.left_open()


class _TaskWriter:
    def __init__(self, context: WriteContext, producer: Any) -> None:
        self._context = context
        self._producer = producer
        self._failure = ""

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            for record in _records(batch, self._context.topic):
                self._produce(record)
            self._check()
        left = self._producer.flush(self._context.flush_timeout_s)
        self._check()
        if left:
            raise NotWritten(
                f"{left} rows were not acknowledged within {self._context.flush_timeout_s:g} s "
                "(sourceFlushTimeoutS)"
            )

    def _produce(self, record: Mapping[str, Any]) -> None:
        from confluent_kafka import KafkaException

        until_s = time.monotonic() + self._context.flush_timeout_s
        while True:
            try:
                self._producer.produce(**record, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(_FULL_QUEUE_WAIT_S)
                self._check()
                if time.monotonic() > until_s:
                    raise NotWritten("the producer's queue stays full: is an agent there?") from None
            except KafkaException as error:  # of an earlier row, or because the transaction has failed
                self._check()
                raise NotWritten(reason_of(error.args[0])) from None
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and not self._failure:
            self._failure = f"topic {message.topic()!r}, partition {message.partition()}: {reason_of(error)}"

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
