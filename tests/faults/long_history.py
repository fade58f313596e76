"""Kills each part at each point of a history job: `python -m tests.faults.long_history --kills 66`.

Two agents, Postgres, an S3 endpoint and a standalone Spark cluster of two workers on this machine. 66 kills
are every pair of a point (fault_points.py) and a part, in an order by the seed; more begin with other orders.
Producers write, and consumers read old and new records all the time and compare each (history_site.py). In
the end `tidelog doctor --verify` must find nothing. Ends with status 1 if anything is wrong.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Iterable
from itertools import chain, count, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.conftest import wait_until_doctor_finds_nothing
from tests.faults.fault_points import POINTS
from tests.faults.history_site import (
    AGENTS,
    VICTIMS,
    Kill,
    Outcome,
    all_kills,
    kill_while_consumers_read,
    service_on,
)
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=len(POINTS) * len(VICTIMS))
    options.add_argument("--seed", type=int, default=random.randrange(2**31))
    given = options.parse_args()
    console = Console()
    console.print(f"seed {given.seed}")

    def kills(chance: random.Random) -> Iterable[Kill]:
        return islice(chain.from_iterable(all_kills(chance) for _ in count()), given.kills)

    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="tidelog-history-") as folder:
        settings = StackSettings(
            environment=HERE, data_dir=Path(folder) / "stack", agents=2, agent_environment=AGENTS
        )
        with Stack(settings) as stack:
            try:
                with service_on(stack, Path(folder), halting=True) as service:
                    for outcome in kill_while_consumers_read(service, kills, given.seed):
                        outcomes.append(outcome)
                        console.print(f"{len(outcomes)}. {outcome}")
                    service.stop()
                wait_until_doctor_finds_nothing(stack, timeout_s=180.0)
            except (AssertionError, TimeoutError) as wrong:
                console.print(f"[red]{wrong}[/red]")
                return 1
            finally:
                console.print(_table(outcomes))
    return 0


def _table(outcomes: Iterable[Outcome]) -> Table:
    by_victim: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_victim.setdefault(outcome.victim, []).append(outcome)
    table = Table("killed", "times", "goes on after, median s", "longest s", "old records read")
    for victim, some in by_victim.items():
        seconds = [outcome.goes_on_after_s for outcome in some]
        table.add_row(
            victim,
            str(len(some)),
            f"{statistics.median(seconds):.1f}",
            f"{max(seconds):.1f}",
            f"{sum(outcome.old_records for outcome in some):,}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
