"""Coordinates over HTTP: which objects hold the records of a partition, raw and Parquet alike."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from agent.http import coordinates_api
from agent.http.app import create_http_app
from agent.http.coordinates_api import pieces_of
from agent.http.parts import HttpParts
from sequencer.client import Sequencer
from sequencer.commits import coordinates
from sequencer.commits.coordinates import NOTHING, RunCoordinate
from sequencer.database.database import SequencerUnavailable
from sequencer.history.history_values import TableFile
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, TopicId
from storage.stores.object_store import ObjectStore
from tests.agent.auditing import an_audit
from tests.spark_compaction.log import Log, one, records

_TOPIC_ID = TopicId(UUID(int=1))


@pytest.fixture
async def client(sequencer: Sequencer) -> AsyncIterator[httpx.AsyncClient]:
    parts = HttpParts(
        audit=an_audit(),
        sequencer=lambda: sequencer,
        checks=(),
        cluster="test",
        zone="a",
        node_id=lambda: 7,
        registry=CollectorRegistry(),
    )
    transport = httpx.ASGITransport(app=create_http_app(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as opened:
        yield opened


async def pieces(client: httpx.AsyncClient, **asked: int) -> dict[str, Any]:
    answer = await client.get("/v1/topics/orders/coordinates", params={"partition": 0, **asked})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
async def log(sequencer: Sequencer, store: ObjectStore) -> Log:
    """Topic `orders`: offsets [0, 10), [10, 20), [20, 30) in three objects."""
    written = Log(sequencer=sequencer, store=store)
    await written.topic("orders", partitions=2)
    for start in range(0, 30, 10):
        await written.write("orders", one(0, *records(10, start)))
    return written


@pytest.mark.usefixtures("log")
async def test_runs_are_named_in_pages_up_to_the_end_of_the_log(client: httpx.AsyncClient) -> None:
    first = await pieces(client, limit=2)
    second = await pieces(client, limit=2, from_offset=first["next"])

    assert [(piece["first_offset"], piece["end_offset"]) for piece in first["pieces"]] == [(0, 10), (10, 20)]
    assert [(piece["first_offset"], piece["end_offset"]) for piece in second["pieces"]] == [(20, 30)]
    assert (first["next"], second["next"]) == (20, None)
    assert (second["log_start_offset"], second["high_watermark"]) == (0, 30)
    assert {piece["kind"] for piece in first["pieces"]} == {"raw"}


@pytest.mark.usefixtures("log")
async def test_a_range_is_cut_at_its_ends_and_names_whole_runs(client: httpx.AsyncClient) -> None:
    found = await pieces(client, from_offset=5, to_offset=12)

    assert [(piece["first_offset"], piece["end_offset"]) for piece in found["pieces"]] == [(5, 10), (10, 12)]
    assert [(piece["base_offset"], piece["last_offset"]) for piece in found["pieces"]] == [(0, 9), (10, 19)]
    assert found["next"] is None


async def test_deleted_records_are_not_named(
    client: httpx.AsyncClient, log: Log, sequencer: Sequencer
) -> None:
    await sequencer.retention.delete_records(log.topic_ids["orders"], Partition(0), Offset(15))

    found = await pieces(client)

    assert found["log_start_offset"] == 15
    assert [(piece["first_offset"], piece["end_offset"]) for piece in found["pieces"]] == [(15, 20), (20, 30)]


async def test_pages_end_where_a_transaction_is_open_and_name_those_that_were_aborted(
    client: httpx.AsyncClient, log: Log
) -> None:
    aborted, still_open = await log.transaction("aborted"), await log.transaction("open")
    await log.write_in(aborted, "orders", one(0, *records(2)))
    await log.end(aborted, commit=False)
    await log.write("orders", one(0, *records(1)))
    await log.write_in(still_open, "orders", one(0, *records(1)))
    await log.write("orders", one(0, *records(1)))

    found = await pieces(client, from_offset=20)
    before = await pieces(client, to_offset=30)

    assert (found["last_stable_offset"], found["high_watermark"], found["next"]) == (34, 36, None)
    assert [piece["end_offset"] for piece in found["pieces"]] == [30, 32, 33, 34]
    producer_id = aborted.producer.producer_id
    assert found["aborted"] == [{"last_offset": 32, "first_offset": 30, "producer_id": producer_id}]
    assert before["aborted"] == []


async def test_too_many_aborted_transactions_make_shorter_pages(
    client: httpx.AsyncClient, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinates, "MAX_ABORTED", 2)
    for number in range(5):
        aborted = await log.transaction(f"{number}")
        await log.write_in(aborted, "orders", one(0, *records(1)))
        await log.end(aborted, commit=False)

    ends: list[int] = []
    start: int | None = 0
    while start is not None:
        page = await pieces(client, from_offset=start)
        ends += [piece["end_offset"] for piece in page["pieces"]]
        start = page["next"]

    assert ends == [10, 20, *range(30, 41)]


async def test_a_run_that_overlaps_too_many_aborted_transactions_is_a_page_by_itself(
    client: httpx.AsyncClient, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [await log.transaction(f"{number}") for number in range(2)]
    for transaction in both:
        await log.write_in(transaction, "orders", one(0, *records(1)))
    await log.write("orders", one(0, *records(1)))
    for transaction in both:
        await log.end(transaction, commit=False)
    monkeypatch.setattr(coordinates, "MAX_ABORTED", 1)
    monkeypatch.setattr(coordinates_api, "_MAX_ABORTED_ON_LOOP", 0)  # in a thread

    found = await pieces(client, from_offset=32)

    assert [(piece["first_offset"], piece["end_offset"]) for piece in found["pieces"]] == [(32, 33)]
    assert (len(found["aborted"]), found["next"]) == (2, 33)


async def test_aborted_transactions_of_a_run_are_not_answered_once_the_log_start_has_passed_the_one_read(
    sequencer: Sequencer, log: Log
) -> None:
    """Those with a marker below it may be forgotten."""
    key = log.topic_ids["orders"], Partition(0)
    aborted = await log.transaction("aborted")
    await log.write_in(aborted, "orders", one(0, *records(2)))
    await log.end(aborted, commit=False)
    asked = coordinates.CoordinateRequest(
        topic_id=key[0], partition=key[1], from_offset=Offset(30), max_runs=1
    )
    [run] = (await sequencer.coordinates.read([asked]))[key].runs
    await sequencer.retention.delete_records(*key, Offset(31))

    assert await sequencer.coordinates.aborted_of_run(run, Offset(30)) is None
    assert len(await sequencer.coordinates.aborted_of_run(run, Offset(31)) or ()) == 1


async def test_aborted_transactions_behind_a_run_are_looked_at_but_not_named(
    sequencer: Sequencer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction holds the stable offset back, so nothing says where the search may end."""
    key = log.topic_ids["orders"], Partition(0)
    await log.write_in(await log.transaction("open"), "orders", one(0, *records(1)))
    aborted = await log.transaction("aborted")
    for _ in range(7):
        await log.write_in(aborted, "orders", one(0, *records(1)))
        await log.end(aborted, commit=False)
    asked = coordinates.CoordinateRequest(
        topic_id=key[0], partition=key[1], from_offset=Offset(30), max_runs=2
    )
    run = (await sequencer.coordinates.read([asked]))[key].runs[1]
    monkeypatch.setattr(coordinates, "_ABORTED_AT_A_TIME", 2)
    found = await sequencer.coordinates.aborted_of_run(run, Offset(0))
    monkeypatch.setattr(coordinates, "_MAX_LOOKED_AT", 6)

    assert found is not None
    assert [entry.first_offset for entry in found] == [run.base_offset] == [31]
    with pytest.raises(SequencerUnavailable, match="1 aborted transactions of 6 or more"):
        await sequencer.coordinates.aborted_of_run(run, Offset(0))


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("orders/coordinates?partition=2", 400, "invalid_request"),
        ("orders/coordinates", 400, "invalid_request"),
        ("orders/coordinates?partition=0&limit=1001", 400, "invalid_request"),
        ("orders/coordinates?partition=0&from_offset=-1", 400, "invalid_request"),
        ("orders/coordinates?partition=0&from_offset=9223372036854775808", 400, "invalid_request"),
        ("none/coordinates?partition=0", 404, "unknown_topic"),
    ],
)
async def test_a_wrong_request_is_refused(
    client: httpx.AsyncClient, path: str, status: int, error: str
) -> None:
    answer = await client.get(f"/v1/topics/{path}")

    assert (answer.status_code, answer.json()["error"]) == (status, error)


async def test_an_empty_partition_has_no_pieces(client: httpx.AsyncClient, log: Log) -> None:
    assert log.topic_ids
    found = await pieces(client, partition=1)

    assert (found["pieces"], found["next"], found["high_watermark"]) == ([], None, 0)


def a_file(first: int, last: int) -> TableFile:
    return TableFile(
        object_key=ObjectKey(f"file-{first}"),
        partition=Partition(0),
        first_offset=Offset(first),
        last_offset=Offset(last),
        row_count=last - first + 1,
        size_bytes=1000,
        is_full=False,
        oldest=None,
        newest=None,
        has_untimed=True,
        row_groups=(),
    )


def a_run(first: int, last: int) -> RunCoordinate:
    return RunCoordinate(
        topic_id=_TOPIC_ID,
        partition=Partition(0),
        base_offset=Offset(first),
        last_offset=Offset(last),
        object_key=ObjectKey(f"run-{first}"),
        object_size_bytes=1000,
        position=BytePosition(0),
        length=1000,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


cuts = st.lists(st.integers(1, 99), unique=True, max_size=12).map(sorted)


@given(cuts, cuts, st.data())
def test_pieces_cover_each_offset_once_and_history_comes_first(
    file_cuts: list[int], run_cuts: list[int], data: st.DataObject
) -> None:
    edges = list(pairwise([0, *file_cuts, 100]))
    kept = data.draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    log_start = data.draw(st.integers(0, 100))
    start, end = sorted(data.draw(st.tuples(st.integers(0, 100), st.integers(0, 100))))
    spans = [span for span, is_kept in zip(edges, kept, strict=True) if is_kept]
    files = [a_file(first, last - 1) for first, last in spans]
    runs = [a_run(first, last - 1) for first, last in pairwise([0, *run_cuts, 100]) if last > log_start]

    found = pieces_of(files, runs, log_start, start, end)

    in_files = {offset for first, last in spans for offset in range(first, last)}
    covered = [
        (offset, piece.kind) for piece in found for offset in range(piece.first_offset, piece.end_offset)
    ]
    assert covered == [
        (offset, "parquet" if offset in in_files else "raw")
        for offset in range(start, end)
        if offset in in_files or offset >= log_start
    ]


def test_row_groups_are_named_by_their_files_and_a_range_without_records_by_nothing() -> None:
    """As coordinates name offsets below a local start."""
    group = a_run(0, 9)._replace(object_key=ObjectKey("c/history/0.parquet"))
    nothing = a_run(10, 19)._replace(object_key=NOTHING, length=0)
    raw = a_run(20, 29)

    found = pieces_of([a_file(0, 9)], [group, nothing, raw], 0, 0, 30)

    assert [(piece.kind, piece.first_offset, piece.end_offset) for piece in found] == [
        ("parquet", 0, 10),
        ("raw", 20, 30),
    ]
