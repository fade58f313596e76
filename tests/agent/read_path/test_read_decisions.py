"""Planning a fetch: pure decisions from what is known."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.read_path.read_decisions import (
    Ask,
    Decision,
    FetchPlan,
    Moment,
    Nothing,
    PartitionPlan,
    ReadFailure,
    Refuse,
    Take,
    available_bytes,
    decide,
    select_runs,
)
from cache_ring.coordinates.coordinate_cache import PartitionView
from sequencer.commits.coordinates import RunCoordinate
from storage.identifiers import Offset, Partition, TopicId
from tests.cache_ring.builders import a_run

NOW = Moment.of(began_s=100.0, now_s=100.0, freshness_s=1.0, primary_seen_s=100.0)


def a_view(
    *runs: RunCoordinate,
    log_start: int = 0,
    end: int | None = None,
    stable: int | None = None,
    confirmed_s: float = 100.0,
    covers: bool = True,
) -> PartitionView:
    high_watermark = end if end is not None else (runs[-1].last_offset + 1 if runs else 0)
    return PartitionView(
        log_start_offset=Offset(log_start),
        high_watermark=Offset(high_watermark),
        last_stable_offset=Offset(high_watermark if stable is None else stable),
        coordinate_epoch=0,
        runs=runs if covers else None,
        aborted=(),
        learned_s=0.0,
        confirmed_s=confirmed_s,
    )


def at(offset: int, partition: int = 0, max_bytes: int = 1 << 20) -> PartitionPlan:
    return PartitionPlan(
        topic_id=TopicId(UUID(int=1)), partition=Partition(partition), offset=offset, max_bytes=max_bytes
    )


def decided(offset: int, view: PartitionView | None, *, read_committed: bool = False) -> Decision:
    return decide(at(offset), view, NOW, read_committed)


def test_unknown_coordinates_are_asked_for() -> None:
    assert decided(0, None) == Ask()
    assert decided(5, a_view(a_run(10, 19), end=20, covers=False)) == Ask()


def test_an_offset_below_the_log_start_is_out_of_range() -> None:
    view = a_view(a_run(10, 19), log_start=10)

    assert decided(9, view) == Refuse(failure=ReadFailure.OUT_OF_RANGE)
    assert decided(-1, view) == Refuse(failure=ReadFailure.OUT_OF_RANGE)


def test_an_offset_past_the_end_is_out_of_range_only_by_a_later_answer() -> None:
    assert decided(11, a_view(end=10, confirmed_s=99.9)) == Ask()
    assert decided(11, a_view(end=10, confirmed_s=100.0)) == Refuse(failure=ReadFailure.OUT_OF_RANGE)


def test_an_offset_past_the_end_is_out_of_range_only_after_the_primary_was_checked() -> None:
    unsure = Moment.of(began_s=100.0, now_s=100.0, freshness_s=1.0, primary_seen_s=99.9)

    assert decide(at(11), a_view(end=10, confirmed_s=100.0), unsure, False) == Ask()


def test_a_reader_at_the_end_gets_nothing_if_the_end_is_fresh() -> None:
    fresh, stale = a_view(end=10, confirmed_s=99.5), a_view(end=10, confirmed_s=98.0)

    assert decided(10, fresh) == Nothing(view=fresh)
    assert decided(10, stale) == Ask()


def test_read_committed_stops_at_the_last_stable_offset() -> None:
    view = a_view(a_run(0, 9), a_run(10, 19), a_run(20, 29), stable=15)

    taken = decided(5, view, read_committed=True)

    assert taken == Take(view=view, runs=(a_run(0, 9), a_run(10, 19)), end_offset=Offset(15))
    assert decided(15, view, read_committed=True) == Nothing(view=view)
    for offset in (15, 22):
        stale = view._replace(confirmed_s=98.0)
        assert decided(offset, stale, read_committed=True) == Ask(), "a transaction may have ended since"
    assert isinstance(decided(15, view), Take)


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 300), st.lists(st.integers(1, 200), max_size=5)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 800),
    st.integers(1, 6),
)
def test_runs_selected_are_within_the_limits_but_never_too_few_for_a_first_batch(
    partitions: list[tuple[int, int, list[int]]], max_bytes: int, max_runs: int
) -> None:
    plans, decisions = [], []
    for number, (_, partition_max_bytes, lengths) in enumerate(partitions):
        runs = tuple(a_run(10 * place, 10 * place + 9, length=length) for place, length in enumerate(lengths))
        view = a_view(*runs)
        plans.append(at(0, number, partition_max_bytes))
        decisions.append(
            Take(view=view, runs=runs, end_offset=view.high_watermark) if runs else Nothing(view=view)
        )
    plan = FetchPlan(partitions=tuple(plans), max_bytes=max(1, max_bytes), min_bytes=1, read_committed=False)

    selected = select_runs(plan, decisions, max_runs)

    assert sum(map(len, selected.values())) <= max_runs
    for place, runs in selected.items():
        partition, decision = plans[place], decisions[place]
        assert isinstance(decision, Take)
        assert runs == decision.runs[: len(runs)]
        assert sum(run.length for run in runs[:-1]) < partition.max_bytes or len(runs) <= 1
    readable = [place for place, decision in enumerate(decisions) if isinstance(decision, Take)]
    if readable:
        assert next(iter(selected)) == readable[0]
        assert selected[readable[0]], "the first partition with records gets at least a run"
    assert available_bytes(plan, decisions) <= plan.max_bytes


def test_the_part_of_a_run_before_the_offset_does_not_count_as_available() -> None:
    run = a_run(0, 99, length=1000)
    view = a_view(run)
    plan = FetchPlan(partitions=(at(90),), max_bytes=10_000, min_bytes=1, read_committed=False)

    assert available_bytes(plan, [Take(view=view, runs=(run,), end_offset=Offset(100))]) == 100
