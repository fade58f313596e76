"""Plans of merging: nothing is planned twice or out of order, whatever the log looks like."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from compactor.merge_plan import (
    MergePolicy,
    RetentionLimits,
    Swap,
    choose_inputs,
    fill_objects,
    is_worth_merging,
    merges_waiting,
    next_tier,
    plan_swaps,
)
from sequencer.housekeeping.merge_values import Backlog, Candidate, MergeInput, RunToMerge, TierBacklog
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId

POLICY = MergePolicy(fan_in=4, tiers=3, object_bytes=1_000, run_bytes=300)
TOPIC = TopicId(UUID(int=1))
FOR_EVER = RetentionLimits(retention_ms=None, longest_span_ms=None)
NOW_MS = 1_000_000
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def a_run(
    base: int,
    length: int = 100,
    *,
    records: int = 1,
    segment: int = 1,
    partition: int = 0,
    aged_ms: int = NOW_MS,
) -> RunToMerge:
    return RunToMerge(
        topic_id=TOPIC,
        partition=Partition(partition),
        base_offset=Offset(base),
        last_offset=Offset(base + records - 1),
        segment_id=SegmentId(UUID(int=segment)),
        position=BytePosition(0),
        length=length,
        min_timestamp_ms=aged_ms,
        max_timestamp_ms=aged_ms,
        aged_from_ms=aged_ms,
    )


def inputs_of(runs: Sequence[RunToMerge]) -> dict[SegmentId, MergeInput]:
    found = {}
    for segment_id in {run.segment_id for run in runs}:
        own = [run.length for run in runs if run.segment_id == segment_id]
        found[segment_id] = MergeInput(
            segment_id=segment_id,
            object_key=ObjectKey("k"),
            size_bytes=sum(own),
            live_bytes=sum(own),
            long_bytes=sum(length for length in own if length >= POLICY.long_run_bytes),
        )
    return found


def planned(runs: Sequence[RunToMerge], limits: RetentionLimits = FOR_EVER) -> list[Swap]:
    return list(plan_swaps(runs, inputs_of(runs), {TOPIC: limits}, NOW_MS, POLICY))


def lengths_of(swaps: Sequence[Swap]) -> list[list[int]]:
    return [[run.length for run in swap.replaced] for swap in swaps]


@st.composite
def logs(draw: st.DrawFn) -> list[RunToMerge]:
    """Runs of several partitions in key order, with gaps, of several segments, of all lengths and ages."""
    runs = []
    for partition in range(draw(st.integers(1, 3))):
        base = draw(st.integers(0, 3))
        for _ in range(draw(st.integers(0, 12))):
            records = draw(st.integers(1, 3))
            runs.append(
                a_run(
                    base,
                    draw(st.sampled_from([1, 40, 100, 149, 150, 299, 300, 301, 900])),
                    records=records,
                    segment=draw(st.integers(1, 5)),
                    partition=partition,
                    aged_ms=draw(st.integers(NOW_MS - 2_000, NOW_MS)),
                )
            )
            base += records + draw(st.sampled_from([0, 0, 0, 1]))
    return runs


@given(logs(), st.sampled_from([None, 500, 1_000, 5_000]), st.sampled_from([None, 10, 300]))
def test_a_plan_names_each_run_at_most_once_and_joins_only_neighbours(
    runs: list[RunToMerge], retention_ms: int | None, span_ms: int | None
) -> None:
    limits = RetentionLimits(retention_ms=retention_ms, longest_span_ms=span_ms)

    swaps = planned(runs, limits)

    moved = [run for swap in swaps for run in swap.replaced]
    assert moved == [run for run in runs if run in set(moved)], "in the order given, none twice"
    assert len(set(moved)) == len(moved)
    inputs = inputs_of(runs)
    for swap in swaps:
        assert len({run.key for run in swap.replaced}) == 1
        assert all(a.last_offset + 1 == b.base_offset for a, b in pairwise(swap.replaced))
        assert swap.size_bytes <= POLICY.run_bytes or len(swap.replaced) == 1
        assert not any(limits.expires_soon(run, NOW_MS) for run in swap.replaced)
    for run in set(runs) - set(moved):
        of = inputs[run.segment_id]
        stays = of.long_bytes * 2 >= of.live_bytes
        assert stays or limits.expires_soon(run, NOW_MS), "what neither stays nor expires is moved"


@given(logs(), st.integers(1, 2_000))
def test_objects_hold_all_swaps_in_their_order_and_no_more_than_they_may(
    runs: list[RunToMerge], object_bytes: int
) -> None:
    swaps = planned(runs)

    objects = list(fill_objects(swaps, object_bytes))

    assert [swap for each in objects for swap in each] == swaps
    assert all(objects)
    assert all(len(each) == 1 or sum(swap.size_bytes for swap in each) <= object_bytes for each in objects)


def test_short_neighbours_become_runs_of_the_length_wanted() -> None:
    runs = [a_run(offset, segment=offset) for offset in range(7)]

    assert lengths_of(planned(runs)) == [[100] * 3, [100] * 3, [100]]


def test_a_gap_or_another_partition_ends_a_run() -> None:
    runs = [a_run(0), a_run(1), a_run(3), a_run(0, partition=1), a_run(1, partition=1)]

    assert lengths_of(planned(runs)) == [[100, 100], [100], [100, 100]]


def test_long_runs_stay_where_they_are_most_of_what_their_object_holds() -> None:
    long, beside = a_run(0, 280, segment=1), a_run(0, 100, segment=1, partition=1)
    other = a_run(1, 100, segment=2, partition=1)

    assert lengths_of(planned([long, beside, other])) == [[100, 100]]


def test_long_runs_move_where_they_would_keep_an_object_that_is_mostly_dead() -> None:
    long = a_run(0, 280, segment=1)
    rest = [a_run(0, 100, segment=1, partition=partition) for partition in range(1, 5)]

    assert lengths_of(planned([long, *rest])) == [[280], [100], [100], [100], [100]]


def test_what_expires_soon_is_left_to_expire() -> None:
    runs = [a_run(0, aged_ms=NOW_MS - 950), a_run(1, aged_ms=NOW_MS - 850), a_run(2, aged_ms=NOW_MS)]

    assert lengths_of(planned(runs, RetentionLimits(retention_ms=1_000, longest_span_ms=None))) == [
        [100, 100]
    ]
    assert lengths_of(planned(runs, RetentionLimits(retention_ms=1_000, longest_span_ms=100))) == [
        [100],
        [100],
    ]


def test_a_run_spans_no_more_than_a_tenth_of_its_retention_nor_segment_ms() -> None:
    assert RetentionLimits.of({"retention.ms": "-1"}) == FOR_EVER
    assert RetentionLimits.of({"retention.ms": "1000", "cleanup.policy": "compact"}) == FOR_EVER
    assert RetentionLimits.of({"retention.ms": "1000"}).longest_span_ms == 100
    assert RetentionLimits.of({"retention.ms": "100000", "segment.ms": "2000"}).longest_span_ms == 2_000


def candidates(sizes: Sequence[int], per_unit: int = 1) -> list[Candidate]:
    return [
        Candidate(
            segment_id=SegmentId(UUID(int=number)),
            committed_at=EPOCH + timedelta(seconds=number // per_unit),
            size_bytes=size_bytes,
        )
        for number, size_bytes in enumerate(sizes)
    ]


def test_a_merge_takes_the_fan_in_and_more_of_what_is_small() -> None:
    assert len(choose_inputs(candidates([500] * 9), POLICY, 1000)) == 4
    assert len(choose_inputs(candidates([100] * 30), POLICY, 1000)) == 9
    assert len(choose_inputs(candidates([1] * 100), POLICY, 1000)) == 64
    assert choose_inputs(candidates([500] * 3), POLICY, 1000) == []
    assert choose_inputs(candidates([1] * 63), POLICY, 1000) == []


@given(st.lists(st.integers(1, 1_500), max_size=40), st.integers(1, 5), st.integers(2, 40))
def test_a_merge_takes_the_oldest_and_units_whole(sizes: list[int], per_unit: int, cap: int) -> None:
    given_ = candidates(sizes[:cap], per_unit)

    chosen = choose_inputs(given_, POLICY, cap)

    assert list(chosen) == [each.segment_id for each in given_[: len(chosen)]]
    units = [
        [each.segment_id for each in unit] for _, unit in groupby(given_, key=lambda each: each.committed_at)
    ]
    if len(units) > 1:
        assert all(set(unit) <= set(chosen) or not set(unit) & set(chosen) for unit in units)


def waits(tier: int, units: int, size_bytes: int) -> TierBacklog:
    return TierBacklog(tier=tier, segments=units, units=units, size_bytes=size_bytes, oldest_s=1.0)


def test_the_tier_with_most_merges_waiting_is_next_the_lowest_first() -> None:
    def next_of(*tiers: TierBacklog) -> int | None:
        return next_tier(Backlog(tiers=tiers, agents=1), POLICY)

    assert merges_waiting(waits(0, 9, 5_000), POLICY) == 2
    assert merges_waiting(waits(3, 9, 5_000), POLICY) == 0
    assert next_of(waits(0, 9, 5_000), waits(1, 4, 4_000)) == 0
    assert next_of(waits(0, 4, 1_000), waits(1, 4, 4_000)) == 0
    assert next_of(waits(0, 4, 1_000), waits(1, 8, 8_000)) == 1
    assert next_of(waits(0, 3, 5_000), waits(3, 80, 8_000)) is None


def test_the_top_tier_and_long_runs_are_not_merged_again() -> None:
    assert is_worth_merging(2, 1_000, 10, POLICY)
    assert not is_worth_merging(2, 1_500, 10, POLICY)
    assert not is_worth_merging(3, 1_000, 10, POLICY)
