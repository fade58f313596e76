"""What the housekeeper counts and measures; the names are the documentation of what is exported."""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from sequencer.garbage import Census
from sequencer.jobs import JobStatus


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
            "tidelog_segments_waiting", "Segments that are reserved or on their way out", ["state"], registry=registry
        )

    def failed(self, job: str) -> None:
        self._failures.labels(job).inc()

    def did(self, job: str, done: Mapping[str, int]) -> None:
        for what, count in done.items():
            self._done.labels(job, what).inc(count)

    def observe(self, statuses: Sequence[JobStatus], census: Census) -> None:
        """The ages go on growing between two observations, also while the database is away."""
        now_s = time.monotonic()
        for status in statuses:
            if status.success_age_s is not None:
                succeeded_at_s = now_s - status.success_age_s
                self._success_age.labels(status.name).set_function(partial(_age_s, succeeded_at_s))
        self._segments.labels("reserved").set(census.reserved)
        self._segments.labels("unreferenced").set(census.unreferenced)
        self._segments.labels("doomed").set(census.doomed)
        self._segments.labels("tombstone").set(census.tombstones)


def _age_s(since_s: float) -> float:
    return time.monotonic() - since_s
