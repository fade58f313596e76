"""Kafka's wire by hand, so that a test may send what no client would: frames, requests, batches with any
field wrong.

Requests and answers are encoded and decoded by kafka-python's message classes: not the library that the agent
uses.
"""

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import crc32c
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
_CRC_END = 21


class ConnectionEnded(Exception):
    """The agent closed the connection."""


def varint(value: int) -> bytes:
    """Zigzag, as in records."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def record(value: bytes, *, key: bytes | None = None, delta: int = 0, headers: bytes = b"\x00") -> bytes:
    """One record; `headers` is its encoded header section."""
    key_part = varint(-1) if key is None else varint(len(key)) + key
    body = b"\x00" + varint(0) + varint(delta) + key_part + varint(len(value)) + value + headers
    return varint(len(body)) + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A record batch whose every field can be wrong; None is what is right."""

    records: bytes = record(b"value")
    count: int = 1
    base_offset: int = 0
    length: int | None = None
    leader_epoch: int = -1
    magic: int = 2
    crc: int | None = None
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    def but(self, **changes: Any) -> "Batch":
        return replace(self, **changes)

    def encoded(self) -> bytes:
        last_delta = self.count - 1 if self.last_offset_delta is None else self.last_offset_delta
        max_timestamp = self.base_timestamp if self.max_timestamp is None else self.max_timestamp
        length = HEADER_BYTES - 12 + len(self.records) if self.length is None else self.length
        values = (self.attributes, last_delta, self.base_timestamp, max_timestamp)
        producer = (self.producer_id, self.producer_epoch, self.base_sequence, self.count)
        place = (self.base_offset, length, self.leader_epoch, self.magic)
        raw = HEADER.pack(*place, 0, *values, *producer) + self.records
        crc = crc32c.crc32c(raw[_CRC_END:]) if self.crc is None else self.crc
        return raw[:17] + struct.pack(">I", crc) + raw[_CRC_END:]


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, version: int, correlation_id: int, client_id: bytes = b"hostile") -> bytes:
    """A request header of version 1; a flexible request has one byte more."""
    return struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id


class Wire:
    """One connection. Every wait has `timeout_s`."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Raises ConnectionEnded."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionEnded from error

    def send_request(self, request: Any) -> int:
        """Sends one of kafka-python's requests, which knows its version, and returns the correlation id."""
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id="hostile")
        self.send(request.encode(framed=True, header=True))
        return self._correlation_id

    def receive(self) -> bytes:
        """The next answer, without its length. Raises ConnectionEnded or TimeoutError."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def answer(self, response: Any) -> Any:
        """The next answer, decoded as the given class and version."""
        return response.decode(memoryview(self.receive()), header=True)

    def ask(self, request: Any, response: Any) -> Any:
        """Sends and receives; the answer must be to this question."""
        correlation_id = self.send_request(request)
        answer = self.answer(response)
        assert answer.header.correlation_id == correlation_id
        return answer

    def is_closed_by_the_agent(self) -> bool:
        """True if the agent closes the connection within the timeout, without another answer."""
        until = time.monotonic() + self._timeout_s
        try:
            while time.monotonic() < until:
                if not self._socket.recv(65_536):
                    return True
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return False

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except ConnectionResetError as error:
                raise ConnectionEnded from error
            if not part:
                raise ConnectionEnded
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def produce(
    topic: str, batches: Sequence[tuple[int, bytes]], version: int = 9, acks: int = -1
) -> tuple[Any, Any]:
    """A Produce request of one topic, and the class of its answer."""
    topic_data = ProduceRequest.TopicProduceData
    partitions = [topic_data.PartitionProduceData(index=index, records=data) for index, data in batches]
    topics = [topic_data(name=topic, partition_data=partitions)]
    request = ProduceRequest[version](transactional_id=None, acks=acks, timeout_ms=15_000, topic_data=topics)
    return request, ProduceResponse[version]


def fetch(
    topic: str, partition: int, offset: int, version: int = 12, max_wait_ms: int = 0
) -> tuple[Any, Any]:
    """A Fetch request of one partition, and the class of its answer."""
    topic_class = FetchRequest.FetchTopic
    asked = topic_class.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [topic_class(topic=topic, partitions=[asked])]
    request = FetchRequest[version](
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=0, topics=topics
    )
    return request, FetchResponse[version]


def list_offsets(topic: str, partition: int, timestamp: int, version: int = 5) -> tuple[Any, Any]:
    """A ListOffsets request of one partition, and the class of its answer."""
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    asked = topic_class.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    topics = [topic_class(name=topic, partitions=[asked])]
    request = ListOffsetsRequest[version](replica_id=-1, isolation_level=0, topics=topics)
    return request, ListOffsetsResponse[version]
