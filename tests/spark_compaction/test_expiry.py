"""Which files TTL drops, rewrites and leaves."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from spark_compaction.expiry import HistoryFileAge, plan_expiry
from storage.identifiers import ObjectKey, Partition

CUTOFF = datetime(2024, 1, 1, tzinfo=UTC)
BEFORE, AFTER = CUTOFF - timedelta(hours=1), CUTOFF + timedelta(hours=1)


def file(
    name: str,
    oldest: datetime | None,
    newest: datetime | None,
    *,
    has_untimed: bool = False,
    written_at: datetime = AFTER,
    size_bytes: int = 10,
) -> HistoryFileAge:
    return HistoryFileAge(
        object_key=ObjectKey(name),
        partition=Partition(0),
        first_offset=0,
        row_count=1,
        size_bytes=size_bytes,
        written_at=written_at,
        oldest=oldest,
        newest=newest,
        has_untimed=has_untimed,
    )


def planned(*files: HistoryFileAge, rewrite_bytes: int = 1000) -> tuple[list[str], list[str], list[str]]:
    plan = plan_expiry(files, CUTOFF, rewrite_bytes=rewrite_bytes)
    return (
        [each.object_key for each in plan.dropped],
        [each.object_key for each in plan.rewritten],
        [each.object_key for each in plan.deferred],
    )


def test_a_file_goes_whole_when_its_newest_record_has_expired() -> None:
    assert planned(file("old", BEFORE, BEFORE), file("new", CUTOFF, AFTER)) == (["old"], [], [])


def test_a_file_is_rewritten_when_its_oldest_record_has_expired() -> None:
    assert planned(file("both", BEFORE, CUTOFF)) == ([], ["both"], [])


def test_records_without_a_time_expire_by_when_their_file_was_first_written() -> None:
    files = [
        file("old", None, None, has_untimed=True, written_at=BEFORE),
        file("new", None, None, has_untimed=True, written_at=CUTOFF),
        file("kept by the untimed", BEFORE, BEFORE, has_untimed=True, written_at=AFTER),
    ]

    assert planned(*files) == (["old"], ["kept by the untimed"], [])


def test_rewriting_takes_the_oldest_files_first_up_to_its_bound() -> None:
    files = [file(str(hours), CUTOFF - timedelta(hours=hours), AFTER) for hours in (1, 3, 2)]

    assert planned(*files, rewrite_bytes=25) == ([], ["3", "2"], ["1"])
    assert planned(*files, rewrite_bytes=0) == ([], [], ["3", "2", "1"])


times = st.datetimes(datetime(2023, 12, 31), datetime(2024, 1, 2), timezones=st.just(UTC))


@given(st.lists(st.tuples(times, times, times, st.booleans(), st.integers(1, 50)), max_size=12), st.integers(0, 200))
def test_no_file_with_a_live_record_is_dropped_and_none_without_an_expired_one_touched(
    given_files: list[tuple[datetime, datetime, datetime, bool, int]], rewrite_bytes: int
) -> None:
    files = [
        file(str(n), min(a, b), max(a, b), has_untimed=untimed, written_at=written, size_bytes=size)
        for n, (a, b, written, untimed, size) in enumerate(given_files)
    ]

    plan = plan_expiry(files, CUTOFF, rewrite_bytes=rewrite_bytes)

    for each in files:
        record_times = [each.oldest, each.newest, *([each.written_at] if each.has_untimed else [])]
        expired = [time is not None and time < CUTOFF for time in record_times]
        assert (each in plan.dropped) == all(expired)
        assert (each in (*plan.rewritten, *plan.deferred)) == (any(expired) and not all(expired))
    assert sum(each.size_bytes for each in plan.rewritten) <= rewrite_bytes
