"""Three producers and three consumers at work, in threads, while a test does harm.

Promises that a producer never has more than about `MOST_IN_FLIGHT` records unanswered, nor sends on while a
consumer has more than about `MOST_UNREAD` before it (a slow machine would not catch up), that consumers end
when they have read all that was acknowledged or say how far they came, and that every thread ends within its
deadline.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import confluent_kafka

from tests.faults.ledger import Ledger, ReadRecord, Record
from tests.support.messages import headers_of, place_of, value_of

MOST_IN_FLIGHT = 2_000
MOST_UNREAD = 15_000
_RETRY_PAUSE_S = 0.01
_LINES_KEPT = 3_000
_ANOTHER_READS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """`zones` gives each producer, and each consumer, the zone it names."""

    servers: str
    topic: str
    zones: Sequence[str] = ("a", "b", "")
    records_per_s: float = 400.0
    burst: int = 5
    delivery_timeout_s: float = 100.0
    client_settings: Mapping[str, object] = field(default_factory=dict)


class Producer:
    """An idempotent producer that sends its sequence at a steady pace, in small bursts."""

    def __init__(self, name: int, settings: LoadSettings, ledger: Ledger, unread: Callable[[], int]) -> None:
        self.name = name
        self.zone = settings.zones[name % len(settings.zones)]
        self.fatal: str | None = None
        self._settings = settings
        self._ledger = ledger
        self._unread = unread
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"producer-{name}", daemon=True)
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": settings.servers,
                "client.id": f"tidelog_zone={self.zone}" if self.zone else "load",
                "enable.idempotence": True,
                "compression.type": ("none", "zstd", "lz4")[name % 3],
                "linger.ms": 5,
                "delivery.timeout.ms": int(settings.delivery_timeout_s * 1000),
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2_000,
                "socket.timeout.ms": 15_000,
                "error_cb": self._on_error,
                "logger": None,
                "log_level": 0,
                **settings.client_settings,
            }
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Sends no more records. Those in flight wait for their answers."""
        self._stopping.set()

    def join(self, deadline_s: float) -> None:
        """Raises `TimeoutError` when answers are missing at the deadline (monotonic)."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            raise TimeoutError(
                f"producer {self.name} waits for {len(self._ledger.in_flight(self.name))} answers"
            )

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.fatal = str(error)

    def _run(self) -> None:
        pause_s = self._settings.burst / self._settings.records_per_s
        sequence = 0
        while not self._stopping.is_set() and self.fatal is None:
            for _ in range(self._settings.burst):
                self._send(sequence)
                sequence += 1
            until = time.monotonic() + pause_s
            while (left := until - time.monotonic()) > 0 or self._is_far_ahead():
                self._client.poll(max(left, 0.01))
                if self._stopping.is_set():
                    break
        self._client.flush(self._settings.delivery_timeout_s + 10)

    def _is_far_ahead(self) -> bool:
        return len(self._client) > MOST_IN_FLIGHT or self._unread() > MOST_UNREAD

    def _send(self, sequence: int) -> None:
        written = self._ledger.contents.written(self.name, sequence)
        self._ledger.sent(self.name, sequence)

        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:
                self._ledger.acknowledged(self.name, sequence, *place_of(message))
            else:
                self._ledger.refused(self.name, sequence, str(error))

        self._client.produce(
            self._settings.topic,
            value=written.record.value,
            key=written.record.key,
            partition=written.partition,
            timestamp=written.record.timestamp_ms,
            headers=list(written.record.headers),
            on_delivery=delivered,
        )


class _LastLines(logging.Handler):
    """Keeps the last of what a client logs about itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.created:.3f} {record.getMessage()}")


class Consumer:
    """Reads every partition from its beginning until it has all that the ledger holds acknowledged after
    `finish`.

    One that does not arrive says what its client did last, and how far another client of its zone came from
    there.
    """

    def __init__(self, name: int, settings: LoadSettings, ledger: Ledger) -> None:
        self.name = name
        self.log: dict[int, list[ReadRecord]] = {p: [] for p in range(ledger.contents.partitions)}
        self.errors: list[str] = []
        self._settings = settings
        self._logged = _LastLines()
        self._ends: Mapping[int, int] | None = None
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"consumer-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, ends: Mapping[int, int]) -> None:
        """Ends once these offsets are reached."""
        self._ends = ends

    def join(self, deadline_s: float) -> None:
        """Raises `TimeoutError`, saying how far it came, at the deadline (monotonic)."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            self._abandoned.set()
            reached = {partition: len(records) for partition, records in self.log.items()}
            print(*self._logged.lines, sep="\n", flush=True)
            raise TimeoutError(
                f"consumer {self.name} read {reached} of {self._ends}; its errors: {self.errors[-5:]};"
                f" another one read {self._read_by_another(reached)} from there"
            )

    @property
    def read_count(self) -> int:
        return sum(map(len, self.log.values()))

    def _finished(self) -> bool:
        ends = self._ends
        return ends is not None and all(len(self.log[partition]) >= end for partition, end in ends.items())

    def _read_by_another(self, reached: Mapping[int, int]) -> dict[int, int]:
        client = self._client()
        client.assign(
            [confluent_kafka.TopicPartition(self._settings.topic, p, start) for p, start in reached.items()]
        )
        found = dict.fromkeys(reached, 0)
        until = time.monotonic() + _ANOTHER_READS_S
        while time.monotonic() < until:
            for message in client.consume(500, timeout=0.2):
                if message.error() is None:
                    found[place_of(message)[0]] += 1
        client.close()
        return found

    def _client(self) -> confluent_kafka.Consumer:
        zone = self._settings.zones[self.name % len(self._settings.zones)]
        log = logging.Logger(f"consumer-{self.name}", level=logging.DEBUG)
        log.addHandler(self._logged)
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._settings.servers,
                "client.id": f"tidelog_zone={zone}" if zone else "load",
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 500,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2_000,
                "socket.timeout.ms": 15_000,
                "error_cb": lambda error: self.errors.append(str(error)),
                "logger": log,
                "log_level": 7,
                "debug": "topic,metadata,fetch",
                **self._settings.client_settings,
            }
        )

    def _run(self) -> None:
        client = self._client()
        try:
            client.assign([confluent_kafka.TopicPartition(self._settings.topic, p, 0) for p in self.log])
            while not self._finished() and not self._abandoned.is_set():
                for message in client.consume(500, timeout=0.2):
                    if message.error() is None:
                        self.log[place_of(message)[0]].append(read_message(message))
                    else:
                        self.errors.append(str(message.error()))
        finally:
            client.close()


def read_message(message: confluent_kafka.Message) -> ReadRecord:
    """A record as a client of this library hands it out."""
    record = Record(
        key=message.key(),
        value=value_of(message),
        headers=headers_of(message),
        timestamp_ms=message.timestamp()[1],
    )
    partition, offset = place_of(message)
    return ReadRecord(partition=partition, offset=offset, record=record)


class Load:
    """`with Load(settings, ledger) as load:` runs the clients; `finish` ends them in order and checks
    everything.
    """

    def __init__(self, settings: LoadSettings, ledger: Ledger) -> None:
        self.ledger = ledger
        self.producers = [
            Producer(name, settings, ledger, self._unread) for name in range(len(settings.zones))
        ]
        self.consumers = [Consumer(name, settings, ledger) for name in range(len(settings.zones))]

    def __enter__(self) -> Self:
        for consumer in self.consumers:
            consumer.start()
        for producer in self.producers:
            producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for producer in self.producers:
            producer.stop()
        for consumer in self.consumers:
            consumer.finish({})

    def _unread(self) -> int:
        """The number of records that the slowest consumer has not read."""
        acknowledged = sum(self.ledger.acknowledged_count(producer.name) for producer in self.producers)
        return acknowledged - min(consumer.read_count for consumer in self.consumers)

    def wait_for_acknowledgements(self, more: int, timeout_s: float) -> None:
        """Waits until each producer has this many more acknowledged records. Raises `TimeoutError`."""
        wanted = {
            producer.name: self.ledger.acknowledged_count(producer.name) + more for producer in self.producers
        }
        until = time.monotonic() + timeout_s
        while any(self.ledger.acknowledged_count(name) < count for name, count in wanted.items()):
            if time.monotonic() > until:
                counts = {name: self.ledger.acknowledged_count(name) for name in wanted}
                raise TimeoutError(f"acknowledged {counts}, wanted {wanted}; fatal: {self.fatal_errors()}")
            time.sleep(_RETRY_PAUSE_S)

    def fatal_errors(self) -> list[str]:
        return [producer.fatal for producer in self.producers if producer.fatal is not None]

    def finish(self, timeout_s: float) -> None:
        """Ends the producers, then the consumers; raises `AssertionError` with what is wrong, or
        `TimeoutError`.
        """
        deadline_s = time.monotonic() + timeout_s
        for producer in self.producers:
            producer.stop()
        for producer in self.producers:
            producer.join(deadline_s)
        assert not self.fatal_errors()
        assert not self.ledger.refusals(), (
            f"{len(self.ledger.refusals())} refused: {list(self.ledger.refusals().items())[:5]}"
        )
        ends = self.ledger.ends()
        for consumer in self.consumers:
            consumer.finish(ends)
        for consumer in self.consumers:
            consumer.join(deadline_s)
        for consumer in self.consumers:
            faults = self.ledger.check_log(consumer.log)
            assert not faults, f"consumer {consumer.name}: {len(faults)} faults, the first: " + "; ".join(
                faults[:5]
            )
