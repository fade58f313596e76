"""The demonstration: six steps from nothing to an answer, and a screen that says whether every check held.

Promises:
- Everything that it started is stopped and its data is removed, whatever happens.
- The result is True only if every check was made and held.

Spark's JVM starts during the second step. It needs only the addresses of the first step.

The agents' own figures, summed over the agents, from their `/metrics`.
"""

import asyncio
import math
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from rich.console import Console

from compactor.diagnosis import Diagnosis
from compactor.doctor import DoctorSettings, examine
from sequencer.client import Sequencer
from sequencer.history.history_values import TopicShown
from spark_compaction.service import run_service
from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from storage.stores.open_store import open_store
from tidelog.agents_client import TopicsClient
from tidelog.demo.flights import as_records, mean_arrival_delay, read_flights
from tidelog.demo.screen import Screen
from tidelog.demo.transfer import Produced, consume_and_compare, produce_flights
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.errors import UserError
from tidelog.process.environment import Environment


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """Samples by name and labels, summed over the agents."""

    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        wanted = labels.items()
        return sum(
            value
            for (sample, found), value in self.samples.items()
            if sample == name and wanted <= set(found)
        )

    def quantile_s(self, histogram: str, quantile: float) -> float | None:
        """Interpolated within its bucket, as Prometheus does. None if nothing was observed."""
        by_bound: dict[float, float] = defaultdict(float)
        for (sample, labels), value in self.samples.items():
            if sample == f"{histogram}_bucket":
                by_bound[float(dict(labels)["le"])] += value
        bounds = sorted(by_bound.items())
        if not bounds or bounds[-1][1] == 0:
            return None
        rank = quantile * bounds[-1][1]
        lower, below = 0.0, 0.0
        for upper, count in bounds:
            if count >= rank:
                inside = count - below
                return (
                    lower
                    if upper == float("inf") or not inside
                    else lower + (upper - lower) * (rank - below) / inside
                )
            lower, below = upper, count
        return lower


def read_agent_metrics(http_urls: Iterable[str], timeout_s: float = 10.0) -> AgentMetrics:
    """Asks every agent; raises `UserError` if one does not answer."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for url in http_urls:
        try:
            text = httpx.get(f"{url}/metrics", timeout=timeout_s).raise_for_status().text
        except httpx.HTTPError as error:
            raise UserError(f"No metrics from {url}: {error}") from None
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name, tuple(sorted(sample.labels.items()))] += sample.value
    return AgentMetrics(samples)


_FLIGHTS = "flights"
_BOARD = "departures_board"
_BOARD_ROWS = 2_000
_PARTITIONS = 6
_WRITE_ZONE, _READ_ZONE = "a", "b"
_FRESH = {"tidelog.history.freshness.ms": "1000"}
_OFTEN = {"history_poll_s": 0.2, "history_ttl_interval_s": 1.0}
_PATIENCE_S = 300.0
_FOR_EVER = {"retention.ms": "-1"}  # the flights are from 2013, and retention uses a record's own time
_ONE_DAY = {"retention.ms": "86400000"}
_FAULTY = f"SELECT count(*) FROM topics.{_FLIGHTS} WHERE _error IS NOT NULL"
_JSON = {"tidelog.value.format": "json"}
_MEAN_DELAYS = f"""
SELECT carrier, avg(arr_delay) AS mean_delay
FROM topics.{_FLIGHTS}
WHERE arr_delay IS NOT NULL GROUP BY 1
"""


@contextmanager
def _at_work(settings: CompactionSettings) -> Iterator[Future[None]]:
    """The history service, in a thread of its own, until the block ends. The future is its end."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def work() -> None:
        stop = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), stop))
        await run_service(settings, CollectorRegistry(), stop)

    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(asyncio.run, work())
        loop, stop = begun.result(timeout=30)
        try:
            yield working
        finally:
            if not working.done():
                loop.call_soon_threadsafe(stop.set)
    working.result()


def run_demo(
    console: Console, environment: Environment, flights: int | None = None, picture: Path | None = None
) -> bool:
    """Whether all checks passed. Raises `UserError`.

    - `flights`: how many flights to take. By default all.
    - `picture`: a file for the last screen, as SVG.
    """
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    screen = Screen(console)
    stack = Stack(StackSettings(environment=environment, data_dir=directory, zones=(_WRITE_ZONE, _READ_ZONE)))
    elsewhere = ThreadPoolExecutor(max_workers=1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stop what was started
    try:
        demo = _Demo(screen, stack, environment, flights)
        demo.start(elsewhere)
        demo.produce()
        demo.consume()
        demo.keep_history()
        demo.ask()
        demo.show(began)
    finally:
        elsewhere.shutdown(cancel_futures=True)
        stop_spark()
        stack.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if picture is not None:
        screen.save_picture(picture)
    return screen.all_passed


class _Demo:
    """What one step hands on to the next."""

    def __init__(self, screen: Screen, stack: Stack, environment: Environment, flights: int | None) -> None:
        self._screen = screen
        self._stack = stack
        self._environment = environment
        self._source = read_flights(flights)
        self._produced = Produced()
        self._answer: dict[str, float] = {}
        self._figures: dict[str, str] = {}

    def start(self, elsewhere: ThreadPoolExecutor) -> None:
        """Step 1: Postgres, S3, two agents; Spark's JVM begins to start."""
        with self._screen.step(1, "Start Postgres, S3 and two agents") as step:
            self._stack.start()
            self._environment = self._environment.with_variables(self._stack.addresses.as_environment())
            self._settings = self._environment.read(CompactionSettings)
            self._spark: Future[SparkSession] = elsewhere.submit(spark_session, self._settings)
            with self._topics() as topics:
                topics.create(_FLIGHTS, _PARTITIONS, {**_FOR_EVER, **_FRESH, **_JSON})
                topics.create(_BOARD, 1, _FOR_EVER | _FRESH)
            step.detail = ", ".join(
                f"zone {agent.address.zone} at {agent.address.bootstrap}" for agent in self._stack.agents
            )

    def produce(self) -> None:
        """Step 2: produces every flight through the first zone, and a small topic that will expire."""
        total = self._source.num_rows
        bootstrap = self._stack.agent_in(_WRITE_ZONE).address.bootstrap
        with self._screen.step(2, f"Produce flights through zone {_WRITE_ZONE}", total) as step:
            self._produced = produce_flights(
                as_records(self._source),
                bootstrap=bootstrap,
                zone=_WRITE_ZONE,
                topic=_FLIGHTS,
                on_progress=step.advance_to,
            )
            board = as_records(self._source.slice(0, _BOARD_ROWS))
            self._board = produce_flights(board, bootstrap=bootstrap, zone=_WRITE_ZONE, topic=_BOARD)
            rate = self._produced.records / self._produced.seconds
            step.detail = f"{self._produced.records:,} records acknowledged, {rate:,.0f}/s"
        acknowledged = sum(map(len, self._produced.by_partition.values()))
        self._screen.check(
            "every record acknowledged once, each at a different offset",
            acknowledged == total,
            f"{acknowledged:,} of {total:,}",
        )

    def consume(self) -> None:
        """Step 3: consumes all of it through the other zone, and compares it with what was acknowledged."""
        total = self._produced.records
        bootstrap = self._stack.agent_in(_READ_ZONE).address.bootstrap
        with self._screen.step(3, f"Consume and compare through zone {_READ_ZONE}", total) as step:
            found = consume_and_compare(
                self._produced,
                bootstrap=bootstrap,
                zone=_READ_ZONE,
                topic=_FLIGHTS,
                on_progress=step.advance_to,
            )
            step.detail = f"{found.records:,} records compared, {found.records / found.seconds:,.0f}/s"
        check = self._screen.check
        check(
            "count",
            found.records == total and not found.missing,
            f"{found.records:,} read, {found.missing:,} missing",
        )
        check(
            "order within each partition",
            not found.out_of_order,
            f"{found.out_of_order:,} out of order or with a gap",
        )
        wrong = found.different + found.unexpected
        check("content (key and value, by digest)", not wrong, f"{wrong:,} different")

    def keep_history(self) -> None:
        """Step 4: the service writes Parquet. Then the small topic's records expire, and it drops them."""
        produced = {_FLIGHTS: self._produced.records, _BOARD: self._board.records}
        with self._screen.step(4, "Keep history in Parquet, and expire") as step:
            step.say("Waiting for Spark's JVM (its first start on a machine fetches Iceberg's jars)")
            self._spark.result()
            with _at_work(self._settings.model_copy(update=_OFTEN)) as service:
                step.say("The history service writes tables")
                shown = self._shown_once(service, produced)
                counted = {name: self._count(name) for name in produced}
                step.say(f"Expiring {_BOARD}")
                with self._topics() as topics:
                    topics.alter(_BOARD, None, _ONE_DAY, ())
                self._shown_once(service, produced | {_BOARD: 0})
            left = {name: self._count(name) for name in produced}
            files = sum(topic.files for topic in shown)
            step.detail = (
                f"{sum(counted.values()):,} records in {files} files, "
                f"{counted[_BOARD] - left[_BOARD]:,} rows expired"
            )
        told = ", ".join(f"{name} {rows:,}" for name, rows in counted.items())
        self._screen.check("history has every record", counted == produced, told)
        expired = left == {_FLIGHTS: counted[_FLIGHTS], _BOARD: 0}
        told = f"{_BOARD} {counted[_BOARD]:,} -> {left[_BOARD]:,}, {_FLIGHTS} {left[_FLIGHTS]:,}"
        self._screen.check("TTL dropped what expired and nothing else", expired, told)
        self._figures["Parquet files"] = f"{files}"
        self._figures["Parquet bytes"] = f"{sum(topic.parquet_bytes for topic in shown):,}"

    def ask(self) -> None:
        """Step 5: a question to the columns of the history, and the same to the source."""
        with self._screen.step(5, "Ask Spark SQL for the mean arrival delay per carrier") as step:
            found = query(self._settings, _MEAN_DELAYS)
            self._answer = {str(carrier): float(delay) for carrier, delay in found.rows}
            [[faulty]] = query(self._settings, _FAULTY).rows
            step.detail = f"{len(self._answer)} carriers, from the columns carrier and arr_delay"
        expected = mean_arrival_delay(self._source)
        agrees = self._answer.keys() == expected.keys() and all(
            math.isclose(self._answer[carrier], expected[carrier], rel_tol=1e-9) for carrier in expected
        )
        self._screen.check("every value became columns", faulty == 0, f"{faulty:,} have a reason in _error")
        self._screen.check("the answer equals the source's", agrees, f"{len(expected)} carriers compared")

    def show(self, began: float) -> None:
        """Step 6: shows what it took, and whether every check held."""
        with self._screen.step(6, "Check the log against the bucket") as step:
            diagnosis = asyncio.run(self._examine())
            metrics = read_agent_metrics(self._stack.addresses.http_urls)
            step.detail = "both ways"
        found = (len(diagnosis.dangling_runs), len(diagnosis.orphans), len(diagnosis.corrupt))
        told = "{} dangling runs, {} orphans, {} corrupt objects".format(*found)
        self._screen.check("every run has its object, every object its reason", not any(found), told)
        acks = [metrics.quantile_s("tidelog_produce_seconds", quantile) for quantile in (0.5, 0.99)]
        figures = {
            "records": f"{self._produced.records:,}",
            "bytes of values": f"{self._produced.value_bytes:,}",
            "bytes uploaded": f"{metrics.total('tidelog_put_bytes_total'):,.0f}",
            "PUTs": f"{metrics.total('tidelog_puts_total'):,.0f}",
            "GETs": f"{metrics.total('tidelog_store_gets_total'):,.0f}",
            "cache hits": f"{metrics.total('tidelog_page_cache_hits_total'):,.0f}",
            "ack p50 / p99": " / ".join("-" if ack is None else f"{1000 * ack:,.0f} ms" for ack in acks),
            **self._figures,
        }
        self._screen.show_result(
            figures, self._answer, mean_arrival_delay(self._source), time.monotonic() - began
        )

    async def _examine(self) -> Diagnosis:
        addresses = self._stack.addresses
        sequencer = await Sequencer.open(addresses.database_url, self._settings)
        try:
            store = await open_store(addresses.store_url, self._settings)
            try:
                doctor = self._environment.read(DoctorSettings)
                return await examine(sequencer, store, self._settings.cluster, True, doctor)
            finally:
                await store.close()
        finally:
            await sequencer.close()

    def _count(self, topic: str) -> int:
        [[rows]] = query(self._settings, f"SELECT count(*) FROM topics.{topic}").rows
        return int(rows)

    def _shown_once(self, service: Future[None], records: Mapping[str, int]) -> tuple[TopicShown, ...]:
        """What the tables have, once they have so many records, or after _PATIENCE_S. Raises what ended the
        service.
        """

        async def look() -> tuple[TopicShown, ...]:
            sequencer = await Sequencer.open(self._stack.addresses.database_url, self._settings)
            try:
                while True:
                    shown = await sequencer.history.shown()
                    if service.done():
                        service.result()
                    found = {topic.topic_name: topic.records for topic in shown}
                    if time.monotonic() > ends_s or all(found.get(name) == n for name, n in records.items()):
                        return shown
                    await asyncio.sleep(0.2)
            finally:
                await sequencer.close()

        ends_s = time.monotonic() + _PATIENCE_S
        return asyncio.run(look())

    def _topics(self) -> TopicsClient:
        return TopicsClient(self._stack.addresses.http_urls[0], timeout_s=30.0)
