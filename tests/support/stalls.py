"""Clients that measure their stalls: a producer, an assigned consumer, and a group of each protocol.

A stall is the longest pause between two acknowledgements, or between two deliveries, in any one partition.
Records go to every partition at a steady pace, so a pause is much longer than that pace only if something
failed. A consumer's pause includes the wait of its producer. A group's members commit synchronously
while they read, so a coordinator that does not answer stops them, too.

Promises:
- `faults` names each acknowledged record that the assigned consumer did not read, or read twice.
- Every thread ends with the context.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import confluent_kafka

PRODUCER, ASSIGNED, CLASSIC, CONSUMER = "producer", "assigned consumer", "classic group", "consumer group"
ROLES = (PRODUCER, ASSIGNED, CLASSIC, CONSUMER)
_COMMIT_EVERY_S = 0.2
_POLL_S = 0.02
_END_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """`client` is added to every client's configuration; `groups` names the group of each protocol."""

    bootstrap: str
    topic: str
    partitions: int
    groups: Mapping[str, str]
    members: int = 2
    records_per_s: float = 10.0
    """Sent to each partition."""
    client: Mapping[str, Any] = field(default_factory=dict)


class Pauses:
    """The times of one role's events by partition, and the longest pause since `begin`."""

    def __init__(self, partitions: int) -> None:
        self._lock = threading.Lock()
        self._last_s: list[float | None] = [None] * partitions
        self._longest_s = 0.0

    def note(self, partition: int) -> None:
        """Records an acknowledgement or a delivery."""
        now_s = time.monotonic()
        with self._lock:
            last_s, self._last_s[partition] = self._last_s[partition], now_s
            if last_s is not None:
                self._longest_s = max(self._longest_s, now_s - last_s)

    def begin(self) -> None:
        """Forget earlier pauses."""
        with self._lock:
            self._longest_s = 0.0

    def longest_s(self) -> float:
        """The longest pause that ended since `begin`, or that continues now."""
        now_s = time.monotonic()
        with self._lock:
            return max(self._longest_s, *(now_s - (last_s or 0.0) for last_s in self._last_s))

    def going_on_s(self) -> float:
        """The longest pause that has not ended."""
        now_s = time.monotonic()
        with self._lock:
            return max(now_s - (last_s or 0.0) for last_s in self._last_s)


class Clients:
    """`with Clients(settings) as clients:` runs them; `end` stops the producer and waits until all was
    read.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.pauses = {role: Pauses(settings.partitions) for role in ROLES}
        self.errors: list[str] = []
        self.assignments: dict[str, int] = defaultdict(int)
        """How often members of each group got partitions."""
        self._producing = threading.Event()
        self._running = threading.Event()
        self._lock = threading.Lock()
        self._acknowledged: set[tuple[int, int]] = set()
        self._refused: list[str] = []
        self._read: dict[str, list[tuple[int, int]]] = {role: [] for role in ROLES if role != PRODUCER}
        self._offsets: dict[int, int] = {}
        self._gaps: list[str] = []
        self._threads = [self._thread(self._produce), self._thread(self._read_assigned)]
        for role in (CLASSIC, CONSUMER):
            self._threads += [self._thread(self._read_in_group, role) for _ in range(settings.members)]

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
            thread.join(_END_S)

    def wait_until_steady(self, longest_s: float, for_s: float, timeout_s: float) -> bool:
        """Waits until no client has paused for longer than `longest_s` for `for_s`. Returns False if that
        takes too long.
        """
        until_s = time.monotonic() + timeout_s
        steady_since_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if any(pauses.going_on_s() > longest_s for pauses in self.pauses.values()):
                steady_since_s = now_s
            if now_s - steady_since_s > for_s:
                return True
            if now_s > until_s:
                return False
            time.sleep(0.02)

    def begin(self) -> None:
        for pauses in self.pauses.values():
            pauses.begin()

    def stalls_s(self) -> dict[str, float]:
        """The longest pause of each role since `begin`."""
        return {role: pauses.longest_s() for role, pauses in self.pauses.items()}

    def end(self, timeout_s: float) -> Sequence[str]:
        """Stops producing and reads everything. Returns what is lost, repeated, refused or out of order."""
        self._producing.clear()
        self._threads[0].join(timeout_s)
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and any(self._missing(role) for role in self._read):
            time.sleep(0.1)
        self._running.clear()
        return self._faults()

    # --- the clients

    def _produce(self) -> None:
        client = confluent_kafka.Producer(self._configuration({"enable.idempotence": True}))
        sequence, next_s = 0, time.monotonic()
        while self._producing.is_set():
            for partition in range(self.settings.partitions):
                self._send(client, partition, sequence)
            sequence += 1
            next_s += 1 / self.settings.records_per_s
            while (left_s := next_s - time.monotonic()) > 0:
                client.poll(min(left_s, _POLL_S))
            client.poll(0)
        client.flush(_END_S)

    def _send(self, client: confluent_kafka.Producer, partition: int, sequence: int) -> None:
        def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is not None:
                self._refused.append(f"refused: {partition}/{sequence}: {error}")
                return
            self.pauses[PRODUCER].note(partition)
            with self._lock:
                self._acknowledged.add((partition, sequence))

        client.produce(
            self.settings.topic, value=f"{partition} {sequence}", partition=partition, on_delivery=delivered
        )

    def _read_assigned(self) -> None:
        client = confluent_kafka.Consumer(
            self._configuration(
                {"group.id": "assigned", "enable.auto.commit": False, "auto.offset.reset": "error"}
            )
        )
        beginning = [
            confluent_kafka.TopicPartition(self.settings.topic, partition, 0)
            for partition in range(self.settings.partitions)
        ]
        client.assign(beginning)
        self._consume(client, ASSIGNED, lambda: None)

    def _read_in_group(self, role: str) -> None:
        client = confluent_kafka.Consumer(
            self._configuration(
                {
                    "group.id": self.settings.groups[role],
                    "group.protocol": "classic" if role == CLASSIC else "consumer",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                }
            )
        )

        def assigned(*_: object) -> None:
            with self._lock:
                self.assignments[role] += 1

        committed_s = time.monotonic()

        def commit() -> None:
            nonlocal committed_s
            if time.monotonic() < committed_s + _COMMIT_EVERY_S:
                return
            try:
                client.commit(asynchronous=False)
            except confluent_kafka.KafkaException as failed:
                self.errors.append(f"{time.monotonic():.3f} {role}: commit: {failed}")
            committed_s = time.monotonic()

        client.subscribe([self.settings.topic], on_assign=assigned)
        self._consume(client, role, commit)

    def _consume(self, client: confluent_kafka.Consumer, role: str, after: Callable[[], None]) -> None:
        try:
            while self._running.is_set():
                messages = client.consume(500, timeout=_POLL_S)
                for message in messages:
                    if message.error() is None:
                        self._delivered(role, message)
                    else:
                        self.errors.append(f"{time.monotonic():.3f} {role}: {message.error()}")
                if messages:
                    after()
        finally:
            client.close()

    def _delivered(self, role: str, message: confluent_kafka.Message) -> None:
        partition, sequence = map(int, (message.value() or b"").split())
        self.pauses[role].note(partition)
        if role == ASSIGNED:
            expected, offset = self._offsets.get(partition, 0), message.offset() or 0
            if offset != expected:
                self._gaps.append(f"offset {offset} of partition {partition} where {expected} belongs")
            self._offsets[partition] = offset + 1
        with self._lock:
            self._read[role].append((partition, sequence))

    def _configuration(self, own: Mapping[str, Any]) -> dict[str, Any]:
        common = {"bootstrap.servers": self.settings.bootstrap, "log_level": 0, "error_cb": self._note_error}
        return {**common, **own, **self.settings.client}

    def _note_error(self, error: confluent_kafka.KafkaError) -> None:
        self.errors.append(f"{time.monotonic():.3f} {error}")

    # --- what they saw

    def _missing(self, role: str) -> set[tuple[int, int]]:
        with self._lock:
            return self._acknowledged - set(self._read[role])

    def _faults(self) -> list[str]:
        faults = self._refused + self._gaps
        for role in self._read:
            faults += [f"lost: {role} did not read {name}" for name in sorted(self._missing(role))]
        read = self._read[ASSIGNED]
        if len(read) != len(set(read)):
            faults.append(f"repeated: {len(read) - len(set(read))} records")
        return faults

    @staticmethod
    def _thread(target: Callable[..., None], *arguments: object) -> threading.Thread:
        return threading.Thread(target=target, args=arguments, daemon=True)
