"""`python -m benchmarks.simulation`: the scenarios of docs/scaling.md; `calibrate` and `validate` measure
for it.

Calibrate on an idle machine (two minutes), then validate (one minute): it prints predictions before it
measures anything. `--document` renews the tables of docs/scaling.md and, with the scenarios, its plots.
"""

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.commit_rate import own_postgres
from benchmarks.endpoints import Endpoint, minio
from benchmarks.simulation import catalogue, plots, report
from benchmarks.simulation.calibration import CALIBRATION_FILE, Calibration
from benchmarks.simulation.contention import Contention, measured_commits_per_s, predicted_commits_per_s
from benchmarks.simulation.cost import Prices
from benchmarks.simulation.failover import agent_death_s, death_seen_s, postgres_outage
from benchmarks.simulation.measure_agent import measure_agent
from benchmarks.simulation.measure_postgres import measure_postgres
from benchmarks.simulation.measure_store import measure_store
from benchmarks.simulation.measured_death import measured_death_s
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.tables import Figures, renew
from benchmarks.simulation.validation import LIMIT, TRIALS, Quantity, measure_trial, predict

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
_CONTENTIONS = (
    Contention(),
    Contention(per_commit=10),
    Contention(per_commit=3),
    Contention(zones=1, writers_per_zone=12),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument(
        "command", nargs="?", default="scenarios", choices=["scenarios", "calibrate", "validate"]
    )
    parser.add_argument("--document", action="store_true", help="renew docs/scaling.md and its plots")
    parser.add_argument(
        "--calibration", type=Path, default=CALIBRATION_FILE, help="where the measured figures are"
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="of each measurement of validate (default: 15)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    arguments = parser.parse_args()
    console = Console(width=180)
    if arguments.command == "calibrate":
        _calibrate(arguments.calibration, console)
        return
    calibration = Calibration.load(arguments.calibration)
    if arguments.command == "validate":
        tables, is_good = _validate(calibration, arguments.seconds, console)
    else:
        tables, is_good = _scenarios(calibration, arguments.processes, console, draw=arguments.document), True
    if arguments.document:
        renew(PAGE, tables)
    sys.exit(0 if is_good else 1)


# --- measuring


def _calibrate(path: Path, console: Console) -> None:
    with console.status("Postgres"), own_postgres() as database:
        postgres = measure_postgres(database, 1.0)
    with console.status("the store, and agents on it"), _endpoint() as endpoint:
        store = measure_store(endpoint)
        agent = measure_agent(endpoint, 5.0)
    calibration = Calibration(
        measured_on=datetime.now(UTC).date().isoformat(),
        machine=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        commit=postgres.commit,
        commit_spaced=postgres.commit_spaced,
        background=replace(postgres.background, idle_per_agent_s=agent.postgres_idle_per_agent_s),
        agent=agent.agent,
        store=store,
        client=agent.client,
    )
    calibration.save(path)
    console.print_json(path.read_text())


def _validate(calibration: Calibration, seconds: float, console: Console) -> tuple[list[Figures], bool]:
    cores = os.cpu_count() or 1
    predictions = [predict(trial, calibration, cores) for trial in TRIALS]
    for trial, predicted in zip(TRIALS, predictions, strict=True):
        told = ", ".join(f"{one.name} {one.predicted:.3g}{one.unit}" for one in predicted)
        console.print(f"predicted for {trial.name}: {told}")
    tables, quantities = [], []
    for number, (trial, predicted) in enumerate(zip(TRIALS, predictions, strict=True), start=1):
        with _endpoint() as endpoint:
            found = measure_trial(trial, predicted, endpoint, seconds)
        quantities += found
        tables.append(report.validation_table(f"validation{number}", trial.name, found))
        console.print(tables[-1].as_table())
    contended = [*_validate_contention(calibration, cores, seconds / 2), _validate_death()]
    title = "commits of writers that share partitions, and an agent's death"
    tables.append(report.validation_table("validation3", title, contended))
    console.print(tables[-1].as_table())
    return tables, all(abs(one.error) <= LIMIT for one in (*quantities, *contended) if one.is_main)


def _validate_contention(calibration: Calibration, cores: int, seconds: float) -> list[Quantity]:
    predicted = [predicted_commits_per_s(one, calibration, cores, 30.0) for one in _CONTENTIONS]
    with own_postgres() as database:
        measured = [measured_commits_per_s(one, database, seconds) for one in _CONTENTIONS]
    return [
        Quantity(name=_name(one), unit="/s", predicted=foretold, measured=found)
        for one, foretold, found in zip(_CONTENTIONS, predicted, measured, strict=True)
    ]


def _validate_death() -> Quantity:
    predicted_s = float(np.median(death_seen_s(20_000)))
    with _endpoint() as endpoint:
        measured_s = measured_death_s(endpoint)
    return Quantity(
        name="an agent is killed: until another is named",
        unit="s",
        predicted=predicted_s,
        measured=measured_s,
    )


def _name(contention: Contention) -> str:
    shared = "shared by three zones" if contention.zones > 1 else "nothing shared"
    return f"commits of {contention.per_commit} of 1,200 partitions, 12 writers, {shared}"


@contextmanager
def _endpoint() -> Iterator[Endpoint]:
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-model-") as directory,
        minio(Path(directory)) as endpoint,
    ):
        yield endpoint


# --- simulating


def _scenarios(calibration: Calibration, processes: int, console: Console, *, draw: bool) -> list[Figures]:
    grid, ways, caches = catalogue.grid(), catalogue.ways_past(), catalogue.cache_sweep()
    every = [*grid, *(scenario for _, scenario in ways), *(scenario for _, _, scenario in caches)]
    with console.status(f"{len(every)} scenarios"):
        results = catalogue.run_all(every, calibration, processes)
        deaths_s = agent_death_s(20_000)
        busy = Scenario(agents=30, partitions=1_000, bytes_per_s=0.3e9, postgres_cores=16)
        outages = [postgres_outage(busy, calibration, away_s, 40.0) for away_s in (5.0, 30.0, 60.0)]
    of_grid, of_ways = results[: len(grid)], results[len(grid) : len(grid) + len(ways)]
    of_caches = [
        (lag_s, size, result)
        for (lag_s, size, _), result in zip(caches, results[len(grid) + len(ways) :], strict=True)
    ]  # fmt: skip
    few = [result for result in of_grid if result.scenario.partitions == 1_000 and result.keeps_up]
    prices = Prices()
    extremes = [Scenario(agents=n, partitions=p, bytes_per_s=n * 1e7) for n, p in _EXTREMES]
    tables = [
        report.grid_table(of_grid),
        report.ways_table([(name, result) for (name, _), result in zip(ways, of_ways, strict=True)]),
        report.cost_table(few, prices),
        report.limits_table(
            [replace(one, postgres_cores=catalogue.POSTGRES_CORES) for one in extremes], calibration
        ),
        report.growth_table([result for result in of_grid if result.keeps_up][:6]),
        report.cache_table(of_caches),
        report.failover_table(deaths_s, outages),
    ]
    for table in tables:
        console.print(table.as_table())
    if draw:
        plots.draw_all(PAGE.parent, of_grid, of_caches, deaths_s, outages, prices)
    return tables


_EXTREMES = ((10, 10_000), (100, 100_000), (300, 100_000), (1_000, 100_000), (1_000, 1_000_000))


if __name__ == "__main__":
    main()
