"""CPU time of processes by the nanosecond, where Linux tells it: ticks of ten milliseconds are too coarse for
an agent that idles at a few of them a second.
"""

from collections.abc import Mapping
from pathlib import Path

import psutil

CpuTimes = Mapping[tuple[int, int], int]
"""Nanoseconds by process and thread."""


def cpu_times(pid: int) -> CpuTimes:
    """Of a process and its descendants, by thread. Raises OSError where /proc has no schedstat."""
    found: dict[tuple[int, int], int] = {}
    try:
        parent = psutil.Process(pid)
        pids = [pid, *(child.pid for child in parent.children(recursive=True))]
    except psutil.NoSuchProcess:
        return found
    for one in pids:
        for task in Path(f"/proc/{one}/task").glob("*"):
            try:
                found[one, int(task.name)] = int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    return found


def spent_s(before: CpuTimes, after: CpuTimes) -> float:
    """CPU between two readings. Processes that began and ended in between are not seen."""
    return sum(now - before.get(thread, 0) for thread, now in after.items()) / 1e9
