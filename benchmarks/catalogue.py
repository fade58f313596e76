"""Which workloads run on which systems, and how each system is set up."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.endpoints import minio
from benchmarks.figures import Figures
from benchmarks.systems.kafka import kafka
from benchmarks.systems.sequencer import sequencer
from benchmarks.systems.system import System
from benchmarks.systems.tansu import tansu
from benchmarks.systems.tidelog import tidelog
from benchmarks.workloads import commits, connections, long_run, produce, replay, steady, tail
from benchmarks.workloads.start import agent_start

Work = Callable[[System, float], Figures]
_WORK: Mapping[str, Work] = {
    "a": lambda system, seconds: produce.beside_raw_store(system, produce.LARGE, seconds),
    "b": lambda system, seconds: produce.measure(system, produce.SMALL, seconds),
    "c": steady.many_partitions,
    "d": steady.lone_producer,
    "e": tail.measure,
    "f": replay.measure,
    "g": connections.measure,
    "h": lambda system, seconds: commits.measure_all(system, seconds / 2),
    "start": lambda system, _: agent_start(system),
    "a-long": lambda system, seconds: long_run.measure(system, produce.LARGE, seconds),
    "b-long": lambda system, seconds: long_run.measure(system, produce.SMALL, seconds),
}
LONG = frozenset({"a-long", "b-long"})
"""Their duration is a separate option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A freshly started system, and the workloads that run on it, in this order."""

    system: str
    workloads: tuple[str, ...]
    zones: tuple[str, ...] = ("a",)
    environment: tuple[tuple[str, str], ...] = ()
    once: bool = False
    """Only in the first round: workloads that take long and that no target needs."""

    @contextmanager
    def running(self, directory: Path) -> Iterator[System]:
        """With a separate MinIO, if the system uses one."""
        with ExitStack() as open_ones:
            if self.system == "kafka":
                system = open_ones.enter_context(kafka(directory / "kafka"))
                produce.warm_up(system)
                yield system
                return
            if self.system == "sequencer":
                yield open_ones.enter_context(sequencer())
                return
            if self.system == "tidelog-local":
                yield open_ones.enter_context(tidelog(directory, None, self.zones, dict(self.environment)))
                return
            endpoint = open_ones.enter_context(minio(directory / "minio"))
            if self.system.startswith("tansu"):
                idempotent = self.system == "tansu"
                yield open_ones.enter_context(tansu(directory, endpoint, idempotent=idempotent))
                return
            yield open_ones.enter_context(
                tidelog(directory / "stack", endpoint, self.zones, dict(self.environment))
            )


SETUPS = (
    Setup(system="tidelog", workloads=("a", "b", "c", "d", "start")),
    Setup(system="tidelog", workloads=("e",), zones=("a", "b")),
    Setup(system="tidelog", workloads=("f",), zones=("a", "b"), environment=replay.ENVIRONMENT),
    Setup(system="tidelog", workloads=("g",), environment=connections.ENVIRONMENT),
    Setup(system="tidelog-local", workloads=("a",)),
    Setup(system="kafka", workloads=("a", "b", "c", "d", "e", "f", "g")),
    Setup(system="tansu", workloads=("a", "b", "d", "e")),
    Setup(system="tansu", workloads=("c", "f", "g"), once=True),
    Setup(system="tansu-plain", workloads=("a", "b")),
    Setup(system="sequencer", workloads=("h",)),
    Setup(system="tidelog", workloads=("a-long",), environment=long_run.ENVIRONMENT, once=True),
    Setup(system="tidelog", workloads=("b-long",), environment=long_run.ENVIRONMENT, once=True),
)
SYSTEMS = tuple(dict.fromkeys(setup.system for setup in SETUPS))


def chosen(systems: frozenset[str], workloads: frozenset[str]) -> list[Setup]:
    """Every setup that has workloads to run."""
    return [
        Setup(
            system=setup.system,
            workloads=tuple(workload for workload in setup.workloads if workload in workloads),
            zones=setup.zones,
            environment=setup.environment,
            once=setup.once,
        )
        for setup in SETUPS
        if setup.system in systems and workloads.intersection(setup.workloads)
    ]


def run(workload: str, system: System, seconds: float) -> Figures:
    try:
        return _WORK[workload](system, seconds)
    finally:
        if system.drops_topics:
            system.drop_topics()
