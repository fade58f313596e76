"""Postgres alone with Tidelog's schema: the sequencer without agents."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.commit_rate import own_postgres
from benchmarks.systems.meters import Meters
from benchmarks.systems.system import System


@contextmanager
def sequencer() -> Iterator[System]:
    """It ends with the context."""
    with own_postgres() as database:
        yield System(
            name="sequencer",
            targets={},
            meters=Meters({"postgres": database.postmaster.pid}),
            database_url=database.url,
        )
