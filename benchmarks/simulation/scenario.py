"""A scenario: a cluster, its load, and where each partition is written and read.

The product's ring places partitions. If there are many, it places a part of them and the rest follows its
pattern, so that agents' shares are those of the ring.
"""

from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from cache_ring.ring.ring import Ring
from sequencer.cluster.agents import AgentAddress, LiveAgent
from storage.identifiers import NodeId, Partition, TopicId

_PLACED = 30_000
_PARTITIONS_PER_TOPIC = 100
ZONES = ("a", "b", "c")

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Readers of every partition once, spread over zones; how far behind the end they are, on average."""

    lag_s: float = 0.0
    zones: tuple[str, ...] = ZONES
    """Each partition is read in one of these, in turn."""
    everywhere: bool = False
    """Each partition is read in all of `zones`: one consumer group per zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    agents: int
    partitions: int
    bytes_per_s: float
    """Produced, all zones together."""
    batch_bytes: tuple[int, ...] = (16_384,)
    """As clients send them (their metric batch-size-avg); several: equally often."""
    batches_per_request: int = 4
    groups: tuple[Group, ...] = (Group(),)
    zones: tuple[str, ...] = ZONES
    segment_size_bytes: int = 8 * MIB
    linger_s: float = 0.25
    put_budget_per_s: float = 4.0
    put_budget_burst: float = 16.0
    max_uploads: int = 16
    max_segments_per_commit: int = 64
    request_memory_bytes: int = 256 * MIB
    page_cache_bytes: int = 256 * MIB
    shards: int = 1
    """Postgres databases that topics are spread over."""
    combined: bool = False
    """Whether the commits of all agents go through one committer per database (not what agents do today)."""
    postgres_cores: int = 16
    log_bytes_per_s: float = 400e6
    """What the log's disk and its synchronous standby take."""
    sync_s: float = 0.0005
    """Of the log, on the primary."""
    standby_s: float = 0.0015
    """Until the synchronous standby, in another zone, has the log too."""
    network_s: float = 0.001
    """A round trip from an agent to Postgres, which may be in another zone."""
    consumers_per_agent: int = 2
    machine_cores: int | None = None
    """The cores of one machine that everything shares (validation). None: an agent has a core, Postgres its
    own.
    """
    postgres_away: tuple[float, float] | None = None
    """From when, for how long, in seconds."""
    warm_up_s: float = 5.0
    seconds: float = 15.0
    chunk_s: float = 0.05
    """Requests that come to an agent within this time are one event, where there are many."""
    draws_per_agent: int = 8
    """Ids drawn for each agent of a zone in search of one that its writer owns
    (`agent/write_path/segment_ids.py`).
    """
    seed: int = 1

    @property
    def mean_batch_bytes(self) -> float:
        return sum(self.batch_bytes) / len(self.batch_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Agents by number; partitions by number, in primary-key order."""

    ring: Ring
    zone_of: tuple[str, ...]
    leaders: dict[str, NDArray[np.int32]]
    """Per zone: the agent that each partition's clients there are sent to."""
    shard_of: NDArray[np.int32]
    written_by: tuple[NDArray[np.int64], ...] = field(default=())
    """Per agent: the partitions that its zone's producers write through it."""


def place(scenario: Scenario) -> Placement:
    agents = [_agent(number, scenario.zones) for number in range(scenario.agents)]
    ring = Ring.of(agents)
    placed = min(scenario.partitions, _PLACED)
    repeats = -(-scenario.partitions // placed)
    leaders = {
        zone: np.tile(
            np.array([_leader(ring, zone, number) for number in range(placed)], dtype=np.int32), repeats
        )[: scenario.partitions]
        for zone in scenario.zones
    }  # fmt: skip
    topics = np.arange(scenario.partitions) // _PARTITIONS_PER_TOPIC
    zone_of = tuple(agent.address.zone for agent in agents)
    order = {zone: np.argsort(numbers, kind="stable") for zone, numbers in leaders.items()}
    bounds = {
        zone: np.searchsorted(numbers[order[zone]], np.arange(scenario.agents + 1))
        for zone, numbers in leaders.items()
    }
    return Placement(
        ring=ring,
        zone_of=zone_of,
        leaders=leaders,
        shard_of=(topics % scenario.shards).astype(np.int32),
        written_by=tuple(
            order[zone][bounds[zone][number] : bounds[zone][number + 1]]
            for number, zone in enumerate(zone_of)
        ),
    )


def _leader(ring: Ring, zone: str, number: int) -> int:
    topic = TopicId(UUID(int=number // _PARTITIONS_PER_TOPIC + 1))
    leader = ring.partition_leader(zone, topic, Partition(number % _PARTITIONS_PER_TOPIC))
    assert leader is not None
    return leader.node_id


def _agent(number: int, zones: tuple[str, ...]) -> LiveAgent:
    zone = zones[number % len(zones)]
    return LiveAgent(
        node_id=NodeId(number),
        incarnation=1,
        address=AgentAddress(
            zone=zone,
            kafka_host=f"agent-{number}",
            kafka_port=9092,
            peer_host=f"agent-{number}",
            peer_port=9093,
            http_url=f"http://agent-{number}:8080",
        ),
    )
