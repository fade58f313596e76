"""The demonstration: six steps from nothing to an answer, and a screen that says whether every check held.

Promises that everything it started is stopped and its data removed, whatever happens, and that the result is True
only if every check was made and held. Spark's JVM starts beside the second step: it needs the first step's addresses
and nothing else.
"""

import asyncio
import math
import shutil
import signal
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from compactor.diagnosis import Diagnosis
from compactor.doctor import DoctorSettings, examine
from sequencer.client import Sequencer
from spark_compaction.compact import compact_topics
from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from spark_compaction.ttl import expire_history
from storage.stores.open_store import open_store
from tidelog.demo.agent_metrics import read_agent_metrics
from tidelog.demo.flights import as_records, mean_arrival_delay, read_flights
from tidelog.demo.screen import Screen
from tidelog.demo.transfer import Produced, consume_and_compare, produce_flights
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment
from tidelog.topics_client import TopicsClient

_FLIGHTS = "flights"
_BOARD = "departures_board"
_BOARD_ROWS = 2_000
_PARTITIONS = 6
_WRITE_ZONE, _READ_ZONE = "a", "b"
_FOR_EVER = {"retention.ms": "-1"}  # the flights are of 2013, and retention goes by a record's own time
_ONE_DAY = {"retention.ms": "86400000"}
_MEAN_DELAYS = f"""
SELECT flight.carrier, avg(flight.arr_delay) AS mean_delay
FROM (SELECT from_json(CAST(value AS STRING), 'carrier STRING, arr_delay DOUBLE') AS flight FROM topics.{_FLIGHTS})
WHERE flight.arr_delay IS NOT NULL GROUP BY 1
"""


def run_demo(
    console: Console, environment: Environment, flights: int | None = None, picture: Path | None = None
) -> bool:
    """Whether all checks passed. Raises `UserError`.

    - `flights`: how many of the flights it takes; without it, all.
    - `picture`: the file into which it writes its last screen, as SVG.
    """
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    screen = Screen(console)
    stack = Stack(StackSettings(environment=environment, data_dir=directory, zones=(_WRITE_ZONE, _READ_ZONE)))
    elsewhere = ThreadPoolExecutor(max_workers=1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what was started is stopped
    try:
        demo = _Demo(screen, stack, environment, flights)
        demo.start(elsewhere)
        demo.produce()
        demo.consume()
        demo.compact()
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
    """What the steps hand on to each other."""

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
                topics.create(_FLIGHTS, _PARTITIONS, _FOR_EVER)
                topics.create(_BOARD, 1, _FOR_EVER)
            step.detail = ", ".join(
                f"zone {agent.address.zone} at {agent.address.bootstrap}" for agent in self._stack.agents
            )

    def produce(self) -> None:
        """Step 2: every flight, through the first zone; and a small topic that will expire."""
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
            "every record acknowledged once, at an offset of its own",
            acknowledged == total,
            f"{acknowledged:,} of {total:,}",
        )

    def consume(self) -> None:
        """Step 3: all of it, through the other zone, against what was acknowledged."""
        total = self._produced.records
        bootstrap = self._stack.agent_in(_READ_ZONE).address.bootstrap
        with self._screen.step(3, f"Consume and compare through zone {_READ_ZONE}", total) as step:
            found = consume_and_compare(
                self._produced, bootstrap=bootstrap, zone=_READ_ZONE, topic=_FLIGHTS, on_progress=step.advance_to
            )
            step.detail = f"{found.records:,} records compared, {found.records / found.seconds:,.0f}/s"
        check = self._screen.check
        check(
            "count", found.records == total and not found.missing, f"{found.records:,} read, {found.missing:,} missing"
        )
        check(
            "order within each partition", not found.out_of_order, f"{found.out_of_order:,} out of order or with a gap"
        )
        wrong = found.different + found.unexpected
        check("content (key and value, by digest)", not wrong, f"{wrong:,} different")

    def compact(self) -> None:
        """Step 4: Parquet by Spark; then the small topic's retention passes, and TTL takes it away."""
        with self._screen.step(4, "Compact into Parquet, and expire") as step:
            step.say("Waiting for Spark's JVM (its first start on a machine fetches Iceberg's jars)")
            self._spark.result()
            step.say(f"Compacting {_FLIGHTS}")
            report = compact_topics(self._settings, [_FLIGHTS, _BOARD])
            counted = {name: self._count(name) for name in (_FLIGHTS, _BOARD)}
            step.say(f"Expiring {_BOARD}")
            with self._topics() as topics:
                topics.alter(_BOARD, None, _ONE_DAY, ())
            expire_history(self._settings, [_BOARD, _FLIGHTS])
            left = {name: self._count(name) for name in (_FLIGHTS, _BOARD)}
            step.detail = (
                f"{report.rows:,} records in {report.files} files, {counted[_BOARD] - left[_BOARD]:,} rows expired"
            )
        produced = {_FLIGHTS: self._produced.records, _BOARD: self._board.records}
        told = ", ".join(f"{name} {rows:,}" for name, rows in counted.items())
        self._screen.check("history has every record", counted == produced, told)
        expired = left == {_FLIGHTS: counted[_FLIGHTS], _BOARD: 0}
        told = f"{_BOARD} {counted[_BOARD]:,} -> {left[_BOARD]:,}, {_FLIGHTS} {left[_FLIGHTS]:,}"
        self._screen.check("TTL dropped what expired and nothing else", expired, told)
        self._figures["Parquet files"] = f"{report.files}"
        self._figures["Parquet bytes"] = f"{report.parquet_bytes:,}"

    def ask(self) -> None:
        """Step 5: a question to the history, and the same to the source."""
        with self._screen.step(5, "Ask Spark SQL for the mean arrival delay per carrier") as step:
            found = query(self._settings, _MEAN_DELAYS)
            self._answer = {str(carrier): float(delay) for carrier, delay in found.rows}
            step.detail = f"{len(self._answer)} carriers"
        expected = mean_arrival_delay(self._source)
        agrees = self._answer.keys() == expected.keys() and all(
            math.isclose(self._answer[carrier], expected[carrier], rel_tol=1e-9) for carrier in expected
        )
        self._screen.check("the answer equals the source's", agrees, f"{len(expected)} carriers compared")

    def show(self, began: float) -> None:
        """Step 6: what it took, and whether everything held."""
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
        self._screen.show_result(figures, self._answer, mean_arrival_delay(self._source), time.monotonic() - began)

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

    def _topics(self) -> TopicsClient:
        return TopicsClient(self._stack.addresses.http_urls[0], timeout_s=30.0)
