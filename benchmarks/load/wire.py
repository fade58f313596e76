"""A blocking connection that speaks Kafka's frames: the clients of the load."""

import socket
import time
from datetime import timedelta
from typing import Any, Self

from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.static.primitive import i32Timedelta

from agent.kafka.forwarding.forwarding import decode_response, encode_request
from benchmarks.load.frames import BadAnswer, ProducerIdentity

_BUFFER_BYTES = 1 << 16
_SILENCE_S = 40.0
_RETRY_S = 0.05
_TIMEOUT = timedelta(seconds=60)


class Wire:
    """Sends requests and receives answers in order. Every wait ends after 40 s with TimeoutError."""

    def __init__(self, connected: socket.socket, client_id: str, buffer_bytes: int) -> None:
        self.socket = connected
        self.client_id = client_id
        self._buffer = bytearray(buffer_bytes)
        self._correlation_id = 0
        self._begun = b""
        """The bytes of an incomplete answer."""

    @classmethod
    def open(
        cls, host: str, port: int, client_id: str = "benchmark", buffer_bytes: int = _BUFFER_BYTES
    ) -> Self:
        connected = socket.create_connection((host, port), timeout=_SILENCE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connected, client_id, buffer_bytes)

    def next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        return self._correlation_id

    def send(self, frame: bytes | bytearray) -> None:
        self.socket.sendall(frame)

    def receive(self) -> memoryview:
        """One answer without its length. It is valid until the next one is received."""
        size = int.from_bytes(self._read(4), "big")
        if size > len(self._buffer):
            self._buffer = bytearray(size + size // 4)
        return self._read(size)

    def receive_arrived(self) -> list[memoryview]:
        """The answers that have arrived, in one call. None if the first one is incomplete. Do not mix it with
        `receive` while answers are outstanding.
        """
        arrived = self.socket.recv(_BUFFER_BYTES)
        if not arrived:
            raise ConnectionError("the server hung up")
        data = memoryview(self._begun + arrived)
        answers, start = [], 0
        while (end := start + 4 + int.from_bytes(data[start : start + 4], "big")) <= len(data):
            answers.append(data[start + 4 : end])
            start = end
        self._begun = bytes(data[start:])
        return answers

    def ask(self, payload: Any) -> Any:
        """Sends one of kio's requests and waits for its answer."""
        body = encode_request(
            payload.__api_key__, payload.__version__, self.next_id(), self.client_id, payload
        )
        self.send(len(body).to_bytes(4, "big") + body)
        return decode_response(payload.__api_key__, payload.__version__, bytes(self.receive()))

    def identity(self) -> ProducerIdentity:
        """The id of an idempotent producer. Asks again if the broker has just started. Raises BadAnswer."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout=i32Timedelta.parse(_TIMEOUT)
        )
        until_s = time.monotonic() + _SILENCE_S
        while True:
            answer = self.ask(request)
            if answer.error_code == 0:
                return ProducerIdentity(producer_id=int(answer.producer_id), epoch=int(answer.producer_epoch))
            if time.monotonic() > until_s:
                raise BadAnswer(f"InitProducerId: {answer.error_code.name}")
            time.sleep(_RETRY_S)

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> memoryview:
        view = memoryview(self._buffer)[:size]
        got = 0
        while got < size:
            count = self.socket.recv_into(view[got:])
            if count == 0:
                raise ConnectionError("the server hung up")
            got += count
        return view
