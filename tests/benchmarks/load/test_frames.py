"""The prepared bytes of the load: requests are valid, and answers are read correctly."""

from datetime import timedelta
from io import BytesIO

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.produce.v9.request import ProduceRequest
from kio.schema.produce.v9.response import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta, i64

from benchmarks.load.batches import full_batches
from benchmarks.load.frames import (
    BadAnswer,
    FetchLimits,
    FetchRequests,
    ProduceFrame,
    ProducerIdentity,
    batches_in,
    fetched_partitions,
)
from benchmarks.load.null_agent import Answer
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import read_header

_HEADER_WITH_CLIENT_ID = 4 + 8 + 2 + len("client") + 1


def sent(frame: ProduceFrame) -> ProduceRequest:
    request, _ = entity_reader(ProduceRequest)(bytes(frame.data), _HEADER_WITH_CLIENT_ID)
    return request


def answer_of(error: ErrorCode, partitions: int, throttle_ms: int = 0) -> memoryview:
    answers = tuple(
        PartitionProduceResponse(
            index=i32(partition),
            error_code=error if partition == 1 else ErrorCode.none,
            base_offset=i64(7),
            record_errors=(),
        )
        for partition in range(partitions)
    )
    response = ProduceResponse(
        responses=(TopicProduceResponse(name=TopicName("topic"), partition_responses=answers),),
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=throttle_ms)),
    )
    buffer = BytesIO()
    entity_writer(ResponseHeader)(buffer, ResponseHeader(correlation_id=i32(1)))
    entity_writer(ProduceResponse)(buffer, response)
    return memoryview(buffer.getvalue())


def test_stamped_batches_are_valid_and_continue_their_sequences() -> None:
    frame = ProduceFrame("topic", full_batches(range(3), 100, 4_096), "client")
    sequences: dict[int, int] = {}
    identity = ProducerIdentity(producer_id=42, epoch=1)

    for turn in range(2):
        frame.stamp(turn, 1_700_000_000_123, identity, sequences)
        for partition in sent(frame).topic_data[0].partition_data:
            assert partition.records is not None
            validate_produced(
                partition.records, BatchLimits(max_message_bytes=4_096, max_decompressed_bytes=4_096)
            )
            header = read_header(partition.records)
            assert (header.producer_id, header.producer_epoch) == (42, 1)
            assert header.base_sequence == turn * header.record_count
            assert header.base_timestamp_ms == header.max_timestamp_ms == 1_700_000_000_123
            assert len(partition.records) <= 4_096


def test_a_plain_answer_is_taken_without_decoding_and_any_error_is_found() -> None:
    frame = ProduceFrame("topic", full_batches(range(3), 100, 1_000), "client")

    assert frame.check(answer_of(ErrorCode.none, 3)) == 0.0
    assert frame.check(answer_of(ErrorCode.none, 3, throttle_ms=250)) == 0.25
    with pytest.raises(BadAnswer, match="partition 1: not_leader_or_follower"):
        frame.check(answer_of(ErrorCode.not_leader_or_follower, 3))


def test_fetched_batches_are_walked_and_one_cut_short_is_left_out() -> None:
    batches = full_batches(range(2), 100, 1_000)
    answer = Answer("topic", batches, each=2)
    answer.stamp(b"\0\0\0\7", turn=3)

    found = list(fetched_partitions(memoryview(answer.data)[4:]))

    assert [one.partition for one in found] == [0, 1]
    records = batches[0].records
    assert [batch.base_offset for batch in batches_in(found[0].records)] == [6 * records, 7 * records]
    assert len(list(batches_in(found[0].records[:-1]))) == 1


def test_a_request_of_a_session_names_only_what_has_moved() -> None:
    requests = FetchRequests("topic", range(3), "client", FetchLimits())
    answer = bytearray(memoryview(Answer("topic", full_batches(range(1), 10, 100), each=1).data)[4:])

    def asked(frame: bytearray) -> tuple[int, int, dict[int, int]]:
        request, _ = entity_reader(FetchRequest)(bytes(frame), _HEADER_WITH_CLIENT_ID)
        partitions = [partition for topic in request.topics for partition in topic.partitions]
        offsets = {int(one.partition): int(one.fetch_offset) for one in partitions}
        return int(request.session_id), int(request.session_epoch), offsets

    assert asked(requests.next(1)) == (0, 0, {0: 0, 1: 0, 2: 0})
    answer[11:15] = (99).to_bytes(4, "big")
    assert requests.follow(memoryview(answer))
    requests.move(1, 5)
    assert asked(requests.next(2)) == (99, 1, {1: 5})
    answer[9:11] = (70).to_bytes(2, "big")
    assert not requests.follow(memoryview(answer))
    assert asked(requests.next(3)) == (0, 0, {0: 0, 1: 5, 2: 0})
