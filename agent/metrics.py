"""The counters and gauges of an agent, in one registry that `/metrics` renders. agent/app.py makes it and
hands it to the parts.
"""

import collections
import platform
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, Summary
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.tenants.tenant_traffic import TenantTraffic
from agent.topic_traffic import TopicTraffic


class Traffic(Collector):
    """Counts the traffic of Kafka connections with one addition each: plain numbers that `/metrics` reads."""

    def __init__(self) -> None:
        self.requests: collections.Counter[str] = collections.Counter()
        """Counts by API."""
        self.request_bytes = 0
        self.response_bytes = 0

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("tidelog_requests_total", "Kafka requests", labels=["api"])
        for api, count in self.requests.copy().items():
            requests.add_metric([api], count)
        yield requests
        yield CounterMetricFamily(
            "tidelog_request_bytes_total", "Bytes of Kafka requests", value=self.request_bytes
        )
        yield CounterMetricFamily(
            "tidelog_response_bytes_total", "Bytes of Kafka responses", value=self.response_bytes
        )


_LATENCY_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0)
_BATCH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class BuildInfo(Collector):
    """The version of Tidelog and of Python, which never change while the process runs."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def collect(self) -> Iterator[Metric]:
        if not self._labels:
            from importlib.metadata import version  # so that the agent's start does not wait for it

            self._labels = {"version": version("tidelog"), "python": platform.python_version()}
        yield InfoMetricFamily("tidelog_build", "What runs here", value=self._labels)


class Metrics:
    """Plain attributes. Their names document what is exported."""

    def __init__(
        self, registry: CollectorRegistry | None = None, most_topics: int = 0, most_tenants: int = 0
    ) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(BuildInfo())
        self.topics = TopicTraffic(most_topics, time.monotonic)
        self.registry.register(self.topics)
        self.tenants = TenantTraffic(most_tenants)
        self.registry.register(self.tenants)
        self._listener()
        self._tls()
        self._write_path()
        self._groups()
        self._clients()

    def _listener(self) -> None:
        registry = self.registry
        self.connections = Gauge("tidelog_connections", "Open Kafka connections", registry=registry)
        self.forwarded_connections = Gauge(
            "tidelog_forwarded_connections",
            "Connections that other agents opened for their clients",
            registry=registry,
        )
        self.forwarded = Counter(
            "tidelog_forwarded_total", "Requests forwarded to another agent", ["outcome"], registry=registry
        )
        self.connections_closed = Counter(
            "tidelog_connections_closed_total", "Connections this agent closed", ["reason"], registry=registry
        )
        self.unauthenticated = Gauge(
            "tidelog_unauthenticated_connections",
            "Open Kafka connections whose clients have not authenticated yet",
            registry=registry,
        )
        self.logins = Counter(
            "tidelog_logins_total", "Logins of Kafka clients", ["mechanism", "outcome"], registry=registry
        )
        self.audit_events = Counter(
            "tidelog_audit_events_total", "Events of the audit trail", ["event"], registry=registry
        )
        self.audit_events_lost = Counter(
            "tidelog_audit_events_lost_total",
            "Events that are missing in the audit trail, by what bound was reached",
            ["event", "because"],
            registry=registry,
        )
        self.traffic = Traffic()
        registry.register(self.traffic)
        self.request_failures = Counter(
            "tidelog_request_failures_total", "Unexpected failures of requests", ["api"], registry=registry
        )
        self.request_memory = Gauge(
            "tidelog_request_memory_bytes", "Bytes reserved for requests", registry=registry
        )
        self.bulk_memory = Gauge(
            "tidelog_bulk_memory_bytes", "Bytes reserved for requests marked bulk", registry=registry
        )
        self.bulk_waiting = Gauge(
            "tidelog_bulk_waiting_connections",
            "Connections that are not read until bulk has memory again",
            registry=registry,
        )
        self.request_memory_waits = Counter(
            "tidelog_request_memory_waits_total",
            "Times a socket was not read for want of memory",
            registry=registry,
        )

    def _tls(self) -> None:
        registry = self.registry
        self.tls_handshakes = Counter(
            "tidelog_tls_handshakes_total",
            "TLS handshakes, by their end",
            ["use", "outcome"],
            registry=registry,
        )
        self.tls_handshakes_under_way = Gauge(
            "tidelog_tls_handshakes_under_way", "TLS handshakes under way", ["use"], registry=registry
        )
        self.certificate_expires = Gauge(
            "tidelog_certificate_expires_seconds",
            "When the certificate in use ends, in seconds since 1970",
            ["use"],
            registry=registry,
        )
        self.certificate_reloads = Counter(
            "tidelog_certificate_reloads_total",
            "Certificate files that were loaded, or refused",
            ["use", "outcome"],
            registry=registry,
        )

    def certificate_loaded(self, use: str, expires_at_s: float) -> None:
        self.certificate_expires.labels(use).set(expires_at_s)
        self.certificate_reloads.labels(use, "loaded").inc()

    def certificate_refused(self, use: str) -> None:
        self.certificate_reloads.labels(use, "refused").inc()

    def _write_path(self) -> None:
        registry = self.registry
        self.produce_seconds = Histogram(
            "tidelog_produce_seconds", "Produce, from its last byte to its acknowledgement",
            buckets=_LATENCY_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self.produce_errors = Counter(
            "tidelog_produce_errors_total", "Batches answered with an error", ["error"], registry=registry
        )
        self.sequence_gaps = Counter(
            "tidelog_sequence_gaps_total",
            "Batches sent back because their predecessor is not written yet",
            registry=registry,
        )
        self.batches = Counter("tidelog_batches_total", "Record batches acknowledged", registry=registry)
        self.records = Counter("tidelog_records_total", "Records acknowledged", registry=registry)
        self.batch_bytes = Counter(
            "tidelog_batch_bytes_total", "Bytes of record batches acknowledged", registry=registry
        )
        self.seals = Counter("tidelog_seals_total", "Segments sealed", ["reason"], registry=registry)
        self.put_tokens = Gauge("tidelog_put_tokens", "Tokens left in the PUT budget", registry=registry)
        self.window_tokens = Gauge(
            "tidelog_window_tokens", "PUTs that the budget for full windows has left", registry=registry
        )
        self.puts = Counter(
            "tidelog_puts_total", "PUTs of segments begun, by attempt", ["kind"], registry=registry
        )
        self.put_bytes = Counter("tidelog_put_bytes_total", "Bytes of segments uploaded", registry=registry)
        self.put_seconds = Histogram(
            "tidelog_put_seconds",
            "Upload of a segment, retries included",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.put_failures = Counter(
            "tidelog_put_failures_total", "Attempts of an upload that failed", registry=registry
        )
        self.commits = Counter(
            "tidelog_commits_total", "Commits answered by the sequencer", registry=registry
        )
        self.commit_repeats = Counter(
            "tidelog_commit_repeats_total", "Commits repeated", ["reason"], registry=registry
        )  # fmt: skip
        self.commit_refusals = Counter(
            "tidelog_commit_refusals_total", "Segments the sequencer refused", ["reason"], registry=registry
        )
        self.commit_seconds = Histogram(
            "tidelog_commit_seconds",
            "Commit of one or more segments",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.unacknowledged = Gauge(
            "tidelog_unacknowledged_bytes", "Bytes accepted and not yet acknowledged", registry=registry
        )
        self.bulk_unacknowledged = Gauge(
            "tidelog_bulk_unacknowledged_bytes",
            "Bytes marked bulk, accepted and not yet acknowledged",
            registry=registry,
        )
        self.write_wait_seconds = Summary(
            "tidelog_write_wait_seconds",
            "How long the oldest batch of a committed segment waited. Lane normal: all but bulk",
            ["lane"],
            registry=registry,
        )
        self.interactive_refused = Counter(
            "tidelog_interactive_refused_total",
            "Interactive Produce requests refused because an earlier write waits for too long",
            registry=registry,
        )
        self.sealed_segments = Gauge(
            "tidelog_sealed_segments", "Segments sealed and not yet sequenced", registry=registry
        )

    def _clients(self) -> None:
        registry = self.registry
        self.throttled = Counter(
            "tidelog_throttled_answers_total",
            "Answers that ask a client to pause",
            ["api"],
            registry=registry,
        )
        self.throttle_seconds = Counter(
            "tidelog_throttle_seconds_total", "Pauses that clients were asked for", ["api"], registry=registry
        )
        self.quota_throttle_seconds = Counter(
            "tidelog_quota_throttle_seconds_total",
            "Pauses of clients over their quotas",
            ["quota"],
            registry=registry,
        )
        self.telemetry_requests = Counter(
            "tidelog_telemetry_requests_total", "Pushes of clients' metrics taken, and requests refused",
            ["result"], registry=registry,
        )  # fmt: skip
        self.telemetry_series_dropped = Counter(
            "tidelog_telemetry_series_dropped_total",
            "Pushed metrics beyond the bound per client",
            registry=registry,
        )

    def _groups(self) -> None:
        registry = self.registry
        self.group_rebalances = Counter(
            "tidelog_group_rebalances_total", "Generations (classic) and group epochs (consumer) begun",
            ["protocol"], registry=registry,
        )  # fmt: skip
        self.offset_commits = Histogram(
            "tidelog_offset_commits_per_statement", "OffsetCommit requests that shared a statement",
            buckets=_BATCH_BUCKETS, registry=registry,
        )  # fmt: skip
        self.offset_commit_seconds = Histogram(
            "tidelog_offset_commit_seconds", "Statements that commit offsets, in the sequencer",
            buckets=_LATENCY_BUCKETS_S, registry=registry,
        )  # fmt: skip
