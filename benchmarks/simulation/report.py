"""Results as tables."""

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.simulation.calibration import Calibration
from benchmarks.simulation.cluster import Result
from benchmarks.simulation.cost import KafkaCluster, Prices, Usage, kafka_bill, tidelog_bill
from benchmarks.simulation.failover import Outage
from benchmarks.simulation.limits import growth, limits
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.tables import Figures
from benchmarks.simulation.validation import LIMIT, Quantity

_GB = 1e9
_CPU_HEADROOM = 2.0
"""Postgres has this many times the cores that it uses."""


def grid_table(results: Sequence[Result]) -> Figures:
    columns = [
        "agents",
        "GB/s",
        "partitions",
        "PUT/s",
        "MB each",
        "GET/s",
        "commits/s",
        "runs/s",
        "Postgres cores",
    ]
    columns += ["lock waits per commit", "ack p50 ms", "p99 ms", "agent core", "keeps up"]
    return Figures(
        name="grid",
        title="one Postgres, three zones, batches of 16 KiB, two groups of readers",
        columns=columns,
        rows=[
            [
                f"{result.scenario.agents:,}",
                f"{result.scenario.bytes_per_s / _GB:g}",
                f"{result.scenario.partitions:,}",
                f"{result.puts_per_s:,.0f}",
                f"{result.mean_object_bytes / 1e6:.1f}",
                f"{result.gets_per_s:,.0f}",
                f"{result.commits_per_s:,.0f}",
                f"{result.runs_per_s:,.0f}",
                f"{result.postgres_cpu:.1f}",
                f"{result.lock_waits_per_commit:.2f}",
                _ms(result.ack_p50_s, result),
                _ms(result.ack_p99_s, result),
                f"{result.agent_cpu_max:.2f}",
                wall_of(result),
            ]
            for result in results
        ],
    )


def wall_of(result: Result) -> str:
    """What stands in the way, if anything does."""
    if result.keeps_up:
        return "yes"
    scenario = result.scenario
    if result.agent_cpu_max > 0.95:
        return "no: agents' CPU"
    if result.postgres_busiest > 0.9 * scenario.postgres_cores:
        return "no: Postgres' CPU"
    if result.log_bytes_per_s > 0.9 * scenario.log_bytes_per_s * scenario.shards:
        return "no: Postgres' log"
    return "no: row locks" if result.lock_waits_per_commit > 0.3 else "no: one commit at a time"


def _ms(seconds: float, result: Result) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.0f}" if result.keeps_up else "grows"


def ways_table(named: Sequence[tuple[str, Result]]) -> Figures:
    columns = [
        "",
        "PUT/s",
        "commits/s",
        "runs/s",
        "lock waits per commit",
        "Postgres cores, all",
        "busiest database",
    ]
    return Figures(
        name="ways",
        title="past the wall",
        columns=[*columns, "log MB/s", "ack p50 ms", "p99 ms", "keeps up"],
        rows=[
            [
                name,
                f"{result.puts_per_s:,.0f}",
                f"{result.commits_per_s:,.0f}",
                f"{result.runs_per_s:,.0f}",
                f"{result.lock_waits_per_commit:.2f}",
                f"{result.postgres_cpu:.1f}",
                f"{result.postgres_busiest:.1f}",
                f"{result.log_bytes_per_s / 1e6:,.0f}",
                _ms(result.ack_p50_s, result),
                _ms(result.ack_p99_s, result),
                wall_of(result),
            ]
            for name, result in named
        ],
    )


def cost_table(results: Sequence[Result], prices: Prices) -> Figures:
    """Of those that keep up, with partitions few enough not to matter."""
    rows = []
    for result in results:
        scenario = result.scenario
        usage = Usage(
            bytes_per_s=scenario.bytes_per_s,
            puts_per_s=result.puts_per_s,
            gets_per_s=result.gets_per_s,
            agents=scenario.agents,
            postgres_cores=max(4.0, _CPU_HEADROOM * result.postgres_cpu),
        )
        ours = tidelog_bill(usage, prices)
        kafka = kafka_bill(
            KafkaCluster(bytes_per_s=scenario.bytes_per_s, groups=len(scenario.groups)), prices
        )
        names = ("PUT", "GET", "merging", "storage", "agents", "Postgres")
        rows.append(
            [
                f"{scenario.bytes_per_s / _GB:g} GB/s, {scenario.agents} agents",
                *(f"{ours.parts[name]:,.0f}" for name in names),
                f"**{ours.total:,.0f}**",
                *(f"{kafka.parts[name]:,.0f}" for name in ("between zones", "disks", "brokers")),
                f"**{kafka.total:,.0f}**",
            ]
        )
    columns = ["", "PUT", "GET", "merging", "storage", "agents", "Postgres", "Tidelog"]
    return Figures(
        name="cost",
        title=f"US dollars a month, 7 days kept, list prices of {prices.as_of}",
        columns=[*columns, "between zones", "disks", "brokers", "Kafka"],
        rows=rows,
    )


def limits_table(scenarios: Sequence[Scenario], calibration: Calibration) -> Figures:
    """One column per scenario; a demand beyond its limit is bold."""
    found = [limits(scenario, calibration) for scenario in scenarios]
    return Figures(
        name="limits",
        title="walls by arithmetic",
        columns=[
            "",
            *(f"{scenario.agents:,} agents, {scenario.partitions:,} partitions" for scenario in scenarios),
            "limit",
            "way past",
        ],
        rows=[
            [
                of_all[0].name,
                *(f"**{_short(one.demand)}**" if one.is_met else _short(one.demand) for one in of_all),
                f"{_short(of_all[0].limit)} {of_all[0].unit}".strip(),
                of_all[0].way_past,
            ]
            for of_all in zip(*found, strict=True)
        ],
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def growth_table(results: Sequence[Result]) -> Figures:
    rows = []
    for result in results:
        grown = growth(result.runs_per_s, result.bytes_per_s)
        scenario = result.scenario
        rows.append(
            [
                f"{scenario.bytes_per_s / _GB:g} GB/s, {scenario.partitions:,} partitions",
                f"{grown.runs_per_day / 1e6:,.0f}",
                f"{grown.bytes_per_day / _GB:,.0f}",
                f"{grown.merged_runs_per_day / 1e6:,.1f}",
                f"{grown.merged_runs_per_day * 7 / 1e6:,.0f}",
            ]
        )
    columns = ["", "million runs a day", "GB a day", "million a day once merged", "million kept for 7 days"]
    return Figures(name="growth", title="metadata", columns=columns, rows=rows)


def failover_table(deaths_s: np.ndarray, outages: Sequence[Outage]) -> Figures:
    quantiles = [f"{np.quantile(deaths_s, share):.1f}" for share in (0.5, 0.99)]
    rows = [["an agent dies: its partitions, p50 / p99", " / ".join(quantiles), ""]]
    rows += [
        [
            f"Postgres is away for {outage.away_s:.0f} s: everything",
            f"{outage.silent_s:.0f}",
            (
                f"{outage.recovered_s:.0f} more until the backlog is "
                f"gone{', clients held back' * outage.blocked}"
            ),
        ]
        for outage in outages
    ]
    return Figures(
        name="failover", title="failover", columns=["", "s without acknowledgement", ""], rows=rows
    )


def cache_table(points: Sequence[tuple[float, int, Result]]) -> Figures:
    lags, sizes = sorted({lag for lag, _, _ in points}), sorted({size for _, size, _ in points})
    by_place = {(lag, size): result for lag, size, result in points}
    return Figures(
        name="cache",
        title=("a second reader this far behind, on average: share of its reads from memory (GETs per "
            "object and zone)"),
        columns=["page cache per agent", *(f"{lag:g} s" for lag in lags)],
        rows=[
            [f"{size >> 20} MiB", *(_hits(by_place[lag, size]) for lag in lags)]
            for size in sizes
        ],
    )  # fmt: skip


def _hits(result: Result) -> str:
    return f"{result.last_groups_hit_ratio:.2f} ({result.other_zone_gets_per_object_and_zone:.2f})"


def validation_table(name: str, title: str, quantities: Sequence[Quantity]) -> Figures:
    return Figures(
        name=name,
        title=title,
        columns=["", "predicted", "measured", "error"],
        rows=[
            [
                f"{one.name}, {one.unit}" if one.unit else one.name,
                f"{one.predicted:.3g}",
                f"{one.measured:.3g}",
                _error(one),
            ]
            for one in quantities
        ],
    )


def _error(quantity: Quantity) -> str:
    text = f"{quantity.error:+.0%}"
    return f"**{text}**" if abs(quantity.error) > LIMIT else text
