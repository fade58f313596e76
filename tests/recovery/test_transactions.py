"""Transactions after a recovery: what consumers of committed data read, and who may write."""

import asyncio
from typing import Any, NamedTuple

import pytest
from kafka.record import MemoryRecordsBuilder
from typer.testing import CliRunner

from recovery.plan import Source
from recovery.report import Report
from recovery.young import YoungSegments
from sequencer.commits.producers import ProducerIdentity
from sequencer.commits.sinks import SinkCommitted
from sequencer.commits.transactions import (
    Added,
    EndCause,
    Ended,
    ProducerOfTransactions,
    TransactionRefusal,
)
from sequencer.topics.topics import Topic
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import index_batches, read_header
from storage.identifiers import Partition
from storage.segments.journal_format import encode, read_container
from storage.segments.keys import journal_prefix
from storage.segments.segment_batches import PendingBatch
from tests.compactor.builders import CLUSTER, pending, written
from tests.compactor.merging import coordinates
from tests.recovery.conftest import Place
from tests.recovery.test_from_the_bucket import begin, destroy, journal
from tests.recovery.test_old_backups import merge_and_delete
from tests.recovery.test_recover import is_healthy
from tests.sequencer.commits.test_sinks import a_batch
from tidelog.cli import app
from tidelog.commands import recover as recover_module

pytestmark = pytest.mark.superuser

MINUTE_MS = 60_000


@pytest.fixture
async def topic(place: Place) -> Topic:
    return await place.sequencer.topics.create("orders", 1, {"retention.ms": "-1"})


async def a_producer(place: Place, transactional_id: str) -> ProducerOfTransactions:
    identity = await place.sequencer.transactions.initialize(transactional_id, MINUTE_MS)
    assert isinstance(identity, ProducerIdentity), identity
    return ProducerOfTransactions(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )


async def write(place: Place, topic: Topic, producer: ProducerOfTransactions, sequence: int = 0) -> None:
    key = (topic.topic_id, Partition(0))
    assert await place.sequencer.transactions.add(producer, [key]) == Added(missing=[])
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    builder.set_producer_state(producer.producer_id, producer.producer_epoch, sequence, True)
    builder.append(timestamp=1_000, key=None, value=producer.transactional_id.encode())
    builder.close()
    batch = validate_produced(bytes(builder.buffer()), BatchLimits())
    assert batch.header.is_transactional
    await written(
        place.sequencer,
        place.store,
        PendingBatch(topic_id=topic.topic_id, partition=Partition(0), batch=batch),
    )


async def end(place: Place, producer: ProducerOfTransactions, *, is_commit: bool) -> ProducerOfTransactions:
    ended = await place.sequencer.transactions.end(producer, is_commit=is_commit, cause=EndCause.CLIENT_2)
    assert isinstance(ended, Ended), ended
    return ProducerOfTransactions(
        transactional_id=producer.transactional_id,
        producer_id=ended.identity.producer_id,
        producer_epoch=ended.identity.producer_epoch,
    )


class Command(NamedTuple):
    """How `tidelog recover` ended."""

    exit_code: int
    said: str
    report: Report


async def as_command(place: Place, *arguments: str) -> Command:
    """`tidelog recover` in this process, with its report."""
    reports: list[Report] = []
    show = recover_module._show

    def noted(report: Report, *others: Any) -> None:
        reports.append(report)
        show(report, *others)

    environment = {
        "TIDELOG_DATABASE_URL": place.database_url,
        "TIDELOG_STORE_URL": place.store_url,
        "TIDELOG_CLUSTER": CLUSTER,
        "TIDELOG_OWNERSHIP_RATCHET_S": "0.05",
        "COLUMNS": "200",
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recover_module, "_show", noted)
        ended = await asyncio.to_thread(
            CliRunner().invoke, app, ["recover", *arguments], env=environment, catch_exceptions=False
        )
    assert reports, ended.output
    return Command(ended.exit_code, ended.output, reports[-1])


class Seen(NamedTuple):
    """What consumers of a partition see."""

    committed: list[int]
    """Offsets of batches of records that a consumer of committed data takes."""
    records: list[int]
    markers: list[int]
    is_stable: bool
    """True if no transaction is open."""


async def seen(place: Place, topic: Topic) -> Seen:
    """Reads as a client: the list of aborted transactions, and abort markers, say what to leave out."""
    found = await coordinates(place.sequencer, topic, 0)
    aborted = sorted(found.aborted or (), key=lambda one: one.first_offset)
    left_out, committed, records, markers = set[int](), list[int](), list[int](), list[int]()
    for run in found.runs:
        data = bytes(await place.store.get(run.object_key, run.position, run.position + run.length))
        offset = int(run.base_offset)
        for batch in index_batches(data, 0, len(data)):
            header = read_header(data, int(batch["position"]))
            while aborted and aborted[0].first_offset <= offset:
                left_out.add(aborted.pop(0).producer_id)
            if header.is_control:
                markers.append(offset)
                if data[int(batch["position"]) + 69] == 0:
                    left_out.discard(header.producer_id)
            else:
                records.append(offset)
                is_left_out = header.is_transactional and header.producer_id in left_out
                if offset < found.last_stable_offset and not is_left_out:
                    committed.append(offset)
            offset += int(batch["last_offset_delta"]) + 1
    return Seen(committed, records, markers, found.last_stable_offset == found.high_watermark)


async def test_the_journal_says_which_transactions_were_aborted_or_open(place: Place, topic: Topic) -> None:
    good, bad, still = [await a_producer(place, name) for name in ("good", "bad", "still")]
    await begin(place)
    await write(place, topic, good)  # 0
    await write(place, topic, bad)  # 1
    await write(place, topic, still)  # 2
    await journal(place)
    await end(place, bad, is_commit=False)  # 3
    await end(place, good, is_commit=True)  # 4
    await written(place.sequencer, place.store, pending(topic, 1))  # 5
    await journal(place)

    destroy(place)
    report = await place.recover()

    assert (report.source, report.appended) == (Source.JOURNAL, 0)
    assert report.is_lossless
    assert await seen(place, topic) == Seen([0, 5], [0, 1, 2, 5], [3, 4, 6], is_stable=True)
    [aborted] = report.aborted
    assert (aborted.producer_id, aborted.first_offset, aborted.marker_offset) == (still.producer_id, 2, 6)
    assert await is_healthy(place)


async def test_a_sink_still_knows_the_batches_that_it_committed(place: Place, topic: Topic) -> None:
    await place.sequencer.sinks.commit(a_batch([], 3, sink="in the checkpoint"))
    await begin(place)
    producer = await a_producer(place, "sink-query-0-0")
    await write(place, topic, producer)  # 0
    await place.sequencer.sinks.commit(a_batch([producer], 7))  # 1
    await journal(place)

    destroy(place)
    await place.recover()

    assert await seen(place, topic) == Seen([0], [0], [1], is_stable=True)
    for batch_id, sink in ((3, "in the checkpoint"), (7, "sink")):
        again = await place.sequencer.sinks.commit(a_batch([], batch_id, sink=sink))
        assert again == SinkCommitted(is_repeat=True, markers=())


async def test_a_checkpoint_has_aborted_and_open_transactions(place: Place, topic: Topic) -> None:
    bad, still = [await a_producer(place, name) for name in ("bad", "still")]
    await write(place, topic, bad)
    await end(place, bad, is_commit=False)
    await write(place, topic, still)
    await begin(place)

    destroy(place)
    report = await place.recover()

    assert await seen(place, topic) == Seen([], [0, 2], [1, 3], is_stable=True)
    assert [one.first_offset for one in report.aborted] == [2]


async def test_a_transaction_that_ended_after_the_last_entry_is_aborted_and_listed(
    place: Place, topic: Topic
) -> None:
    producer, young = [await a_producer(place, name) for name in ("before", "young")]
    await begin(place)
    await write(place, topic, producer)  # 0
    await journal(place)
    await write(place, topic, producer, 1)  # young, appended at 1
    await end(place, producer, is_commit=True)
    await write(place, topic, young)  # young, appended at 2
    await end(place, young, is_commit=True)
    await written(place.sequencer, place.store, pending(topic, 1))  # young, appended at 3

    destroy(place)
    rehearsed = await as_command(place, "--dry-run")
    done = await as_command(place, "--take-over", "--yes")
    report = done.report

    assert (rehearsed.exit_code, done.exit_code) == (0, 3)
    assert "nothing is lost, but 2 ends of transactions are not known" in done.said
    assert (await as_command(place, "--yes")).exit_code == 0, "nothing is open any more"
    assert report.appended == 3
    assert report.refused == []
    assert await seen(place, topic) == Seen([3], [0, 1, 2, 3], [4, 5], is_stable=True)
    listed = {(one.producer_id, one.first_offset) for one in report.aborted}
    assert listed == {(producer.producer_id, 0), (young.producer_id, 2)}


@pytest.mark.parametrize("is_restored", [False, True])
async def test_producers_begin_again_with_new_producer_ids(
    place: Place, topic: Topic, is_restored: bool
) -> None:
    zombie = await a_producer(place, "tx")
    await begin(place)
    await write(place, topic, zombie)
    backup = place.back_up()
    await journal(place)
    await end(place, zombie, is_commit=True)
    await journal(place)

    if is_restored:
        place.restore(backup)
    else:
        destroy(place)
    await place.recover()

    assert (await seen(place, topic)).committed == [0]
    refused = await place.sequencer.transactions.end(zombie, is_commit=True, cause=EndCause.CLIENT_2)
    assert refused is TransactionRefusal.UNKNOWN_PRODUCER
    going_on = await a_producer(place, "tx")
    assert going_on.producer_id > zombie.producer_id
    await write(place, topic, going_on)
    await end(place, going_on, is_commit=True)
    assert await seen(place, topic) == Seen([0, 2], [0, 2], [1, 3], is_stable=True)


async def test_an_abort_whose_marker_is_in_a_lost_entry_stays_an_abort(place: Place, topic: Topic) -> None:
    """The first of several entries of one reading names all aborted transactions."""
    bad = await a_producer(place, "bad")
    await begin(place)
    await write(place, topic, bad)  # 0
    await written(place.sequencer, place.store, pending(topic, 1))  # 1
    await end(place, bad, is_commit=False)  # 2, in a later entry
    await written(place.sequencer, place.store, pending(topic, 1))
    await journal(place, journal_batches_per_entry=1)
    keys = sorted([info.key async for info in place.store.list(journal_prefix(CLUSTER))])
    assert len(keys) > 2
    await place.store.delete(keys[1:])

    destroy(place)
    await place.recover(recovery_young_margin_s=0)

    assert await seen(place, topic) == Seen([1, 2], [0, 1, 2], [3], is_stable=True)


async def test_a_recovery_that_was_killed_between_is_finished_by_the_next(
    place: Place, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await a_producer(place, "tx")
    await begin(place)
    await written(place.sequencer, place.store, pending(topic, 1))  # 0
    await journal(place)
    await write(place, topic, producer)  # young
    await end(place, producer, is_commit=True)
    append = YoungSegments.append

    async def append_and_die(young: YoungSegments, *given: object) -> None:
        await append(young, *given)  # type: ignore[arg-type]
        raise OSError("killed")

    destroy(place)
    with monkeypatch.context() as patched:
        patched.setattr(YoungSegments, "append", append_and_die)
        with pytest.raises(OSError, match="killed"):
            await place.recover()
    report = await place.recover()

    assert await seen(place, topic) == Seen([0], [0, 1], [2], is_stable=True)
    assert [one.first_offset for one in report.aborted] == [1]


async def test_an_entry_without_open_transactions_ends_those_before(place: Place, topic: Topic) -> None:
    producer = await a_producer(place, "tx")
    await begin(place)
    await write(place, topic, producer)
    await journal(place)
    await end(place, producer, is_commit=True)
    await journal(place)
    keys = sorted([info.key async for info in place.store.list(journal_prefix(CLUSTER))])
    sections = []
    for key in keys:
        header, tables = read_container(await place.store.get(key))
        assert encode(header, tables)
        sections.append([rows.rows for rows in tables if rows.table == "transaction_partitions"])

    assert sections == [[1], []]


async def test_what_only_merged_objects_hold_of_transactions_is_aborted(place: Place, topic: Topic) -> None:
    """Their footers prove offsets and markers, but the journal does not say how the transactions ended."""
    good, bad, still = [await a_producer(place, name) for name in ("good", "bad", "still")]
    await begin(place)
    await written(place.sequencer, place.store, pending(topic, 1))  # 0
    await journal(place)
    await write(place, topic, good)  # 1
    await write(place, topic, bad)  # 2
    await end(place, bad, is_commit=False)  # 3
    await end(place, good, is_commit=True)  # 4
    await write(place, topic, still)  # 5
    for number in range(20):
        await written(place.sequencer, place.store, pending(topic, 1, timestamp_ms=10_000 + number))
    assert await merge_and_delete(place) > 8

    destroy(place)
    rehearsed = await place.rehearse()
    report = await place.recover()

    found = await seen(place, topic)
    assert found.is_stable
    assert found.committed == [0, *found.records[4:]]
    assert len(found.committed) == 21
    listed = {one.producer_id for one in report.aborted}
    assert listed == {one.producer_id for one in (good, bad, still)}
    assert len(rehearsed.aborted) == len(report.aborted)
    assert await is_healthy(place)
