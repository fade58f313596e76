"""The scenarios of docs/scaling.md, and running many of them side by side."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.cluster import Result, simulate
from benchmarks.simulation.scenario import MIB, ZONES, Group, Scenario

POSTGRES_CORES = 32
_GB = 1e9
_KIB = 1 << 10
_SIZES = ((10, 0.1), (30, 1.0), (100, 1.0), (300, 10.0), (1_000, 10.0))
_PARTITIONS = (1_000, 10_000, 100_000, 1_000_000)
_GROUPS = (Group(), Group())
"""Two groups read everything, each partition in one zone each."""


def grid() -> list[Scenario]:
    """As agents are today: all defaults, one Postgres."""
    return [_scenario(agents, gb * _GB, partitions) for agents, gb in _SIZES for partitions in _PARTITIONS]


def _scenario(agents: int, bytes_per_s: float, partitions: int) -> Scenario:
    large = agents >= 1_000
    return Scenario(
        agents=agents,
        partitions=partitions,
        bytes_per_s=bytes_per_s,
        groups=_GROUPS,
        postgres_cores=POSTGRES_CORES,
        warm_up_s=2.0 if large else 3.0,
        seconds=3.0 if large else 8.0,
    )


def ways_past() -> list[tuple[str, Scenario]]:
    """What changes where one Postgres does not suffice, or hardly."""
    return [
        (f"{name}: {change}", scenario)
        for name, base in (
            ("1 GB/s", _scenario(100, 1 * _GB, 10_000)),
            ("10 GB/s", _scenario(1_000, 10 * _GB, 100_000)),
        )
        for change, scenario in _changes(base)
    ]


def _changes(base: Scenario) -> list[tuple[str, Scenario]]:
    large = base.agents >= 1_000
    few, many = (8, 16) if large else (4, 16)
    slow = replace(base, linger_s=1.0, put_budget_per_s=1.0)
    return [
        ("as it is", base),
        ("batches of 256 KiB", replace(base, batch_bytes=(256 * _KIB,))),
        ("linger 1 s, 1 PUT/s", slow),
        ("all producers in one zone", replace(base, zones=("a",), groups=_in_zone("a"))),
        (f"{few} databases", replace(base, shards=few, postgres_cores=8)),
        (f"{many} databases", replace(base, shards=many, postgres_cores=4)),
        (f"{few} databases, commits combined", replace(base, shards=few, postgres_cores=8, combined=True)),
        (f"linger 1 s, 1 PUT/s, {few} databases", replace(slow, shards=few, postgres_cores=8)),
    ]


def _in_zone(zone: str) -> tuple[Group, ...]:
    return (Group(zones=(zone,)), Group(zones=(zone,)))


def _everywhere(lag_s: float) -> Group:
    return Group(lag_s=lag_s, zones=ZONES, everywhere=True)


def cache_sweep() -> list[tuple[float, int, Scenario]]:
    """How far behind a second reader is, the page cache per agent, and the scenario: in each zone 10 agents,
    through which 300 MB/s are read.
    """
    base = replace(_scenario(30, 0.3 * _GB, 3_000), warm_up_s=45.0, seconds=8.0, chunk_s=0.1)
    return [
        (
            lag_s,
            cache,
            replace(base, groups=(_everywhere(0.0), _everywhere(lag_s)), page_cache_bytes=cache),
        )
        for lag_s in (1.0, 5.0, 20.0)
        for cache in (64 * MIB, 160 * MIB, 384 * MIB, 1024 * MIB)
    ]


def run_all(scenarios: Sequence[Scenario], calibration: Calibration, processes: int) -> list[Result]:
    """In order; the largest are begun first."""
    order = sorted(
        range(len(scenarios)), key=lambda place: -scenarios[place].agents * scenarios[place].shards
    )
    results: dict[int, Result] = {}
    with ProcessPoolExecutor(processes) as pool:
        running = {place: pool.submit(simulate, scenarios[place], calibration) for place in order}
        for place, future in running.items():
            results[place] = future.result()
    return [results[place] for place in range(len(scenarios))]
