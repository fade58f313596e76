"""What is run on what: the systems as they are set up, and the workloads that each of them gets."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.endpoints import minio
from benchmarks.figures import Figures
from benchmarks.systems.system import System
from benchmarks.systems.tidelog import tidelog
from benchmarks.workloads import produce, tail

WORKLOADS: Mapping[str, str] = {
    "a": "1 KB records, 10 partitions, 256 KiB batches",
    "b": "100-byte records, 100 partitions, 16 KiB batches",
    "e": "consumers at the tail, in the writer's zone and in another",
}
Work = Callable[[System, float], Figures]
_WORK: Mapping[str, Work] = {
    "a": lambda system, seconds: produce.beside_raw_store(system, produce.LARGE, seconds),
    "b": lambda system, seconds: produce.measure(system, produce.SMALL, seconds),
    "e": tail.measure,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A system started afresh, and what is measured on it, in this order."""

    system: str
    workloads: tuple[str, ...]
    zones: tuple[str, ...] = ("a",)
    environment: tuple[tuple[str, str], ...] = ()

    @contextmanager
    def running(self, directory: Path) -> Iterator[System]:
        if self.system == "tidelog-local":
            with tidelog(directory, None, self.zones, dict(self.environment)) as system:
                yield system
            return
        with (
            minio(directory / "minio") as endpoint,
            tidelog(directory / "stack", endpoint, self.zones, dict(self.environment)) as system,
        ):
            yield system


SETUPS = (
    Setup(system="tidelog", workloads=("a", "b")),
    Setup(system="tidelog-local", workloads=("a",)),
    Setup(system="tidelog", workloads=("e",), zones=("a", "b")),
)
SYSTEMS = tuple(dict.fromkeys(setup.system for setup in SETUPS))


def chosen(systems: frozenset[str], workloads: frozenset[str]) -> list[Setup]:
    """Every setup with something to do, and only that."""
    return [
        Setup(
            system=setup.system,
            workloads=tuple(workload for workload in setup.workloads if workload in workloads),
            zones=setup.zones,
            environment=setup.environment,
        )
        for setup in SETUPS
        if setup.system in systems and workloads.intersection(setup.workloads)
    ]


def run(workload: str, system: System, seconds: float) -> Figures:
    return _WORK[workload](system, seconds)
