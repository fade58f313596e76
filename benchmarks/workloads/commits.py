"""(h): the sequencer alone, in commits per second."""

import psutil

from benchmarks.commit_rate import PARTITIONS, WRITERS, CommitLoad, Database, measure
from benchmarks.figures import Figures
from benchmarks.systems.system import System

_PLAIN_WRITERS = 8


def loads() -> list[CommitLoad]:
    """Runs every number of partitions and writers with idempotence, and eight writers without."""
    return [
        CommitLoad(partitions=partitions, writers=writers, idempotent=idempotent)
        for partitions in PARTITIONS
        for writers in WRITERS
        for idempotent in (True, False)
        if idempotent or writers == _PLAIN_WRITERS
    ]


def name_of(load: CommitLoad) -> str:
    return f"{load.partitions}_partitions_{load.writers}_writers{'' if load.idempotent else '_plain'}"


def measure_all(system: System, seconds: float) -> Figures:
    """How long each load runs."""
    assert system.database_url is not None
    database = Database(url=system.database_url, postmaster=psutil.Process(system.meters.pids["postgres"]))
    figures: dict[str, float] = {}
    for load in loads():
        rate = measure(database, load, seconds)
        name = name_of(load)
        figures |= {
            f"commits_per_s_{name}": rate.commits_per_s,
            f"commit_p50_ms_{name}": rate.p50_ms,
            f"commit_p99_ms_{name}": rate.p99_ms,
            f"postgres_cpu_us_{name}": rate.postgres_cpu_us,
            f"clients_cpu_us_{name}": rate.clients_cpu_us,
        }
    return figures
