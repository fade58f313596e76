"""A light Kafka connection for load: kio's classes out and in, requests pipelined, answers as they come."""

import asyncio
import itertools
from functools import lru_cache
from io import BytesIO
from typing import Any, Self

from kio.index import load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

_CORRELATION_ID_BYTES = 4


@lru_cache(maxsize=64)
def _response_reader(api_key: int, version: int) -> tuple[Any, int]:
    schema = load_response_schema(api_key, version)
    tags = 1 if schema.__header_schema__.__flexible__ else 0
    return entity_reader(schema), _CORRELATION_ID_BYTES + tags


class Connection:
    """Raises ConnectionError from every waiting `ask` once it ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_ids = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], Any, int]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, host: str, port: int, client_id: str = "benchmark") -> Self:
        return cls(*await asyncio.open_connection(host, port), client_id)

    async def ask(self, payload: Any, timeout_s: float = 60.0) -> Any:
        """The answer to a request of one of kio's classes. Raises TimeoutError, ConnectionError."""
        header_class = HeaderV2 if payload.__flexible__ else HeaderV1
        correlation_id = next(self._correlation_ids)
        buffer = BytesIO()
        header = header_class(
            request_api_key=payload.__api_key__,
            request_api_version=payload.__version__,
            correlation_id=i32(correlation_id),
            client_id=self._client_id,
        )
        entity_writer(header_class)(buffer, header)
        entity_writer(type(payload))(buffer, payload)
        body = buffer.getvalue()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = (answer, *_response_reader(payload.__api_key__, payload.__version__))
        self._writer.write(len(body).to_bytes(4, "big") + body)
        async with asyncio.timeout(timeout_s):
            return await answer

    def kill(self) -> None:
        """Hang up without a word, as a dying process does."""
        self._reading.cancel()
        self._writer.transport.abort()
        self._fail(ConnectionError("killed"))

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(size)
                answer, read, start = self._waiting.pop(int.from_bytes(frame[:_CORRELATION_ID_BYTES], "big"))
                if not answer.done():
                    answer.set_result(read(frame, start)[0])
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self._fail(ConnectionError(f"the server hung up: {error}"))

    def _fail(self, error: ConnectionError) -> None:
        for answer, _, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()
