"""The plots of docs/scaling.md, as SVG that is the same for the same figures."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchmarks.simulation.cluster import Result
from benchmarks.simulation.cost import KafkaCluster, Prices, Usage, kafka_bill, tidelog_bill
from benchmarks.simulation.failover import Outage

mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "tidelog", "svg.fonttype": "none", "font.size": 9, "axes.grid": True})
mpl.rcParams.update({"grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})

_SIZE = (6.4, 3.6)


def draw_all(
    directory: Path,
    grid: Sequence[Result],
    caches: Sequence[tuple[float, int, Result]],
    deaths_s: np.ndarray,
    outages: Sequence[Outage],
    prices: Prices,
) -> list[Path]:
    drawn = {
        "scaling_postgres.svg": _postgres(grid),
        "scaling_cost.svg": _cost(grid, prices),
        "scaling_cache.svg": _cache(caches),
        "scaling_failover.svg": _failover(deaths_s, outages),
    }
    for name, figure in drawn.items():
        figure.savefig(directory / name, metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)
    return [directory / name for name in drawn]


def _postgres(grid: Sequence[Result]) -> Figure:
    figure, axes = plt.subplots(figsize=_SIZE)
    for rate in sorted({result.scenario.bytes_per_s for result in grid}):
        agents = max(result.scenario.agents for result in grid if result.scenario.bytes_per_s == rate)
        line = [one for one in grid if (one.scenario.bytes_per_s, one.scenario.agents) == (rate, agents)]
        x, y = [one.scenario.partitions for one in line], [one.postgres_cpu for one in line]
        (drawn,) = axes.plot(x, y, label=f"{rate / 1e9:g} GB/s, {agents:,} agents")
        for one in line:
            marker = "o" if one.keeps_up else "x"
            axes.plot(one.scenario.partitions, one.postgres_cpu, marker, color=drawn.get_color())
    axes.set(
        xscale="log", yscale="log", xlabel="partitions", ylabel="Postgres cores used (x: does not keep up)"
    )
    axes.legend()
    return figure


def _cost(grid: Sequence[Result], prices: Prices) -> Figure:
    best = {}
    for result in grid:
        if result.scenario.partitions == 1_000:
            best[result.scenario.bytes_per_s] = result
    rates = np.array(sorted(best))
    ours = [
        tidelog_bill(
            Usage(
                bytes_per_s=rate,
                puts_per_s=best[rate].puts_per_s,
                gets_per_s=best[rate].gets_per_s,
                agents=best[rate].scenario.agents,
                postgres_cores=max(4.0, 2 * best[rate].postgres_cpu),
            ),
            prices,
        )
        for rate in rates
    ]
    kafka = [kafka_bill(KafkaCluster(bytes_per_s=rate, groups=2), prices) for rate in rates]
    figure, axes = plt.subplots(figsize=_SIZE)
    for name, bills, shift in (("Tidelog", ours, -0.2), ("Kafka", kafka, 0.2)):
        bottom = np.zeros(len(rates))
        for part in bills[0].parts:
            heights = np.array(
                [bill.parts[part] / rate * 1e9 / 1000 for bill, rate in zip(bills, rates, strict=True)]
            )
            axes.bar(np.arange(len(rates)) + shift, heights, 0.36, bottom=bottom, label=f"{name}: {part}")
            bottom += heights
    axes.set_xticks(range(len(rates)), [f"{rate / 1e9:g} GB/s" for rate in rates])
    axes.set(ylabel="thousand $ a month per GB/s")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _cache(points: Sequence[tuple[float, int, Result]]) -> Figure:
    figure, axes = plt.subplots(figsize=_SIZE)
    for lag_s in sorted({lag for lag, _, _ in points}):
        line = sorted((size, result.last_groups_hit_ratio) for lag, size, result in points if lag == lag_s)
        axes.plot(
            [size >> 20 for size, _ in line], [hits for _, hits in line], "o-", label=f"{lag_s:g} s behind"
        )
    axes.set(
        xscale="log",
        xlabel="page cache per agent, MiB",
        ylabel="share of the second reader's reads from memory",
        ylim=(0, 1),
    )
    axes.set_xticks([64, 160, 384, 1024], ["64", "160", "384", "1024"])
    axes.minorticks_off()
    axes.legend()
    return figure


def _failover(deaths_s: np.ndarray, outages: Sequence[Outage]) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2))
    left.plot(np.sort(deaths_s), np.linspace(0, 1, deaths_s.size))
    left.set(xlabel="s until acknowledged again", ylabel="share", title="an agent dies", ylim=(0, 1))
    for outage in outages:
        right.plot(range(len(outage.acked_per_s)), outage.acked_per_s, label=f"{outage.away_s:.0f} s away")
    right.set(xlabel="s", ylabel="acknowledged, of the usual", title="Postgres fails over")
    right.legend()
    figure.tight_layout()
    return figure
