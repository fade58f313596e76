"""Checks many transactions under faults: `python -m tests.faults.long_transactions --transactions 200000`.

Two agents, Postgres and an S3 endpoint on this machine. Writers and processors
(tests/faults/transaction_load.py) run until they have done so many transactions together. All the while
agents are killed and frozen, and Postgres is killed. Then tests/faults/transaction_history.py checks
everything that clients were told and read.
Ends with status 1 if it finds a fault.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.faults.conftest import LEASES, create_topic
from tests.faults.transaction_history import End, faults, faults_of_processing
from tests.faults.transaction_load import (
    PARTITIONS,
    Habits,
    Processor,
    Reader,
    Writer,
    harm,
    read_all,
    read_processed,
)
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

_SHOWN_FAULTS = 20


def main() -> int:
    options = _options()
    console, chance = Console(), random.Random(options.seed)
    console.print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="tidelog-transactions-") as folder:
        settings = StackSettings(
            environment=HERE,
            data_dir=Path(folder),
            agents=2,
            agent_environment={**LEASES, "TIDELOG_TRANSACTION_TIMEOUT_INTERVAL_S": "0.5"},
        )
        with Stack(settings) as stack:
            found = _run(stack, options, chance, console)
    for fault in found[:_SHOWN_FAULTS]:
        console.print(f"[red]{fault}[/red]")
    console.print(f"[bold]{len(found)} faults[/bold]")
    return 1 if found else 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--transactions", type=int, default=200_000)
    options.add_argument("--writers", type=int, default=16)
    options.add_argument("--processors", type=int, default=4)
    options.add_argument("--harm-every-s", type=float, default=15.0)
    options.add_argument("--seed", type=int, default=random.randrange(2**31))
    return options.parse_args()


def _run(stack: Stack, options: argparse.Namespace, chance: random.Random, console: Console) -> list[str]:
    servers, seed = stack.addresses.bootstrap, options.seed
    topic, *sinks = (create_topic(servers, PARTITIONS) for _ in range(3))
    habits = Habits(zombies=0.002)
    writers = [Writer(servers, topic, f"p{n}", seed + n, habits) for n in range(options.writers)]
    processors = [
        Processor(servers, topic, sinks, str(n), seed - n, habits) for n in range(options.processors)
    ]
    reader = Reader(servers, topic)
    for thread in (*writers, *processors, reader):
        thread.start()
    harms = _harm_while_they_run(stack, options, chance, writers, processors)
    for writer in writers:
        writer.stop()
        writer.end_what_is_open()
    final = read_all(servers, topic, "read_committed")
    written = read_processed(servers, sinks, len(final))
    reader.stop()
    for processor in processors:
        processor.stop()
    transactions = [transaction for writer in writers for transaction in writer.done]
    ends = {end.name.lower(): sum(t.end is end for t in transactions) for end in End}
    console.print(
        f"{len(transactions)} transactions of writers {ends}, "
        f"{sum(writer.zombies_refused for writer in writers)} zombies refused; "
        f"{sum(processor.committed for processor in processors)} of processors committed, "
        f"{sum(processor.refused for processor in processors)} refused, "
        f"{sum(processor.hung for processor in processors)} hung; {len(final)} records committed, "
        f"{len(reader.seen)} read along; {harms}"
    )
    return [*faults(transactions, final, [reader.seen]), *faults_of_processing(final, written)]


def _harm_while_they_run(
    stack: Stack,
    options: argparse.Namespace,
    chance: random.Random,
    writers: list[Writer],
    processors: list[Processor],
) -> dict[str, int]:
    """Returns how often each harm was done."""
    harms = {"kill": 0, "freeze": 0, "postgres": 0}
    harm_at_s = time.monotonic() + options.harm_every_s
    columns = (TextColumn("transactions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        shown = progress.add_task("transactions", total=options.transactions)
        while True:
            done = sum(len(writer.done) for writer in writers)
            done += sum(processor.committed for processor in processors)
            progress.update(shown, completed=done)
            if done >= options.transactions:
                return harms
            for thread in (*writers, *processors):
                if not thread.is_alive():
                    thread.stop()  # raises what broke it
            if time.monotonic() >= harm_at_s:
                kind = chance.choice(list(harms))
                harm(stack, kind, chance)
                harms[kind] += 1
                harm_at_s = time.monotonic() + options.harm_every_s * chance.uniform(0.5, 1.5)
            time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
