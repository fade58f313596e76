"""Readers of committed data, where more transactions were aborted than coordinates list."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agent.read_path import known_coordinates, look_up_aborted
from agent.read_path.fetch_answer import PartitionResult
from agent.read_path.read_decisions import FetchPlan, PartitionPlan, ReadFailure
from sequencer.client import Sequencer
from sequencer.commits import coordinates
from sequencer.commits.coordinates import CoordinateRequest
from storage.arrow.arrow_columns import decode_batches
from storage.batches.record_batch import read_header
from storage.identifiers import ObjectKey, Offset, Partition
from storage.stores.inline_objects import InlineObjects
from storage.stores.object_store import ObjectStore
from tests.agent.read_path.a_log import an_agent_reading, read_now
from tests.agent.read_path.wired import ReadSide
from tests.compactor.merging import merge_everything
from tests.spark_compaction.log import Log, Transaction, one, records
from tests.support.seeds import seeds


@pytest.fixture(autouse=True)
def few_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinates, "MAX_ABORTED", 2)
    monkeypatch.setattr(known_coordinates, "MAX_ABORTED", 2)
    monkeypatch.setattr(look_up_aborted, "MOST_BATCHES", 3)


@pytest.fixture
async def log(sequencer: Sequencer, store: ObjectStore) -> Log:
    written = Log(sequencer=sequencer, store=store)
    await written.topic("orders", partitions=2)
    return written


def a_plan(log: Log, *offsets: int, max_bytes: int = 1 << 20) -> FetchPlan:
    return FetchPlan(
        partitions=tuple(
            PartitionPlan(
                topic_id=log.topic_ids["orders"],
                partition=Partition(partition),
                offset=offset,
                max_bytes=max_bytes,
            )
            for partition, offset in enumerate(offsets)
        ),
        max_bytes=50 << 20,
        min_bytes=1,
        read_committed=True,
    )


def seen_by_a_client(result: PartitionResult) -> tuple[list[tuple[int, bytes | None]], int | None]:
    """Offsets and values, as Java's consumer takes them; and where it goes on, None without batches."""
    data = b"".join(bytes(chunk) for chunk in result.chunks)
    to_come = sorted((entry.first_offset, entry.producer_id) for entry in result.aborted)
    dropped: set[int] = set()
    found: list[tuple[int, bytes | None]] = []
    position, next_offset = 0, None
    while position < len(data):
        header = read_header(data[position:])
        base = int.from_bytes(data[position : position + 8], "big")
        next_offset = base + header.last_offset_delta + 1
        while to_come and to_come[0][0] < next_offset:
            dropped.add(to_come.pop(0)[1])
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            rows = decode_batches(data, position, position + header.size_bytes, base)
            offsets: list[Any] = rows.column("offset").to_pylist()
            values: list[Any] = rows.column("value").to_pylist()
            found += zip(offsets, values, strict=True)
        position += header.size_bytes
    return found, next_offset


async def read_all(agent: ReadSide, log: Log, end: int, max_bytes: int) -> list[tuple[int, bytes | None]]:
    """All of partition 0, as long as it is stable below `end`."""
    offset, found = 0, []
    while offset < end:
        [result] = await read_now(agent, a_plan(log, offset, max_bytes=max_bytes), wait_s=20.0)
        assert result.failure is None
        rows, next_offset = seen_by_a_client(result)
        assert next_offset is not None, f"nothing at offset {offset}"
        assert next_offset > offset
        found += [row for row in rows if row[0] >= offset]
        offset = next_offset
    return found


@pytest.mark.parametrize("seed", seeds(6))
async def test_all_committed_records_are_read_and_no_aborted_one(
    log: Log, sequencer: Sequencer, store: ObjectStore, seed: int
) -> None:
    """Some transactions are long, others follow each other closely; merges and polls come between."""
    chance = random.Random(seed)
    producers = [await log.transaction(f"{number}") for number in range(4)]
    async with an_agent_reading(sequencer, store) as agent:
        for _ in range(60):
            await a_step(log, chance, producers)
            if chance.random() < 0.05:
                await merge_everything(sequencer, InlineObjects(store))
            if chance.random() < 0.2:
                await read_now(agent, a_plan(log, 0))
        for each in producers:
            if each.written:
                await log.end(each, commit=chance.random() < 0.3)
        key = log.topic_ids["orders"], Partition(0)
        end = (await sequencer.coordinates.bounds([key]))[key].last_stable_offset
        for max_bytes in (1, 400, 1 << 20):
            await merge_everything(sequencer, InlineObjects(store))
            found = await read_all(agent, log, end, max_bytes)
            assert found == sorted((row[1], row[5]) for row in log.expected["orders"])


async def a_step(log: Log, chance: random.Random, producers: list[Transaction]) -> None:
    kind = chance.random()
    producer = chance.choice(producers)
    if kind < 0.15:
        await log.write("orders", one(0, *records(chance.randint(1, 2))))
    elif kind < 0.6:
        await log.write_in(producer, "orders", one(0, *records(chance.randint(1, 2))))
    elif producer.written:
        await log.end(producer, commit=chance.random() < 0.3)


async def abort(log: Log, count: int, partition: int = 0) -> None:
    """Each transaction has one record and its marker."""
    producer = await log.transaction(f"aborts {partition}")
    for _ in range(count):
        await log.write_in(producer, "orders", one(partition, *records(1)))
        await log.end(producer, commit=False)


async def test_an_answer_ends_behind_the_batches_that_were_looked_up(
    log: Log, sequencer: Sequencer, store: ObjectStore
) -> None:
    await abort(log, 5, 0)
    await abort(log, 5, 1)
    async with an_agent_reading(sequencer, store) as agent:
        first, second = await read_now(agent, a_plan(log, 0, 0))
        [behind] = await read_now(agent, a_plan(log, 6))

    # Batches 0, 2 and 4 with the markers behind them, and nothing of the other partition.
    assert (first.failure, second.failure) == (None, None)
    assert seen_by_a_client(first) == ([], 6)
    assert [entry.last_offset for entry in first.aborted] == [1, 3, 5]
    assert seen_by_a_client(second) == ([], None)
    assert seen_by_a_client(behind) == ([], 10)


async def test_readers_of_all_records_look_nothing_up(
    log: Log, sequencer: Sequencer, store: ObjectStore
) -> None:
    await abort(log, 5)
    async with an_agent_reading(sequencer, store) as agent:
        plan = replace(a_plan(log, 0), read_committed=False)
        [found] = await read_now(agent, plan)
        asked = agent.reads.counts.aborted_look_ups

    assert (len(list(offsets_of(found))), found.aborted, asked) == (10, (), 0)


def offsets_of(result: PartitionResult) -> Iterator[int]:
    data = b"".join(bytes(chunk) for chunk in result.chunks)
    position = 0
    while position < len(data):
        yield int.from_bytes(data[position : position + 8], "big")
        position += read_header(data[position:]).size_bytes


async def test_batches_are_read_again_if_their_run_was_swapped_or_the_log_start_has_moved(
    log: Log, sequencer: Sequencer, store: ObjectStore
) -> None:
    """Then transactions may be forgotten that batches of the run were part of."""
    await abort(log, 5)
    key = log.topic_ids["orders"], Partition(0)
    everything = CoordinateRequest(topic_id=key[0], partition=key[1], from_offset=Offset(0), max_runs=100)
    async with an_agent_reading(sequencer, store, polls=False) as agent:
        [before] = await read_now(agent, a_plan(log, 0))
        asked = agent.reads.counts.sequencer_asks
        old = (await sequencer.coordinates.read([everything]))[key].runs[2].object_key
        new = ObjectKey(old[:-1] + "x")
        await store.put(new, [await store.get(old, 0, None)])
        await sequencer.database.run(
            "UPDATE segments SET object_key = %(new)s WHERE object_key = %(old)s", new=new, old=old
        )

        [read_again] = await read_now(agent, a_plan(log, 0))
        assert agent.reads.counts.sequencer_asks == asked + 1
        assert seen_by_a_client(read_again) == seen_by_a_client(before) == ([], 6)

        await sequencer.retention.delete_records(*key, Offset(9))
        [moved] = await read_now(agent, a_plan(log, 0))

    assert moved.failure is ReadFailure.OUT_OF_RANGE


async def test_a_reader_behind_a_listed_range_looks_nothing_up(
    log: Log, sequencer: Sequencer, store: ObjectStore
) -> None:
    await abort(log, 5)
    async with an_agent_reading(sequencer, store) as agent:
        await read_now(agent, a_plan(log, 0))
        await abort(log, 1)
        looked_up = agent.reads.counts.aborted_look_ups
        [found] = await read_now(agent, a_plan(log, 10), wait_s=20.0)

    assert ([entry.last_offset for entry in found.aborted], looked_up) == ([11], 1)
    assert agent.reads.counts.aborted_look_ups == looked_up


async def test_a_batch_that_the_log_start_lies_in_is_read(
    log: Log, sequencer: Sequencer, store: ObjectStore
) -> None:
    """The batch begins below the log start."""
    producer = await log.transaction("begins below")
    await log.write_in(producer, "orders", one(0, *records(4)))
    await log.end(producer, commit=True)
    await abort(log, 5)
    key = log.topic_ids["orders"], Partition(0)
    await sequencer.retention.delete_records(*key, Offset(2))
    async with an_agent_reading(sequencer, store) as agent:
        [found] = await read_now(agent, a_plan(log, 2))

    assert found.failure is None
    rows, _ = seen_by_a_client(found)
    assert [offset for offset, _ in rows] == [0, 1, 2, 3]
