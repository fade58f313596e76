"""How long a failed login waits, by the failures that its host had before (pure).

Promises: the wait doubles with each failure from `base_s` to `most_s`, it is forgotten `_FORGET_AFTER_S`
after the last failure, and at most `most_hosts` hosts are remembered.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

_FORGET_AFTER_S: Final = 60.0
_MOST_DOUBLINGS: Final = 30


@dataclass(slots=True)
class _Failures:
    count: int
    last_s: float


class FailedLogins:
    def __init__(self, *, base_s: float, most_s: float, most_hosts: int) -> None:
        self._base_s = base_s
        self._most_s = most_s
        self._most_hosts = most_hosts
        self._of_hosts: OrderedDict[str, _Failures] = OrderedDict()

    def delay_s(self, host: str, now_s: float) -> float:
        """Counts a failure. Returns how long it waits."""
        failures = self._of_hosts.pop(host, None)
        if failures is None or now_s - failures.last_s > _FORGET_AFTER_S:
            failures = _Failures(0, now_s)
        delay_s = min(self._most_s, self._base_s * float(2 ** min(failures.count, _MOST_DOUBLINGS)))
        failures.count, failures.last_s = failures.count + 1, now_s
        self._of_hosts[host] = failures
        while len(self._of_hosts) > self._most_hosts:
            self._of_hosts.popitem(last=False)
        return delay_s

    def __len__(self) -> int:
        return len(self._of_hosts)
