"""Whether runs tile a log, exhaustively: chunked as the doctor reads it, standing still or moving."""

from hypothesis import given
from hypothesis import strategies as st

from compactor.doctor import OffsetCoverage
from sequencer.housekeeping.inspection import ChunkRun, LogChunk
from storage.identifiers import Offset, new_segment_id

SEGMENT = new_segment_id()


def a_chunk(*runs: tuple[int, int], log_start: int = 0, high_watermark: int) -> LogChunk:
    """Runs as [start, end)."""
    return LogChunk(
        log_start_offset=Offset(log_start),
        high_watermark=Offset(high_watermark),
        size_bytes=0,
        runs=tuple(
            ChunkRun(
                base_offset=Offset(start),
                last_offset=Offset(end - 1),
                length=1,
                segment_id=SEGMENT,
                segment_state="committed",
            )
            for start, end in runs
        ),
    )


def faults_of(*chunks: LogChunk) -> list[str]:
    coverage = OffsetCoverage()
    for number, chunk in enumerate(chunks, start=1):
        coverage.add(chunk, is_last=number == len(chunks))
    return coverage.faults


def test_runs_that_follow_one_another_to_the_high_watermark_are_sound() -> None:
    assert faults_of(a_chunk((0, 5), (5, 9), high_watermark=9)) == []
    assert faults_of(a_chunk(high_watermark=0)) == []
    assert faults_of(a_chunk(log_start=7, high_watermark=7)) == []


def test_every_kind_of_hole_is_found() -> None:
    assert faults_of(a_chunk((5, 9), high_watermark=9)) == ["no run holds offsets [0, 5)"]
    assert faults_of(a_chunk((0, 5), (6, 9), high_watermark=9)) == ["no run holds offsets [5, 6)"]
    assert faults_of(a_chunk((0, 5), high_watermark=9)) == ["no run holds offsets [5, 9), the end of the log"]
    assert faults_of(a_chunk(high_watermark=9)) == ["no run holds offsets [0, 9), the end of the log"]


def test_overlaps_and_runs_past_the_end_are_found() -> None:
    assert faults_of(a_chunk((0, 5), (4, 9), high_watermark=9)) == ["two runs hold offsets [4, 5)"]
    assert faults_of(a_chunk((0, 9), high_watermark=8)) == ["runs reach to 9, past the high watermark 8"]


def test_the_log_start_may_lie_within_a_run_and_what_is_below_it_may_be_missing() -> None:
    assert faults_of(a_chunk((0, 5), (5, 9), log_start=7, high_watermark=9)) == []
    assert faults_of(a_chunk((0, 2), (5, 9), log_start=7, high_watermark=9)) == []
    assert faults_of(a_chunk((8, 9), log_start=7, high_watermark=9)) == ["no run holds offsets [7, 8)"]


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    cap=st.integers(1, 4),
    moves=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=30, max_size=30),
)
def test_a_log_that_grows_and_shrinks_between_chunks_is_sound(
    lengths: list[int], cap: int, moves: list[tuple[int, int]]
) -> None:
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    runs = [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    log_start, visible = 0, 1
    coverage = OffsetCoverage()

    for shrink, grow in moves:
        visible = min(visible + grow, len(runs))
        high_watermark = runs[visible - 1][1]
        log_start = min(max(log_start, shrink), high_watermark)
        left = [run for run in runs[:visible] if run[1] > log_start and run[0] >= coverage.next_from][:cap]
        is_last = len(left) < cap
        coverage.add(a_chunk(*left, log_start=log_start, high_watermark=high_watermark), is_last=is_last)
        if is_last:
            break

    assert coverage.faults == []
