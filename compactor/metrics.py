"""The housekeeper's metrics. Their names and help texts document what is exported."""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from sequencer.housekeeping.jobs import JobStatus
from sequencer.housekeeping.observations import Census, JournalProgress, Observation


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
            "tidelog_job_failures_total", "Runs of a job that failed in this process", ["job"], registry=registry
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
            "tidelog_journal_checkpoint_age_seconds", "Time since the last complete checkpoint", registry=registry
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


def _age_s(since_s: float) -> float:
    return time.monotonic() - since_s
