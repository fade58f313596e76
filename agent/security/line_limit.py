"""How many log lines strangers may cause: at most some per second of each kind. The next line that is written
says in `left_out_before` how many were not. Metrics count all.

Promise: `FairLineLimit` leaves room for other hosts, whatever one host does. Many hosts together may fill it.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

STRANGERS_LINES_PER_S: Final = 20.0
"""Of failed handshakes: enough to follow an attack, too little to fill a disk with."""
STRANGERS_LINES_OF_HOST_PER_S: Final = 5.0
_MOST_HOSTS: Final = 1_000
"""Past it the host that was silent longest is forgotten."""


class LineLimit:
    def __init__(self, most_per_s: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic."""
        self._most_per_s = most_per_s
        self._burst = max(1.0, most_per_s)
        self._clock = clock
        self._tokens = self._burst
        self._at_s = clock()
        self._left_out = 0

    def take(self) -> int | None:
        """Returns how many lines were left out since the last one. None: this one is left out, too."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._most_per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            self._left_out += 1
            return None
        self._tokens -= 1.0
        left_out, self._left_out = self._left_out, 0
        return left_out


class FairLineLimit:
    def __init__(self, most_per_s: float, of_host_per_s: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic. `of_host_per_s` bounds each host, `most_per_s` all of them together."""
        self._all = LineLimit(most_per_s, clock)
        self._of_host_per_s = of_host_per_s
        self._clock = clock
        self._of_hosts: OrderedDict[str, LineLimit] = OrderedDict()
        self._left_out = 0

    def __len__(self) -> int:
        return len(self._of_hosts)

    def take(self, host: str) -> int | None:
        """As `LineLimit.take`."""
        of_host = self._of_hosts.get(host)
        if of_host is None:
            of_host = self._of_hosts[host] = LineLimit(self._of_host_per_s, self._clock)
            if len(self._of_hosts) > _MOST_HOSTS:
                self._of_hosts.popitem(last=False)
        else:
            self._of_hosts.move_to_end(host)
        if of_host.take() is None or self._all.take() is None:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        return left_out
