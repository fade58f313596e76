"""`python -m benchmarks.render`: RESULTS.md and the plots from results.json, without measuring anything.

`notes.md` explains missed targets. It is written by hand and copied in as it is.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks import results as stored
from benchmarks.commit_rate import PARTITIONS, WRITERS
from benchmarks.figures import Spread
from benchmarks.machine_speed import FIGURE
from benchmarks.results import Results
from benchmarks.sections import SECTIONS, TITLES, Ratio, Row, Section
from benchmarks.targets import verdicts
from benchmarks.workload_names import WORKLOADS

_FOLDER = Path(__file__).parent
_WORDS = {True: "met", False: "**missed**", None: "not measured"}


def page(results: Results, notes: str, plots: Sequence[str]) -> str:
    """All of RESULTS.md."""
    parts = [
        "# Results",
        "`make bench` writes this page. [README.md](README.md) says what is measured and how. Every figure\n"
        "is the median of the rounds, with the smallest and the largest in brackets. Ratios are taken round\n"
        "by round.",
        "\n".join(f"- {name}: {value}" for name, value in {**results.about, **_machine(results)}.items()),
        "## Targets",
        _targets(results),
    ]
    if notes.strip():
        parts += ["## What is behind it", notes.strip()]
    for workload, title in WORKLOADS.items():
        if not results.systems(workload):
            continue
        name = f"({workload}) " if len(workload) == 1 else ""
        parts.append(f"## {name}{title[0].upper()}{title[1:]}")
        if workload in plots:
            parts.append(f"![{title}](plots/{workload}.svg)")
        parts.append(
            _commits(results) if workload == "h" else _figures(results, workload, SECTIONS[workload])
        )
        parts += [
            f"{TITLES.get(system, system)} failed: `{error}`"
            for system in results.systems(workload)
            for error in results.errors(workload, system)
        ]
    return "\n\n".join(parts) + "\n"


def _machine(results: Results) -> dict[str, str]:
    """How even the machine's speed was. Other guests of the same host may slow it down."""
    spread = Spread.of([one.figures[FIGURE] for one in results.measurements if FIGURE in one.figures])
    if spread is None:
        return {}
    return {"the machine's speed": f"the same loop before each measurement took {_cell(spread, 0)} ms"}


def _targets(results: Results) -> str:
    rows = [
        [verdict.what, verdict.target, verdict.measured, _WORDS[verdict.met]] for verdict in verdicts(results)
    ]
    return _table(["what", "target", "measured", ""], rows)


def _figures(results: Results, workload: str, section: Section) -> str:
    systems = results.systems(workload)
    rows = [_row(results, workload, systems, row) for row in section.rows]
    rows += [_ratio(results, workload, systems, ratio) for ratio in section.ratios]
    return _table(
        ["", *(TITLES.get(system, system) for system in systems)], [row for row in rows if any(row[1:])]
    )


def _row(results: Results, workload: str, systems: Sequence[str], row: Row) -> list[str]:
    return [
        row.title,
        *(_cell(results.spread(workload, system, row.figure), row.digits) for system in systems),
    ]


def _ratio(results: Results, workload: str, systems: Sequence[str], ratio: Ratio) -> list[str]:
    cells = []
    for system in systems:
        under = (ratio.under_system or system, ratio.under)
        same = (system, ratio.over) == under
        cells.append("" if same else _cell(results.ratio(workload, (system, ratio.over), under), 2))
    return [ratio.title, *cells]


def _commits(results: Results) -> str:
    rows = []
    for partitions in PARTITIONS:
        for suffix, kind in (("", "idempotent"), ("_plain", "not idempotent")):
            names = [f"{partitions}_partitions_{writers}_writers{suffix}" for writers in WRITERS]
            cells = [_cell(results.spread("h", "sequencer", f"commits_per_s_{name}"), 0) for name in names]
            if any(cells):
                rows.append([f"{partitions:,} partitions, {kind}: commits/s", *cells])
            cells = [_cell(results.spread("h", "sequencer", f"postgres_cpu_us_{name}"), 0) for name in names]
            if any(cells):
                rows.append([f"{partitions:,} partitions, {kind}: Postgres CPU µs each", *cells])
    return _table(["", *(f"{writers} writers" if writers > 1 else "1 writer" for writers in WRITERS)], rows)


def _cell(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    median = f"{spread.median:,.{digits}f}"
    if spread.rounds == 1 or spread.low == spread.high:
        return median
    return f"{median} ({spread.low:,.{digits}f}–{spread.high:,.{digits}f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = ["---", *("---:" for _ in head[1:])] if head[0] == "" else ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, right, *rows))


def write(results: Results) -> None:
    """Write RESULTS.md and the plots into this module's folder."""
    from benchmarks import plots  # tests of the page do not need matplotlib, which takes a second to import

    drawn = plots.draw(results, _FOLDER / "plots")
    (_FOLDER / "RESULTS.md").write_text(page(results, (_FOLDER / "notes.md").read_text(), drawn))


if __name__ == "__main__":
    write(stored.load())
