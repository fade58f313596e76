"""What one agent measures for all: exact while the numbers are small, estimated beyond, at a bounded cost."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from psycopg import AsyncClientCursor

from sequencer.client import Sequencer
from sequencer.housekeeping.garbage import BEFORE_ALL, PartitionRules
from sequencer.housekeeping.merge_values import MergeClaim, MergeDone, TierBacklog
from sequencer.housekeeping.merges import SQL as MERGES_SQL
from sequencer.housekeeping.observations import MOST_TIERS, SQL, Census, ObservationBounds
from sequencer.housekeeping.retention import BEFORE_ALL as FIRST_PARTITION
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition
from tests.sequencer.builders import reserved
from tests.sequencer.housekeeping.housekeeping import (
    BOUNDS,
    doom,
    observed,
    records_of,
    time_passes,
    waits_for_a_lock,
)
from tests.sequencer.housekeeping.merges import LEASE_S, a_log, an_output, discovered, everything, planned
from tests.sequencer.plans import pages_touched

PARTITIONS = PartitionRules(width_s=600, lock_timeout_ms=10_000)
MANY = 100_000
MEASURED = {"most_segments": BOUNDS.segments, "most_candidates": BOUNDS.candidates, "most_tiers": MOST_TIERS}
JOBS = 100
MOST_PAGES = 500
"""Of 100,000 candidates, and 10,000 segments in each of three states."""


class History:
    """Random steps of all that changes what is counted."""

    def __init__(self, sequencer: Sequencer, topic: Topic, chance: random.Random) -> None:
        self._sequencer = sequencer
        self._topic = topic
        self._chance = chance
        self._claims: list[MergeClaim] = []
        self.steps = (
            self.commit,
            self.reserve,
            self.discover,
            self.claim,
            self.merge,
            self.die,
            self.free,
            self.delete_records,
            self.collect,
            self.delete_objects,
            self.forget,
        )

    async def commit(self) -> None:
        await a_log(self._sequencer, self._topic, self._chance.randint(1, 4))

    async def reserve(self) -> None:
        await reserved(self._sequencer, [records_of(self._topic)])

    async def discover(self) -> None:
        await discovered(self._sequencer)

    async def claim(self) -> None:
        tier, most = self._chance.randint(0, 1), self._chance.randint(1, 5)
        claim = await self._sequencer.merges.claim(
            tier,
            lambda found: list(everything(found))[:most],
            cap=1000,
            lease_s=LEASE_S,
            long_run_bytes=10**9,
        )
        if claim is not None:
            self._claims.append(claim)

    async def merge(self) -> None:
        if not self._claims:
            return
        claim = self._claims.pop(self._chance.randrange(len(self._claims)))
        swaps, output = await planned(self._sequencer, claim), await an_output(self._sequencer, claim)
        await self._sequencer.merges.publish(claim, output, swaps)
        is_complete = self._chance.random() < 0.7
        await self._sequencer.merges.end(claim, [output.segment_id], MergeDone(), is_complete=is_complete)

    async def die(self) -> None:
        """All who merge, and the reservations of all who write."""
        self._claims.clear()
        await time_passes(self._sequencer, 10_000)

    async def free(self) -> None:
        await self._sequencer.merges.free_lapsed(self._chance.choice([1, 1000]))

    async def delete_records(self) -> None:
        [log] = (await self._sequencer.retention.page(FIRST_PARTITION, 1)).logs
        await self._sequencer.retention.delete_records(
            self._topic.topic_id, Partition(0), Offset((log.log_start_offset + log.high_watermark) // 2)
        )

    async def collect(self) -> None:
        await self._sequencer.garbage.mark_unreferenced(BEFORE_ALL, 1000)
        await doom(self._sequencer, grace_s=self._chance.choice([0, 10**6, 10**6]))

    async def delete_objects(self) -> None:
        due = await self._sequencer.garbage.due_for_deletion(grace_s=0, cap=self._chance.randint(1, 9))
        await self._sequencer.garbage.bury(
            [each.segment_id for each in due], outcome_retention_s=10, partitions=PARTITIONS
        )

    async def forget(self) -> None:
        await self._sequencer.database.run("UPDATE time_partitions SET ends_at = clock_timestamp()")
        if page := await self._sequencer.garbage.due_tombstones(
            late_write_window_s=0, cap=self._chance.randint(1, 9)
        ):
            await self._sequencer.garbage.sweep(page, PARTITIONS)


@pytest.mark.parametrize("seed", range(2))
async def test_counts_are_the_truth_through_commits_merges_and_deletions(
    sequencer: Sequencer, seed: int
) -> None:
    topic = await sequencer.topics.create("orders", 2, {})
    history = History(sequencer, topic, random.Random(seed))
    chance = random.Random(seed)
    seen = set()
    for _ in range(100):
        step = chance.choice(history.steps)
        await step()
        now = await observed(sequencer)
        assert (now.census, _ageless(now.backlog.tiers)) == (
            await _census(sequencer),
            await _backlog(sequencer),
        ), step.__name__
        seen |= {name for name in Census.__slots__ if getattr(now.census, name)}
    assert seen == set(Census.__slots__)


async def _census(sequencer: Sequencer) -> Census:
    [row] = await sequencer.database.run(
        "SELECT count(*) FILTER (WHERE state = 'reserved') AS reserved,"
        " count(*) FILTER (WHERE state = 'committed' AND unreferenced_since IS NOT NULL) AS unreferenced,"
        " count(*) FILTER (WHERE state = 'doomed') AS doomed,"
        " (SELECT count(*) FROM tombstones) AS tombstones"
        " FROM segments"
    )
    return Census(**row._asdict())


async def _backlog(sequencer: Sequencer) -> list[TierBacklog]:
    rows = await sequencer.database.run(
        "SELECT tier, count(*) AS segments, count(DISTINCT committed_at) AS units,"
        " sum(size_bytes)::bigint AS size_bytes"
        " FROM merge_candidates WHERE claimed_by IS NULL GROUP BY tier ORDER BY tier"
    )
    return [TierBacklog(**row._asdict(), oldest_s=0) for row in rows]


def _ageless(tiers: Sequence[TierBacklog]) -> list[TierBacklog]:
    return [replace(tier, oldest_s=0) for tier in tiers]


@pytest.mark.superuser
async def test_beyond_its_bounds_a_measurement_estimates(sequencer: Sequencer) -> None:
    """Candidates of a steady inflow, one per second; every third is claimed."""
    await _fill(sequencer, 6_000)

    seen = await observed(sequencer, ObservationBounds(segments=100, candidates=500))

    [tier] = seen.backlog.tiers
    assert (tier.segments, tier.units, tier.size_bytes) == pytest.approx(
        (4_000, 4_000, 4_000 * 1_000), rel=0.02
    )
    assert tier.oldest_s == pytest.approx(6_000, rel=0.1)
    for state in ("unreferenced", "doomed"):
        assert getattr(seen.census, state) == pytest.approx(6_000, rel=0.1), seen.census


async def test_counts_beyond_the_bound_are_at_least_the_bound_before_postgres_has_an_estimate(
    sequencer: Sequencer,
) -> None:
    await _fill(sequencer, 50, analyzed=False)

    seen = await observed(sequencer, ObservationBounds(segments=20, candidates=500))

    assert (seen.census.unreferenced, seen.census.doomed) == (20, 20)


@pytest.mark.superuser
async def test_what_a_measurement_costs_does_not_grow_with_what_waits_or_was_deleted(
    sequencer: Sequencer,
) -> None:
    await _fill(sequencer, MANY, segments=MANY // 10)

    assert await _pages(sequencer, SQL["observe"], MEASURED) < MOST_PAGES


async def test_a_look_for_lapsed_claims_costs_the_jobs_and_not_what_they_claimed(
    sequencer: Sequencer,
) -> None:
    await _fill(sequencer, MANY // 3, segments=1)
    await sequencer.database.run(
        "INSERT INTO holds (segment_id, job_id, lease_until) SELECT segment_id, claimed_by, now() + "
        "interval '1 hour' FROM merge_candidates WHERE claimed_by IS NOT NULL"
    )
    await sequencer.database.run("VACUUM ANALYZE holds")

    pages = await _pages(sequencer, MERGES_SQL["free_lapsed"], {"cap": 1_000})

    assert pages < 15 * JOBS, pages


async def test_the_others_read_one_row(sequencer: Sequencer) -> None:
    await observed(sequencer)

    assert await _pages(sequencer, SQL["latest"], {}) <= 5


async def test_an_older_measurement_never_replaces_a_newer_one(sequencer: Sequencer) -> None:
    """As of an observer that was paused, or of two at once: the row is locked, then written by the newer
    one.
    """
    await observed(sequencer)
    async with sequencer.database.transaction() as newer:
        await newer.execute(
            "UPDATE observation SET seen = seen || '{\"agents\": 77}', observed_at = clock_timestamp()"
        )
        older = await waits_for_a_lock(sequencer, lambda: sequencer.observations.observe(BOUNDS))
        await newer.execute("UPDATE observation SET observed_at = clock_timestamp()")

    assert not await older
    seen = await sequencer.observations.latest()
    assert seen is not None
    assert seen.backlog.agents == 77


async def test_an_observation_from_before_the_clock_was_set_back_is_replaced(sequencer: Sequencer) -> None:
    await observed(sequencer)
    await sequencer.database.run("UPDATE observation SET observed_at = clock_timestamp() + interval '1 hour'")

    assert await sequencer.observations.observe(BOUNDS)

    seen = await sequencer.observations.latest()
    assert seen is not None
    assert seen.age_s < 3_000


async def _fill(
    sequencer: Sequencer, rows: int, *, segments: int | None = None, analyzed: bool = True
) -> None:
    """So many candidates, and segments in each state on the way out, of one second each."""
    async with sequencer.database.transaction() as connection:
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute(
            "INSERT INTO segments (segment_id, object_key, writer, lease_until, state, committed_at,"
            " unreferenced_since, doomed_at)"
            " SELECT gen_random_uuid(), '', '', now(), state, at, at, at"
            " FROM (VALUES ('committed'), ('doomed')) AS kinds (state), generate_series(1, %(rows)s) AS n,"
            " LATERAL (SELECT now() - make_interval(secs => n)) AS t (at)",
            {"rows": segments or rows},
        )
        await connection.execute(
            "INSERT INTO merge_candidates (segment_id, tier, committed_at, size_bytes, claimed_by)"
            " SELECT gen_random_uuid(), 0, now() - make_interval(secs => n), 1000,"
            " CASE WHEN n %% 3 = 0 THEN md5((n %% 100)::text)::uuid END FROM generate_series(1, %(rows)s) "
            "AS n",
            {"rows": rows},
        )
    if analyzed:
        await sequencer.database.run("VACUUM ANALYZE segments, merge_candidates")


async def _pages(sequencer: Sequencer, statement: str, parameters: dict[str, int]) -> int:
    """Touched by the generic plan of a statement, which scans nothing but tables of a few rows."""
    text = statement
    for number, name in enumerate(parameters, 1):
        text = text.replace(f"%({name})s", f"${number}")
    arguments = f"({', '.join(map(str, parameters.values()))})" if parameters else ""
    async with sequencer.database.connection() as connection:
        cursor = AsyncClientCursor(connection)
        await cursor.execute("SET plan_cache_mode = force_generic_plan")
        await cursor.execute(f"PREPARE explained AS {text}".encode())
        for _ in range(2):  # the first reads the catalogue
            await cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE explained {arguments}".encode())
            plan = "\n".join(row[0] for row in await cursor.fetchall())
        await cursor.execute("DEALLOCATE explained")
        await cursor.execute("RESET plan_cache_mode")
    assert not re.search("Seq Scan on (segments|merge_candidates|holds)", plan), plan
    return pages_touched(plan)
