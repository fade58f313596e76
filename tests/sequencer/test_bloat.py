"""Commits update rows in place: what is written over and over does not grow, and its indexes are left alone.

A hundred thousand commits: `python -m benchmarks.commit_rate --endure 100000`.
"""

import asyncio
from typing import Any

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from storage.identifiers import Partition, ProducerId
from tests.sequencer.builders import ABatch, committed

WRITERS, COMMITS, PARTITIONS = 4, 80, 10
FEW_PAGES = 30
"""Without pruning the versions of partitions would fill 43, those of producers 160."""


async def test_updates_of_partitions_and_producers_stay_on_their_pages(
    sequencer: Sequencer, database_url: str
) -> None:
    topic = await sequencer.topics.create("hot", WRITERS * PARTITIONS, {})

    async def write(writer: int, commits: range) -> None:
        mine = range(writer * PARTITIONS, (writer + 1) * PARTITIONS)
        for sequence in commits:
            batches = [
                ABatch(
                    topic_id=topic.topic_id,
                    partition=Partition(p),
                    producer_id=ProducerId(1),
                    sequence=sequence,
                )
                for p in mine
            ]
            await committed(sequencer, batches)

    await asyncio.gather(*(write(writer, range(COMMITS // 2)) for writer in range(WRITERS)))
    half_way = await _sizes(sequencer)
    await asyncio.gather(*(write(writer, range(COMMITS // 2, COMMITS)) for writer in range(WRITERS)))
    in_the_end = await _sizes(sequencer)
    await sequencer.close()

    # The statistics of connections that ended are complete.
    reader = await Sequencer.open(database_url, SequencerSettings())
    try:
        updates = {row.relname: row for row in await _updates_once_counted(reader)}
    finally:
        await reader.close()
    for table in ("partitions", "producer_state"):
        assert updates[table].hot > 0.9 * updates[table].updated, updates
        assert in_the_end[f"{table}_pkey"] == half_way[f"{table}_pkey"], (half_way, in_the_end)
        assert in_the_end[table] <= FEW_PAGES, in_the_end


async def _sizes(sequencer: Sequencer) -> dict[str, int]:
    """Pages."""
    rows = await sequencer.database.run(
        "SELECT relname::text AS name, pg_relation_size(oid) / 8192 AS pages FROM pg_class"
        " WHERE relname IN ('partitions', 'partitions_pkey', 'producer_state', 'producer_state_pkey')"
    )
    return {row.name: row.pages for row in rows}


async def _updates_once_counted(sequencer: Sequencer) -> list[Any]:
    async with asyncio.timeout(60):
        while True:
            rows = await sequencer.database.run(
                "SELECT relname::text, n_tup_upd AS updated, n_tup_hot_upd AS hot FROM pg_stat_user_tables"
                " WHERE relname IN ('partitions', 'producer_state')"
            )
            if all(row.updated >= WRITERS * (COMMITS - 1) * PARTITIONS for row in rows):
                return rows
            await asyncio.sleep(0.05)
