"""DeleteRecords, OffsetForLeaderEpoch, ListOffsets' special times, and the answers to stale epochs and ids,
by hand.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from agent.kafka.configs.config_changes import SET
from tests.agent.kafka.apis.administrative_requests import TIMEOUT, alter, create, delete
from tests.agent.read_path.wire import a_fetch, a_list_offsets, request
from tests.agent.running import Wire, a_batch, a_produce, partitions_of, running, until_answered

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def a_topic_of(wire: Wire, name: str, records: int) -> Any:
    topic = await create(wire, name)
    for number in range(records):
        answer = await wire.ask(a_produce(name, {0: a_batch(b"%d" % number)}))
        assert partitions_of(answer)[0].error_code is ErrorCode.none
    return topic


async def delete_records(wire: Wire, name: str, offset: int, *, version: int = 2, partition: int = 0) -> Any:
    partitions = [{"partition_index": partition, "offset": offset}]
    asked = request(21, version, topics=[{"name": name, "partitions": partitions}], timeout=TIMEOUT)
    return (await wire.ask(asked)).topics[0].partitions[0]


async def list_offset(wire: Wire, name: str, timestamp: int, version: int = 11, **values: Any) -> Any:
    return (await wire.ask(a_list_offsets(version, name, timestamp, **values))).topics[0].partitions[0]


async def epoch_end(
    wire: Wire, name: str, version: int, current: int, wanted: int, partition: int = 0
) -> Any:
    asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": wanted}
    topics = [{"topic": name, "partitions": [asked]}]
    return (await wire.ask(request(23, version, topics=topics, replica_id=-1))).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
async def test_delete_records_moves_the_log_start_and_consumers_see_it(wire: Wire, version: int) -> None:
    topic = await a_topic_of(wire, f"trimmed-{version}", 5)
    await wire.ask(a_fetch(12, topic, 0))  # the agent has the coordinates in its cache

    moved = await delete_records(wire, topic.name, 3, version=version)
    back = await delete_records(wire, topic.name, 1, version=version)

    assert (moved.error_code, moved.low_watermark) == (ErrorCode.none, 3)
    assert (back.error_code, back.low_watermark) == (ErrorCode.none, 3)
    assert (await list_offset(wire, topic.name, -2)).offset == 3
    below = (await wire.ask(a_fetch(12, topic, 2))).responses[0].partitions[0]
    assert below.error_code is ErrorCode.offset_out_of_range
    kept = (await wire.ask(a_fetch(12, topic, 3))).responses[0].partitions[0]
    assert (kept.error_code, kept.log_start_offset, bool(kept.records)) == (ErrorCode.none, 3, True)


@pytest.mark.parametrize("version", [5, 9, 13])
async def test_produce_answers_the_real_log_start_offset(wire: Wire, version: int) -> None:
    topic = await a_topic_of(wire, f"started-{version}", 5)
    name, batch = topic.name, a_batch(b"once", producer=(93, 0, 0))
    assert (await delete_records(wire, name, 3)).low_watermark == 3

    async def produced(partitions: dict[int, bytes]) -> Any:
        asked = a_produce(name, dict(partitions), version=version, topic_id=topic.topic_id)
        return partitions_of(await wire.ask(asked))[0]

    answers = [
        await produced({0: a_batch(b"alone")}),
        await produced({0: a_batch(b"alone and compressed", compression=1)}),
        await produced({0: batch}),
        await produced({0: batch}),  # again: a duplicate
        await produced({0: a_batch(b"beside a refused one"), 7: a_batch(b"nowhere")}),
    ]

    assert [answer.error_code for answer in answers] == [ErrorCode.none] * 5
    assert [answer.base_offset for answer in answers] == [5, 6, 7, 7, 8]
    assert [answer.log_start_offset for answer in answers] == [3] * 5


async def test_delete_records_up_to_the_high_watermark_and_no_further(wire: Wire) -> None:
    topic = await a_topic_of(wire, "emptied", 3)

    beyond = await delete_records(wire, topic.name, 4)
    negative = await delete_records(wire, topic.name, -2)
    everything = await delete_records(wire, topic.name, -1)

    assert (beyond.error_code, beyond.low_watermark) == (ErrorCode.offset_out_of_range, -1)
    assert (negative.error_code, negative.low_watermark) == (ErrorCode.offset_out_of_range, -1)
    assert (everything.error_code, everything.low_watermark) == (ErrorCode.none, 3)
    assert (await list_offset(wire, topic.name, -1)).offset == 3


@pytest.mark.parametrize("policy", ["compact", ""])
async def test_records_of_a_topic_whose_policy_does_not_delete_cannot_be_deleted(
    wire: Wire, policy: str
) -> None:
    name = f"kept-{policy or 'for-ever'}"
    await create(wire, name, configs=[{"name": "cleanup.policy", "value": policy}])
    await wire.ask(a_produce(name, {0: a_batch(b"v", keys=[b"k"])}))

    refused = await delete_records(wire, name, 1)
    negative = await delete_records(wire, name, -2)
    await alter(wire, name, ("cleanup.policy", SET, "compact,delete"))
    allowed = await delete_records(wire, name, 1)

    assert (refused.error_code, refused.low_watermark) == (ErrorCode.policy_violation, -1)
    assert negative.error_code is ErrorCode.policy_violation
    assert (allowed.error_code, allowed.low_watermark) == (ErrorCode.none, 1)


async def test_delete_records_refuses_unknown_partitions_and_uses_the_last_of_two_offsets(wire: Wire) -> None:
    topic = await a_topic_of(wire, "trimmed-once", 2)
    twice = [{"partition_index": 0, "offset": 2}, {"partition_index": 0, "offset": 1}]

    missing = await delete_records(wire, "nowhere", 1)
    beyond = await delete_records(wire, topic.name, 1, partition=7)
    answer = await wire.ask(
        request(21, 2, topics=[{"name": topic.name, "partitions": twice}], timeout=TIMEOUT)
    )

    assert [missing.error_code, beyond.error_code] == [ErrorCode.unknown_topic_or_partition] * 2
    [found] = answer.topics[0].partitions
    assert (found.error_code, found.low_watermark) == (ErrorCode.none, 1)


async def test_another_agent_notices_deleted_records(module_database_url: str) -> None:
    async with (
        running(module_database_url, zone="y") as one,
        running(module_database_url, zone="z") as other,
    ):
        wire, afar = await Wire.connect(one.app.kafka_port), await Wire.connect(other.app.kafka_port)
        topic = await a_topic_of(wire, "trimmed-afar", 3)

        async def first(wanted: ErrorCode) -> bool:
            found = (await afar.ask(a_fetch(12, topic, 0))).responses[0].partitions[0]
            return bool(found.error_code is wanted)

        await until_answered(lambda: first(ErrorCode.none))
        await delete_records(wire, topic.name, 2)
        await until_answered(lambda: first(ErrorCode.offset_out_of_range))
        wire.close()
        afar.close()


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_one_epoch_ends_at_the_high_watermark(wire: Wire, version: int) -> None:
    topic = await a_topic_of(wire, f"epoch-{version}", 2)

    ours = await epoch_end(wire, topic.name, version, -1, 0)
    named = await epoch_end(wire, topic.name, version, 0, 0)
    never = await epoch_end(wire, topic.name, version, 0, 5)

    assert (ours.error_code, ours.leader_epoch, ours.end_offset) == (ErrorCode.none, 0, 2)
    assert (named.error_code, named.leader_epoch, named.end_offset) == (ErrorCode.none, 0, 2)
    assert (never.error_code, never.leader_epoch, never.end_offset) == (ErrorCode.none, -1, -1)


async def test_an_unknown_leader_epoch_is_an_error_in_every_api(wire: Wire) -> None:
    topic = await a_topic_of(wire, "epochs", 1)

    async def codes(epoch: int) -> Sequence[ErrorCode]:
        fetched = await wire.ask(a_fetch(12, topic, 0, partition={"current_leader_epoch": epoch}))
        return [
            (await epoch_end(wire, topic.name, 4, epoch, 0)).error_code,
            (await list_offset(wire, topic.name, -1, current_leader_epoch=epoch)).error_code,
            fetched.responses[0].partitions[0].error_code,
        ]

    assert await codes(0) == [ErrorCode.none] * 3
    assert await codes(1) == [ErrorCode.unknown_leader_epoch] * 3
    assert await codes(-2) == [ErrorCode.fenced_leader_epoch] * 3


async def test_epochs_of_unknown_partitions_are_unknown(wire: Wire) -> None:
    topic = await a_topic_of(wire, "epoch-less", 0)

    answers = [
        await epoch_end(wire, "nowhere", 4, 0, 0),
        await epoch_end(wire, topic.name, 4, 0, 0, partition=9),
    ]

    assert [found.error_code for found in answers] == [ErrorCode.unknown_topic_or_partition] * 2
    assert [(found.leader_epoch, found.end_offset) for found in answers] == [(-1, -1)] * 2


async def test_special_times_come_with_the_versions_that_know_them(wire: Wire) -> None:
    topic = await a_topic_of(wire, "times", 3)
    await delete_records(wire, topic.name, 1)
    known_from = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
    offsets = {-1: 3, -2: 1, -3: 1, -4: 1, -5: -1, -6: -1}

    for special, first in known_from.items():
        found = await list_offset(wire, topic.name, special)
        assert (found.error_code, found.offset) == (ErrorCode.none, offsets[special])
        if first > 1:
            early = await list_offset(wire, topic.name, special, version=first - 1)
            assert (early.error_code, early.offset) == (ErrorCode.unsupported_version, -1)
    assert (await list_offset(wire, topic.name, -7)).error_code is ErrorCode.unsupported_version


async def test_a_partition_named_twice_has_no_offset(wire: Wire) -> None:
    topic = await a_topic_of(wire, "listed-twice", 1)
    asked = [{"name": topic.name, "partitions": [{"partition_index": 0, "timestamp": -1}] * 2}]

    answer = await wire.ask(request(2, 9, replica_id=-1, isolation_level=0, timeout=TIMEOUT, topics=asked))

    assert [found.error_code for found in answer.topics[0].partitions] == [ErrorCode.invalid_request]


async def test_a_stale_topic_id_is_unknown_to_produce_and_fetch(wire: Wire) -> None:
    old = await a_topic_of(wire, "renewed", 1)
    await delete(wire, 6, name="renewed")
    new = await create(wire, "renewed")

    produced = await wire.ask(a_produce("", {0: a_batch(b"x")}, version=13, topic_id=old.topic_id))
    fetched = await wire.ask(a_fetch(13, old, 0))
    never = await wire.ask(a_produce("", {0: a_batch(b"x")}, version=13, topic_id=UUID(int=9)))
    fresh = await wire.ask(a_produce("", {0: a_batch(b"x")}, version=13, topic_id=new.topic_id))

    assert partitions_of(produced)[0].error_code is ErrorCode.unknown_topic_id
    assert fetched.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    assert partitions_of(never)[0].error_code is ErrorCode.unknown_topic_id
    assert (partitions_of(fresh)[0].error_code, partitions_of(fresh)[0].base_offset) == (ErrorCode.none, 0)


async def test_a_short_timeout_is_answered_within_it_or_done(wire: Wire) -> None:
    """A millisecond suffices or it does not. In both cases the answer has the right code."""
    topic = await a_topic_of(wire, "hasty", 1)
    partitions = [{"partition_index": 0, "offset": 1}]

    asked = request(
        21, 2, topics=[{"name": topic.name, "partitions": partitions}], timeout=timedelta(milliseconds=1)
    )
    found = (await wire.ask(asked)).topics[0].partitions[0]

    assert found.error_code in (ErrorCode.none, ErrorCode.request_timed_out)
