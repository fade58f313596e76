"""`make bench`: Tidelog and its peers one after another in each round, and RESULTS.md from all rounds
together.

`--only`, `--system` and `--quick` print figures and write nothing. They also print the pids of the measured
processes, for a profiler.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from benchmarks import catalogue, render
from benchmarks.about import about
from benchmarks.catalogue import SYSTEMS, Setup
from benchmarks.machine_speed import FIGURE, fixed_loop_ms
from benchmarks.results import FILE, Measurement, Results, save
from benchmarks.systems.system import System
from benchmarks.workload_names import WORKLOADS
from benchmarks.workloads import long_run

_QUICK_S, _FULL_S = 4.0, 5.0


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything that runs ends in order
    console = Console()
    setups = catalogue.chosen(_of(arguments.system, SYSTEMS), _of(arguments.only, WORKLOADS))
    seconds = arguments.seconds or (_QUICK_S if arguments.quick else _FULL_S)
    is_partial = bool(arguments.only or arguments.system or arguments.quick)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    measurements: list[Measurement] = []
    described = about(rounds, seconds)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:  # fmt: skip
        steps = sum(len(setup.workloads) * (1 if setup.once else rounds) for setup in setups)
        task = progress.add_task("", total=steps)
        for number in range(rounds):
            for setup in setups:
                if setup.once and number:
                    continue
                measurements += _measure(setup, number, seconds, arguments.long_seconds, progress, task)
            if not is_partial:
                save(Results(about=described, measurements=measurements))
    if is_partial:
        for measurement in measurements:
            console.print(_table(measurement))
    else:
        render.write(Results(about=described, measurements=measurements))
        console.print(f"Wrote {FILE.with_name('RESULTS.md')}, {FILE} and the plots.")


def _measure(
    setup: Setup, number: int, seconds: float, long_seconds: float, progress: Progress, task: TaskID
) -> list[Measurement]:
    """A failure leaves a gap with its reason. It does not end the run."""
    done: list[Measurement] = []
    where = f"round {number + 1}, {setup.system}"
    progress.update(task, description=f"{where}: starting")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tidelog-bench-", ignore_cleanup_errors=True) as directory,
            setup.running(Path(directory)) as system,
        ):
            progress.console.log(f"{where}: pids {system.meters.pids}")
            for workload in setup.workloads:
                progress.update(task, description=f"{where}: {workload}, {WORKLOADS[workload]}")
                its_seconds = long_seconds if workload in catalogue.LONG else seconds
                done.append(_one(workload, system, number, its_seconds, progress))
                progress.advance(task)
    except Exception as failed:  # noqa: BLE001 - a system that does not start
        progress.console.log(f"{where}: {failed}")
        missing = setup.workloads[len(done) :]
        progress.advance(task, len(missing))
        done += [
            Measurement(workload=one, system=setup.system, round=number, error=str(failed)) for one in missing
        ]
    return done


def _one(workload: str, system: System, number: int, seconds: float, progress: Progress) -> Measurement:
    began_s = time.monotonic()
    try:
        figures = {FIGURE: fixed_loop_ms(), **catalogue.run(workload, system, seconds)}
    except Exception as failed:  # noqa: BLE001 - see above
        progress.console.log(f"{system.name}, {workload}: {failed}")
        return Measurement(
            workload=workload, system=system.name, round=number, error=str(failed).splitlines()[0]
        )
    progress.console.log(f"{system.name}, {workload}: {time.monotonic() - began_s:.0f} s")
    return Measurement(workload=workload, system=system.name, round=number, figures=figures)


def _table(measurement: Measurement) -> Table:
    title = (
        f"({measurement.workload}) {measurement.system}, round {measurement.round + 1} {measurement.error}"
    )
    table = Table("", "", title=title, title_justify="left", show_header=False)
    for name, value in measurement.figures.items():
        table.add_row(name, f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}")
    return table


def _of(named: str | None, known: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(named.split(",")) if named else frozenset(known)
    if unknown := chosen - frozenset(known):
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    return chosen


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", help=f"some workloads: {','.join(WORKLOADS)}")
    parser.add_argument("--system", help=f"some systems: {','.join(SYSTEMS)}")
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--seconds", type=float, help=f"of each measurement (default: {_FULL_S:.0f})")
    parser.add_argument(
        "--long-seconds",
        type=float,
        default=long_run.SECONDS,
        help=f"of each of {', '.join(sorted(catalogue.LONG))} (default: {long_run.SECONDS:.0f})",
    )
    parser.add_argument("--quick", action="store_true", help=f"one round of {_QUICK_S:.0f} s each")
    return parser.parse_args()


if __name__ == "__main__":
    main()
