"""Decides what to do for a fetch, from what is known of its partitions (docs/design/read-path.md; KIP-74 for
the limits).

Pure: `decide` says for each partition whether to answer, to ask the sequencer or to read runs. `select_runs`
says which runs to load.

Promises:
- Nothing at or past the visible end is read.
- An offset is out of range only if the sequencer said so after the fetch came in.
- The selected runs suffice for the first batch.

Plans and decisions are made for every partition of every fetch, a thousand at a time. So they are named
tuples, which are made four times as fast as frozen dataclasses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from cache_ring.coordinates.coordinate_cache import PartitionView
from sequencer.commits.coordinates import PartitionKey, RunCoordinate
from storage.batches.record_batch import HEADER_BYTES
from storage.identifiers import NodeId, Offset, Partition, TopicId


class ReadFailure(Enum):
    """Why a partition cannot be read. Kafka's codes for these are in agent/error_codes.py."""

    UNKNOWN_TOPIC = auto()
    UNKNOWN_PARTITION = auto()
    OUT_OF_RANGE = auto()
    UNAVAILABLE = auto()
    """The sequencer or the store cannot be reached."""
    DATA_MISSING = auto()
    """The store lacks an object that the sequencer names. This is an alarm."""
    DAMAGED = auto()
    """A sealed batch is not what was sealed for this partition."""
    UNKNOWN_LEADER_EPOCH = auto()
    FENCED_LEADER_EPOCH = auto()
    MOVED = auto()
    """Another agent is the choice for this partition, or this agent may not serve."""
    NOT_AUTHORIZED = auto()
    """The client may not read the topic. Only handlers say this."""


class PartitionPlan(NamedTuple):
    topic_id: TopicId
    partition: Partition
    offset: int
    max_bytes: int
    failure: ReadFailure | None = None
    """Decided by the request alone. Such a partition is not read."""
    preferred_replica: NodeId | None = None
    """Another agent that this reader should ask. Such a partition is not read either (KIP-392)."""
    diverges: bool = False
    """The reader's last epoch never existed. The reader gets the end of epoch 0 and no records (KIP-595)."""

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    partitions: tuple[PartitionPlan, ...]
    max_bytes: int
    min_bytes: int
    read_committed: bool


class Refuse(NamedTuple):
    failure: ReadFailure


class Ask(NamedTuple):
    """More must be known: ask the sequencer from the plan's offset on."""


class Nothing(NamedTuple):
    """There is nothing to read yet."""

    view: PartitionView


class Take(NamedTuple):
    """Read from these runs, up to an offset."""

    view: PartitionView
    runs: tuple[RunCoordinate, ...]
    end_offset: Offset


Decision: TypeAlias = Refuse | Ask | Nothing | Take

ASK: Final = Ask()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The time of a decision, on the monotonic clock."""

    began_s: float
    """When the fetch came in. Only what the sequencer said after that proves an offset out of range."""
    fresh_since_s: float
    """At the end that the reader sees, the sequencer's answer must not be older than this."""
    primary_seen_s: float
    """When this agent last made sure that the Postgres it queries is the primary. An old primary knows less:
    offsets that a reader has from another agent would be out of range there.
    """

    @classmethod
    def of(cls, began_s: float, now_s: float, freshness_s: float, primary_seen_s: float) -> "Moment":
        return cls(
            began_s=began_s, fresh_since_s=min(began_s, now_s - freshness_s), primary_seen_s=primary_seen_s
        )


def decide(plan: PartitionPlan, view: PartitionView | None, moment: Moment, read_committed: bool) -> Decision:
    if view is None:
        return ASK
    offset, high_watermark = plan.offset, view.high_watermark
    if is_at_end(plan, view, read_committed):
        is_fresh = view.confirmed_s >= moment.fresh_since_s
        return Nothing(view) if is_fresh else ASK
    if offset < view.log_start_offset:
        return Refuse(ReadFailure.OUT_OF_RANGE)
    if offset > high_watermark:
        is_certain = min(view.confirmed_s, moment.primary_seen_s) >= moment.began_s
        return Refuse(ReadFailure.OUT_OF_RANGE) if is_certain else ASK
    if view.runs is None:
        return ASK
    runs, end_offset = view.runs, _visible_end(view, read_committed)
    if runs and runs[-1].base_offset >= end_offset:
        runs = tuple(run for run in runs if run.base_offset < end_offset)
    if not runs:
        return Nothing(view)
    return Take(view, runs, end_offset)


def is_at_end(plan: PartitionPlan, view: PartitionView, read_committed: bool) -> bool:
    """True if the reader has all that it may see, and its offset is in range."""
    end_offset = max(_visible_end(view, read_committed), view.log_start_offset)
    return end_offset <= plan.offset <= view.high_watermark


def _visible_end(view: PartitionView, read_committed: bool) -> Offset:
    return view.last_stable_offset if read_committed else view.high_watermark


def available_bytes(plan: FetchPlan, decisions: Sequence[Decision]) -> int:
    """Returns about how many bytes could be answered. Of a first run that begins before the offset, only the
    share from the offset on counts.
    """
    total = 0
    for partition, decision in zip(plan.partitions, decisions, strict=True):
        if isinstance(decision, Take):
            total += min(partition.max_bytes, _bytes_from(partition.offset, decision.runs))
    return min(total, plan.max_bytes)


def select_runs(
    plan: FetchPlan, decisions: Sequence[Decision], max_runs: int
) -> dict[int, tuple[RunCoordinate, ...]]:
    """Returns the runs to load, by the index of their partition in the plan and in its order, until the
    limits are reached.
    """
    selected: dict[int, tuple[RunCoordinate, ...]] = {}
    room_bytes, room_runs = plan.max_bytes, max_runs
    for place, decision in enumerate(decisions):
        if not isinstance(decision, Take):
            continue
        if room_bytes <= 0 or room_runs <= 0:
            break
        partition = plan.partitions[place]
        runs = _enough(partition.offset, decision.runs, min(partition.max_bytes, room_bytes), room_runs)
        room_bytes -= min(partition.max_bytes, _bytes_from(partition.offset, runs))
        room_runs -= len(runs)
        selected[place] = runs
    return selected


def _enough(
    offset: int, runs: tuple[RunCoordinate, ...], max_bytes: int, max_runs: int
) -> tuple[RunCoordinate, ...]:
    """Returns the first run, and as many more as `max_bytes` may take if the first gives little."""
    size_bytes = 0
    for count, run in enumerate(runs[:max_runs]):
        if count and size_bytes >= max_bytes:
            return runs[:count]
        size_bytes += run.length if run.base_offset >= offset else _bytes_from(offset, (run,))
    return runs[:max_runs]


def _bytes_from(offset: int, runs: Sequence[RunCoordinate]) -> int:
    total = 0
    for run in runs:
        if run.base_offset >= offset:
            total += run.length or HEADER_BYTES  # an empty batch stands for what no object holds
        else:
            total += max(
                1, run.length * (run.last_offset - offset + 1) // (run.last_offset - run.base_offset + 1)
            )
    return total
