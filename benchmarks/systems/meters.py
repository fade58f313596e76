"""CPU, memory and counters of the processes of a system, read at two moments and subtracted."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

_MIB = 1 << 20
_SAMPLE = re.compile(r"^([a-z_0-9]+)(?:\{([^}]*)\})? ([0-9.eE+-]+|NaN)$", re.MULTILINE)


def cpu_s(pid: int) -> float:
    """CPU of a process and all its descendants, including those that ended. 0 if the process is gone."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory now, and its peak."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        resident = psutil.Process(pid).memory_info().rss / _MIB
        return resident, resident
    values = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status.read_text(), re.MULTILINE))
    return int(values["VmRSS"]) / 1024, int(values["VmHWM"]) / 1024


def scrape(url: str) -> dict[str, float]:
    """The samples of a Prometheus page by `name` and `name{labels}`. Empty if it does not answer."""
    with httpx.Client(verify=False, timeout=5.0) as client:
        try:
            text = client.get(url).text
        except httpx.TransportError:
            return {}
    return {
        f"{name}{{{labels}}}" if labels else name: float(value)
        for name, labels, value in _SAMPLE.findall(text)
    }


def total(samples: Mapping[str, float], name: str, labels: str = "") -> float:
    """The sum of all samples of a name whose labels contain `labels`."""
    return sum(
        value
        for key, value in samples.items()
        if (key == name or key.startswith(f"{name}{{")) and labels in key[len(name) :]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """`cpu_s` by part: the zone's name for its server, "postgres", "store". `counters` only grow."""

    cpu_s: Mapping[str, float]
    counters: Mapping[str, float] = field(default_factory=dict)

    def __sub__(self, other: "Reading") -> "Reading":
        return Reading(
            cpu_s={part: self.cpu_s[part] - other.cpu_s.get(part, 0.0) for part in self.cpu_s},
            counters={name: self.counters[name] - other.counters.get(name, 0.0) for name in self.counters},
        )

    def servers_s(self) -> float:
        """CPU of all servers, without Postgres and the object store."""
        return sum(value for part, value in self.cpu_s.items() if part not in ("postgres", "store"))


class Meters:
    """Reads CPU and memory of pids by part, and counters from functions."""

    def __init__(
        self, pids: Mapping[str, int], counters: Iterable[Callable[[], Mapping[str, float]]] = ()
    ) -> None:
        self.pids = dict(pids)
        self._counters = tuple(counters)

    def read(self) -> Reading:
        """Reads counters first, so that their cost is not part of the measurement."""
        counters = {name: value for read in self._counters for name, value in read().items()}
        return Reading(cpu_s={part: cpu_s(pid) for part, pid in self.pids.items()}, counters=counters)

    def server_memory_mib(self) -> tuple[float, float]:
        """Memory of the largest server: now, and its peak."""
        servers = [pid for part, pid in self.pids.items() if part not in ("postgres", "store")]
        readings = [memory_mib(pid) for pid in servers]
        return max(now for now, _ in readings), max(most for _, most in readings)
