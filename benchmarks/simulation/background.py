"""What agents ask Postgres with or without traffic: polls, segment ids, and what `timers.py` lists.

As in the product, an agent's poll begins a pause after the one before has ended, so a slow Postgres gets
fewer polls. Pushes report all commits, so a poll needs only a share of the partitions. The model polls all of
them at once, less often: as many partitions per second, in fewer statements.
"""

import math
from collections.abc import Callable

import numpy as np

from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from benchmarks.simulation.calibration import BackgroundCost
from benchmarks.simulation.events import EventLoop
from benchmarks.simulation.latency import Durations
from benchmarks.simulation.postgres import Postgres
from benchmarks.simulation.scenario import Group, Placement, Scenario
from benchmarks.simulation.timers import Timers, timers
from cache_ring.settings import CacheRingSettings

_GROUP_LOOK_S = 1.0
"""Coordinators compare their groups' epochs this often."""
_THE_REST = (
    "observation",
    "claim_in_vain",
    "durability",
    "connection",
    "compared",
    "measurement",
    "lapsed_merges",
)


class Background:
    """Agents and groups are in the first shard. A partition is polled in its own shard."""

    def __init__(
        self,
        loop: EventLoop,
        scenario: Scenario,
        placement: Placement,
        cost: BackgroundCost,
        sequencer: list[Postgres],
        random: np.random.Generator,
    ) -> None:
        self._loop = loop
        self._cost = cost
        self._sequencer = sequencer
        reads = ReadPathSettings()
        self._poll_s = reads.coordinate_poll_s
        self._most = reads.coordinate_poll_partitions
        self._agents = scenario.agents
        self.polls = 0
        self.poll_durations = Durations()
        membership_s = CacheRingSettings().membership_renew_s
        topics_s = AgentSettings().topic_changes_poll_s
        read = read_partitions(scenario, placement)
        for number in range(scenario.agents):
            start_s = float(random.uniform(0, 1))
            for shard in range(scenario.shards):
                if read[number][shard]:
                    loop.at(start_s, self._poll, shard, math.ceil(read[number][shard] * share_polled(reads)))
            work_s = cost.shown.fixed_s + cost.renewal.fixed_s
            loop.at(start_s * membership_s, self._every, membership_s, 0, lambda work_s=work_s: work_s)
            for shard in range(scenario.shards):
                loop.at(start_s * topics_s, self._every, topics_s, shard, lambda: cost.topic_changes.fixed_s)
            loop.at(start_s, self._every, _GROUP_LOOK_S, 0, lambda: cost.topic_changes.fixed_s)
        self._ask_for_the_rest(timers(scenario.agents))

    def _ask_for_the_rest(self, per_s: Timers) -> None:
        """The other timers of all agents together, each at its mean pace."""
        for name in _THE_REST:
            work_s, pace = getattr(self._cost, name).cpu_s(self._agents), 1 / getattr(per_s, name)
            self._loop.at(pace, self._every, pace, 0, lambda work_s=work_s: work_s)

    def reserved(self, shard: int, ids: int) -> None:
        """Agents reserve ids in bulk."""
        self._sequencer[shard].statement(self._cost.reservation.cpu_s(ids), _nothing)

    def _every(self, interval_s: float, shard: int, work_s: Callable[[], float]) -> None:
        self._sequencer[shard].statement(work_s(), _nothing)
        self._loop.after(interval_s, self._every, interval_s, shard, work_s)

    def _poll(self, shard: int, partitions: int) -> None:
        began_s = self._loop.now_s
        statements = -(-partitions // self._most)

        def next_statement(left: int) -> None:
            if not left:
                self.polls += 1
                self.poll_durations.add(self._loop.now_s - began_s)
                self._loop.after(self._poll_s, self._poll, shard, partitions)
                return
            work_s = self._cost.poll.cpu_s(partitions // statements)
            self._sequencer[shard].statement(work_s, lambda: next_statement(left - 1))

        next_statement(statements)


def share_polled(reads: ReadPathSettings) -> float:
    """The number of an agent's partitions that a poll asks for."""
    return min(1.0, reads.coordinate_poll_s / reads.coordinate_poll_heard_s)


def read_partitions(scenario: Scenario, placement: Placement) -> list[list[int]]:
    """Per agent and shard: the partitions that clients read through it."""
    polled = np.zeros((scenario.agents, scenario.shards), dtype=np.int64)
    for zone in scenario.zones:
        read = np.zeros(scenario.partitions, dtype=bool)
        for group in scenario.groups:
            read |= _read_in(group, zone, scenario.partitions)
        np.add.at(polled, (placement.leaders[zone][read], placement.shard_of[read]), 1)
    return [[int(count) for count in row] for row in polled]


def _read_in(group: Group, zone: str, partitions: int) -> np.ndarray:
    if zone not in group.zones:
        return np.zeros(partitions, dtype=bool)
    if group.everywhere:
        return np.ones(partitions, dtype=bool)
    return np.asarray(np.arange(partitions) % len(group.zones) == group.zones.index(zone))


def _nothing() -> None:
    """No client waits for it."""
