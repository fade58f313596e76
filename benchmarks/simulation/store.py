"""The object store: a latency drawn per request, a bandwidth per request, and CPU where it shares the
machine.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.simulation.calibration import StoreCost
from benchmarks.simulation.events import Cores, EventLoop
from benchmarks.simulation.latency import Durations


class Store:
    """`cores` are those of the machine if the store runs on it; the store of a region has none that
    matter.
    """

    def __init__(
        self, loop: EventLoop, cost: StoreCost, cores: Cores | None, random: np.random.Generator
    ) -> None:
        self._loop = loop
        self._cost = cost
        self._cores = cores
        self._random = random
        self.puts = 0
        self.put_bytes = 0
        self.gets = 0
        self.put_durations = Durations()
        self.get_durations = Durations()

    def put(self, size_bytes: int, done: Callable[[], None]) -> None:
        cost = self._cost
        self.puts += 1
        self.put_bytes += size_bytes
        lasts_s = cost.put.draw(self._random) + size_bytes / cost.put_bytes_per_s
        self._work(
            lasts_s, cost.cpu_per_put_s + size_bytes * cost.cpu_per_put_byte_s, self.put_durations, done
        )

    def get(self, size_bytes: int, done: Callable[[], None]) -> None:
        cost = self._cost
        self.gets += 1
        lasts_s = cost.get.draw(self._random) + size_bytes / cost.get_bytes_per_s
        self._work(
            lasts_s, cost.cpu_per_get_s + size_bytes * cost.cpu_per_get_byte_s, self.get_durations, done
        )

    def _work(self, lasts_s: float, work_s: float, durations: Durations, done: Callable[[], None]) -> None:
        began_s = self._loop.now_s

        def ended() -> None:
            durations.add(self._loop.now_s - began_s)
            done()

        if self._cores is None:
            self._loop.after(lasts_s, ended)
        else:
            self._cores.submit(work_s, lambda: self._loop.after(max(0.0, lasts_s - work_s), ended))
