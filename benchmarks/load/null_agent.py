"""A server that answers every Fetch at once with the same bytes from memory. It shows the most that a
consumer can get.

It reads only the correlation id. Each answer has as much of each partition as a consumer asks for, in batches
as large as the producers', with increasing offsets.
"""

import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.response import FetchableTopicResponse, FetchResponse, PartitionData
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import Records, i32, i32Timedelta, i64

from benchmarks.load.frames import Batch

_OFFSET = struct.Struct(">q")
_ID_POSITION = 4


class _Writer(bytearray):
    """The buffer that kio writes to."""

    def write(self, data: bytes) -> None:
        self.extend(data)


class Answer:
    """One prepared answer with several batches for each partition."""

    def __init__(self, topic: str, batches: Sequence[Batch], each: int) -> None:
        partitions = tuple(_partition(batch, each) for batch in batches)
        response = FetchResponse(
            throttle_time=i32Timedelta.parse(timedelta(0)),
            error_code=ErrorCode.none,
            session_id=i32(0),
            responses=(FetchableTopicResponse(topic=TopicName(topic), partitions=partitions),),
        )
        body = _Writer()
        entity_writer(ResponseHeader)(body, ResponseHeader(correlation_id=i32(0)))  # type: ignore[arg-type]
        entity_writer(FetchResponse)(body, response)  # type: ignore[arg-type]
        self.data = bytearray(len(body).to_bytes(4, "big") + body)
        self._each = each
        self._places = []
        for batch in batches:
            place = self.data.find(batch.data)
            self._places.append((place, len(batch.data), batch.records))

    def stamp(self, correlation_id: bytes, turn: int) -> None:
        """Answer number `turn` of its connection."""
        self.data[_ID_POSITION : _ID_POSITION + 4] = correlation_id
        for place, size, records in self._places:
            for number in range(self._each):
                _OFFSET.pack_into(self.data, place + number * size, (turn * self._each + number) * records)


def _partition(batch: Batch, each: int) -> PartitionData:
    return PartitionData(
        partition_index=i32(batch.partition),
        error_code=ErrorCode.none,
        high_watermark=i64(1 << 40),
        last_stable_offset=i64(1 << 40),
        log_start_offset=i64(0),
        aborted_transactions=None,
        preferred_read_replica=BrokerId(-1),
        records=Records(batch.data * each),
    )


def serve(listener: socket.socket, answers: Sequence[Answer]) -> None:
    """Connection n gets answer n. Returns when all clients have disconnected."""
    threads = []
    for answer in answers:
        connection, _ = listener.accept()
        threads.append(threading.Thread(target=_serve, args=(connection, answer), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _serve(connection: socket.socket, answer: Answer) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, suppress(ConnectionError):
        turn = 0
        while frame := _request(connection):
            answer.stamp(frame[4:8], turn)
            connection.sendall(answer.data)
            turn += 1


def _request(connection: socket.socket) -> bytes:
    """Empty if the client has disconnected."""
    head: Any = connection.recv(4, socket.MSG_WAITALL)
    return connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL) if len(head) == 4 else b""
