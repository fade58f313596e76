"""Transactions, compared with Kafka's: `python -m benchmarks.transactions`. Both have their defaults. Tidelog
runs with MinIO, Kafka with its local disk.

- *Throughput*: Java's ProducerPerformance without transactions, and with transactions of 1 s and of 100 ms.
- *Ends*: small transactions, one after the other, of 1, 10 and 100 producers over 1 and 100 partitions. Each
  is a Produce request with a batch per partition, and an EndTxn (transaction.version 2, KIP-890). Where an
  answer is CONCURRENT_TRANSACTIONS, the producer asks again after 2 ms, and this is part of the time of a
  transaction.
- *Chain*: the time from a record's produce until it is consumed after a transaction has read it and written
  it to another topic, with librdkafka.
"""

import argparse
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import confluent_kafka
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.types import ProducerId, TransactionalId
from kio.static.primitive import i16, i32Timedelta
from rich.console import Console
from rich.table import Table

from benchmarks.endpoints import minio
from benchmarks.load.batches import full_batches
from benchmarks.load.frames import BadAnswer, ProduceFrame, ProducerIdentity
from benchmarks.load.wire import Wire
from benchmarks.systems.kafka import kafka
from benchmarks.systems.meters import scrape, total
from benchmarks.systems.system import System
from benchmarks.systems.tidelog import tidelog
from tests.support.apache_kafka import jars

_PARTITIONS: Final = 12
_RECORD_BYTES: Final = 1_000
_PROPERTIES: Final = ("batch.size=262144", "linger.ms=20", "buffer.memory=67108864")
_PROBE_RECORDS: Final = 50_000
_DURATIONS_MS: Final = (None, 1_000, 100)
_SUMMARY: Final = re.compile(r"records sent, ([0-9.]+) records/sec \(([0-9.]+) MB/sec\)")
_TIMEOUT_S: Final = 300.0
_TRANSACTION_TIMEOUT: Final = timedelta(seconds=60)
_AGAIN_S: Final = 0.002
_WARM_UP_S: Final = 2.0
_CHAIN_PAUSE_S: Final = 0.1
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """`transaction_ms`: from the Produce request to the answer of EndTxn. `commit_ms`: a commit to Postgres
    in the mean, None for Kafka."""

    producers: int
    partitions: int
    per_s: float
    transaction_ms: Sequence[float]
    end_ms: Sequence[float]
    commit_ms: float | None


def throughput_mb_s(system: System, transaction_ms: int | None, seconds: float) -> float:
    """MB per second of one producer."""
    topic = system.create_topic(_PARTITIONS)
    per_s, _ = _performance(system, topic, transaction_ms, _PROBE_RECORDS)
    return _performance(system, topic, transaction_ms, int(per_s * seconds))[1]


def _performance(system: System, topic: str, transaction_ms: int | None, records: int) -> tuple[float, float]:
    target = system.target
    command = ["java", "-cp", jars(), "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
    command += ["--num-records", str(records), "--record-size", str(_RECORD_BYTES), "--throughput", "-1"]
    if transaction_ms is not None:
        command += ["--transactional-id", f"{topic}-tx", "--transaction-duration-ms", str(transaction_ms)]
    command += ["--producer-props", f"bootstrap.servers={target.host}:{target.port}", *_PROPERTIES]
    said = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S, check=False
    )
    found = _SUMMARY.findall(said.stdout)
    if said.returncode or not found:
        raise RuntimeError(f"ProducerPerformance ended with {said.returncode}: {said.stdout[-2_000:]}")
    return float(found[-1][0]), float(found[-1][1]) * (1 << 20) / 1e6


class _TransactionalProducer:
    """Ends one transaction after the other over a connection of its own."""

    def __init__(self, system: System, topic: str, partitions: int, transactional_id: str) -> None:
        target = system.target
        self._id = transactional_id
        self._wire = Wire.open(target.host, target.port, target.client_id)
        self._frame = ProduceFrame(
            topic, full_batches(range(partitions), 100, 300), target.client_id, transactional_id=self._id
        )
        self._identity = self._initialized()
        self.transaction_s: list[float] = []
        self.end_s: list[float] = []

    def run(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            self._produce()
            produced_s = time.perf_counter()
            self._end()
            ended_s = time.perf_counter()
            self.transaction_s.append(ended_s - began_s)
            self.end_s.append(ended_s - produced_s)

    def forget(self) -> None:
        """Begins to measure anew."""
        self.transaction_s, self.end_s = [], []

    def close(self) -> None:
        self._wire.close()

    def _produce(self) -> None:
        while True:
            self._frame.stamp(self._wire.next_id(), int(time.time() * 1000), self._identity, {})
            self._wire.send(self._frame.data)
            try:
                self._frame.check(self._wire.receive())
                return
            except BadAnswer as error:
                if ErrorCode.concurrent_transactions.name not in str(error):
                    raise
            time.sleep(_AGAIN_S)

    def _end(self) -> None:
        while True:
            answer = self._wire.ask(
                EndTxnRequest(
                    transactional_id=TransactionalId(self._id),
                    producer_id=ProducerId(self._identity.producer_id),
                    producer_epoch=i16(self._identity.epoch),
                    committed=True,
                )
            )
            if answer.error_code is ErrorCode.none:
                break
            if answer.error_code is not ErrorCode.concurrent_transactions:
                raise BadAnswer(f"EndTxn: {answer.error_code.name}")
            time.sleep(_AGAIN_S)
        self._identity = ProducerIdentity(
            producer_id=int(answer.producer_id), epoch=int(answer.producer_epoch)
        )

    def _initialized(self) -> ProducerIdentity:
        request = InitProducerIdRequest(
            transactional_id=TransactionalId(self._id),
            transaction_timeout=i32Timedelta.parse(_TRANSACTION_TIMEOUT),
        )
        until_s = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._wire.ask(request)
            if answer.error_code is ErrorCode.none:
                return ProducerIdentity(producer_id=int(answer.producer_id), epoch=int(answer.producer_epoch))
            if time.monotonic() > until_s:
                raise BadAnswer(f"InitProducerId: {answer.error_code.name}")
            time.sleep(_POLL_S)


def ends(system: System, producers: int, partitions: int, seconds: float) -> Ends:
    topic = system.create_topic(partitions)
    with ExitStack() as opened:
        running = [
            _TransactionalProducer(system, topic, partitions, f"{topic}-{number}")
            for number in range(producers)
        ]
        for producer in running:
            opened.callback(producer.close)
        _at_once([producer.run for producer in running], time.monotonic() + _WARM_UP_S)
        for producer in running:
            producer.forget()
        before, began_s = _commits(system), time.monotonic()
        _at_once([producer.run for producer in running], began_s + seconds)
        wall_s = time.monotonic() - began_s
        after = _commits(system)
    transaction_ms = [1e3 * each for producer in running for each in producer.transaction_s]
    commits = after[1] - before[1]
    return Ends(
        producers=producers,
        partitions=partitions,
        per_s=len(transaction_ms) / wall_s,
        transaction_ms=transaction_ms,
        end_ms=[1e3 * each for producer in running for each in producer.end_s],
        commit_ms=1e3 * (after[0] - before[0]) / commits if commits else None,
    )


def _at_once(runs: Sequence[Callable[[float], None]], until_s: float) -> None:
    with ThreadPoolExecutor(len(runs)) as pool:
        for running in [pool.submit(run, until_s) for run in runs]:
            running.result()


def _commits(system: System) -> tuple[float, float]:
    """Seconds and number of commits so far."""
    if system.stack is None:
        return 0.0, 0.0
    page = scrape(f"{system.stack.agents[0].address.http_url}/metrics")
    return total(page, "tidelog_commit_seconds_sum"), total(page, "tidelog_commit_seconds_count")


def chain_ms(system: System, seconds: float) -> list[float]:
    """Milliseconds from a record's produce until its copy is consumed, a record every tenth of a second."""
    source, target = system.create_topic(1), system.create_topic(1)
    servers = f"{system.target.host}:{system.target.port}"
    stop = threading.Event()
    found: list[float] = []
    with _consumer(servers, source, 0) as reader, _consumer(servers, target, 0) as last:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "transactional.id": f"{target}-tx", "linger.ms": 0}
        )
        producer.init_transactions(_TIMEOUT_S)

        def copy() -> None:
            while not stop.is_set():
                message = reader.poll(_POLL_S)
                if message is None or message.error() is not None:
                    continue
                producer.begin_transaction()
                producer.produce(target, message.value())
                producer.send_offsets_to_transaction(
                    reader.position(reader.assignment()), reader.consumer_group_metadata(), _TIMEOUT_S
                )
                producer.commit_transaction(_TIMEOUT_S)

        def read() -> None:
            while not stop.is_set():
                message = last.poll(_POLL_S)
                if message is not None and message.error() is None:
                    found.append(1e3 * (time.monotonic() - float(message.value() or b"0")))

        threads = [threading.Thread(target=each) for each in (copy, read)]
        for thread in threads:
            thread.start()
        feeder = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            feeder.produce(source, b"%f" % time.monotonic())
            feeder.flush(_TIMEOUT_S)
            time.sleep(_CHAIN_PAUSE_S)
        time.sleep(1.0)
        stop.set()
        for thread in threads:
            thread.join()
    return found[len(found) // 5 :]


@contextmanager
def _consumer(servers: str, topic: str, offset: int) -> Iterator[confluent_kafka.Consumer]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{topic}-group",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
    try:
        yield consumer
    finally:
        consumer.close()


def _share(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=100)[round(share * 100) - 1] if len(values) > 1 else float("nan")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name == "system" else "right")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transactions", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="How long each case is measured.")
    parser.add_argument("--rounds", type=int, default=3, help="Of the throughput. The median is shown.")
    parser.add_argument("--system", choices=("tidelog", "kafka", "both"), default="both")
    given = parser.parse_args()
    rates = _table("Throughput, MB/s", "system", "none", "1 s", "ratio", "100 ms", "ratio")
    many = _table(
        "Ends",
        *("system", "producers", "partitions", "transactions/s", "p50 ms", "p99 ms"),
        *("EndTxn p50", "EndTxn p99", "a commit, ms"),
    )
    chain = _table("Chain", "system", "records", "p50 ms", "p99 ms")
    console = Console(width=130)
    for name in ("tidelog", "kafka"):
        if given.system not in (name, "both"):
            continue
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            if name == "tidelog":
                endpoint = opened.enter_context(minio(folder / "minio"))
                system = opened.enter_context(tidelog(folder / "tidelog", endpoint))
            else:
                system = opened.enter_context(kafka(folder / "kafka"))
            measured = [
                [throughput_mb_s(system, each, given.seconds) for each in _DURATIONS_MS]
                for _ in range(given.rounds)
            ]
            none, second, tenth = (statistics.median(column) for column in zip(*measured, strict=True))
            ratios = [statistics.median(row[at] / row[0] for row in measured) for at in (1, 2)]
            rates.add_row(
                name, f"{none:.1f}", f"{second:.1f}", f"{ratios[0]:.2f}", f"{tenth:.1f}", f"{ratios[1]:.2f}"
            )
            console.print(rates)
            for partitions in (1, 100):
                for producers in (1, 10, 100):
                    each = ends(system, producers, partitions, given.seconds)
                    many.add_row(
                        name,
                        *(str(each.producers), str(each.partitions), f"{each.per_s:.0f}"),
                        *(f"{_share(each.transaction_ms, share):.1f}" for share in (0.5, 0.99)),
                        *(f"{_share(each.end_ms, share):.1f}" for share in (0.5, 0.99)),
                        "" if each.commit_ms is None else f"{each.commit_ms:.1f}",
                    )
            console.print(many)
            delays = chain_ms(system, 2 * given.seconds)
            chain.add_row(name, str(len(delays)), *(f"{_share(delays, share):.0f}" for share in (0.5, 0.99)))
            console.print(chain)


if __name__ == "__main__":
    main()
