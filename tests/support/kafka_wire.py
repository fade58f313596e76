"""A light Kafka connection for load. It sends and receives kio's classes, and pipelines requests."""

import asyncio
import contextlib
import itertools
from typing import Any, Self

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.static.primitive import i8

from agent.kafka.forwarding.forwarding import decode_response, encode_request

_CORRELATION_ID_BYTES = 4
_RETRY_S = 0.1


class Connection:
    """Every waiting `ask` raises ConnectionError once the connection has ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_ids = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], int, int]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, host: str, port: int, client_id: str = "benchmark") -> Self:
        return cls(*await asyncio.open_connection(host, port), client_id)

    async def ask(self, payload: Any, timeout_s: float = 60.0) -> Any:
        """The answer to a request of one of kio's classes. Raises TimeoutError, ConnectionError."""
        api_key, version = payload.__api_key__, payload.__version__
        correlation_id = next(self._correlation_ids)
        body = encode_request(api_key, version, correlation_id, self._client_id, payload)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = (answer, api_key, version)
        self._writer.write(len(body).to_bytes(4, "big") + body)
        async with asyncio.timeout(timeout_s):
            return await answer

    def kill(self) -> None:
        """Close the connection at once, as a dying process does."""
        self._reading.cancel()
        self._writer.transport.abort()
        self._fail(ConnectionError("killed"))

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(size)
                answer, api_key, version = self._waiting.pop(
                    int.from_bytes(frame[:_CORRELATION_ID_BYTES], "big")
                )
                if not answer.done():
                    answer.set_result(decode_response(api_key, version, frame))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self._fail(ConnectionError(f"the server hung up: {error}"))

    def _fail(self, error: ConnectionError) -> None:
        for answer, _, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()


async def coordinator_of(host: str, port: int, group_id: str) -> Connection:
    """A connection to the group's coordinator. Waits until there is one."""
    while True:
        with contextlib.suppress(ConnectionError, TimeoutError):
            first = await Connection.open(host, port)
            try:
                asked = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group_id,))
                (found,) = (await first.ask(asked)).coordinators
            finally:
                first.kill()
            if found.error_code is ErrorCode.none:
                return await Connection.open(found.host, found.port)
        await asyncio.sleep(_RETRY_S)
