"""The transaction of one attempt of a Spark task: begun here, and left open for the driver to end.

Promises:
- An attempt has its own transactional id, which later micro-batches use again. So two attempts of a task that
  run at the same time do not harm each other, and an old one that still runs cannot write any more.
- Whoever gets `left_open` knows the producer id and epoch with which all rows were written: the client's own.
- A transaction that fails is aborted, if its process can still do so. Else the next commit of the sink aborts
  it (sequencer/commits/sinks.py), or its time-out.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from pyspark import TaskContext

log = logging.getLogger("tidelog")

_STATISTICS_INTERVAL_MS: Final = 50
_ABORT_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05


class NotWritten(Exception):
    """The log did not take a row. Spark repeats the task, or fails the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int


def attempt_of_task() -> str:
    """Returns the number of this task within its stage, and that of its attempt, such as `3-0`."""
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    return f"{context.partitionId()}-{context.attemptNumber()}"


def micro_batch() -> tuple[str, str]:
    """Returns the ids of the streaming query and of its run. Spark sets them as properties of the jobs of
    each micro-batch. Raises NotWritten.
    """
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    query_id = context.getLocalProperty("sql.streaming.queryId")
    run_id = context.getLocalProperty("spark.jobGroup.id")
    if not query_id or not run_id:
        raise NotWritten("Spark does not say which query this task is of; kafka.transactional.id needs that")
    return query_id, run_id


def reason_of(error: Any) -> str:
    """Returns the words of a KafkaError, and what to do about it."""
    from confluent_kafka import KafkaError

    if error.code() in (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    ):
        return (
            f"{error.str()}: another writer uses this kafka.transactional.id, or the transaction ran out of "
            "time (kafka.transaction.timeout.ms)"
        )
    return str(error.str())


class TaskTransaction:
    """A context manager: it begins the transaction, and aborts it on an error."""

    def __init__(self, producer: Mapping[str, str], transactional_id: str, timeout_s: float) -> None:
        from confluent_kafka import Producer

        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._identity: tuple[int, int] | None = None
        self.producer = Producer(
            {
                **producer,
                "transactional.id": transactional_id,
                # The only place where the client shows its producer id and epoch.
                "statistics.interval.ms": _STATISTICS_INTERVAL_MS,
                "stats_cb": self._learn,
            }
        )

    def __enter__(self) -> Self:
        from confluent_kafka import KafkaException

        try:
            self.producer.init_transactions(self._timeout_s)
            self.producer.begin_transaction()
        except KafkaException as error:
            raise NotWritten(f"{self._transactional_id}: {reason_of(error.args[0])}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from confluent_kafka import KafkaException

        if kind is None:
            return
        try:
            self.producer.abort_transaction(_ABORT_TIMEOUT_S)
        except KafkaException as failure:
            log.warning("tidelog: %s stays open until it times out: %s", self._transactional_id, failure)

    def left_open(self) -> OpenTransaction:
        """Returns the transaction, whose rows were flushed. The client must not end it."""
        until_s = time.monotonic() + self._timeout_s
        while self._identity is None:
            if time.monotonic() > until_s:
                raise NotWritten(f"{self._transactional_id}: the client does not show its producer id")
            self.producer.poll(_POLL_S)
        producer_id, epoch = self._identity
        return OpenTransaction(
            transactional_id=self._transactional_id, producer_id=producer_id, producer_epoch=epoch
        )

    def _learn(self, statistics: str) -> None:
        eos = json.loads(statistics)["eos"]
        if eos["txn_state"] == "InTransaction":
            self._identity = eos["producer_id"], eos["producer_epoch"]
