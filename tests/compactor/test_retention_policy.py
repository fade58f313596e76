"""What retention keeps, exhaustively."""

from hypothesis import given
from hypothesis import strategies as st

from compactor.retention_jobs import RetentionPolicy, has_work, keep_from
from sequencer.housekeeping.retention import AgedRun, PartitionLog
from storage.identifiers import Offset, Partition, TopicId
from storage.identifiers import new_segment_id as new_id

NOW_MS = 1_000_000


def a_log(*runs: tuple[int, int], log_start: int = 0, config: dict[str, str] | None = None) -> PartitionLog:
    """Runs of ten records, given as (age in ms, bytes)."""
    return PartitionLog(
        topic_id=TopicId(new_id()),
        partition=Partition(0),
        config=config or {},
        log_start_offset=Offset(log_start),
        high_watermark=Offset(10 * len(runs)),
        size_bytes=sum(length for _, length in runs),
        now_ms=NOW_MS,
        oldest=tuple(
            AgedRun(last_offset=Offset(10 * place + 9), length=length, aged_from_ms=NOW_MS - age_ms)
            for place, (age_ms, length) in enumerate(runs)
        ),
    )


def by(retention_ms: int = -1, retention_bytes: int = -1) -> RetentionPolicy:
    return RetentionPolicy(retention_ms=retention_ms, retention_bytes=retention_bytes)


def test_runs_older_than_the_limit_go_up_to_the_first_that_is_not() -> None:
    assert keep_from(a_log((300, 1), (200, 1), (50, 1), (200, 1)), by(retention_ms=100)) == 20


def test_a_run_exactly_at_the_limit_stays() -> None:
    assert keep_from(a_log((100, 1), (99, 1)), by(retention_ms=100)) == 0


def test_a_negative_limit_keeps_everything() -> None:
    assert keep_from(a_log((10**9, 10**9)), by()) == 0


def test_bytes_beyond_the_limit_go_while_what_is_left_still_fills_it() -> None:
    log = a_log((0, 100), (0, 100), (0, 100))

    assert [keep_from(log, by(retention_bytes=limit)) for limit in (0, 100, 101, 199, 200, 201, 300)] == [
        30, 20, 10, 10, 10, 0, 0,
    ]  # fmt: skip


def test_the_limits_of_a_topic_count_where_its_policy_deletes() -> None:
    limits = {"retention.ms": "100", "retention.bytes": "7"}

    policies = {
        policy: RetentionPolicy.of(a_log(config={**limits, "cleanup.policy": policy}))
        for policy in ("delete", "compact", "compact,delete", "")
    }

    limited, unlimited = by(retention_ms=100, retention_bytes=7), by()
    assert policies == {
        "delete": limited, "compact": unlimited, "compact,delete": limited, "": unlimited,
    }  # fmt: skip


def test_runs_left_below_the_log_start_are_work_whatever_the_policy() -> None:
    log = a_log((0, 1), (0, 1), log_start=10)

    assert has_work(log, by())
    assert keep_from(log, by()) == 10


def test_the_policy_of_a_topic_has_kafkas_defaults() -> None:
    assert RetentionPolicy.of(a_log()) == by(retention_ms=7 * 86_400_000)
    assert RetentionPolicy.of(a_log(config={"retention.ms": "-1", "retention.bytes": "5"})) == by(
        retention_bytes=5
    )


@given(
    runs=st.lists(st.tuples(st.integers(-1_000, 1_000), st.integers(1, 500)), max_size=12),
    retention_ms=st.integers(-1, 1_000),
    retention_bytes=st.integers(-1, 3_000),
    log_start=st.integers(0, 60),
)
def test_what_goes_is_a_prefix_of_which_every_run_may_go_and_the_next_may_not(
    runs: list[tuple[int, int]], retention_ms: int, retention_bytes: int, log_start: int
) -> None:
    log = a_log(*runs, log_start=min(log_start, 10 * len(runs)))
    policy = by(retention_ms, retention_bytes)

    kept_from = keep_from(log, policy)

    def may_go(place: int) -> bool:
        age_ms = runs[place][0]
        left = log.size_bytes - sum(length for _, length in runs[: place + 1])
        below = log.oldest[place].last_offset < log.log_start_offset
        return below or 0 <= retention_ms < age_ms or 0 <= retention_bytes <= left

    gone = [place for place in range(len(runs)) if log.oldest[place].last_offset < kept_from]
    assert kept_from >= log.log_start_offset
    assert all(may_go(place) for place in gone)
    assert len(gone) == len(runs) or not may_go(len(gone))
    assert has_work(log, policy) == bool(gone)
