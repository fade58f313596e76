"""What is merged with what (docs/design/merging.md#choice-of-inputs): tiers as in an LSM tree, and within a
merge which runs become one. Pure.

Uploads are tier 0. A merge of `fan_in` units of a tier makes one unit of the next, up to `tiers`, so no byte
is copied more often than that.

Promises of a plan:
- It names no run twice. A swap's runs are consecutive in their partition.
- A merged run is at most `run_bytes` long, unless one of its runs alone is longer. It spans no more time than
  its topic's retention allows.
- Runs that are about to expire stay where they are. So do long runs that are most of what their object still
  holds: at most as much of such an object is dead as is alive.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sequencer.housekeeping.merge_values import (
    Backlog,
    Candidate,
    MergeInput,
    PartitionKey,
    RunToMerge,
    TierBacklog,
)
from sequencer.topics.topic_config import TopicConfig
from storage.identifiers import SegmentId, TopicId

_MOST_FAN_INS = 16
"""Small units are gathered up to this many times the fan-in."""
_RETENTION_SHARE = 10
"""A merged run covers at most this share of its topic's retention. A run is not moved in this last share of
its life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    fan_in: int
    tiers: int
    object_bytes: int
    run_bytes: int

    @property
    def long_run_bytes(self) -> int:
        """A run of this length gains nothing by merging."""
        return self.run_bytes // 2

    @property
    def full_bytes(self) -> int:
        """Small units are gathered up to this size: the next one might not fit into the same object."""
        return self.object_bytes * 7 // 8

    @property
    def most_units(self) -> int:
        return _MOST_FAN_INS * self.fan_in


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """The limits of a topic; None: no limit."""

    retention_ms: int | None
    longest_span_ms: int | None

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "RetentionLimits":
        """Returns a tenth of `retention.ms`, and at most the topic's `segment.ms`: retention drops whole
        runs."""
        retention_ms = TopicConfig.of(config).retention_ms
        spans = [retention_ms // _RETENTION_SHARE] if retention_ms >= 0 else []
        if "segment.ms" in config:
            spans.append(int(config["segment.ms"]))
        return cls(
            retention_ms=retention_ms if retention_ms >= 0 else None, longest_span_ms=min(spans, default=None)
        )

    def expires_soon(self, run: RunToMerge, now_ms: int) -> bool:
        if self.retention_ms is None:
            return False
        left_ms = run.aged_from_ms + self.retention_ms - now_ms
        return left_ms * _RETENTION_SHARE < self.retention_ms

    def bears(self, oldest_ms: int, newest_ms: int) -> bool:
        return self.longest_span_ms is None or newest_ms - oldest_ms <= self.longest_span_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Consecutive runs of one partition that become one."""

    replaced: tuple[RunToMerge, ...]

    @property
    def key(self) -> PartitionKey:
        return self.replaced[0].key

    @property
    def size_bytes(self) -> int:
        return sum(run.length for run in self.replaced)


def is_worth_merging(tier: int, size_bytes: int, runs: int, policy: MergePolicy) -> bool:
    """True if an object of this tier should be merged again. False if its runs are long on average."""
    return tier < policy.tiers and size_bytes < runs * policy.long_run_bytes


def merges_waiting(backlog: TierBacklog, policy: MergePolicy) -> int:
    """Returns how many merges the candidates of a tier would fill."""
    if backlog.tier >= policy.tiers:
        return 0
    by_size = min(backlog.units // policy.fan_in, backlog.size_bytes // policy.full_bytes)
    return max(by_size, backlog.units // policy.most_units)


def next_tier(backlog: Backlog, policy: MergePolicy) -> int | None:
    """Returns the tier with the most waiting merges, the lowest of those; None without any."""
    waiting = {tier.tier: merges_waiting(tier, policy) for tier in backlog.tiers}
    most = max(waiting.values(), default=0)
    return min(tier for tier, merges in waiting.items() if merges == most) if most else None


def waiting_bytes(backlog: Backlog, policy: MergePolicy) -> int:
    """Returns the bytes of the tiers in which a merge waits."""
    return sum(tier.size_bytes for tier in backlog.tiers if merges_waiting(tier, policy))


def choose_inputs(candidates: Sequence[Candidate], policy: MergePolicy, cap: int) -> Sequence[SegmentId]:
    """Returns the next merge of a tier: the oldest units, each as a whole; none while there are too few.
    `candidates` are in the order of their commits. If there are `cap` of them the list is cut off, and its
    whole units have to do.
    """
    units = [list(unit) for _, unit in groupby(candidates, key=lambda candidate: candidate.committed_at)]
    if len(candidates) == cap and len(units) > 1:
        units.pop()
    size_bytes = 0
    for taken, unit in enumerate(units, 1):
        size_bytes += sum(candidate.size_bytes for candidate in unit)
        if (taken >= policy.fan_in and size_bytes >= policy.full_bytes) or taken >= policy.most_units:
            return _ids(units[:taken])
    return _ids(units) if len(candidates) == cap else []


def plan_swaps(
    runs: Sequence[RunToMerge],
    inputs: Mapping[SegmentId, MergeInput],
    limits: Mapping[TopicId, RetentionLimits],
    now_ms: int,
    policy: MergePolicy,
) -> Iterator[Swap]:
    """Cuts runs into swaps. Both are in (topic, partition, offset) order."""
    group: list[RunToMerge] = []
    size_bytes = 0
    for run in runs:
        limit = limits[run.topic_id]
        moves = not limit.expires_soon(run, now_ms) and not _stays(run, inputs, policy)
        moves = moves and (bool(group) or run.marker_key is None)  # a marker goes with what comes before it
        if group and not (moves and _fits(group, size_bytes, run, limit, policy)):
            yield from _swap(group, inputs)
            group, size_bytes = [], 0
        if moves:
            group.append(run)
            size_bytes += run.length
    yield from _swap(group, inputs)


def fill_objects(swaps: Sequence[Swap], object_bytes: int) -> Iterator[Sequence[Swap]]:
    """Yields the swaps in their order, for as many objects as they need."""
    first = size_bytes = 0
    for place, swap in enumerate(swaps):
        if place > first and size_bytes + swap.size_bytes > object_bytes:
            yield swaps[first:place]
            first, size_bytes = place, 0
        size_bytes += swap.size_bytes
    if swaps[first:]:
        yield swaps[first:]


def _ids(units: Sequence[Sequence[Candidate]]) -> Sequence[SegmentId]:
    return [candidate.segment_id for unit in units for candidate in unit]


def _stays(run: RunToMerge, inputs: Mapping[SegmentId, MergeInput], policy: MergePolicy) -> bool:
    return run.length >= policy.long_run_bytes and _is_kept(inputs[run.segment_id])


def _is_kept(of: MergeInput) -> bool:
    """True if the object stays for its long runs."""
    return of.long_bytes * 2 >= of.live_bytes


def _fits(
    group: Sequence[RunToMerge], size_bytes: int, run: RunToMerge, limit: RetentionLimits, policy: MergePolicy
) -> bool:
    return (
        group[0].key == run.key
        and group[-1].last_offset + 1 == run.base_offset
        and size_bytes + run.length <= policy.run_bytes
        and limit.bears(
            min(group[0].aged_from_ms, run.aged_from_ms), max(group[-1].aged_from_ms, run.aged_from_ms)
        )
    )


def _swap(group: Sequence[RunToMerge], inputs: Mapping[SegmentId, MergeInput]) -> Iterator[Swap]:
    """Yields the swap of a group. A single run is moved only to free its object."""
    if len(group) > 1 or (group and not _is_kept(inputs[group[0].segment_id])):
        yield Swap(replaced=tuple(group))
