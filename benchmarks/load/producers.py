"""Producers, as fast as possible or at a given pace. They are idempotent by default."""

import heapq
import random
import selectors
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.load.frames import BadAnswer, ProduceFrame, ProducerIdentity
from benchmarks.load.processes import Window
from benchmarks.load.threads import in_threads
from benchmarks.load.wire import Wire

_MOST_ERRORS = 200
_ERROR_PAUSE_S = 0.05
_DRAIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    at_s: float
    took_s: float
    bytes: int
    records: int


@dataclass(slots=True, kw_only=True)
class Produced:
    """Figures of producers."""

    acks: list[Ack] = field(default_factory=list)
    errors: int = 0
    last_error: str = ""
    throttled_s: float = 0.0
    cpu_s: float = 0.0
    """CPU of the process that produced."""

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
    """One connection, and its requests in flight."""

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
        """One answer."""
        answer = self.wire.receive()
        self._take(answer, time.monotonic())

    def _take(self, answer: memoryview, now_s: float) -> None:
        """After an error of an idempotent producer, its next requests fail, too. It begins a new epoch after
        all answers."""
        sent_s, frame = self.waiting.popleft()
        try:
            pause_s = frame.check(answer)
        except BadAnswer as error:
            self.seen.errors += 1
            self.seen.last_error = str(error)
            if self.seen.errors > _MOST_ERRORS:
                raise
            self._broken = True
        else:
            self.seen.acks.append(
                Ack(at_s=now_s, took_s=now_s - sent_s, bytes=frame.bytes, records=frame.records)
            )
            if pause_s:
                self.seen.throttled_s += pause_s
                time.sleep(pause_s)
        if self._broken and not self.waiting:
            self._begin_anew()

    def drain(self, until_s: float) -> None:
        """Takes the remaining answers, and ends."""
        while self.waiting and time.monotonic() < until_s:
            self.receive()
        self.wire.close()

    @property
    def is_broken(self) -> bool:
        """True if nothing may be sent until all requests in flight are answered."""
        return self._broken

    def _begin_anew(self) -> None:
        time.sleep(_ERROR_PAUSE_S)
        self._broken = False
        self._sequences.clear()
        if self._idempotent:
            self._identity = self.wire.identity()


def each_once(target: Target, frames: Sequence[ProduceFrame], in_flight: int = 20) -> None:
    """Sends every frame once. Raises BadAnswer if one fails."""
    producer = _Producer(target, idempotent=False)
    for frame in frames:
        producer.send(frame)
        if len(producer.waiting) == in_flight:
            producer.receive()
    while producer.waiting:
        producer.receive()
    producer.wire.close()
    if producer.seen.errors:
        raise BadAnswer(producer.seen.last_error)


def flat_out(
    target: Target, frames: Sequence[Sequence[ProduceFrame]], window: Window, in_flight: int, idempotent: bool
) -> Produced:
    """Uses a connection and a thread per sequence of frames, and sends its frames in turn until the window
    ends."""

    def run(mine: Sequence[ProduceFrame]) -> Produced:
        return _flat_out(_Producer(target, idempotent=idempotent), mine, window, in_flight)

    total = Produced()
    for result in in_threads(run, frames):
        total.add(result)
    total.cpu_s = time.process_time()
    return total


def _flat_out(
    producer: _Producer, frames: Sequence[ProduceFrame], window: Window, in_flight: int
) -> Produced:
    turn = 0
    while time.monotonic() < window.end_s:
        if len(producer.waiting) < in_flight and not producer.is_broken:
            producer.send(frames[turn % len(frames)])
            turn += 1
        else:
            producer.receive()
    producer.drain(window.end_s + _DRAIN_S)
    return producer.seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Sends `per_s` requests per second and connection, with a random phase. If `in_flight` of them are
    unanswered, the next ones wait, and their wait counts as latency.
    """

    connections: int
    per_s: float
    idempotent: bool = True
    in_flight: int = 100


class _PacedProducer(_Producer):
    def __init__(self, target: Target, pace: Pace, choice: random.Random) -> None:
        super().__init__(target, idempotent=pace.idempotent)
        self._pace = pace
        self._choice = choice
        self._late: deque[float] = deque()

    def receive(self) -> None:
        """Takes all answers that have arrived."""
        answers, now_s = self.wire.receive_arrived(), time.monotonic()
        for answer in answers:
            self._take(answer, now_s)

    def due(self, at_s: float, frames: Sequence[ProduceFrame]) -> None:
        self._late.append(at_s)
        self.send_what_may_go(frames)

    def send_what_may_go(self, frames: Sequence[ProduceFrame]) -> None:
        while self._late and len(self.waiting) < self._pace.in_flight and not self.is_broken:
            self.send(frames[self._choice.randrange(len(frames))], self._late.popleft())


def paced(
    target: Target, frames: Sequence[ProduceFrame], window: Window, pace: Pace, seed: int = 1
) -> Produced:
    """Any connection may send any frame. Latency counts from the moment a request was due."""
    choice = random.Random(seed)
    producers = [_PacedProducer(target, pace, choice) for _ in range(pace.connections)]
    selector = selectors.DefaultSelector()
    for producer in producers:
        selector.register(producer.wire.socket, selectors.EVENT_READ, producer)
    began_s = time.monotonic()
    due = [(began_s + choice.random() / pace.per_s, number) for number in range(len(producers))]
    heapq.heapify(due)
    while (now_s := time.monotonic()) < window.end_s:
        for key, _ in selector.select(max(0.0, min(due[0][0], window.end_s) - now_s)):
            key.data.receive()
            key.data.send_what_may_go(frames)
        while due[0][0] <= time.monotonic() < window.end_s:
            at_s, number = heapq.heappop(due)
            heapq.heappush(due, (at_s + 1 / pace.per_s, number))
            producers[number].due(at_s, frames)
            if selector.select(0):
                break
    total = Produced()
    for producer in producers:
        producer.drain(window.end_s + _DRAIN_S)
        total.add(producer.seen)
    total.cpu_s = time.process_time()
    return total
