"""Produce by hand: every version, refusals and their codes, sequences, turns, times and timeouts."""

import asyncio
import struct
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from sequencer.topics.topics import Topic
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


async def a_topic(wire: Wire, name: str, partitions: int = 1, **config: str) -> Topic:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": (),
        "configs": configs,
    }
    created = await wire.ask(
        request(19, 7, topics=[topic], timeout=timedelta(seconds=30), validate_only=False)
    )
    assert created.topics[0].error_code is ErrorCode.none, created
    return created.topics[0]  # type: ignore[no-any-return]


async def produced(wire: Wire, topic: str, records: bytes | None, **values: Any) -> Any:
    """Returns the answer for partition 0."""
    return partitions_of(await wire.ask(a_produce(topic, {0: records}, **values)))[0]


@pytest.mark.parametrize("version", range(3, 14))
async def test_offsets_are_assigned_in_every_version(wire: Wire, version: int) -> None:
    topic = await a_topic(wire, f"versions-{version}")

    first = await produced(wire, topic.name, a_batch(b"1", b"2"), version=version, topic_id=topic.topic_id)
    second = await produced(wire, topic.name, a_batch(b"3"), version=version, topic_id=topic.topic_id)

    assert [(answer.error_code, answer.base_offset) for answer in (first, second)] == [
        (ErrorCode.none, 0),
        (ErrorCode.none, 2),
    ]
    assert first.log_append_time is None


def recounted(batch: bytes) -> bytes:
    """Returns the batch with a wrong count of records, under a CRC that fits."""
    return with_crc(batch[:57] + struct.pack(">i", 7) + batch[61:])


def with_crc(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


GOOD = a_batch(b"good")
BAD_BATCHES = {
    "no bytes": (b"", ErrorCode.corrupt_message),
    "null": (None, ErrorCode.corrupt_message),
    "cut short": (GOOD[:-1], ErrorCode.corrupt_message),
    "a wrong CRC": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), ErrorCode.corrupt_message),
    "random bytes": (b"\x00" * 16 + b"\x02" + b"garbage" * 20, ErrorCode.corrupt_message),
    "format v1": (GOOD[:16] + b"\x01" + GOOD[17:], ErrorCode.unsupported_for_message_format),
    "a wrong count": (recounted(GOOD), ErrorCode.invalid_record),
    "two batches": (GOOD + GOOD, ErrorCode.invalid_record),
    "unknown compression": (
        with_crc(GOOD[:21] + b"\x00\x05" + GOOD[23:]),
        ErrorCode.unsupported_compression_type,
    ),
    "a transactional batch without a producer": (
        with_crc(GOOD[:21] + b"\x00\x10" + GOOD[23:]),
        ErrorCode.invalid_record,
    ),
    "a control batch": (with_crc(GOOD[:21] + b"\x00\x20" + GOOD[23:]), ErrorCode.invalid_record),
    "a time after the year 9999": (a_batch(b"x", timestamp_ms=253402300800000), ErrorCode.invalid_timestamp),
    "too large": (a_batch(b"x" * 1_100_000), ErrorCode.message_too_large),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
async def test_a_bad_batch_is_an_error_only_for_its_partition(agent: Running, wire: Wire, name: str) -> None:
    records, code = BAD_BATCHES[name]
    topic = await a_topic(wire, "bad-" + name.replace(" ", "-"), partitions=3)

    answer = partitions_of(await wire.ask(a_produce(topic.name, {0: GOOD, 1: records, 2: GOOD})))

    assert [(part.index, part.error_code, part.base_offset) for part in answer] == [
        (0, ErrorCode.none, 0),
        (1, code, -1),
        (2, ErrorCode.none, 0),
    ]
    assert answer[1].error_message
    assert agent.metric("tidelog_produce_errors_total", error=code.name) >= 1


@pytest.mark.parametrize("compression", [0, 1, 4])
async def test_a_compacted_topic_refuses_records_without_keys_partition_by_partition(
    wire: Wire, compression: int
) -> None:
    topic = await a_topic(
        wire, f"compacted-{compression}", partitions=3, **{"cleanup.policy": "compact,delete"}
    )
    keyed = a_batch(b"a", b"b", keys=[b"k", b""], compression=compression)
    keyless = a_batch(b"a", b"b", b"c", keys=[None, b"k", None], compression=compression)

    both = partitions_of(await wire.ask(a_produce(topic.name, {0: keyed, 1: keyless, 2: keyed})))
    alone = [await produced(wire, topic.name, batch) for batch in (keyless, keyed)]

    refusal = (
        f"Compacted topic cannot accept message without key in topic partition compacted-{compression}-1."
    )
    assert [(part.error_code, part.base_offset) for part in both] == [
        (ErrorCode.none, 0),
        (ErrorCode.invalid_record, -1),
        (ErrorCode.none, 0),
    ]
    assert both[1].error_message == refusal
    assert [(found.batch_index, found.batch_index_error_message) for found in both[1].record_errors] == [
        (0, refusal),
        (2, refusal),
    ]
    assert [(part.error_code, part.base_offset) for part in alone] == [
        (ErrorCode.invalid_record, -1),
        (ErrorCode.none, 2),
    ]


async def test_a_topic_that_becomes_compacted_refuses_records_without_keys_from_then_on(wire: Wire) -> None:
    topic = await a_topic(wire, "compacted-later")
    before = await produced(wire, topic.name, GOOD)
    change = {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}
    resource = {"resource_type": 2, "resource_name": topic.name, "configs": [change]}
    altered = await wire.ask(request(44, 1, resources=[resource], validate_only=False))

    after = await produced(wire, topic.name, GOOD)

    assert altered.responses[0].error_code is ErrorCode.none
    assert [before.error_code, after.error_code] == [ErrorCode.none, ErrorCode.invalid_record]


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.unknown_topic_or_partition), (13, ErrorCode.unknown_topic_id)]
)
async def test_unknown_topics_and_partitions_have_their_error(
    wire: Wire, version: int, code: ErrorCode
) -> None:
    topic = await a_topic(wire, f"known-{version}")

    missing = await produced(wire, "nowhere", GOOD, version=version, topic_id=uuid4())
    beyond = partitions_of(
        await wire.ask(a_produce(topic.name, {1: GOOD, -1: GOOD}, version=version, topic_id=topic.topic_id))
    )

    assert missing.error_code is code
    assert [part.error_code for part in beyond] == [ErrorCode.unknown_topic_or_partition] * 2
    assert {part.base_offset for part in (missing, *beyond)} == {-1}


async def test_a_transactional_batch_needs_a_transactional_id_and_an_open_transaction(wire: Wire) -> None:
    topic = await a_topic(wire, "transactional")
    plain = a_batch(b"a", producer=(77, 0, 0))
    transactional = with_crc(plain[:21] + b"\x00\x10" + plain[23:])

    unnamed = await produced(wire, topic.name, transactional)
    outside = await produced(wire, topic.name, transactional, transactional_id="tx")
    not_in_one = await produced(wire, topic.name, plain, transactional_id="tx")

    assert unnamed.error_code is ErrorCode.transactional_id_authorization_failed
    assert "transactional id" in unnamed.error_message
    assert outside.error_code is ErrorCode.invalid_txn_state
    assert not_in_one.error_code is ErrorCode.none


async def test_acks_that_mean_nothing_are_refused(wire: Wire) -> None:
    topic = await a_topic(wire, "acks")

    assert (await produced(wire, topic.name, GOOD, acks=2)).error_code is ErrorCode.invalid_required_acks


async def test_a_repeated_batch_is_answered_with_its_first_offset(wire: Wire) -> None:
    topic = await a_topic(wire, "repeated")
    first = a_batch(b"a", b"b", producer=(77, 0, 0))
    second = a_batch(b"c", producer=(77, 0, 2))

    answers = [await produced(wire, topic.name, records) for records in (first, second, first, second)]

    assert [answer.base_offset for answer in answers] == [0, 2, 0, 2]
    assert {answer.error_code for answer in answers} == {ErrorCode.none}


async def test_sequences_and_epochs_are_judged(wire: Wire) -> None:
    topic = await a_topic(wire, "sequences")

    async def code_of(*producer: int) -> ErrorCode:
        batch = a_batch(b"x", producer=producer)  # type: ignore[arg-type]
        return (await produced(wire, topic.name, batch)).error_code  # type: ignore[no-any-return]

    assert await code_of(88, 0, 5) is ErrorCode.unknown_producer_id
    assert await code_of(88, 0, 0) is ErrorCode.none
    assert await code_of(88, 0, 2) is ErrorCode.not_enough_replicas  # its predecessor may be on its way
    assert await code_of(88, 1, 0) is ErrorCode.none
    assert await code_of(88, 0, 1) is ErrorCode.invalid_producer_epoch


async def test_pipelined_requests_are_answered_in_order_and_share_few_segments(
    agent: Running, wire: Wire
) -> None:
    topic = await a_topic(wire, "pipelined")
    commits_before = agent.metric("tidelog_commits_total")

    sent = [
        await wire.send(a_produce(topic.name, {0: a_batch(b"%d" % n, producer=(99, 0, n))}))
        for n in range(100)
    ]
    answers = [partitions_of(await wire.receive(one))[0] for one in sent]

    assert [answer.base_offset for answer in answers] == list(range(100))
    assert agent.metric("tidelog_commits_total") - commits_before < 50


async def test_batches_are_written_in_request_order_whatever_their_checking_costs(wire: Wire) -> None:
    """Large batches are checked in threads, small ones at once: only the turns give the order."""
    topic = await a_topic(wire, "order", max_message_bytes="4000000")
    sizes = [3_000_000, 10, 500_000, 10, 2_000_000, 10, 100_000, 10]

    sent = [
        await wire.send(a_produce(topic.name, {0: a_batch(b"x" * size, producer=(111, 0, number))}))
        for number, size in enumerate(sizes)
    ]
    answers = [partitions_of(await wire.receive(one))[0] for one in sent]

    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (ErrorCode.none, number) for number in range(len(sizes))
    ]


async def test_acks_0_gets_no_answer_and_is_written(wire: Wire) -> None:
    topic = await a_topic(wire, "acks-0")

    await wire.send(a_produce(topic.name, {0: GOOD}, acks=0))
    after = await produced(wire, topic.name, GOOD)

    assert (after.error_code, after.base_offset) == (ErrorCode.none, 1)


async def test_acks_0_that_fails_closes_the_connection(agent: Running) -> None:
    doomed = await Wire.connect(agent.app.kafka_port)

    await doomed.send(a_produce("nowhere", {0: GOOD}, acks=0))

    assert await doomed.is_closed_by_agent()


async def test_log_append_time_is_the_agents_and_is_answered(wire: Wire) -> None:
    topic = await a_topic(wire, "append-time", message_timestamp_type="LogAppendTime")

    answer = await produced(wire, topic.name, a_batch(b"x", timestamp_ms=1))

    assert answer.error_code is ErrorCode.none
    assert answer.log_append_time.year >= 2025


async def test_a_deleted_topic_is_unknown_at_once_through_the_agent_that_deleted_it(wire: Wire) -> None:
    topic = await a_topic(wire, "deleted")
    assert (await produced(wire, topic.name, GOOD)).error_code is ErrorCode.none

    await wire.ask(request(20, 5, topic_names=("deleted",), timeout=timedelta(seconds=30)))

    assert (await produced(wire, topic.name, GOOD)).error_code is ErrorCode.unknown_topic_or_partition


async def test_a_topic_deleted_elsewhere_is_refused_by_the_sequencer_and_looked_up_again(
    module_database_url: str, wire: Wire
) -> None:
    topic = await a_topic(wire, "deleted-elsewhere")
    assert (await produced(wire, topic.name, GOOD)).error_code is ErrorCode.none

    elsewhere = await Sequencer.open(module_database_url, SequencerSettings())
    await elsewhere.topics.delete("deleted-elsewhere")
    await elsewhere.close()
    cached = await produced(wire, topic.name, GOOD)
    again = await wire.ask(a_metadata("deleted-elsewhere", create=False))

    assert cached.error_code is ErrorCode.unknown_topic_or_partition
    assert again.topics[0].error_code is ErrorCode.unknown_topic_or_partition


async def test_a_request_whose_time_is_over_fails_and_later_ones_go_on(agent: Running, wire: Wire) -> None:
    topic = await a_topic(wire, "timeout")

    late = await produced(wire, topic.name, GOOD, timeout_s=0.0)
    later = await produced(wire, topic.name, GOOD)

    assert late.error_code is ErrorCode.request_timed_out
    assert later.error_code is ErrorCode.none
    assert agent.metric("tidelog_unacknowledged_bytes") == 0


async def test_memory_is_given_back_after_every_kind_of_answer(agent: Running, wire: Wire) -> None:
    await produced(wire, "nowhere", GOOD)
    await wire.send(a_produce("nowhere", {0: GOOD}, acks=0))
    assert await wire.is_closed_by_agent()

    other = await Wire.connect(agent.app.kafka_port)
    await other.ask(request(18, 0))
    other.close()

    await asyncio.sleep(1.2)  # the listener exports what is reserved once a second
    await until(lambda: agent.metric("tidelog_request_memory_bytes") == 0)
