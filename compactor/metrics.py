"""The metrics of the housekeeper and of merging. Their names and help texts document what is exported."""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from sequencer.housekeeping.jobs import JobStatus
from sequencer.housekeeping.merge_values import Backlog, MergeDone, TierTotals
from sequencer.housekeeping.observations import Census, HistoryLag, JournalProgress, Observation


class HousekeeperMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._success_age = Gauge(
            "tidelog_job_last_success_age_seconds",
            "Time since the job last succeeded anywhere in the cluster",
            ["job"],
            registry=registry,
        )
        self._failures = Counter(
            "tidelog_job_failures_total",
            "Runs of a job that failed in this process",
            ["job"],
            registry=registry,
        )
        self._done = Counter(
            "tidelog_job_done_total", "What the jobs of this process did", ["job", "what"], registry=registry
        )
        self._segments = Gauge(
            "tidelog_segments_waiting",
            "Segments that are reserved or on their way out; large numbers are estimates",
            ["state"],
            registry=registry,
        )
        self._observation_age = Gauge(
            "tidelog_observation_age_seconds",
            "Time since one agent of the cluster measured what this agent shows of all of it",
            registry=registry,
        )
        self._journal_age = Gauge(
            "tidelog_journal_age_seconds",
            "Time since the moment up to which the bucket alone can rebuild the log",
            registry=registry,
        )
        self._checkpoint_age = Gauge(
            "tidelog_journal_checkpoint_age_seconds",
            "Time since the last complete checkpoint",
            registry=registry,
        )
        self._journal_entries = Gauge(
            "tidelog_journal_entries", "Entries ever written by any agent of the cluster", registry=registry
        )
        self._journal_bytes = Gauge(
            "tidelog_journal_bytes",
            "Bytes of all entries ever written, and of the last checkpoint",
            ["kind"],
            registry=registry,
        )
        self._history_behind = Gauge(
            "tidelog_history_lag_seconds",
            "How far the table that is furthest behind the log was, when a history service last looked, plus "
            "the time since",
            registry=registry,
        )
        self._history_age = Gauge(
            "tidelog_history_lag_age_seconds",
            "Time since a history service last looked; it grows while none runs",
            registry=registry,
        )
        self._history_lag = Gauge(
            "tidelog_history_lag",
            "What tables lacked then: topics with records to write, topics behind by more than their "
            "freshness, records, and their bytes in the log (an estimate)",
            ["what"],
            registry=registry,
        )

    def failed(self, job: str) -> None:
        self._failures.labels(job).inc()

    def did(self, job: str, done: Mapping[str, int]) -> None:
        for what, count in done.items():
            self._done.labels(job, what).inc(count)

    def observe(self, seen: Observation) -> None:
        """Ages keep growing between two observations, also while the database is away."""
        self._observation_age.set_function(partial(_age_s, time.monotonic() - seen.age_s))
        self._observe_jobs(seen.jobs)
        self._observe_segments(seen.census)
        self._observe_journal(seen.journal)
        if seen.history is not None:
            self._observe_history(seen.history)

    def _observe_jobs(self, statuses: Sequence[JobStatus]) -> None:
        now_s = time.monotonic()
        for status in statuses:
            if status.success_age_s is not None:
                succeeded_at_s = now_s - status.success_age_s
                self._success_age.labels(status.name).set_function(partial(_age_s, succeeded_at_s))

    def _observe_segments(self, census: Census) -> None:
        self._segments.labels("reserved").set(census.reserved)
        self._segments.labels("unreferenced").set(census.unreferenced)
        self._segments.labels("doomed").set(census.doomed)
        self._segments.labels("tombstone").set(census.tombstones)

    def _observe_journal(self, journal: JournalProgress) -> None:
        now_s = time.monotonic()
        if journal.age_s is not None:
            self._journal_age.set_function(partial(_age_s, now_s - journal.age_s))
        if journal.checkpoint_age_s is not None:
            self._checkpoint_age.set_function(partial(_age_s, now_s - journal.checkpoint_age_s))
        self._journal_entries.set(journal.entries)
        self._journal_bytes.labels("entries").set(journal.entry_bytes)
        self._journal_bytes.labels("checkpoint").set(journal.checkpoint_bytes)

    def _observe_history(self, lag: HistoryLag) -> None:
        seen_at_s = time.monotonic() - lag.age_s
        self._history_age.set_function(partial(_age_s, seen_at_s))
        if lag.topics:
            self._history_behind.set_function(partial(_age_s, seen_at_s - lag.behind_s))
        else:
            self._history_behind.set_function(lambda: 0.0)
        self._history_lag.labels("topics").set(lag.topics)
        self._history_lag.labels("late_topics").set(lag.late_topics)
        self._history_lag.labels("records").set(lag.records)
        self._history_lag.labels("bytes").set(lag.raw_bytes)


class MergeMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tidelog_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tidelog_{name}", text, labels, registry=registry)

        self._backlog_bytes = gauge(
            "merge_backlog_bytes", "Bytes that wait to be merged, by the tier they are in", "tier"
        )
        self._backlog_segments = gauge(
            "merge_backlog_segments", "Segments that wait to be merged, by their tier", "tier"
        )
        self._success_age = gauge(
            "merge_last_success_age_seconds",
            "Time since a merge into this tier last ended in the cluster",
            "tier",
        )
        self._amplification = gauge(
            "write_amplification", "Bytes ever written to the store, by uploads and merges, per byte uploaded"
        )
        self._effort = gauge(
            "merge_effort_bytes_per_second", "How fast this process is to merge in the long run"
        )
        self._copied = counter(
            "merged_bytes_total",
            "Bytes of runs replaced, and of objects written, by this process",
            "tier",
            "direction",
        )
        self._runs = counter(
            "merged_runs_total", "Runs replaced, and runs made of them, by this process", "tier", "direction"
        )
        self._failures = counter("merge_failures_total", "Merges of this process that were interrupted")
        self._refused = counter(
            "merge_swaps_refused_total", "Swaps not made: their partition had changed underneath"
        )
        self._damaged = counter(
            "merge_runs_damaged_total", "Runs left as they are: their bytes are missing or wrong"
        )

    def failed(self) -> None:
        self._failures.inc()

    def effort(self, bytes_per_s: float) -> None:
        self._effort.set(bytes_per_s)

    def merged(self, tier: int, done: MergeDone) -> None:
        """Counts a merge that made objects of this tier."""
        self._copied.labels(tier, "in").inc(done.bytes_in)
        self._copied.labels(tier, "out").inc(done.bytes_out)
        self._runs.labels(tier, "in").inc(done.runs_in)
        self._runs.labels(tier, "out").inc(done.runs_out)
        self._refused.inc(done.swaps_refused)
        self._damaged.inc(done.runs_damaged)

    def observe(self, backlog: Backlog, totals: Sequence[TierTotals]) -> None:
        """Ages keep growing between two observations, also while the database is away."""
        self._backlog_bytes.clear()
        self._backlog_segments.clear()
        for waiting in backlog.tiers:
            self._backlog_bytes.labels(waiting.tier).set(waiting.size_bytes)
            self._backlog_segments.labels(waiting.tier).set(waiting.segments)
        now_s = time.monotonic()
        for tier in totals:
            if tier.success_age_s is not None:
                self._success_age.labels(tier.tier).set_function(partial(_age_s, now_s - tier.success_age_s))
        amplification = write_amplification(totals)
        if amplification is not None:
            self._amplification.set(amplification)


def write_amplification(totals: Sequence[TierTotals]) -> float | None:
    """Bytes written, with uploads, per byte uploaded; None before the first upload was seen."""
    uploaded = sum(tier.done.bytes_out for tier in totals if tier.tier == 0)
    return sum(tier.done.bytes_out for tier in totals) / uploaded if uploaded else None


def _age_s(since_s: float) -> float:
    return time.monotonic() - since_s


class CleaningMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tidelog_{name}", text, labels, registry=registry)

        self._cleanings = counter("cleanings_total", "Partitions that this process cleaned")
        self._records = counter(
            "cleaned_records_total", "Records that cleanings of this process took out of the log"
        )
        self._bytes = counter(
            "cleaned_bytes_total",
            "Bytes of runs replaced, and of runs made of them, by cleanings",
            "direction",
        )
        self._failures = counter("cleaning_failures_total", "Cleanings of this process that were interrupted")
        self._damaged = counter(
            "cleaning_damaged_total", "Stretches of runs left as they are: their bytes are missing or wrong"
        )

    def cleaned(self, records: int, bytes_in: int, bytes_out: int) -> None:
        self._cleanings.inc()
        self._records.inc(records)
        self._bytes.labels("in").inc(bytes_in)
        self._bytes.labels("out").inc(bytes_out)

    def failed(self) -> None:
        self._failures.inc()

    def damaged(self) -> None:
        self._damaged.inc()
