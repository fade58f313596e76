"""Producers: as fast as the server takes it, or at a given pace; idempotent unless told otherwise."""

import heapq
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.load.frames import BadAnswer, ProduceFrame, ProducerIdentity
from benchmarks.load.processes import Window
from benchmarks.load.wire import Wire

_MOST_ERRORS = 200
_ERROR_PAUSE_S = 0.05
_DRAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    at_s: float
    took_s: float
    bytes: int
    records: int


@dataclass(slots=True, kw_only=True)
class Produced:
    """What producers saw."""

    acks: list[Ack] = field(default_factory=list)
    errors: int = 0
    last_error: str = ""
    throttled_s: float = 0.0
    cpu_s: float = 0.0
    """Of the process that produced."""

    def add(self, other: "Produced") -> None:
        self.acks += other.acks
        self.errors += other.errors
        self.last_error = other.last_error or self.last_error
        self.throttled_s += other.throttled_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    host: str
    port: int
    client_id: str = "benchmark"


class _Producer:
    """One connection, and what is in flight on it."""

    def __init__(self, target: Target, *, idempotent: bool) -> None:
        self.wire = Wire.open(target.host, target.port, target.client_id)
        self._idempotent = idempotent
        self._identity: ProducerIdentity | None = self.wire.identity() if idempotent else None
        self._sequences: dict[int, int] = {}
        self.waiting: deque[tuple[float, ProduceFrame]] = deque()
        self.seen = Produced()
        self._broken = False

    def send(self, frame: ProduceFrame, due_s: float | None = None) -> None:
        frame.stamp(self.wire.next_id(), time.time_ns() // 1_000_000, self._identity, self._sequences)
        self.waiting.append((time.monotonic() if due_s is None else due_s, frame))
        self.wire.send(frame.data)

    def receive(self) -> None:
        """One answer. What follows an error of an idempotent producer fails too: it begins anew after all answers."""
        answer = self.wire.receive()
        sent_s, frame = self.waiting.popleft()
        now_s = time.monotonic()
        try:
            pause_s = frame.check(answer)
        except BadAnswer as error:
            self.seen.errors += 1
            self.seen.last_error = str(error)
            if self.seen.errors > _MOST_ERRORS:
                raise
            self._broken = True
        else:
            self.seen.acks.append(Ack(at_s=now_s, took_s=now_s - sent_s, bytes=frame.bytes, records=frame.records))
            if pause_s:
                self.seen.throttled_s += pause_s
                time.sleep(pause_s)
        if self._broken and not self.waiting:
            self._begin_anew()

    @property
    def is_broken(self) -> bool:
        """Nothing is to be sent until what is in flight is answered."""
        return self._broken

    def _begin_anew(self) -> None:
        time.sleep(_ERROR_PAUSE_S)
        self._broken = False
        self._sequences.clear()
        if self._idempotent:
            self._identity = self.wire.identity()


def flat_out(
    target: Target, frames: Sequence[Sequence[ProduceFrame]], window: Window, in_flight: int, idempotent: bool
) -> Produced:
    """A connection (and a thread) for each sequence of frames, sent in turn until the window ends."""
    results: list[Produced] = []
    failures: list[Exception] = []

    def run(mine: Sequence[ProduceFrame]) -> None:
        try:
            results.append(_flat_out(_Producer(target, idempotent=idempotent), mine, window, in_flight))
        except Exception as error:  # noqa: BLE001 - raised again below, in the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=run, args=(mine,), daemon=True) for mine in frames]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    total = Produced()
    for result in results:
        total.add(result)
    total.cpu_s = time.process_time()
    return total


def _flat_out(producer: _Producer, frames: Sequence[ProduceFrame], window: Window, in_flight: int) -> Produced:
    turn = 0
    while time.monotonic() < window.end_s:
        if len(producer.waiting) < in_flight and not producer.is_broken:
            producer.send(frames[turn % len(frames)])
            turn += 1
        else:
            producer.receive()
    while producer.waiting:
        producer.receive()
    producer.wire.close()
    return producer.seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`per_s` requests per second and connection, with a random phase. `one_at_a_time`: none is sent before the last is
    answered (what is late then is sent at once)."""

    connections: int
    per_s: float
    idempotent: bool = True
    one_at_a_time: bool = False


def paced(target: Target, frames: Sequence[ProduceFrame], window: Window, pace: Pace, seed: int = 1) -> Produced:
    """Any frame may go over any connection. Latency counts from the moment a request was due."""
    choice = random.Random(seed)
    producers = [_Producer(target, idempotent=pace.idempotent) for _ in range(pace.connections)]
    selector = selectors.DefaultSelector()
    for number, producer in enumerate(producers):
        selector.register(producer.wire.socket, selectors.EVENT_READ, number)
    began_s = time.monotonic()
    due = [(began_s + choice.random() / pace.per_s, number) for number in range(len(producers))]
    heapq.heapify(due)
    until_s = window.end_s + _DRAIN_S
    while (now_s := time.monotonic()) < until_s:
        sending = now_s < window.end_s
        if not sending and not any(producer.waiting for producer in producers):
            break
        wait_s = max(0.0, min(due[0][0], window.end_s) - now_s) if sending else 0.5
        for key, _ in selector.select(wait_s):
            producers[key.data].receive()
        while sending and due[0][0] <= time.monotonic():
            at_s, number = heapq.heappop(due)
            heapq.heappush(due, (at_s + 1 / pace.per_s, number))
            producer = producers[number]
            if producer.is_broken or (pace.one_at_a_time and producer.waiting):
                continue
            producer.send(frames[choice.randrange(len(frames))], at_s)
    total = Produced()
    for producer in producers:
        total.add(producer.seen)
        producer.wire.close()
    total.cpu_s = time.process_time()
    return total
