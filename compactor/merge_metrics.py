"""The metrics of merging. Their names and help texts document what is exported."""

import time
from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from sequencer.housekeeping.merge_values import Backlog, MergeDone, TierTotals


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
            "merge_last_success_age_seconds", "Time since a merge into this tier last ended in the cluster", "tier"
        )
        self._amplification = gauge(
            "write_amplification", "Bytes ever written to the store, by uploads and merges, per byte uploaded"
        )
        self._effort = gauge("merge_effort_bytes_per_second", "How fast this process is to merge in the long run")
        self._copied = counter(
            "merged_bytes_total", "Bytes of runs replaced, and of objects written, by this process", "tier", "direction"
        )
        self._runs = counter(
            "merged_runs_total", "Runs replaced, and runs made of them, by this process", "tier", "direction"
        )
        self._failures = counter("merge_failures_total", "Merges of this process that were interrupted")
        self._refused = counter("merge_swaps_refused_total", "Swaps not made: their partition had changed underneath")
        self._damaged = counter("merge_runs_damaged_total", "Runs left as they are: their bytes are missing or wrong")

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
