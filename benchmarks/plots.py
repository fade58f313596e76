"""A plot per workload, as small SVGs: medians as bars, the spread of the rounds as lines on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.commit_rate import PARTITIONS, WRITERS
from benchmarks.results import Results
from benchmarks.sections import SECTIONS, TITLES, Panel

_COLOURS = {
    "tidelog": "#1f6f8b",
    "tidelog-local": "#7fb3c8",
    "kafka": "#8c564b",
    "tansu": "#d98032",
    "tansu-plain": "#eec08f",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidelog",
    "font.size": 9,
    "axes.spines.top": False,
}


def draw(results: Results, folder: Path) -> list[str]:
    """Draws `<workload>.svg` in the folder. Returns the workloads that have a plot."""
    folder.mkdir(exist_ok=True)
    drawn = []
    with mpl.rc_context({**_STYLE, "axes.spines.right": False}):
        for workload, section in SECTIONS.items():
            if results.systems(workload) and section.panels:
                _bars(results, workload, section.panels, folder / f"{workload}.svg")
                drawn.append(workload)
        if results.systems("h"):
            _commits(results, folder / "h.svg")
            drawn.append("h")
    return drawn


def _bars(results: Results, workload: str, panels: Sequence[Panel], file: Path) -> None:
    bars = max(len(results.systems(workload)) * len(panel.figures) for panel in panels)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 0.8 + 0.3 * bars), squeeze=False
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        _panel(axis, results, workload, panel)
    _save(figure, file)


def _panel(axis: Axes, results: Results, workload: str, panel: Panel) -> None:
    names: list[str] = []
    for system in results.systems(workload):
        for figure, label in zip(panel.figures, panel.labels, strict=True):
            spread = results.spread(workload, system, figure)
            if spread is None:
                continue
            errors = [[spread.median - spread.low], [spread.high - spread.median]]
            axis.barh(
                len(names),
                spread.median,
                xerr=errors,
                color=_COLOURS.get(system, "#888888"),
                ecolor="#333333",
            )
            names.append(f"{TITLES.get(system, system)} {label}".strip())
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_title(panel.title, loc="left", fontsize=9)


def _commits(results: Results, file: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(5.0, 3.0))
    for partitions in PARTITIONS:
        spreads = [
            results.spread("h", "sequencer", f"commits_per_s_{partitions}_partitions_{writers}_writers")
            for writers in WRITERS
        ]
        points = [(writers, spread) for writers, spread in zip(WRITERS, spreads, strict=True) if spread]
        axis.plot(
            [one for one, _ in points], [spread.median for _, spread in points], "o-", label=f"{partitions:,}"
        )
    axis.set_xlabel("writers")
    axis.set_title("commits/s, by partitions in each commit", loc="left", fontsize=9)
    axis.set_xticks(WRITERS)
    axis.set_yscale("log")
    axis.legend(frameon=False)
    _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
