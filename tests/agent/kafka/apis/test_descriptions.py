"""DescribeTopicPartitions, DescribeProducers, DescribeLogDirs, and the APIs that are empty or refused because
Kafka moves replicas or runs transactions, by hand.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.describe_topic_partitions.v0.request import Cursor
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from tests.agent.kafka.apis.administrative_requests import TIMEOUT, create
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def describe_topics(
    wire: Wire, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Any:
    at = None if cursor is None else Cursor(topic_name=TopicName(cursor[0]), partition_index=i32(cursor[1]))
    topics = [{"name": name} for name in names]
    return await wire.ask(request(75, 0, topics=topics, response_partition_limit=limit, cursor=at))


async def test_describe_topic_partitions_shows_what_metadata_shows(wire: Wire) -> None:
    await create(wire, "shown", num_partitions=3)

    [topic] = (await describe_topics(wire, "shown")).topics
    [known] = (await wire.ask(a_metadata("shown", version=12))).topics

    assert (topic.error_code, topic.topic_id) == (ErrorCode.none, known.topic_id)
    assert [
        (part.leader_id, part.leader_epoch, part.replica_nodes, part.isr_nodes) for part in topic.partitions
    ] == [
        (part.leader_id, part.leader_epoch, part.replica_nodes, part.isr_nodes) for part in known.partitions
    ]
    assert all(part.eligible_leader_replicas == part.last_known_elr == () for part in topic.partitions)


@pytest_asyncio.fixture(loop_scope="module")
async def two_topics(module_database_url: str) -> AsyncIterator[Wire]:
    """A connection to an agent in its own zone, whose answers hold at most three partitions."""
    async with running(module_database_url, zone="z", describe_partitions_limit=3) as small:
        wire = await Wire.connect(small.app.kafka_port)
        for name, count in (("paged-a", 4), ("paged-b", 2)):
            await create(wire, name, num_partitions=count)
        yield wire
        wire.close()


@pytest.mark.parametrize("limit", [1, 2, 3, 2000, 0, -1])
async def test_pages_tile_the_partitions(two_topics: Wire, limit: int) -> None:
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        answer = await describe_topics(
            two_topics, "paged-b", "nowhere", "paged-a", limit=limit, cursor=cursor
        )
        page = [(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions]
        assert 0 < len(page) <= max(1, min(limit, 3))
        seen += page
        pages += 1
        found = answer.next_cursor
        cursor = None if found is None else (found.topic_name, found.partition_index)

    assert seen == [*(("paged-a", n) for n in range(4)), *(("paged-b", n) for n in range(2))]


async def test_describe_all_topics_and_unknown_ones(wire: Wire) -> None:
    await create(wire, "one-of-many")

    everything = await describe_topics(wire)
    odd = await describe_topics(wire, "nowhere", "no/name")
    astray = await describe_topics(wire, "one-of-many", cursor=("another", 0))
    beyond = await describe_topics(wire, "one-of-many", cursor=("one-of-many", 9))
    below = await describe_topics(wire, "one-of-many", cursor=("one-of-many", -1))

    names = [topic.name for topic in everything.topics]
    assert "one-of-many" in names
    assert names == sorted(names)
    assert {topic.name: topic.error_code for topic in odd.topics} == {
        "nowhere": ErrorCode.unknown_topic_or_partition,
        "no/name": ErrorCode.invalid_topic_exception,
    }
    for wrong in (astray, below):
        assert [topic.error_code for topic in wrong.topics] == [ErrorCode.invalid_request]
    assert (beyond.topics[0].partitions, beyond.next_cursor) == ((), None)


async def test_describe_producers_names_those_that_wrote(wire: Wire) -> None:
    await create(wire, "produced", num_partitions=2)
    given = {
        "transactional_id": None,
        "transaction_timeout": TIMEOUT,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    ids = [(await wire.ask(request(22, 4, **given))).producer_id for _ in range(2)]
    for producer_id, sequences in zip(ids, ((0, 1), (0,)), strict=True):
        for sequence in sequences:
            batch = a_batch(b"v", producer=(producer_id, 0, sequence), timestamp_ms=1_700_000_000_123)
            answer = await wire.ask(a_produce("produced", {0: batch}))
            assert partitions_of(answer)[0].error_code is ErrorCode.none
    topics = [
        {"name": "produced", "partition_indexes": (0, 1, 2)},
        {"name": "nowhere", "partition_indexes": (0,)},
    ]

    produced, nowhere = (await wire.ask(request(61, 0, topics=topics))).topics

    first, empty, beyond = produced.partitions
    assert [(found.producer_id, found.last_sequence) for found in first.active_producers] == [
        (ids[0], 1),
        (ids[1], 0),
    ]
    assert {found.last_timestamp for found in first.active_producers} == {1_700_000_000_123}
    assert {found.current_txn_start_offset for found in first.active_producers} == {-1}
    assert (empty.error_code, empty.active_producers) == (ErrorCode.none, ())
    assert beyond.error_code is ErrorCode.unknown_topic_or_partition
    assert nowhere.partitions[0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_store_is_the_one_log_dir(agent: Running, wire: Wire, version: int) -> None:
    name = f"stored-{version}"
    await create(wire, name, num_partitions=2)
    batch = a_batch(b"v" * 100)
    await wire.ask(a_produce(name, {1: batch}))

    everything = await wire.ask(request(35, version, topics=None))
    asked = await wire.ask(request(35, version, topics=[{"topic": name, "partitions": (1,)}]))
    nothing = await wire.ask(request(35, version, topics=[{"topic": "nowhere", "partitions": (0,)}]))

    [directory] = everything.results
    assert (directory.error_code, directory.log_dir.startswith("memory://")) == (ErrorCode.none, True)
    sizes = {topic.name: [part.partition_size for part in topic.partitions] for topic in directory.topics}
    assert sizes[name] == [0, len(batch)]
    [topic] = asked.results[0].topics
    assert [(part.partition_index, part.partition_size, part.offset_lag) for part in topic.partitions] == [
        (1, len(batch), 0)
    ]
    assert nothing.results[0].topics == ()
    if version >= 4:
        assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)
    assert agent.app.kafka_port


async def test_a_reassignment_to_the_current_replicas_is_taken(wire: Wire) -> None:
    await create(wire, "stays")
    current = (await wire.ask(a_metadata("stays", version=12))).topics[0].partitions[0].replica_nodes
    topics = [{"name": "stays", "partitions": [{"partition_index": 0, "replicas": current}]}]

    for version in range(2):
        answer = await wire.ask(
            request(45, version, timeout=TIMEOUT, allow_replication_factor_change=True, topics=topics)
        )

        [found] = answer.responses[0].partitions
        assert (answer.error_code, found.error_code, found.error_message) == (
            ErrorCode.none,
            ErrorCode.none,
            None,
        )


async def test_nothing_is_ever_reassigned(wire: Wire) -> None:
    await create(wire, "unmoved")
    partitions = [
        {"partition_index": 0, "replicas": (99,)},
        {"partition_index": 0, "replicas": None},
        {"partition_index": 9, "replicas": (1,)},
    ]
    topics = [{"name": "unmoved", "partitions": partitions}]

    listed = await wire.ask(request(46, 0, timeout=TIMEOUT, topics=None))
    for version in range(2):
        moved = await wire.ask(
            request(45, version, timeout=TIMEOUT, allow_replication_factor_change=True, topics=topics)
        )
        assert moved.error_code is ErrorCode.none
        assert [found.error_code for found in moved.responses[0].partitions] == [
            ErrorCode.invalid_replica_assignment,
            ErrorCode.no_reassignment_in_progress,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert all(found.error_message for found in moved.responses[0].partitions)
    assert (listed.error_code, listed.topics) == (ErrorCode.none, ())


@pytest.mark.parametrize("version", range(3))
async def test_no_leader_is_ever_elected(wire: Wire, version: int) -> None:
    await create(wire, "led")
    topics = [{"topic": "led", "partitions": (0, 9)}, {"topic": "nowhere", "partitions": (0,)}]

    async def elect(asked: Any, kind: int = 0) -> Any:
        return await wire.ask(
            request(43, version, election_type=kind, topic_partitions=asked, timeout=TIMEOUT)
        )

    answer, everything = await elect(topics), await elect(None)

    codes = [part.error_code for found in answer.replica_election_results for part in found.partition_result]
    assert codes == [ErrorCode.election_not_needed, *[ErrorCode.unknown_topic_or_partition] * 2]
    assert everything.replica_election_results == ()
    if version >= 1:
        assert answer.error_code is ErrorCode.none
        assert (await elect(topics, kind=7)).error_code is ErrorCode.invalid_request


async def open_transactions(wire: Wire, topic: str, *names: str) -> list[Any]:
    """Each has partitions 2 and 0. Returns what InitProducerId gave them."""
    await create(wire, topic, num_partitions=3)
    producers = []
    for name in names:
        new = {"transaction_timeout": TIMEOUT, "producer_id": -1, "producer_epoch": -1}
        given = await wire.ask(request(22, 4, transactional_id=name, **new))
        values = {
            "transactional_id": name,
            "producer_id": given.producer_id,
            "producer_epoch": given.producer_epoch,
            "topics": [{"name": topic, "partitions": (2, 0)}],
        }
        added = await wire.ask(request(24, 3, **{f"v3_and_below_{key}": of for key, of in values.items()}))
        assert {
            part.partition_error_code for part in added.results_by_topic_v3_and_below[0].results_by_partition
        } == {ErrorCode.none}
        producers.append(given)
    return producers


async def test_an_open_transaction_is_described_with_its_start_and_partitions(wire: Wire) -> None:
    before_ms = time.time_ns() // 1_000_000
    names = [f"open-{number}" for number in range(3)]
    for name, given in zip(names, await open_transactions(wire, "in-transaction", *names), strict=True):
        [found] = (await wire.ask(request(65, 0, transactional_ids=(name,)))).transaction_states

        assert (found.error_code, found.transaction_state) == (ErrorCode.none, "Ongoing")
        assert (found.producer_id, found.producer_epoch) == (given.producer_id, given.producer_epoch)
        assert [(topic.topic, topic.partitions) for topic in found.topics] == [("in-transaction", (0, 2))]
        started_ms = found.transaction_start_time.timestamp() * 1000
        assert before_ms - 1000 < started_ms < time.time_ns() // 1_000_000 + 1000


async def test_an_id_is_described_once_and_so_many_partitions_in_one_response(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("many-0", "many-1", "many-2")
    await open_transactions(wire, "in-many", *names)

    [once] = (await wire.ask(request(65, 0, transactional_ids=names[:1] * 1000))).transaction_states
    monkeypatch.setattr("agent.kafka.apis.describe_transactions._MOST_PARTITIONS", 3)
    some = (await wire.ask(request(65, 0, transactional_ids=names))).transaction_states
    monkeypatch.setattr("agent.kafka.apis.describe_transactions._MOST_PARTITIONS", 1)
    [alone] = (await wire.ask(request(65, 0, transactional_ids=names[:1]))).transaction_states

    assert [once.transactional_id, alone.transactional_id] == ["many-0", "many-0"]
    assert [found.transactional_id for found in some] == list(names)
    assert [found.error_code for found in some] == [
        ErrorCode.none,
        *[ErrorCode.coordinator_not_available] * 2,
    ]
    assert alone.error_code is ErrorCode.none


async def test_transactions_of_named_producers_are_listed_page_by_page(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"named-{number}" for number in range(4)]
    producers = [given.producer_id for given in await open_transactions(wire, "of-named", *names)]
    monkeypatch.setattr("agent.kafka.apis.list_transactions._PAGE", 2)

    async def listed(*producer_ids: int, state: str = "Ongoing") -> list[tuple[str, int]]:
        filters = {"state_filters": (state,), "producer_id_filters": producer_ids, "duration_filter": -1}
        answer = await wire.ask(request(66, 2, **filters, transactional_id_pattern=""))
        assert answer.error_code is ErrorCode.none
        return sorted((one.transactional_id, one.producer_id) for one in answer.transaction_states)

    found = await listed(*producers[1:], producers[1], producers[3], 1)
    ended = await listed(*producers, state="CompleteCommit")

    assert found == list(zip(names[1:], producers[1:], strict=True))
    assert ended == []


async def test_transactions_that_are_unknown_are_not_described(wire: Wire) -> None:
    described = await wire.ask(request(65, 0, transactional_ids=("tx", "")))

    assert [found.error_code for found in described.transaction_states] == [
        ErrorCode.transactional_id_not_found,
        ErrorCode.invalid_request,
    ]
    for version in range(3):
        filters = {"state_filters": ("Dead", "Sleeping"), "producer_id_filters": (), "duration_filter": -1}
        listed = await wire.ask(request(66, version, **filters, transactional_id_pattern="t.*"))
        assert (listed.error_code, listed.transaction_states) == (ErrorCode.none, ())
        assert listed.unknown_state_filters == ("Sleeping",)
    refused = await wire.ask(request(66, 2, **filters, transactional_id_pattern="("))
    assert refused.error_code is ErrorCode.invalid_regular_expression
