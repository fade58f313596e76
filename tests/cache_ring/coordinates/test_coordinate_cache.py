"""The coordinate cache against a model log: whatever arrives, in any order, no reader skips a gap."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from cache_ring.coordinates.coordinate_cache import Applied, CoordinateCache, CoordinateLimits, Learned
from sequencer.commits.coordinates import PartitionCoordinates, RunCoordinate
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import NO_OFFSET, Offset, Partition, ProducerId
from tests.cache_ring.builders import ORDERS, a_run, an_answer

KEY = (ORDERS, Partition(0))


def a_cache(
    *,
    max_age_s: float = 60.0,
    max_runs: int = 1000,
    max_runs_per_partition: int = 100,
    max_ahead: int = 8,
    max_aborted: int = 1000,
) -> CoordinateCache:
    return CoordinateCache(
        CoordinateLimits(
            max_age_s=max_age_s,
            max_runs=max_runs,
            max_runs_per_partition=max_runs_per_partition,
            max_ahead=max_ahead,
            max_windows=2,
            max_aborted=max_aborted,
        )
    )


def tiled(*borders: int) -> tuple[RunCoordinate, ...]:
    """Runs between consecutive borders."""
    return tuple(a_run(base, end - 1) for base, end in itertools.pairwise(borders))


def test_a_push_overtaking_another_is_kept_aside_until_the_gap_is_closed() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10)), None, asked_s=0.0)

    overtaking = cache.apply(a_run(20, 29))
    seen = cache.known_end(KEY)
    closing = cache.apply(a_run(10, 19))

    assert (overtaking, seen, closing, cache.known_end(KEY)) == (Applied.AHEAD, 10, Applied.APPENDED, 30)


def test_a_push_below_the_known_end_is_ignored() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10, 20)), None, asked_s=0.0)

    assert cache.apply(a_run(10, 19)) is Applied.IGNORED
    assert cache.known_end(KEY) == 20


def test_a_late_committer_is_found_by_the_poll_and_what_was_pushed_after_it_follows() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10)), None, asked_s=0.0)
    cache.apply(a_run(20, 29))

    learned = cache.learn(an_answer(tiled(10, 20)), Offset(10), asked_s=1.0)

    assert (learned, cache.known_end(KEY)) == (Learned.APPLIED, 30)


def test_a_response_overtaken_by_a_push_lowers_nothing() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10)), None, asked_s=0.0)
    known_when_asked = cache.known_end(KEY)
    cache.apply(a_run(10, 19))

    learned = cache.learn(an_answer(tiled(0, 10)), known_when_asked, asked_s=1.0)

    assert (learned, cache.known_end(KEY)) == (Learned.APPLIED, 20)


def test_a_high_watermark_that_goes_back_is_reported_and_empties_the_cache() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10, 20)), None, asked_s=0.0)

    learned = cache.learn(an_answer(tiled(0, 10)), Offset(20), asked_s=1.0)

    assert (learned, cache.known_end(KEY)) == (Learned.REGRESSED, 10)


def test_a_reader_of_history_does_not_lower_the_high_watermark() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(900, 1000)), None, asked_s=0.0)

    cache.learn(an_answer(tiled(0, 10, 20), high_watermark=1000), Offset(1000), asked_s=1.0)

    view = cache.find(KEY, 5, 1, now_s=2.0)
    assert view is not None
    assert (view.runs, view.high_watermark) == (tiled(0, 10, 20), 1000)
    assert _runs_at(cache, 950) == tiled(900, 1000)


def test_a_response_that_does_not_reach_the_end_still_gives_the_high_watermark() -> None:
    cache = a_cache()

    cache.learn(an_answer(tiled(0, 10, 20), high_watermark=1000), None, asked_s=0.0)

    assert cache.known_end(KEY) == 1000
    assert _runs_at(cache, 15) == tiled(10, 20)
    view = cache.find(KEY, 20, 1, now_s=0.0)
    assert view is not None
    assert view.runs is None, "what lies between is not known and must be asked for"


def test_a_higher_epoch_forgets_every_run_and_a_lower_one_is_ignored() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10, 20)), None, asked_s=0.0)

    cache.learn(
        an_answer((), high_watermark=20, coordinate_epoch=2, log_start_offset=10), Offset(20), asked_s=1.0
    )
    after_the_raise = _runs_at(cache, 15)
    late = cache.learn(an_answer(tiled(0, 10, 20), coordinate_epoch=1), Offset(20), asked_s=1.0)

    assert (after_the_raise, late, _runs_at(cache, 15)) == (None, Learned.STALE, None)


def test_a_higher_epoch_drops_windows_of_history() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10, 20), high_watermark=1000), None, asked_s=0.0)

    cache.learn(an_answer((), high_watermark=1000, coordinate_epoch=1), Offset(1000), asked_s=1.0)

    assert _runs_at(cache, 5) is None


def test_a_response_whose_first_run_straddles_the_known_end_replaces_the_interval() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10)), None, asked_s=0.0)

    cache.learn(an_answer(tiled(5, 15, 20)), Offset(10), asked_s=1.0)

    assert (_runs_at(cache, 12), cache.known_end(KEY), _runs_at(cache, 2)) == (tiled(5, 15, 20), 20, None)


def test_runs_older_than_the_age_limit_are_not_handed_out() -> None:
    cache = a_cache(max_age_s=60.0)
    cache.learn(an_answer(tiled(0, 10)), None, asked_s=0.0)
    cache.apply(a_run(10, 19))

    assert cache.find(KEY, 0, 1, now_s=60.0) is not None
    assert cache.find(KEY, 0, 1, now_s=60.1) is None
    assert len(cache) == 0


def test_an_old_window_of_history_hides_no_newer_runs() -> None:
    cache = a_cache(max_age_s=60.0)
    cache.learn(an_answer(tiled(100, 110)), None, asked_s=0.0)
    cache.learn(an_answer(tiled(0, 10), high_watermark=110), Offset(110), asked_s=1.0)
    cache.learn(an_answer(tiled(150, 200)), Offset(110), asked_s=50.0)

    of_age = cache.find(KEY, 5, 1, now_s=62.0)
    cache.learn(an_answer(tiled(0, 10), high_watermark=200), Offset(200), asked_s=62.0)
    asked_again = cache.find(KEY, 5, 1, now_s=62.0)

    assert of_age is not None
    assert of_age.runs is None
    assert asked_again is not None
    assert asked_again.runs == tiled(0, 10)


def test_runs_below_the_log_start_are_dropped() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10, 20, 30)), None, asked_s=0.0)

    cache.learn(an_answer((), high_watermark=30, log_start_offset=15), Offset(30), asked_s=1.0)

    assert _runs_at(cache, 15) == tiled(10, 20, 30)
    assert _runs_at(cache, 5) is None


def test_the_last_stable_offset_follows_the_known_end_unless_a_transaction_is_open() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 10)), None, asked_s=0.0)
    cache.apply(a_run(10, 19))
    without = cache.find(KEY, 0, 1, now_s=0.0)
    cache.learn(an_answer(tiled(20, 30), last_stable_offset=22), Offset(20), asked_s=1.0)
    with_one = cache.find(KEY, 0, 1, now_s=1.0)

    assert without is not None
    assert with_one is not None
    assert (without.last_stable_offset, with_one.last_stable_offset, with_one.high_watermark) == (20, 22, 30)


ABORTED = AbortedTransaction(Offset(100), Offset(90), ProducerId(1))


def test_an_answer_that_an_abort_overtook_hides_no_aborted_transaction() -> None:
    """The answer was read while the transaction was open, and a merge raised the epoch before."""
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 50, 90)), None, asked_s=0.0)
    cache.apply(a_run(90, 99)._replace(first_unstable=90))
    overtaken = an_answer(tiled(0, 100), coordinate_epoch=1, last_stable_offset=90)

    cache.apply(a_run(100, 100)._replace(aborted=ABORTED))
    cache.learn(overtaken, Offset(90), asked_s=0.0)

    view = cache.find(KEY, 90, 1000, now_s=0.0)
    assert view is not None
    assert view.last_stable_offset == 101
    assert view.runs is None or ABORTED in (view.aborted or ())


def test_an_answer_that_a_later_one_overtook_hides_no_aborted_transaction() -> None:
    cache = a_cache()
    overtaken = an_answer(tiled(0, 100), last_stable_offset=90)

    cache.learn(an_answer((), high_watermark=101), None, asked_s=0.0)
    cache.learn(overtaken, None, asked_s=0.0)

    assert _runs_at(cache, 90) is None
    cache.learn(an_answer(tiled(0, 90), high_watermark=100, last_stable_offset=90), None, asked_s=0.0)
    assert _runs_at(cache, 50) is not None, "nothing in it was open"


def test_history_read_while_a_transaction_was_open_is_forgotten_if_its_end_was_missed() -> None:
    cache = a_cache()
    cache.learn(an_answer(tiled(0, 80)), None, asked_s=0.0)
    cache.learn(an_answer(tiled(0, 95), high_watermark=100, last_stable_offset=90), Offset(80), asked_s=0.0)
    cache.learn(an_answer(tiled(0, 60), high_watermark=100, last_stable_offset=90), Offset(80), asked_s=0.0)

    cache.learn(an_answer((), high_watermark=101), Offset(100), asked_s=0.0)

    assert _runs_at(cache, 90) is None
    assert _runs_at(cache, 50) is not None, "nothing in it was open"


def test_no_more_runs_are_kept_than_the_limits_say() -> None:
    cache = a_cache(max_runs=500, max_runs_per_partition=40, max_ahead=3)
    for partition in range(20):
        cache.learn(_of_partition(an_answer(tiled(0, 10)), partition), None, asked_s=0.0)
        for number in range(1, 60):
            cache.apply(a_run(number * 10, number * 10 + 9, partition=partition))
        for number in range(100, 110):
            cache.apply(a_run(number * 10, number * 10 + 9, partition=partition))

    assert len(cache) <= 500
    assert cache.known_end((ORDERS, Partition(19))) == 600
    assert cache.known_end((ORDERS, Partition(0))) is None, "the partition used longest ago went first"


def _of_partition(answer: PartitionCoordinates, partition: int) -> PartitionCoordinates:
    return PartitionCoordinates(
        topic_id=answer.topic_id,
        partition=Partition(partition),
        log_start_offset=answer.log_start_offset,
        local_start_offset=Offset(0),
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        coordinate_epoch=answer.coordinate_epoch,
        runs=tuple(a_run(run.base_offset, run.last_offset, partition=partition) for run in answer.runs),
    )


def _runs_at(cache: CoordinateCache, offset: int) -> tuple[RunCoordinate, ...] | None:
    view = cache.find(KEY, offset, 1, now_s=0.0)
    assert view is not None
    return view.runs


@dataclass
class TheLog:
    """The truth: a partition in the sequencer."""

    runs: list[RunCoordinate] = field(default_factory=list)
    high_watermark: int = 0
    log_start_offset: int = 0
    epoch: int = 0
    merges: int = 0
    open_from: dict[int, int] = field(default_factory=dict)
    """Where the transactions begin that are open, by producer."""
    aborted: list[AbortedTransaction] = field(default_factory=list)
    stable_at: dict[int, int] = field(default_factory=lambda: {0: 0})
    """The last stable offset that belongs to each high watermark there was."""
    replaced_at: dict[RunCoordinate, int] = field(default_factory=dict)
    """The epoch from which on a run that was merged may no longer be handed out."""

    def replace(self, first: int, count: int, *, at_once: bool) -> None:
        """Replaces some runs by one in another object. A compaction raises the epoch, so that they are
        dropped at once. A merge leaves them readable for readers that know them.
        """
        merged = self.runs[first : first + count]
        if len(merged) < 2:
            return
        if at_once:
            self.epoch += 1
            self.replaced_at |= dict.fromkeys(merged, self.epoch)
        self.merges += 1
        name = f"tidelog/merged/00/{self.merges}"
        self.runs[first : first + count] = [
            a_run(merged[0].base_offset, merged[-1].last_offset, object_key=name)
        ]

    def commit(self, records: int, producer: int = 0) -> RunCoordinate:
        """`producer` 0: in no transaction."""
        if producer:
            self.open_from.setdefault(producer, self.high_watermark)
        return self._append(records, None)

    def end(self, producer: int, *, is_abort: bool) -> RunCoordinate:
        first = self.open_from.pop(producer)
        entry = AbortedTransaction(Offset(self.high_watermark), Offset(first), ProducerId(producer))
        self.aborted += [entry] if is_abort else []
        return self._append(1, entry if is_abort else None)

    def _append(self, records: int, aborted: AbortedTransaction | None) -> RunCoordinate:
        run = a_run(self.high_watermark, self.high_watermark + records - 1)
        self.runs.append(run)
        self.high_watermark += records
        unstable = min(self.open_from.values(), default=-1)
        self.stable_at[self.high_watermark] = self.high_watermark if unstable < 0 else unstable
        return run._replace(first_unstable=unstable, aborted=aborted)

    def answer(self, from_offset: int, max_runs: int) -> PartitionCoordinates:
        start = max(from_offset, self.log_start_offset)
        found = [run for run in self.runs if run.last_offset >= start][
            :max_runs
        ]  # as sequencer/sql/coordinates.sql
        return an_answer(
            tuple(found),
            high_watermark=self.high_watermark,
            last_stable_offset=max(self.log_start_offset, self.stable_at[self.high_watermark]),
            log_start_offset=self.log_start_offset,
            coordinate_epoch=self.epoch,
            aborted=tuple(self.overlapping(found)),
        )

    def overlapping(self, runs: Sequence[RunCoordinate]) -> list[AbortedTransaction]:
        return [
            entry
            for entry in self.aborted
            if runs
            and entry.last_offset >= runs[0].base_offset
            and entry.first_offset <= runs[-1].last_offset
        ]


class RandomArrivals(RuleBasedStateMachine):
    """Pushes are lost, doubled, delayed and overtaken, and the sequencer's answers arrive late. The cache
    must stay a part of the truth.
    """

    pushes = Bundle("pushes")
    answers = Bundle("answers")

    @initialize()
    def start(self) -> None:
        self.log = TheLog()
        self.cache = a_cache(max_runs_per_partition=6, max_ahead=2, max_aborted=3)
        self.last_seen = 0

    @rule(target=pushes, records=st.integers(1, 3), producer=st.sampled_from([0, 0, 1, 2]))
    def commit(self, records: int, producer: int) -> RunCoordinate:
        return self.log.commit(records, producer)

    @precondition(lambda self: self.log.open_from)
    @rule(target=pushes, is_abort=st.booleans(), newest=st.booleans())
    def end_a_transaction(self, is_abort: bool, newest: bool) -> RunCoordinate:
        return self.log.end(list(self.log.open_from)[-1 if newest else 0], is_abort=is_abort)

    @rule(push=pushes)
    def push_arrives(self, push: RunCoordinate) -> None:
        self.cache.apply(push)

    @rule(
        target=answers,
        from_offset=st.integers(0, 30),
        max_runs=st.integers(1, 6),
        most_listed=st.sampled_from([0, 2, 1000]),
    )
    def read_is_sent(
        self, from_offset: int, max_runs: int, most_listed: int
    ) -> tuple[PartitionCoordinates, int | None]:
        known = self.cache.known_end(KEY)
        answer = self.log.answer(min(from_offset, self.log.high_watermark), max_runs)
        if len(answer.aborted or ()) > most_listed:
            answer = replace(answer, aborted=None)
        return answer, known

    @rule(target=answers, max_runs=st.integers(1, 6))
    def poll_is_sent(self, max_runs: int) -> tuple[PartitionCoordinates, int | None]:
        known = self.cache.known_end(KEY)
        return self.log.answer(known or 0, max_runs), known

    @rule(answer=consumes(answers))
    def answer_arrives(self, answer: tuple[PartitionCoordinates, int | None]) -> None:
        coordinates, known_when_asked = answer
        learned = self.cache.learn(
            coordinates, None if known_when_asked is None else Offset(known_when_asked), 0.0
        )
        assert learned is not Learned.REGRESSED
        if learned is Learned.APPLIED:
            known_end = self.cache.known_end(KEY)
            assert known_end is not None
            assert known_end >= coordinates.high_watermark

    @rule(max_runs=st.integers(1, 6))
    def poll_is_answered_at_once(self, max_runs: int) -> None:
        self.answer_arrives(self.poll_is_sent(max_runs))

    @invariant()
    def committed_readers_see_what_is_stable_and_know_what_was_aborted(self) -> None:
        known_end = self.cache.known_end(KEY)
        for offset in range((known_end or -1) + 1):
            view = self.cache.find(KEY, offset, 1000, now_s=0.0)
            assert view is not None
            stable = self.log.stable_at[view.high_watermark]
            assert view.last_stable_offset == max(stable, view.log_start_offset)
            if view.runs and offset >= self.log.log_start_offset:
                ended = {
                    entry
                    for entry in self.log.overlapping(view.runs)
                    if offset <= entry.last_offset < view.high_watermark
                }
                assert view.aborted is None or ended <= set(view.aborted)

    @rule(records=st.integers(1, 6))
    def records_are_deleted(self, records: int) -> None:
        self.log.log_start_offset = min(self.log.log_start_offset + records, self.log.high_watermark)
        self.log.runs = [run for run in self.log.runs if run.last_offset >= self.log.log_start_offset]
        self.log.epoch += 1

    @rule(share=st.floats(0, 1), count=st.integers(2, 5), at_once=st.booleans())
    def runs_are_replaced(self, share: float, count: int, at_once: bool) -> None:
        self.log.replace(int(share * len(self.log.runs)), count, at_once=at_once)

    @precondition(lambda self: self.cache.known_end(KEY) is not None)
    @rule()
    def the_cache_forgets(self) -> None:
        self.cache.drop(KEY)
        self.last_seen = 0

    @invariant()
    def the_high_watermark_is_never_past_the_truth_and_never_goes_back(self) -> None:
        known_end = self.cache.known_end(KEY)
        if known_end is not None:
            assert self.last_seen <= known_end <= self.log.high_watermark
            self.last_seen = known_end

    @invariant()
    def handed_out_runs_are_the_truth_without_a_gap(self) -> None:
        for offset in range(self.log.high_watermark + 2):
            view = self.cache.find(KEY, offset, 1_000_000, now_s=0.0)
            if view is None or view.runs is None:
                continue
            if offset >= view.high_watermark:
                assert view.runs == ()
                continue
            assert view.runs[0].base_offset <= offset <= view.runs[0].last_offset
            assert all(after.base_offset == before.last_offset + 1 for before, after in _pairs(view.runs))
            assert view.runs[-1].last_offset < view.high_watermark
            read = [run._replace(first_unstable=NO_OFFSET, aborted=None) for run in view.runs]
            assert all(self.log.replaced_at.get(run, 1 << 60) > view.coordinate_epoch for run in read)

    @invariant()
    def its_size_is_what_it_holds(self) -> None:
        assert len(self.cache) <= 1 + 6 + 2 + 2 * 6 + len(self.log.aborted)
        if self.cache.known_end(KEY) is None:
            assert len(self.cache) == 0


def _pairs(runs: tuple[RunCoordinate, ...]) -> list[tuple[RunCoordinate, RunCoordinate]]:
    return list(itertools.pairwise(runs))


TestRandomArrivals = RandomArrivals.TestCase
TestRandomArrivals.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
