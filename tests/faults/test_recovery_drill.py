"""The drill: Postgres is destroyed under load at a random moment, and the bucket alone brings the log back.

Each seed is a cluster with a Postgres and agents, a few at a time over one S3 endpoint. Idempotent and plain
producers, an assigned consumer, a consumer group and somebody who creates topics are at work while segments
are merged and old records go. Then Postgres is killed and its data removed; the agents die a moment later.
`tidelog recover` on an empty Postgres brings the log back, and the clients go on.
"""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from recovery.report import Report
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from tests.faults.conftest import create_topic
from tests.faults.drill_ledger import DrillLedger
from tests.faults.ledger import Contents, ReadRecord
from tests.faults.load import Consumer, LoadSettings, Producer, read_message
from tests.faults.site import Site, empty_template
from tests.support.directories import new_directory
from tests.support.messages import place_of
from tests.support.seeds import seeds
from tidelog.embedded.s3_endpoint import S3Endpoint

SEEDS = 20
AT_ONCE = 3
PARTITIONS = 3
RECORDS_PER_S = 120.0
IDEMPOTENT, PLAIN = (0, 1), 2
MERGING: Mapping[str, str] = {
    "TIDELOG_GARBAGE_GRACE_S": "3",
    "TIDELOG_COORDINATE_MAX_AGE_S": "1",
    "TIDELOG_RETENTION_INTERVAL_S": "0.5",
    "TIDELOG_CHECKPOINT_INTERVAL_S": "2",
    "TIDELOG_RESTORE_HORIZON_S": "60",
}

pytestmark = pytest.mark.faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one seed."""

    seed: int
    acknowledged: int
    moved: int
    entry_age_s: float
    recovery_s: float
    report: Report
    topics_lost: int
    faults: tuple[str, ...]

    def __str__(self) -> str:
        report = self.report
        return (
            f"seed {self.seed}: {self.acknowledged} records acknowledged, last entry "
            f"{self.entry_age_s:.1f} s before"
            f" the crash; {report.journal_rows} rows from the journal, {report.young_segments} young "
            "segments:"
            f" {report.appended} records appended, {self.moved} of them reordered, "
            f"{report.records_refused} refused,"
            f" {report.gone} gone, {self.topics_lost} topics lost; recovered in {self.recovery_s:.1f} s"
        )


@pytest.mark.timeout(900)
def test_the_bucket_alone_brings_back_what_was_acknowledged() -> None:
    began_s = time.monotonic()
    with (
        new_directory("drill") as directory,
        _endpoint(directory) as endpoint,
        empty_template(directory) as template,
    ):

        def drill(numbered: tuple[int, int]) -> Figures:
            number, seed = numbered
            name = f"seed-{number}"
            with Site(
                directory=directory / name,
                template=template,
                endpoint=endpoint,
                prefix=name,
                agent_count=1 + seed % 2,
                environment=MERGING,
            ) as site:
                figures = _drill(site, seed)
                print(figures, flush=True)
                return figures

        with ThreadPoolExecutor(AT_ONCE) as several:
            found = list(several.map(drill, enumerate(seeds(SEEDS))))

    print(f"{len(found)} seeds in {time.monotonic() - began_s:.0f} s")
    assert {one.seed: one.faults for one in found if one.faults} == {}


@contextmanager
def _endpoint(directory: Path) -> Iterator[S3Endpoint]:
    (directory / "s3" / "buckets" / "drills").mkdir(parents=True)
    with S3Endpoint.start(directory / "s3") as endpoint:
        yield endpoint


def _drill(site: Site, seed: int) -> Figures:
    chance = random.Random(seed)
    asyncio.run(migrate(site.database_url, MigrationSettings()))
    site.start_agents()
    topic = create_topic(site.bootstrap, PARTITIONS)
    ledger = DrillLedger(Contents(seed, PARTITIONS, largest_value_bytes=300), unordered=[PLAIN])
    with _AtWork(site, topic, ledger) as work:
        work.wait_for_acknowledgements(30, 60.0)
        _wait_for_the_journal(site)
        time.sleep(chance.uniform(0.5, 4.0))
        crash_at = time.time()
        site.end_postgres()
        time.sleep(chance.uniform(0.0, 0.5))
        site.kill_agents()

        site.start_postgres(site.template)
        began_s = time.monotonic()
        report = site.recover()
        recovery_s = time.monotonic() - began_s
        site.start_agents()

        work.wait_for_acknowledgements(30, 60.0)
        topics_lost, faults = work.finish(report, 60.0)
    assert report.last_entry_at is not None
    journaled_at = report.last_entry_at.timestamp()
    checked = ledger.check(
        _read_all(site, topic),
        journaled_at=journaled_at,
        ends=_ends(report, topic),
        listed=report.records_refused,
    )
    site.wait_until_healthy(30.0)
    return Figures(
        seed=seed,
        acknowledged=checked.acknowledged,
        moved=checked.moved,
        entry_age_s=crash_at - journaled_at,
        recovery_s=recovery_s,
        report=report,
        topics_lost=topics_lost,
        faults=(*faults, *checked.faults),
    )


def _wait_for_the_journal(site: Site) -> None:
    until = time.monotonic() + 60.0
    while not site.sql("SELECT 1 FROM journal WHERE checkpoint_number > 0 AND entries > 0"):
        assert time.monotonic() < until, f"no journal: {site.sql('SELECT name, last_error FROM jobs')}"
        time.sleep(0.1)


def _ends(report: Report, topic: str) -> dict[int, int]:
    """The offsets at which the journal ended."""
    return {
        key[1]: (change.high_watermark_after or 0) - change.appended
        for key, change in report.partitions.items()
        if change.name.startswith(f"{topic}/")
    }


def _read_all(site: Site, topic: str) -> dict[int, list[ReadRecord]]:
    """By a client that was never there before, to the end of the log."""
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": site.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    log: dict[int, list[ReadRecord]] = {partition: [] for partition in range(PARTITIONS)}
    parts = [confluent_kafka.TopicPartition(topic, partition, 0) for partition in log]
    until = time.monotonic() + 60.0
    ends = {part.partition: _end_of(client, part, until) for part in parts}
    client.assign(parts)
    while any(not log[p] or log[p][-1].offset + 1 < end for p, end in ends.items() if end):
        assert time.monotonic() < until, f"read { ({p: len(log[p]) for p in log}) } of {ends}"
        for message in client.consume(1000, timeout=0.5):
            if message.error() is None:
                log[place_of(message)[0]].append(read_message(message))
    client.close()
    return log


def _end_of(client: confluent_kafka.Consumer, part: confluent_kafka.TopicPartition, until: float) -> int:
    while True:
        try:
            return int(client.get_watermark_offsets(part, timeout=10)[1])
        except confluent_kafka.KafkaException:  # on a busy machine, a connection is lost now and then
            if time.monotonic() >= until:
                raise


@dataclass(slots=True, kw_only=True)
class _SmallTopic:
    """Times by the machine's clock."""

    created_at: float
    acknowledged_at: list[float] = field(default_factory=list)
    """Of each acknowledged record."""

    def __str__(self) -> str:
        acknowledged = ", ".join(f"{at:.3f}" for at in self.acknowledged_at)
        return f"created at {self.created_at:.3f}, records acknowledged at {acknowledged}"


class _AtWork:
    """Clients that go on whatever happens."""

    def __init__(self, site: Site, topic: str, ledger: DrillLedger) -> None:
        self._site = site
        self._topic = topic
        self._ledger = ledger
        refresh = {"topic.metadata.refresh.interval.ms": 500}
        settings = LoadSettings(
            servers=site.bootstrap, topic=topic, records_per_s=RECORDS_PER_S, client_settings=refresh
        )
        plain = LoadSettings(
            servers=site.bootstrap,
            topic=topic,
            records_per_s=RECORDS_PER_S,
            client_settings={**refresh, "enable.idempotence": False, "retries": 0},
        )
        self._producers = [Producer(name, settings, ledger, lambda: 0) for name in IDEMPOTENT]
        self._producers.append(Producer(PLAIN, plain, ledger, lambda: 0))
        self._consumer = Consumer(0, settings, ledger)
        self._stopping = threading.Event()
        self._group_read: set[tuple[int, int]] = set()
        self._small: dict[str, _SmallTopic] = {}
        self._creator = threading.Thread(target=self._create_topics, daemon=True)
        self._threads = [threading.Thread(target=self._consume_in_a_group, daemon=True), self._creator]

    def __enter__(self) -> "_AtWork":
        self._consumer.start()
        for producer in self._producers:
            producer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for producer in self._producers:
            producer.stop()
        self._consumer.finish({})
        for thread in self._threads:
            thread.join(60.0)

    def wait_for_acknowledgements(self, more: int, timeout_s: float) -> None:
        """Of each producer."""
        goals = {one.name: self._ledger.acknowledged_count(one.name) + more for one in self._producers}
        until = time.monotonic() + timeout_s
        while any(self._ledger.acknowledged_count(name) < goal for name, goal in goals.items()):
            fatal = [one.fatal for one in self._producers if one.fatal]
            assert not fatal, fatal
            assert time.monotonic() < until, "the producers do not go on"
            time.sleep(0.05)

    def finish(self, report: Report, timeout_s: float) -> tuple[int, list[str]]:
        """Waits until the consumers have read everything. Returns lost topics, and faults."""
        deadline_s = time.monotonic() + timeout_s
        for producer in self._producers:
            producer.stop()
        for producer in self._producers:
            producer.join(deadline_s)
        ends = {int(key): end for key, end in self._watermarks()}
        self._consumer.finish(ends)
        self._consumer.join(deadline_s)
        # The group may have read offsets before the crash at which other records stand now.
        wanted = {(partition, ends[partition] - 1) for partition in ends if ends[partition]}
        while not wanted <= self._group_read:
            assert time.monotonic() < deadline_s, f"the group did not reach {wanted - self._group_read}"
            time.sleep(0.05)
        self._stopping.set()
        # A record acknowledged after the database was asked would look lost.
        self._creator.join(max(0.0, deadline_s - time.monotonic()))
        assert not self._creator.is_alive(), "the topics' producer does not end"
        return self._lost_topics(report)

    def _watermarks(self) -> list[tuple[int, int]]:
        rows = self._site.sql(
            "SELECT p.partition, p.high_watermark FROM partitions AS p JOIN topics AS t USING (topic_id)"
            f" WHERE t.name = '{self._topic}'"
        )
        return [(int(str(partition)), int(str(end))) for partition, end in rows]

    def _lost_topics(self, report: Report) -> tuple[int, list[str]]:
        there = {
            str(name): int(str(end))
            for name, end in self._site.sql(
                "SELECT t.name, p.high_watermark FROM partitions AS p JOIN topics AS t USING (topic_id)"
            )
        }
        lost = {
            name: f"{topic}; there: {there.get(name)}"
            for name, topic in self._small.items()
            if topic.acknowledged_at and there.get(name, 0) < len(topic.acknowledged_at)
        }
        listed = sum(one.records or 0 for one in report.refused if "not known" in one.reason)
        if sum(len(self._small[name].acknowledged_at) for name in lost) > listed:
            return len(lost), [f"topics are lost and not listed: {lost}"]
        return len(lost), []

    def _consume_in_a_group(self) -> None:
        client = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._site.bootstrap,
                "group.id": "drill",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        client.subscribe([self._topic])
        while not self._stopping.is_set():
            for message in client.consume(500, timeout=0.1):
                if message.error() is None:
                    self._group_read.add(place_of(message))
        client.close()

    def _create_topics(self) -> None:
        """Creates a topic a second, with a record or two. The topics are small, and retention keeps little of
        them.
        """
        number = 0
        while not self._stopping.wait(1.0):
            number += 1
            name = f"small-{number}"
            admin = confluent_kafka.admin.AdminClient(
                {"bootstrap.servers": self._site.bootstrap, "log_level": 0}
            )
            new = confluent_kafka.admin.NewTopic(name, 1, 1, config={"retention.bytes": "300"})
            try:
                admin.create_topics([new], request_timeout=2)[name].result(3)
            except (confluent_kafka.KafkaException, TimeoutError):
                continue  # it may exist, without a record
            self._small[name] = topic = _SmallTopic(created_at=time.time())
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": self._site.bootstrap,
                    "message.timeout.ms": 1500,
                    "retries": 0,
                    "log_level": 0,
                }
            )

            def delivered(
                error: confluent_kafka.KafkaError | None,
                _: confluent_kafka.Message,
                topic: _SmallTopic = topic,
            ) -> None:
                if error is None:
                    topic.acknowledged_at.append(time.time())

            for _ in range(5):
                producer.produce(name, b"x" * 100, on_delivery=delivered)
                producer.flush(2.0)
