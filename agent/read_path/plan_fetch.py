"""What to do for a fetch, given what is known of its partitions (DESIGN §6; KIP-74 for the limits).

Pure: `decide` says for each partition whether to answer, to ask the sequencer or to read runs, `select_runs` which
runs to load. Promises that nothing at or past the visible end is read, that an offset is called out of range only on
what the sequencer said after the fetch came in, and that the runs selected suffice for the first batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from cache_ring.coordinate_cache import PartitionView
from sequencer.coordinates import PartitionKey, RunCoordinate
from storage.identifiers import NodeId, Offset, Partition, TopicId


class ReadFailure(Enum):
    """Why a partition cannot be read; Kafka's codes for these are in agent/error_codes.py."""

    UNKNOWN_TOPIC = auto()
    UNKNOWN_PARTITION = auto()
    OUT_OF_RANGE = auto()
    UNAVAILABLE = auto()
    """The sequencer or the store cannot be reached."""
    DATA_MISSING = auto()
    """The store has not what the sequencer says it has: an alarm."""
    UNKNOWN_LEADER_EPOCH = auto()
    FENCED_LEADER_EPOCH = auto()
    MOVED = auto()
    """Another agent is the choice for this partition, or this agent may not serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    topic_id: TopicId
    partition: Partition
    offset: int
    max_bytes: int
    failure: ReadFailure | None = None
    """Decided from the request alone; such a partition is not read."""
    preferred_replica: NodeId | None = None
    """Another agent that this reader should ask; such a partition is not read either (KIP-392)."""
    diverges: bool = False
    """The reader's last epoch is one that never was; it is told the end of epoch 0 instead of records (KIP-595)."""

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    partitions: tuple[PartitionPlan, ...]
    max_bytes: int
    min_bytes: int
    read_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    failure: ReadFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is known does not suffice: ask the sequencer from the plan's offset on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """There is nothing to read yet."""

    view: PartitionView


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Read from these runs, up to an offset."""

    view: PartitionView
    runs: tuple[RunCoordinate, ...]
    end_offset: Offset


Decision: TypeAlias = Refuse | Ask | Nothing | Take


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a decision is made, on the monotonic clock."""

    began_s: float
    """When the fetch came in: only what the sequencer said after that proves an offset out of range."""
    now_s: float
    freshness_s: float


def decide(plan: PartitionPlan, view: PartitionView | None, moment: Moment, read_committed: bool) -> Decision:
    if view is None:
        return Ask()
    if plan.offset < view.log_start_offset:
        return Refuse(failure=ReadFailure.OUT_OF_RANGE)
    if plan.offset > view.high_watermark:
        return Refuse(failure=ReadFailure.OUT_OF_RANGE) if view.confirmed_s >= moment.began_s else Ask()
    if plan.offset == view.high_watermark:
        is_fresh = view.confirmed_s >= min(moment.began_s, moment.now_s - moment.freshness_s)
        return Nothing(view=view) if is_fresh else Ask()
    if view.runs is None:
        return Ask()
    end_offset = view.last_stable_offset if read_committed else view.high_watermark
    runs = tuple(run for run in view.runs if run.base_offset < end_offset)
    if not runs or plan.offset >= end_offset:
        return Nothing(view=view)
    return Take(view=view, runs=runs, end_offset=end_offset)


def available_bytes(plan: FetchPlan, decisions: Sequence[Decision]) -> int:
    """About how much could be answered: the part of the first run that lies before the offset is taken off by its
    share."""
    total = 0
    for partition, decision in zip(plan.partitions, decisions, strict=True):
        if isinstance(decision, Take):
            total += min(partition.max_bytes, _bytes_from(partition.offset, decision.runs))
    return min(total, plan.max_bytes)


def select_runs(plan: FetchPlan, decisions: Sequence[Decision], max_runs: int) -> list[tuple[RunCoordinate, ...]]:
    """The runs to load for each partition, in the order of the request, until the limits are reached."""
    selected: list[tuple[RunCoordinate, ...]] = []
    room_bytes, room_runs = plan.max_bytes, max_runs
    for partition, decision in zip(plan.partitions, decisions, strict=True):
        runs: tuple[RunCoordinate, ...] = ()
        if isinstance(decision, Take) and room_bytes > 0 and room_runs > 0:
            runs = _enough(partition.offset, decision.runs, min(partition.max_bytes, room_bytes), room_runs)
            room_bytes -= min(partition.max_bytes, _bytes_from(partition.offset, runs))
            room_runs -= len(runs)
        selected.append(runs)
    return selected


def _enough(offset: int, runs: tuple[RunCoordinate, ...], max_bytes: int, max_runs: int) -> tuple[RunCoordinate, ...]:
    """The first run, and as many more as `max_bytes` may take if the first gives little."""
    size_bytes = 0
    for count, run in enumerate(runs[:max_runs]):
        if count and size_bytes >= max_bytes:
            return runs[:count]
        size_bytes += _bytes_from(offset, (run,))
    return runs[:max_runs]


def _bytes_from(offset: int, runs: Sequence[RunCoordinate]) -> int:
    total = 0
    for run in runs:
        if run.base_offset >= offset:
            total += run.length
        else:
            total += max(1, run.length * (run.last_offset - offset + 1) // (run.last_offset - run.base_offset + 1))
    return total
