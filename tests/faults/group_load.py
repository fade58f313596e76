"""Groups at work while a test does harm: a producer, consumers of both group protocols, and a watch on
offsets.

Promises that every reported loss, step backwards or fatal error is real, and that every thread ends within
its deadline.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import confluent_kafka
import confluent_kafka.admin
import psycopg

from tests.support.messages import place_of

_PATIENT: dict[str, Any] = {"reconnect.backoff.max.ms": 500, "socket.timeout.ms": 10_000, "log_level": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoadSettings:
    servers: str
    database_url: str
    topic: str
    partitions: int
    group_id: str
    protocol: str
    members: int = 3
    records_per_s: float = 200.0


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the threads saw. One thread appends to each list, or several under the lock."""

    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    consumed: list[tuple[int, int]] = field(default_factory=list)
    assignments: dict[int, int] = field(default_factory=dict)
    """How often each consumer got an assignment."""
    holds: dict[int, int] = field(default_factory=dict)
    """How many partitions each consumer has now."""
    backwards: list[str] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class GroupLoad:
    """`with GroupLoad(settings) as load:` runs it; `finish` stops the producer and waits until all was
    consumed.
    """

    def __init__(self, settings: GroupLoadSettings) -> None:
        self.settings = settings
        self.seen = Seen()
        self._producing = threading.Event()
        self._running = threading.Event()
        self._threads = [threading.Thread(target=self._produce, daemon=True)]
        self._threads += [
            threading.Thread(target=self._consume, args=(number,), daemon=True)
            for number in range(settings.members)
        ]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))

    def __enter__(self) -> Self:
        self._producing.set()
        self._running.set()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producing.clear()
        self._running.clear()
        for thread in self._threads:
            thread.join(60.0)
        assert not any(thread.is_alive() for thread in self._threads), "a client did not end"

    def wait_until(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            assert not self.seen.fatal, self.seen.fatal
            assert time.monotonic() < until, f"waited in vain until {what}; {self.summary()}"
            time.sleep(0.05)

    def wait_for_progress(self, records: int, timeout_s: float) -> None:
        """Waits until this many more records were consumed."""
        goal = len(self.seen.consumed) + records
        self.wait_until(lambda: len(self.seen.consumed) >= goal, timeout_s, f"{goal} records are consumed")

    def wait_until_shared(self, timeout_s: float) -> None:
        """Waits until each consumer has its whole part: no partition is on its way, and none must be given
        up.
        """
        part = self.settings.partitions // self.settings.members
        parts = dict.fromkeys(range(self.settings.members), part)
        self.wait_until(lambda: self.seen.holds == parts, timeout_s, f"every consumer has {part} partitions")

    def finish(self, timeout_s: float) -> None:
        self._producing.clear()
        self._threads[0].join(timeout_s)
        self.wait_until(lambda: not self.missing(), timeout_s, "everything acknowledged is consumed")

    def missing(self) -> set[tuple[int, int]]:
        with self.seen.lock:
            return self.seen.acknowledged - set(self.seen.consumed)

    def members(self) -> dict[str, int]:
        """The group's members and their epochs, as Postgres has them."""
        with psycopg.connect(self.settings.database_url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT member_id, epoch FROM group_members WHERE group_id = %s", [self.settings.group_id]
            )
            return dict(rows.fetchall())

    def coordinator_epoch(self) -> int:
        """Grows by one with each claim, because the database has only this group."""
        with psycopg.connect(self.settings.database_url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT coordinator_epoch FROM groups WHERE group_id = %s", [self.settings.group_id]
            ).fetchone()
        assert row is not None
        return int(row[0])

    def summary(self) -> str:
        seen = self.seen
        missing = sorted(self.missing())
        return (
            f"acknowledged {len(seen.acknowledged)}, consumed {len(seen.consumed)}, assignments "
            f"{seen.assignments},"
            f" holds {seen.holds}, missing {len(missing)} {missing[:5]}, members {self.members()}"
        )

    # --- the threads

    def _produce(self) -> None:
        settings = self.settings
        producer = confluent_kafka.Producer(
            {**_PATIENT, "bootstrap.servers": settings.servers, "enable.idempotence": True, "linger.ms": 5}
        )

        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:
                with self.seen.lock:
                    self.seen.acknowledged.add(place_of(message))

        number = 0
        while self._producing.is_set():
            producer.produce(
                settings.topic, b"%d" % number, partition=number % settings.partitions, on_delivery=delivered
            )  # fmt: skip
            number += 1
            producer.poll(1 / settings.records_per_s)
        producer.flush(60)

    def _consume(self, number: int) -> None:
        settings, seen = self.settings, self.seen
        consumer = confluent_kafka.Consumer(
            {
                **_PATIENT,
                "bootstrap.servers": settings.servers,
                "client.id": f"consumer-{number}",
                "group.id": settings.group_id,
                "group.protocol": settings.protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "error_cb": lambda error: seen.fatal.append(str(error)) if error.fatal() else None,
            }
        )

        def assigned(_: confluent_kafka.Consumer, parts: list[confluent_kafka.TopicPartition]) -> None:
            if parts:
                seen.assignments[number] = seen.assignments.get(number, 0) + 1

        consumer.subscribe([settings.topic], on_assign=assigned)
        while self._running.is_set():
            found = [message for message in consumer.consume(200, timeout=0.1) if message.error() is None]
            seen.holds[number] = len(consumer.assignment())
            if found:
                with seen.lock:
                    seen.consumed += [place_of(message) for message in found]
                # A rebalance, or no coordinator for now: what was not committed is read again.
                with contextlib.suppress(confluent_kafka.KafkaException):
                    consumer.commit(asynchronous=False)
        consumer.close()

    def _watch(self) -> None:
        """Committed offsets, as Postgres has them, never go backwards; also not over its restart."""
        highest: dict[int, int] = {}
        while self._running.is_set():
            with contextlib.suppress(psycopg.OperationalError):
                self._watch_connected(highest)
            time.sleep(0.1)

    def _watch_connected(self, highest: dict[int, int]) -> None:
        with psycopg.connect(self.settings.database_url, autocommit=True) as connection:
            while self._running.is_set():
                rows = connection.execute(
                    "SELECT partition, committed_offset FROM committed_offsets WHERE group_id = %s",
                    [self.settings.group_id],
                )
                for partition, offset in rows:
                    if offset < highest.get(partition, 0):
                        self.seen.backwards.append(f"partition {partition}: {highest[partition]} -> {offset}")
                    highest[partition] = max(offset, highest.get(partition, 0))
                time.sleep(0.02)
