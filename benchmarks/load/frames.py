"""Produce and Fetch requests as bytes. They are made once. Correlation ids, sequences, timestamps and offsets
are patched in place.

Pure. Produce is v9 and Fetch v12, the newest that Apache Kafka 4, Tansu 0.6 and Tidelog all speak and that
name topics by name. In a transaction Produce is v12, which adds its partitions itself (KIP-890). A batch's
timestamp is the moment it was sent, so that a consumer knows how old it is.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from crc32c import crc32c
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.types import BrokerId, TopicName, TransactionalId
from kio.static.primitive import Records, i8, i16, i32, i32Timedelta, i64

from agent.kafka.forwarding.forwarding import decode_response, encode_request

_CORRELATION_ID_POSITION = 8
"""In a frame that includes its length: length, API key, version."""
_CRC_POSITION, _CRC_START, _STAMP_POSITION, _HEADER_BYTES = 17, 21, 27, 61
_CRC = struct.Struct(">I")
_STAMP = struct.Struct(">qqqhi")
"""First and last timestamp, producer id, epoch, base sequence."""
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
_VERSION, _VERSION_POSITION = struct.Struct(">h"), 6
_BATCH_HEAD = struct.Struct(">qi11xiq")
"""Base offset, the size after it, last offset delta, base timestamp."""
_SEQUENCES = 1 << 31
_PLAIN_VERSION, _TRANSACTIONAL_VERSION = 9, 12
"""Of Produce. Both have the same layout."""
_ATTRIBUTES_POSITION = 22
_TRANSACTIONAL = 1 << 4


class BadAnswer(Exception):
    """The server answered with an error where the load expects none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A v2 batch of one partition, with no producer yet."""

    partition: int
    records: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    producer_id: int
    epoch: int


class ProduceFrame:
    """One Produce request that is sent over and over. Do not change it while the kernel still has to take
    bytes of it. With a transactional id, its batches are transactional.
    """

    def __init__(
        self,
        topic: str,
        batches: Sequence[Batch],
        client_id: str,
        timeout_s: float = 30.0,
        transactional_id: str | None = None,
    ) -> None:
        partitions = tuple(
            PartitionProduceData(index=i32(batch.partition), records=Records(batch.data)) for batch in batches
        )
        payload = ProduceRequest(
            transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
            acks=i16(-1),
            timeout=i32Timedelta.parse(timedelta(seconds=timeout_s)),
            topic_data=(TopicProduceData(name=TopicName(topic), partition_data=partitions),),
        )
        self._version = _PLAIN_VERSION if transactional_id is None else _TRANSACTIONAL_VERSION
        body = encode_request(0, _PLAIN_VERSION, 0, client_id, payload)
        self.data = bytearray(len(body).to_bytes(4, "big") + body)
        _VERSION.pack_into(self.data, _VERSION_POSITION, self._version)
        self.bytes = sum(len(batch.data) for batch in batches)
        self.records = sum(batch.records for batch in batches)
        self._places = [
            (self.data.find(batch.data), len(batch.data), batch.partition, batch.records) for batch in batches
        ]
        assert all(place[0] > 0 for place in self._places)
        if transactional_id is not None:
            for position, *_ in self._places:
                self.data[position + _ATTRIBUTES_POSITION] |= _TRANSACTIONAL
        self._answer_prefix = 4 + 1 + 1 + 1 + len(topic.encode()) + len(_unsigned_varint(len(batches) + 1))
        self._answer_bytes = self._answer_prefix + 33 * len(batches) + 1 + 4 + 1

    def stamp(
        self, correlation_id: int, now_ms: int, identity: ProducerIdentity | None, sequences: dict[int, int]
    ) -> None:
        """Patches the request for its next use. `sequences` has the next sequence of each partition, and is
        advanced."""
        data = self.data
        _INT32.pack_into(data, _CORRELATION_ID_POSITION, correlation_id)
        view = memoryview(data)
        for position, size, partition, records in self._places:
            if identity is None:
                stamp = (now_ms, now_ms, -1, -1, -1)
            else:
                sequence = sequences.get(partition, 0)
                sequences[partition] = (sequence + records) % _SEQUENCES
                stamp = (now_ms, now_ms, identity.producer_id, identity.epoch, sequence)
            _STAMP.pack_into(data, position + _STAMP_POSITION, *stamp)
            _CRC.pack_into(
                data, position + _CRC_POSITION, crc32c(view[position + _CRC_START : position + size])
            )

    def check(self, answer: memoryview) -> float:
        """Returns the pause in seconds that the answer demands. Raises BadAnswer for any error in it."""
        end = self._answer_bytes
        plain = len(answer) == end
        errors = (
            answer[self._answer_prefix + 4 : end - 6 : 33],
            answer[self._answer_prefix + 5 : end - 6 : 33],
        )
        if plain and not any(errors[0]) and not any(errors[1]):
            return float(_INT32.unpack_from(answer, end - 5)[0]) / 1000
        decoded = decode_response(0, self._version, bytes(answer))
        for topic in decoded.responses:
            for partition in topic.partition_responses:
                if partition.error_code != 0:
                    code, message = partition.error_code.name, partition.error_message
                    raise BadAnswer(f"Produce to partition {partition.index}: {code} {message}")
        return float(decoded.throttle_time.total_seconds())


def _unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The defaults of Kafka's consumers."""

    max_wait_s: float = 0.5
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    partition_max_bytes: int = 1_048_576


class FetchRequests:
    """Fetch requests for partitions of one topic, from their current offsets.

    It uses a fetch session (KIP-227) if the server keeps one, as Java's consumer does. Then a request names
    only the partitions whose offsets changed. Otherwise the same frame is patched and sent again.
    """

    def __init__(self, topic: str, partitions: Sequence[int], client_id: str, limits: FetchLimits) -> None:
        self._topic = topic
        self._client_id = client_id
        self._limits = limits
        self._session_id = self._epoch = 0
        self._moved: set[int] = set()
        self._frame = self._encoded({partition: _MARK + partition for partition in partitions})
        self._places = {
            partition: self._frame.find(_INT64.pack(_MARK + partition)) for partition in partitions
        }
        assert all(place > 0 for place in self._places.values())
        self.offsets = dict.fromkeys(partitions, 0)
        for partition in partitions:
            self.move(partition, 0)

    def move(self, partition: int, offset: int) -> None:
        """The offset to ask for next."""
        self.offsets[partition] = offset
        self._moved.add(partition)
        _INT64.pack_into(self._frame, self._places[partition], offset)

    def next(self, correlation_id: int) -> bytearray:
        frame = self._frame
        if self._session_id:
            frame = self._encoded({partition: self.offsets[partition] for partition in self._moved})
        self._moved.clear()
        _INT32.pack_into(frame, _CORRELATION_ID_POSITION, correlation_id)
        return frame

    def follow(self, answer: memoryview) -> bool:
        """Takes the session that an answer opens or continues. Returns False if the server has lost it. Then
        the next request names all partitions.
        """
        error, session_id = _SESSION.unpack_from(answer, _SESSION_POSITION)
        if error in _SESSION_LOST:
            self._session_id = self._epoch = 0
            return False
        self._session_id = session_id
        self._epoch = self._epoch + 1 if session_id else 0
        return True

    def _encoded(self, offsets: Mapping[int, int]) -> bytearray:
        asked = tuple(
            FetchPartition(
                partition=i32(partition),
                current_leader_epoch=i32(-1),
                fetch_offset=i64(offset),
                last_fetched_epoch=i32(-1),
                log_start_offset=i64(-1),
                partition_max_bytes=i32(self._limits.partition_max_bytes),
            )
            for partition, offset in offsets.items()
        )
        payload = FetchRequest(
            cluster_id=None,
            replica_id=BrokerId(-1),
            max_wait=i32Timedelta.parse(timedelta(seconds=self._limits.max_wait_s)),
            min_bytes=i32(self._limits.min_bytes),
            max_bytes=i32(self._limits.max_bytes),
            isolation_level=i8(0),
            session_id=i32(self._session_id),
            session_epoch=i32(self._epoch),
            topics=(FetchTopic(topic=TopicName(self._topic), partitions=asked),) if asked else (),
            forgotten_topics_data=(),
            rack_id="",
        )
        body = encode_request(1, 12, 0, self._client_id, payload)
        return bytearray(len(body).to_bytes(4, "big") + body)


_SESSION = struct.Struct(">hi")
_SESSION_POSITION = 9
"""In an answer without its length: correlation id, tags, throttle time."""
_SESSION_LOST = frozenset({70, 71, 106})
"""No such session, wrong epoch, wrong topic ids."""
_MARK = 0x5AC3_96F0_0000_0000
"""Plus a partition: an offset that can be found in the encoded request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    partition: int
    error: int
    high_watermark: int
    records: memoryview


class _Cursor:
    __slots__ = ("data", "position")

    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self.position = position

    def integer(self, size: int) -> int:
        start = self.position
        self.position += size
        return int.from_bytes(self.data[start : start + size], "big", signed=True)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip(self, size: int) -> None:
        self.position += size

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())


def fetched_partitions(answer: memoryview) -> Iterator[FetchedPartition]:
    """The answer to a Fetch v12, from a frame without its length, without a copy. Raises BadAnswer for an
    error of the whole answer.
    """
    cursor = _Cursor(answer, 4)
    cursor.tags()
    cursor.skip(4)
    if error := cursor.integer(2):
        raise BadAnswer(f"Fetch: error {error}")
    cursor.skip(4)
    for _ in range(cursor.varint() - 1):
        cursor.skip(cursor.varint() - 1)
        for _ in range(cursor.varint() - 1):
            partition, error, high_watermark = cursor.integer(4), cursor.integer(2), cursor.integer(8)
            cursor.skip(8 + 8)
            for _ in range(max(0, cursor.varint() - 1)):
                cursor.skip(16)
                cursor.tags()
            cursor.skip(4)
            size = max(0, cursor.varint() - 1)
            records = answer[cursor.position : cursor.position + size]
            cursor.skip(size)
            cursor.tags()
            yield FetchedPartition(
                partition=partition, error=error, high_watermark=high_watermark, records=records
            )
        cursor.tags()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBatch:
    """A complete batch. `end` is the offset after its last record."""

    base_offset: int
    end: int
    size: int
    sent_ms: int


def batches_in(records: memoryview) -> Iterator[SeenBatch]:
    """Yields only complete batches, because Kafka may cut the last one."""
    position, available = 0, len(records)
    while position + _HEADER_BYTES <= available:
        base_offset, size, last_delta, timestamp = _BATCH_HEAD.unpack_from(records, position)
        if position + 12 + size > available:
            return
        yield SeenBatch(
            base_offset=base_offset, end=base_offset + last_delta + 1, size=12 + size, sent_ms=timestamp
        )
        position += 12 + size
