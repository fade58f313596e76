"""What idle agents cost Postgres: `python -m benchmarks.housekeeping`.

It fills a database with a share of a day at 1 GB/s with 100 agents: 37 million tombstones, and segments that
wait for the restore horizon. Five minutes of merging's backlog are complete, whatever the share. Then:

- It runs each statement that agents run on timers over and over, and measures Postgres' CPU per statement.
  Multiplied by how often the cluster runs it, that gives cores.
- With `--seconds`, it runs all agents' statements at their real pace, and measures Postgres' CPU per second.

docs/decisions/0107-one-observer.md has the cost of the earlier statements, which each agent ran. The
benchmark starts its own embedded Postgres, with fsync.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString
from uuid import uuid4

import psutil
import uvloop
from psycopg import AsyncConnection
from rich.console import Console
from rich.table import Table

from benchmarks.commit_rate import Database, own_postgres, postgres_cpu_s
from benchmarks.simulation.exact_cpu import cpu_times, spent_s
from benchmarks.simulation.timers import timers
from compactor.housekeeper import bounds_of
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress, LiveAgent
from sequencer.database.servers import DURABILITY
from sequencer.settings import SequencerSettings

AGENTS: Final = 100
SHARES: Final = (0.01, 1 / 30, 0.1)
TOMBSTONES: Final = 37_000_000
_PARTITIONS: Final = 144
"""The share of a day's tombstones."""
COMMITS_PER_S: Final = 430
_HORIZON_S: Final = 3_600
_MEASURE_S: Final = 1.0
_LEAST_TIMES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A statement, and how often the whole cluster runs it."""

    name: str
    per_s: float
    run: Callable[[], Awaitable[object]]
    ends_processes: bool = False
    """CPU of Postgres, which the system reports only in ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    timer: Timer
    cpu_s: float

    @property
    def cores(self) -> float:
        return self.timer.per_s * self.cpu_s


class Cluster:
    """The statements of idle agents."""

    def __init__(self, sequencer: Sequencer, agents: Sequence[LiveAgent]) -> None:
        self._sequencer = sequencer
        self._agents = agents
        self._per_s = timers(len(agents))

    async def timers(self) -> list[Timer]:
        sequencer, per_s, one = self._sequencer, self._per_s, self._agents[0]
        known = (await sequencer.topics.changes(None)).number
        shown = await sequencer.agents.shown(None, not_older_than_s=0.0)
        bounds = bounds_of(HousekeeperSettings())
        return [
            Timer(
                name="renew a lease",
                per_s=per_s.renewal,
                run=lambda: sequencer.agents.renew(one.node_id, one.incarnation, 3_600.0),
            ),
            Timer(
                name="topics that changed",
                per_s=per_s.topic_changes,
                run=lambda: sequencer.topics.changes(known),
            ),
            Timer(
                name="durability settings",
                per_s=per_s.durability,
                run=lambda: sequencer.database.run_local(DURABILITY),
            ),
            Timer(
                name="a new connection: where the address leads",
                per_s=per_s.connection,
                run=sequencer.database.check_address,
                ends_processes=True,
            ),
            Timer(
                name="agents that came or went",
                per_s=per_s.shown,
                run=lambda: sequencer.agents.shown(shown, not_older_than_s=1e9),
            ),
            Timer(name="read the observation", per_s=per_s.observation, run=sequencer.observations.latest),
            Timer(
                name="claim a job in vain",
                per_s=per_s.claim_in_vain,
                run=lambda: sequencer.jobs.claim("taken", uuid4(), lease_s=60.0, min_interval_s=60.0),
            ),
            Timer(
                name="one: compare leases",
                per_s=per_s.compared,
                run=lambda: sequencer.agents.shown(shown, not_older_than_s=0.0),
            ),
            Timer(
                name="one: measure",
                per_s=per_s.measurement,
                run=lambda: sequencer.observations.observe(bounds),
            ),
            Timer(
                name="one: lapsed merges",
                per_s=per_s.lapsed_merges,
                run=lambda: sequencer.merges.free_lapsed(1_000),
            ),
        ]


async def fill(sequencer: Sequencer, have: float, share: float) -> None:
    """Adds what a day leaves between two shares of it."""
    waiting = (
        "INSERT INTO segments (segment_id, object_key, writer, lease_until, state, committed_at, size_bytes,"
        " unreferenced_since)"
        " SELECT gen_random_uuid(), 'tidelog/segments/00/' || n, 'agent', at, 'committed', at, 2300000, at"
        " FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n, LATERAL (SELECT now() - "
        "make_interval("
        "secs => %(seconds)s * (n %% 1000003) / 1000003.0)) AS t (at)"
    )
    dead = (
        "INSERT INTO tombstones (number, segment_id, object_key)"
        " SELECT %(number)s, gen_random_uuid(), 'tidelog/segments/00/' || n"
        " FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"
    )
    async with sequencer.database.transaction() as connection:
        await connection.execute("SET LOCAL statement_timeout = 0")
        rows = COMMITS_PER_S * _HORIZON_S
        given = {"first": round(have * rows) + 1, "last": round(share * rows), "seconds": _HORIZON_S}
        await connection.execute(waiting, given)
    per_partition = TOMBSTONES // _PARTITIONS
    for partition in range(round(have * _PARTITIONS), round(share * _PARTITIONS)):
        async with sequencer.database.transaction() as connection:
            await connection.execute("SET LOCAL statement_timeout = 0")
            number = await _time_partition(connection, per_partition)
            first = partition * per_partition
            await connection.execute(
                dead, {"number": number, "first": first + 1, "last": first + per_partition}
            )
    await _vacuum(sequencer, "segments")
    await sequencer.database.run("CHECKPOINT")


async def _time_partition(connection: AsyncConnection[Any], rows: int) -> int:
    """Adds a full partition that is not due to be dropped."""
    [(number,)] = await (await connection.execute("SELECT nextval('time_partition_numbers')")).fetchall()
    await connection.execute(f"CREATE TABLE tombstones_{number} (LIKE tombstones INCLUDING ALL)".encode())
    attach = f"ALTER TABLE tombstones ATTACH PARTITION tombstones_{number} FOR VALUES IN ({number})"
    await connection.execute(attach.encode())
    await connection.execute(
        "INSERT INTO time_partitions (of_table, number, begins_at, ends_at, row_count)"
        " VALUES ('tombstones', %(number)s, now(), now() + interval '10 minutes', %(rows)s)",
        {"number": number, "rows": rows},
    )
    return int(number)


async def fill_backlog(sequencer: Sequencer) -> None:
    """Adds uploads of five minutes. Running merges have claimed a third of them."""
    await sequencer.database.run(
        "WITH candidate AS (INSERT INTO merge_candidates (segment_id, tier, committed_at, size_bytes, "
        "claimed_by)"
        " SELECT gen_random_uuid(), 0, now() - make_interval(secs => n / %(per_s)s::float8), 2300000,"
        " CASE WHEN n %% 3 = 0 THEN md5((n %% %(agents)s)::text)::uuid END"
        " FROM generate_series(1, 300 * %(per_s)s::int) AS n RETURNING segment_id, claimed_by)"
        " INSERT INTO holds (segment_id, job_id, lease_until)"
        " SELECT segment_id, claimed_by, now() + interval '1 day' FROM candidate WHERE claimed_by IS NOT "
        "NULL",
        per_s=COMMITS_PER_S,
        agents=AGENTS,
    )
    for table in ("merge_candidates", "holds"):
        await _vacuum(sequencer, table)


async def _vacuum(sequencer: Sequencer, table: LiteralString) -> None:
    async with sequencer.database.connection() as connection:
        await connection.execute("SET statement_timeout = 0")
        await connection.execute(f"VACUUM (ANALYZE) {table}".encode())
        await connection.execute("RESET statement_timeout")


async def join_all(sequencer: Sequencer) -> list[LiveAgent]:
    return [
        await sequencer.agents.join(
            AgentAddress(
                zone="abc"[number % 3],
                kafka_host=f"agent-{number}.internal",
                kafka_port=9092,
                peer_host=f"agent-{number}.internal",
                peer_port=9093,
                http_url=f"http://agent-{number}.internal:8080",
            ),
            3_600.0,
        )
        for number in range(AGENTS)
    ]


async def measure(timer: Timer, postmaster: psutil.Process) -> Measured:
    """Runs it repeatedly for a second, at least three times."""
    for _ in range(_LEAST_TIMES):
        await timer.run()
    exact, before_s = cpu_times(postmaster.pid), await postgres_cpu_s(postmaster)
    began_s, times = time.monotonic(), 0
    while times < _LEAST_TIMES or time.monotonic() < began_s + _MEASURE_S:
        await timer.run()
        times += 1
    if timer.ends_processes:
        return Measured(timer=timer, cpu_s=(await postgres_cpu_s(postmaster) - before_s) / times)
    return Measured(timer=timer, cpu_s=spent_s(exact, cpu_times(postmaster.pid)) / times)


async def run_at_pace(timers: Sequence[Timer], postmaster: psutil.Process, seconds: float) -> float:
    """Postgres' cores while the cluster runs all of them."""

    async def keep_running(timer: Timer) -> None:
        while True:
            await asyncio.sleep(random.expovariate(timer.per_s))
            running.add(task := asyncio.ensure_future(timer.run()))
            task.add_done_callback(running.discard)

    running: set[asyncio.Future[object]] = set()
    tasks = [asyncio.create_task(keep_running(timer)) for timer in timers]
    await asyncio.sleep(1.0)
    before_s, began_s = await postgres_cpu_s(postmaster), time.monotonic()
    await asyncio.sleep(seconds)
    spent_s, took_s = await postgres_cpu_s(postmaster) - before_s, time.monotonic() - began_s
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, *running, return_exceptions=True)
    return spent_s / took_s


async def run(database: Database, shares: Sequence[float], seconds: float) -> None:
    console = Console(width=180)
    sequencer = await Sequencer.open(database.url, SequencerSettings())
    try:
        cluster = Cluster(sequencer, await join_all(sequencer))
        async with sequencer.database.connection() as connection:  # its CPU does not belong to a statement
            await connection.execute("ALTER SYSTEM SET autovacuum = off")
            await connection.execute("SELECT pg_reload_conf()")
        await fill_backlog(sequencer)
        await sequencer.jobs.claim("taken", uuid4(), lease_s=86_400.0)
        asked = await cluster.timers()
        found: list[list[Measured]] = []
        paces: list[float] = []
        have = 0.0
        for share in shares:
            await fill(sequencer, have, share)
            have = share
            found.append([await measure(timer, database.postmaster) for timer in asked])
            paces.append(await run_at_pace(asked, database.postmaster, seconds))
            console.print(f"1/{round(1 / share)} of a day is measured")
        console.print(_table(shares, found))
        for share, pace, measured in zip(shares, paces, found, strict=True):
            console.print(
                f"1/{round(1 / share)} of a day, {TOMBSTONES * share:,.0f} tombstones: "
                f"{sum(each.cores for each in measured):.3f} cores; at their pace for {seconds:g} s: "
                f"{pace:.3f}"
            )
    finally:
        await sequencer.close()


def _table(shares: Sequence[float], found: Sequence[Sequence[Measured]]) -> Table:
    table = Table(title=f"{AGENTS} agents with nothing to do")
    for column in ("statement", "per s in the cluster"):
        table.add_column(column)
    for share in shares:
        table.add_column(f"ms of CPU, 1/{round(1 / share)}", justify="right")
        table.add_column("cores", justify="right")
    for number, first in enumerate(found[0]):
        timer = first.timer
        cells = [
            cell
            for measured in found
            for cell in (f"{measured[number].cpu_s * 1e3:.3f}", f"{measured[number].cores:.4f}")
        ]
        table.add_row(timer.name, f"{timer.per_s:.1f}", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.housekeeping", description=__doc__)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of a day")
    parser.add_argument("--seconds", type=float, default=20.0, help="at their real pace, for each share")
    arguments = parser.parse_args()
    with own_postgres() as database:
        uvloop.run(run(database, sorted(arguments.shares), arguments.seconds))


if __name__ == "__main__":
    main()
