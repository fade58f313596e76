"""Virtual time: an event loop, and two kinds of queues.

Promises that the same calls in the same order give the same run. Events of one moment happen in the order of
their calls. Nothing here reads a clock or draws random numbers.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

Callback = Callable[..., None]

QUANTUM_S = 0.004
"""A core turns to the next piece of work after this long, so that short statements do not wait for long ones.
"""


class EventLoop:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callback, tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, at_s: float, callback: Callback, *arguments: Any) -> None:
        """Never in the past: what is due earlier happens now."""
        heapq.heappush(self._queue, (max(at_s, self.now_s), next(self._numbers), callback, arguments))

    def after(self, delay_s: float, callback: Callback, *arguments: Any) -> None:
        self.at(self.now_s + delay_s, callback, *arguments)

    def run_until(self, end_s: float) -> None:
        """Everything due by then; later events stay."""
        queue = self._queue
        while queue and queue[0][0] <= end_s:
            self.now_s, _, callback, arguments = heapq.heappop(queue)
            self.events += 1
            callback(*arguments)
        self.now_s = max(self.now_s, end_s)


class Cores:
    """CPU shared in turns by pieces of work: first come first served, a quantum at a time."""

    def __init__(self, loop: EventLoop, count: int) -> None:
        self._loop = loop
        self._free = count
        self._waiting: deque[tuple[float, Callback]] = deque()
        self.count = count
        self.busy_s = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, work_s: float, done: Callback) -> None:
        """Calls `done` when the work has had its CPU time."""
        if work_s <= 0:
            done()
        elif self._free:
            self._free -= 1
            self._run(work_s, done)
        else:
            self._waiting.append((work_s, done))

    def _run(self, work_s: float, done: Callback) -> None:
        slice_s = min(work_s, QUANTUM_S)
        self.busy_s += slice_s
        self._loop.after(slice_s, self._ran, work_s - slice_s, done)

    def _ran(self, left_s: float, done: Callback) -> None:
        if left_s > 1e-9:
            self._waiting.append((left_s, done))
            done = _nothing
        if self._waiting:
            self._run(*self._waiting.popleft())
        else:
            self._free += 1
        done()


class Thread:
    """One event loop of one process: pieces of work one after the other, each on the machine's cores.

    `busy_s` is CPU time, not the time during which the machine's cores were waited for.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[tuple[float, Callback]] = deque()
        self._running = False
        self.busy_s = 0.0

    def submit(self, work_s: float, done: Callback) -> None:
        if self._running:
            self._waiting.append((work_s, done))
        else:
            self._start(work_s, done)

    def _start(self, work_s: float, done: Callback) -> None:
        self._running = True
        self.busy_s += work_s
        self._cores.submit(work_s, lambda: self._ended(done))

    def _ended(self, done: Callback) -> None:
        done()
        if self._waiting:
            self._start(*self._waiting.popleft())
        else:
            self._running = False


def _nothing() -> None:
    """Done later."""
