"""(a) and (b) for ten minutes at a steady rate: what merging adds to the CPU of a GB.

The first seconds, before anything is old enough to be merged, are the short run. The last two thirds are the
long run, when merging keeps up. Both are windows of one load, so their CPU can be compared.
"""

from typing import Final

from benchmarks.figures import Figures, per
from benchmarks.load.processes import Load, Window
from benchmarks.load.producers import Pace, Produced, paced
from benchmarks.systems.meters import Reading, scrape, total
from benchmarks.systems.system import System
from benchmarks.workloads.produce import CONNECTIONS, WARM_UP_S, Shape, frames, memory, of_production

SECONDS: Final = 600.0
MB_PER_S: Final = 20.0
SETTLE_S: Final = 20.0
ENVIRONMENT: Final = (
    ("TIDELOG_MERGE_SETTLE_S", str(SETTLE_S)),  # by default 60 s
    ("TIDELOG_MERGE_TARGET_S", "60"),  # by default 300 s, and steady only after ten minutes
)
_SHORT_S: Final = 15.0
_WARM_UP: Final = 1 / 3
_COUNTERS: Final = {
    "merged_in": ("tidelog_merged_bytes_total", 'direction="in"'),
    "merged_out": ("tidelog_merged_bytes_total", 'direction="out"'),
    "backlog": ("tidelog_merge_backlog_bytes", ""),
}


def measure(system: System, shape: Shape, seconds: float) -> Figures:
    """The figures of the long run, and of the short run with the prefix `short_`."""
    topic = system.create_topic(shape.partitions)
    prepared = [
        one for of_connection in frames(topic, shape, system.target.client_id, 1) for one in of_connection
    ]
    pace = Pace(
        connections=CONNECTIONS,
        per_s=MB_PER_S * 1e6 / prepared[0].bytes / CONNECTIONS,
        idempotent=system.idempotent,
    )
    short = Window.after(WARM_UP_S, min(_SHORT_S, seconds / 4))
    long = Window(begin_s=short.begin_s + seconds * _WARM_UP, end_s=short.begin_s + seconds)
    with Load(paced, system.target, prepared, long, pace) as load:
        in_short, _ = _spent(system, short)
        in_long, merging = _spent(system, long)
        produced = load.result()
    figures, before = _figures(produced, in_long, long), _figures(produced, in_short, short)
    size = figures["mb_per_s"] * 1e6 * long.seconds
    return {
        **figures,
        **{f"short_{name}": value for name, value in before.items()},
        "merged_per_byte": per(merging.counters["merged_out"], size),
        "merged_mb_per_s": merging.counters["merged_in"] / 1e6 / long.seconds,
        "backlog_growth_mb": merging.counters["backlog"] / 1e6,
        **memory(system),
    }


def _figures(produced: Produced, spent: Reading, window: Window) -> Figures:
    """Without the clients' CPU, which covers both windows."""
    figures = of_production(produced, spent, window)
    return {name: value for name, value in figures.items() if name != "clients_cpu_s_per_gb"}


def _spent(system: System, window: Window) -> tuple[Reading, Reading]:
    """Figures of the processes and of merging."""
    window.wait_begin()
    merging, before = _merging(system), system.meters.read()
    window.wait_end()
    spent = system.meters.read() - before
    return spent, _merging(system) - merging


def _merging(system: System) -> Reading:
    assert system.stack is not None, "it is of this machine"
    page = scrape(f"{system.stack.agents[0].address.http_url}/metrics")
    return Reading(cpu_s={}, counters={name: total(page, *sample) for name, sample in _COUNTERS.items()})
