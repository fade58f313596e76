"""What agents with nothing to do ask of Postgres: `python -m benchmarks.housekeeping`.

A database is filled to a share of a day at 1 GB/s with 100 agents: 37 million tombstones, and segments that wait for
the restore horizon. Five minutes of merging's backlog are there in full, whatever the share. Then

- each statement that agents run on timers is run over and over, and Postgres' CPU per statement is measured. Times how
  often the cluster runs it, that is cores;
- `--seconds`: all agents' statements run at their real pace, and Postgres' CPU per second is measured. The old ones do
  not fit into two cores, so these have only the first figure.

"Before" are the statements as every agent ran them until there was an observer. They are kept here, with the index that
they had. Postgres is one of this benchmark alone, embedded, with fsync.
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
from rich.console import Console
from rich.table import Table

from benchmarks.commit_rate import Database, own_postgres, postgres_cpu_s
from benchmarks.simulation.exact_cpu import cpu_times, spent_s
from benchmarks.simulation.timers import claims_per_agent_s, timers
from compactor.observer import bounds_of
from compactor.settings import HousekeeperSettings
from sequencer.agents import AgentAddress, LiveAgent
from sequencer.client import Sequencer
from sequencer.servers import DURABILITY

AGENTS: Final = 100
SHARES: Final = (0.01, 1 / 30, 0.1)
TOMBSTONES: Final = 37_000_000
COMMITS_PER_S: Final = 430
_HORIZON_S: Final = 3_600
_MEASURE_S: Final = 1.0
_OLD_OBSERVATION_S: Final = 15.0
_LEAST_TIMES: Final = 3

_CENSUS: Final = "count segments on their way out"
_OLD_INDEX: Final = "CREATE INDEX old_order ON merge_candidates (tier, committed_at, segment_id)"
_OLD_CENSUS: Final = """
SELECT
    (SELECT count(*) FROM segments WHERE state = 'reserved') AS reserved,
    (SELECT count(*) FROM segments WHERE state = 'committed' AND unreferenced_since IS NOT NULL) AS unreferenced,
    (SELECT count(*) FROM segments WHERE state = 'doomed' AND deleted_at IS NULL) AS doomed,
    (SELECT count(*) FROM segments WHERE forget_after IS NOT NULL) AS tombstones"""
_OLD_BACKLOG: Final = """
SELECT agents.alive AS agents, c.tier, c.segments, c.units, c.size_bytes, c.oldest_s
FROM (SELECT count(*) AS alive FROM agents WHERE lease_until > clock_timestamp()) AS agents
LEFT JOIN (
    SELECT tier, count(*) AS segments, count(DISTINCT committed_at) AS units, sum(size_bytes)::bigint AS size_bytes,
        extract(epoch FROM clock_timestamp() - min(committed_at))::float8 AS oldest_s
    FROM merge_candidates AS c
    WHERE NOT EXISTS (
        SELECT FROM holds AS h
        WHERE h.segment_id = c.segment_id AND h.job_id = c.claimed_by AND h.lease_until > clock_timestamp())
    GROUP BY tier) AS c ON true
ORDER BY c.tier"""
_OLD_CLAIM: Final = """
INSERT INTO jobs (name, holder, lease_until, last_started_at)
SELECT %(name)s::text, %(holder)s::uuid, clock_timestamp() + interval '1 minute', clock_timestamp()
FROM ownership, (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
WHERE lost_because IS NULL
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, lease_until = excluded.lease_until, last_started_at = excluded.last_started_at
WHERE (jobs.holder IS NULL OR jobs.lease_until < clock_timestamp())
    AND (jobs.last_started_at IS NULL OR jobs.last_started_at <= clock_timestamp() - interval '1 minute')
RETURNING progress"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A statement, and how often the whole cluster runs it."""

    name: str
    per_s: float
    run: Callable[[], Awaitable[object]]
    is_old: bool = False
    is_new: bool = False
    ends_processes: bool = False
    """Of Postgres, whose CPU is then known by ticks alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    timer: Timer
    cpu_s: float

    @property
    def cores(self) -> float:
        return self.timer.per_s * self.cpu_s


class Cluster:
    """Agents that do nothing, and what they ask."""

    def __init__(self, sequencer: Sequencer, agents: Sequence[LiveAgent]) -> None:
        self._sequencer = sequencer
        self._agents = agents
        self._per_s = timers(len(agents))

    async def timers(self) -> list[Timer]:
        return [*await self._same(), *self._old(), *await self._new()]

    async def _same(self) -> list[Timer]:
        sequencer, per_s, one = self._sequencer, self._per_s, self._agents[0]
        known = (await sequencer.topics.changes(None)).number
        return [
            Timer(
                name="renew a lease",
                per_s=per_s.renewal,
                run=lambda: sequencer.agents.renew(one.node_id, one.incarnation, 3_600.0),
            ),
            Timer(name="topics that changed", per_s=per_s.topic_changes, run=lambda: sequencer.topics.changes(known)),
            Timer(
                name="durability settings",
                per_s=per_s.durability,
                run=lambda: sequencer.database.fetch_local(DURABILITY),
            ),
            Timer(
                name="a new connection: where the address leads",
                per_s=per_s.connection,
                run=sequencer.database.look_afresh,
                ends_processes=True,
            ),
        ]

    def _old(self) -> list[Timer]:
        sequencer, many, settings = self._sequencer, len(self._agents), HousekeeperSettings()
        observed_per_s = many / _OLD_OBSERVATION_S
        claims_per_s = many * (claims_per_agent_s(settings) - 1 / settings.observation_interval_s)

        def old(title: str, per_s: float, run: Callable[[], Awaitable[object]], *, is_parallel: bool = False) -> Timer:
            return Timer(name=title, per_s=per_s, run=run, is_old=True, ends_processes=is_parallel)

        def ask(statement: LiteralString, **parameters: Any) -> Callable[[], Awaitable[object]]:
            return lambda: sequencer.database.fetch(statement, **parameters)

        return [
            old(_CENSUS, observed_per_s, ask(_OLD_CENSUS), is_parallel=True),
            old("add up merging's backlog", observed_per_s + many / settings.merge_interval_s, ask(_OLD_BACKLOG)),
            old("all agents alive", self._per_s.shown, sequencer.agents.live),
            old("claim a job in vain", claims_per_s, ask(_OLD_CLAIM, name="taken", holder=uuid4())),
            old("jobs' statuses", observed_per_s, sequencer.jobs.statuses),
            old("totals of merging", observed_per_s, sequencer.merges.totals),
            old("state of the journal", observed_per_s, sequencer.journal.state),
        ]

    async def _new(self) -> list[Timer]:
        sequencer, per_s, bounds = self._sequencer, self._per_s, bounds_of(HousekeeperSettings())
        shown = await sequencer.agents.shown(None, not_older_than_s=0.0)

        def new(title: str, per_s: float, run: Callable[[], Awaitable[object]]) -> Timer:
            return Timer(name=title, per_s=per_s, run=run, is_new=True)

        return [
            new("agents that came or went", per_s.shown, lambda: sequencer.agents.shown(shown, not_older_than_s=1e9)),
            new("read the observation", per_s.observation, sequencer.observations.latest),
            new(
                "claim a job in vain",
                per_s.claim_in_vain,
                lambda: sequencer.jobs.claim("taken", uuid4(), lease_s=60.0, min_interval_s=60.0),
            ),
            new("one: compare leases", per_s.compared, lambda: sequencer.agents.shown(shown, not_older_than_s=0.0)),
            new("one: measure", per_s.measurement, lambda: sequencer.observations.observe(bounds)),
            new("one: lapsed merges", per_s.lapsed_merges, lambda: sequencer.merges.free_lapsed(1_000)),
        ]


async def fill(sequencer: Sequencer, have: float, share: float) -> None:
    """What a day leaves between two shares of it."""
    statement = (
        "INSERT INTO segments (segment_id, object_key, writer, lease_until, state, committed_at, size_bytes,"
        " unreferenced_since, doomed_at, deleted_at, forget_after)"
        " SELECT gen_random_uuid(), 'tidelog/segments/00/' || n, 'agent', at, {state}, at, 2300000, at, {doomed}"
        " FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n, LATERAL (SELECT now() - make_interval("
        "secs => {seconds} * (n %% 1000003) / 1000003.0)) AS t (at)"
    )
    tombstones = statement.format(state="'doomed'", doomed="at, at, at + interval '1 day'", seconds=86_400)
    waiting = statement.format(state="'committed'", doomed="NULL, NULL, NULL", seconds=_HORIZON_S)
    for text, rows in ((tombstones, TOMBSTONES), (waiting, COMMITS_PER_S * _HORIZON_S)):
        first, last = round(have * rows), round(share * rows)
        while first < last:
            until = min(first + 200_000, last)
            async with sequencer.database.transaction() as connection:
                await connection.execute("SET LOCAL statement_timeout = 0")
                await connection.execute(text.encode(), {"first": first + 1, "last": until})
            first = until
    await _vacuum(sequencer, "segments")
    await sequencer.database.fetch("CHECKPOINT")


async def fill_backlog(sequencer: Sequencer) -> None:
    """Uploads of five minutes, of which a third is claimed by merges that go on."""
    await sequencer.database.fetch(
        "WITH candidate AS (INSERT INTO merge_candidates (segment_id, tier, committed_at, size_bytes, claimed_by)"
        " SELECT gen_random_uuid(), 0, now() - make_interval(secs => n / %(per_s)s::float8), 2300000,"
        " CASE WHEN n %% 3 = 0 THEN md5((n %% %(agents)s)::text)::uuid END"
        " FROM generate_series(1, 300 * %(per_s)s::int) AS n RETURNING segment_id, claimed_by)"
        " INSERT INTO holds (segment_id, job_id, lease_until)"
        " SELECT segment_id, claimed_by, now() + interval '1 day' FROM candidate WHERE claimed_by IS NOT NULL",
        per_s=COMMITS_PER_S,
        agents=AGENTS,
    )
    await sequencer.database.fetch(_OLD_INDEX)
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
    """One after the other for a second, at least three times."""
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
    sequencer = await Sequencer.open(database.url)
    try:
        cluster = Cluster(sequencer, await join_all(sequencer))
        async with sequencer.database.connection() as connection:  # its CPU is not that of a statement
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
            paces.append(
                await run_at_pace([timer for timer in asked if not timer.is_old], database.postmaster, seconds)
            )
            console.print(f"1/{round(1 / share)} of a day is measured")
        console.print(_table(shares, found))
        for share, pace, measured in zip(shares, paces, found, strict=True):
            console.print(
                f"1/{round(1 / share)} of a day, {TOMBSTONES * share:,.0f} tombstones: before {_before(measured):.3f} "
                f"cores, after {_after(measured):.3f}; after, at their pace for {seconds:g} s: {pace:.3f}"
            )
        grown = _census(found[-1]).cores - _census(found[0]).cores
        whole = _census(found[-1]).cores + grown / (shares[-1] - shares[0]) * (1 - shares[-1])
        console.print(f"before, a whole day by the slope: {whole:.1f} cores to count segments alone")
    finally:
        await sequencer.close()


def _census(measured: Sequence[Measured]) -> Measured:
    """What grows with the day."""
    return next(each for each in measured if each.timer.name == _CENSUS)


def _before(measured: Sequence[Measured]) -> float:
    return sum(each.cores for each in measured if not each.timer.is_new)


def _after(measured: Sequence[Measured]) -> float:
    return sum(each.cores for each in measured if not each.timer.is_old)


def _table(shares: Sequence[float], found: Sequence[Sequence[Measured]]) -> Table:
    table = Table(title=f"{AGENTS} agents with nothing to do")
    for column in ("", "statement", "per s in the cluster"):
        table.add_column(column)
    for share in shares:
        table.add_column(f"ms of CPU, 1/{round(1 / share)}", justify="right")
        table.add_column("cores", justify="right")
    for number, first in enumerate(found[0]):
        timer = first.timer
        kind = "before" if timer.is_old else "after" if timer.is_new else "both"
        cells = [
            cell
            for measured in found
            for cell in (f"{measured[number].cpu_s * 1e3:.3f}", f"{measured[number].cores:.4f}")
        ]
        table.add_row(kind, timer.name, f"{timer.per_s:.1f}", *cells)
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
