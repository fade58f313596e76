"""Keeps the history of all topics fresh: `tidelog history run`.

A pass looks which topics' history lacks records, and for how long. Those that are half of their
`tidelog.history.freshness.ms` behind, or less if there are many, are compacted in a round, the latest first;
a topic that needs several rounds shares them with the others. From time to time a pass applies TTL. Several
services may run at once: each job is claimed under a lease, so they share the topics.

Promises that a failure ends no more than the round in which it happens, and is counted and logged; that a
pass costs Postgres no more than a twentieth of its time, however many partitions there are; and that a
service which is killed keeps nothing locked for longer than a lease. If Spark's JVM ends, the next round
starts another.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from sequencer.client import Sequencer
from sequencer.cluster.ownership import OwnershipUnconfirmed
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.history.history_values import TopicBehind
from sequencer.housekeeping.observations import HistoryLag
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topics import UnknownTopic
from spark_compaction.compact import Compaction, CompactionProgress, TopicCompaction, TopicCompactor
from spark_compaction.job import SparkJobFailed
from spark_compaction.job_keys import JobKeys, open_job_keys
from spark_compaction.manifest import ManifestRefused
from spark_compaction.open_log import open_log
from spark_compaction.session import SparkUnavailable
from spark_compaction.settings import CompactionSettings
from spark_compaction.ttl import TopicExpirer
from storage.identifiers import TopicId
from storage.stores.object_store import StoreUnavailable

log = logging.getLogger("tidelog")

_EARLY = 0.5
"""A topic is compacted when it is this share of its freshness behind: the job itself takes time."""
_EARLIEST = 0.1
"""The same where all topics that are behind need most of their freshness together."""
_ROUNDS_TO_WAIT = 2
"""A topic may wait for all others twice: for those before it, and for its own job."""
FIRST_TOPIC_S = 0.2
"""What a topic is expected to take before a round has shown it. With 0, a thousand topics of a new service
would begin when half of their freshness is over, and the last ones would be late.
"""
_NEW_ROUND_SHARE = 0.3
"""How much the last round counts for the expected duration."""
_LOOKS_PER_PASS = 20
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0
_ENDS_A_ROUND = (
    SparkJobFailed, SparkUnavailable, ManifestRefused, SequencerUnavailable, CommitOutcomeUnknown,
    StoreUnavailable,
    OwnershipUnconfirmed, UnknownTopic,
)  # fmt: skip


class HistoryMetrics:
    """What the service exports; the names are the documentation."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.behind_s = Gauge(
            "tidelog_history_behind_seconds",
            "How long ago the topic's history was complete; only topics that lack records",
            ["topic"],
            registry=registry,
        )
        self.backlog_records = Gauge(
            "tidelog_history_backlog_records",
            "Records that the topic's history lacks",
            ["topic"],
            registry=registry,
        )
        self.backlog_bytes = Gauge(
            "tidelog_history_backlog_bytes",
            "Bytes of the log, about, that history lacks",
            ["topic"],
            registry=registry,
        )
        self.late_topics = Gauge(
            "tidelog_history_late_topics",
            "Topics that are behind by more than their freshness",
            registry=registry,
        )
        self.waiting = Gauge(
            "tidelog_history_waiting",
            "1 where the topic's records cannot come into history now: the log of the service says why",
            ["topic"],
            registry=registry,
        )
        self.records = Counter(
            "tidelog_history_records_total", "Records written to history", registry=registry
        )
        self.raw_bytes = Counter(
            "tidelog_history_raw_bytes_total", "Bytes of the log compacted", registry=registry
        )
        self.files = Counter("tidelog_history_files_total", "Files written, by compaction", registry=registry)
        self.merged = Counter("tidelog_history_merged_files_total", "Small files merged", registry=registry)
        self.expired = Counter(
            "tidelog_history_expired_records_total", "Records expired by TTL", registry=registry
        )
        self.round_s = Counter(
            "tidelog_history_round_seconds_total", "Time in rounds and TTL", registry=registry
        )
        self.refused = Counter(
            "tidelog_history_refused_total",
            "Jobs whose publish was refused, because others had changed their topic; they are planned again",
            registry=registry,
        )
        self.failures = Counter(
            "tidelog_history_failures_total", "Rounds and tasks that failed", ["error"], registry=registry
        )

    def observe(self, behind: Sequence[TopicBehind]) -> None:
        for gauge in (self.behind_s, self.backlog_records, self.backlog_bytes):
            gauge.clear()
        for topic in behind:
            self.behind_s.labels(topic.topic_name).set(topic.behind_s)
            self.backlog_records.labels(topic.topic_name).set(topic.records)
            self.backlog_bytes.labels(topic.topic_name).set(topic.raw_bytes)
        self.late_topics.set(lag_of(behind).late_topics)


def lateness(topic: TopicBehind) -> float:
    """How many times its freshness the topic is behind."""
    freshness_s = TopicConfig.of(topic.config).history_freshness_ms / 1000
    return topic.behind_s / max(freshness_s, 0.001)


def lag_of(behind: Sequence[TopicBehind]) -> HistoryLag:
    return HistoryLag(
        topics=len(behind),
        late_topics=sum(lateness(topic) > 1 for topic in behind),
        behind_s=max((topic.behind_s for topic in behind), default=0.0),
        records=sum(topic.records for topic in behind),
        raw_bytes=sum(topic.raw_bytes for topic in behind),
    )


def due_topics(behind: Sequence[TopicBehind], most: int, topic_s: float = 0.0) -> list[TopicBehind]:
    """What the next round compacts: the topics that are due, the latest first, the larger ones first among
    equals. A topic is expected to take `topic_s`: the more topics are behind, the earlier they are due.
    """
    all_s = topic_s * len(behind)
    due = [topic for topic in behind if lateness(topic) >= _share(topic, all_s)]
    return sorted(due, key=lambda topic: (-lateness(topic), -topic.raw_bytes))[:most]


def _share(topic: TopicBehind, all_s: float) -> float:
    """From which lateness on the topic is due, if all topics together take `all_s`."""
    freshness_s = TopicConfig.of(topic.config).history_freshness_ms / 1000
    return min(_EARLY, max(_EARLIEST, 1 - _ROUNDS_TO_WAIT * all_s / max(freshness_s, 0.001)))


class Retries:
    """Topics whose job did not advance their history wait, longer each time. So those that cannot go on leave
    the rounds to the others, however many they are.
    """

    def __init__(self) -> None:
        self._waits: dict[TopicId, tuple[float, float]] = {}
        """Until when, and how long."""

    def without_waiting(self, topics: Sequence[TopicBehind], now_s: float) -> list[TopicBehind]:
        """Those that need not wait. Forgets topics that are not among `topics`."""
        self._waits = {
            topic.topic_id: self._waits[topic.topic_id] for topic in topics if topic.topic_id in self._waits
        }
        return [
            topic
            for topic in topics
            if topic.topic_id not in self._waits or self._waits[topic.topic_id][0] <= now_s
        ]

    def note(self, topic_id: TopicId, *, advanced: bool) -> None:
        if advanced:
            self._waits.pop(topic_id, None)
        else:
            _, waited_s = self._waits.get(topic_id, (0.0, _FIRST_WAIT_S / 2))
            wait_s = min(waited_s * 2, _LONGEST_WAIT_S)
            self._waits[topic_id] = (time.monotonic() + wait_s, wait_s)


async def run_service(settings: CompactionSettings, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Works until `stop` is set; a round at work is cancelled then. Raises what `open_log` raises, before it
    begins.
    """
    async with open_log(settings) as sequencer, open_job_keys(settings, sequencer) as keys:
        service = HistoryService(settings, sequencer, keys, HistoryMetrics(registry))
        working = asyncio.create_task(service.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
        if working.done() and not working.cancelled():
            working.result()


class HistoryService:
    def __init__(
        self, settings: CompactionSettings, sequencer: Sequencer, keys: JobKeys, metrics: HistoryMetrics
    ) -> None:
        self._settings = settings
        self._sequencer = sequencer
        self._keys = keys
        self._metrics = metrics
        self._compaction = Compaction(settings, sequencer, keys, _log_progress)
        self._retries = Retries()
        self._waiting: set[str] = set()
        """Topics of the gauge."""
        self._ttl_due_s = time.monotonic()
        self._look_s = 0.0
        """How long the last look took, without the round that followed."""
        self._topic_s = FIRST_TOPIC_S
        """How long a topic takes, of late."""

    async def run(self) -> None:
        """Pass after pass, until cancelled."""
        while True:
            try:
                worked = await self.run_pass()
            except _ENDS_A_ROUND as error:
                worked = False
                self._failed(error)
            if not worked:  # a round that only waited for a registry must not keep the next look off
                await asyncio.sleep(max(self._settings.history_poll_s, _LOOKS_PER_PASS * self._look_s))

    async def run_pass(self) -> bool:
        """One look, and one round if topics are due. Whether it advanced the history of a topic."""
        began_s, self._look_s = time.monotonic(), 0.0
        behind = await self._sequencer.history.behind()
        self._look_s = time.monotonic() - began_s
        self._metrics.observe(behind)
        await self._sequencer.observations.note_history_lag(lag_of(behind))
        for name in self._waiting - {topic.topic_name for topic in behind}:  # deleted, or its history is off
            self._end_wait(name)
        began_s = time.monotonic()
        ready = self._retries.without_waiting(behind, began_s)
        due = due_topics(ready, self._settings.compact_round_topics, self._topic_s)
        worked = False
        try:
            if due:
                worked = await self._compact(due)
                took_s = (time.monotonic() - began_s) / len(due)
                self._topic_s += _NEW_ROUND_SHARE * (took_s - self._topic_s)
            if began_s >= self._ttl_due_s:
                self._ttl_due_s = began_s + self._settings.history_ttl_interval_s
                await self._expire()
        finally:
            self._metrics.round_s.inc(time.monotonic() - began_s)
        return worked

    async def _compact(self, due: Sequence[TopicBehind]) -> bool:
        """Whether a topic's history advanced."""
        topics = await self._sequencer.topics.by_name([topic.topic_name for topic in due])
        compactors = [
            TopicCompactor(self._settings, self._sequencer, topic, self._keys) for topic in topics.values()
        ]
        try:
            await self._compaction.run_round(compactors)
        finally:
            for topic, done in zip(
                topics.values(), [compactor.done for compactor in compactors], strict=True
            ):
                self._retries.note(topic.topic_id, advanced=done.advanced)
                self._metrics.records.inc(done.rows)
                self._metrics.raw_bytes.inc(done.raw_bytes)
                self._metrics.files.inc(done.files)
                self._metrics.merged.inc(done.merged_files)
                self._note_wait(done)
                self._note_refusals(done.topic, done.refused)
                for stop in (*done.failed, *done.stopped):
                    self._metrics.failures.labels("task").inc()
                    log.error(
                        "a partition's history does not go on",
                        extra={
                            "topic": done.topic,
                            "partition": stop.partition,
                            "offset": stop.offset,
                            "reason": stop.reason,
                        },
                    )
        return any(compactor.done.advanced for compactor in compactors)

    def _note_refusals(self, topic: str, reasons: Sequence[str]) -> None:
        for reason in reasons:
            self._metrics.refused.inc()
            log.info("a job of history was refused", extra={"topic": topic, "reason": reason})

    def _note_wait(self, done: TopicCompaction) -> None:
        if done.waits:
            self._metrics.waiting.labels(done.topic).set(1)
            log.error("a topic's history waits", extra={"topic": done.topic, "reason": done.waits})
            self._waiting.add(done.topic)
        elif done.topic in self._waiting and not done.busy:
            self._end_wait(done.topic)

    def _end_wait(self, topic: str) -> None:
        self._metrics.waiting.remove(topic)
        self._waiting.discard(topic)

    async def _expire(self) -> None:
        await self._sequencer.history.garbage.drop_deleted(self._settings.compact_round_topics)
        names = await self._sequencer.history.topics_with_expired_files()
        for topic in (await self._sequencer.topics.by_name(names)).values():
            expired = await TopicExpirer(self._settings, self._sequencer, topic, self._keys).run()
            self._metrics.expired.inc(expired.rows_expired)
            self._note_refusals(expired.topic, [expired.refused] if expired.refused else [])
            if expired.waits:
                log.error(
                    "a topic's partly expired files wait",
                    extra={"topic": expired.topic, "reason": expired.waits},
                )

    def _failed(self, error: Exception) -> None:
        self._metrics.failures.labels(type(error).__name__).inc()
        log.error(
            "a round of history failed", extra={"error": type(error).__name__, "reason": str(error)[:1000]}
        )


def _log_progress(progress: CompactionProgress) -> None:
    if progress.stage == "publishing":
        log.info("a round was written", extra={"topics": len(progress.topics), "tasks": progress.tasks_total})
