"""From a frame to its handler and back: api key and version -> kio reader -> handler -> kio writer.

A request of a version that is not served closes its connection, as Kafka does, but for ApiVersions, which is answered
in version 0 with UNSUPPORTED_VERSION and the ranges (KIP-511), so that a newer client can step down.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.serial.readers import Reader
from kio.serial.writers import Writer
from kio.static.primitive import i32Timedelta

from agent.kafka.api import API_VERSIONS_KEY, Api, Order
from agent.kafka.context import RequestContext
from agent.kafka.older_requests import complete
from agent.kafka.transport.request_shape import check_shape
from agent.kafka.transport.sliced_writer import is_long, write_in_slices
from agent.kafka.transport.vectored import Chunk, Encoded, ResponseBuffer
from agent.kafka.uses import UsesOverload
from agent.settings import AgentSettings

PRODUCE_KEY: Final = 0
_LOOKUPS: Final = (Order.READ, Order.ALONE)
"""Requests that may ask the database. Produce and Fetch have pauses for what they use."""
_FIXED_HEADER: Final = struct.Struct(">hhi")


_MOST_LOGGED_BYTES: Final = 100
_MOST_HEADER_TAGS: Final = 32
"""Less than what takes a second byte to count."""
_read_header_v1: Final = entity_reader(HeaderV1)
_read_header_v2: Final = entity_reader(HeaderV2)


class BadRequest(Exception):
    """A frame that is no request this agent can read. The connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decoded request. `payload` is kio's class of that version, or None for ApiVersions in a version not served."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    payload: Any
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Codec:
    schema: Any
    read: Reader[Any]
    read_header: Reader[Any]
    write: Writer[Any]
    flexible_response_header: bool


@lru_cache(maxsize=512)
def _codec(api_key: int, version: int) -> _Codec:
    request_schema = load_request_schema(api_key, version)
    response_schema = load_response_schema(api_key, version)
    return _Codec(
        schema=request_schema,
        read=entity_reader(request_schema),
        read_header=_read_header_v2 if request_schema.__flexible__ else _read_header_v1,
        write=entity_writer(response_schema),
        flexible_response_header=response_schema.__header_schema__.__flexible__,
    )


def _check_header(frame: bytes | memoryview, *, flexible: bool) -> None:
    """Raises BadRequest for tagged fields in the header: Kafka defines none, and millions would keep the event loop."""
    tags_at = _FIXED_HEADER.size + 2 + max(0, int.from_bytes(frame[8:10], "big", signed=True))
    if flexible and tags_at < len(frame) and frame[tags_at] > _MOST_HEADER_TAGS:
        raise BadRequest("its header has too many tagged fields")


def _asked_by(frame: bytes | memoryview) -> str:
    """The client id, which stands in one place in the headers of all versions, for a log line."""
    start = _FIXED_HEADER.size + 2
    length = int.from_bytes(frame[_FIXED_HEADER.size : start], "big", signed=True)
    client_id = bytes(frame[start : start + min(length, _MOST_LOGGED_BYTES)]) if length > 0 else b""
    return f" client_id={client_id.decode(errors='replace')!r}" if client_id else ""


def _response_header(request: Request, codec: _Codec) -> bytes:
    correlation_id = request.correlation_id.to_bytes(4, "big", signed=True)
    return correlation_id + b"\x00" if codec.flexible_response_header else correlation_id  # no tagged fields


def _with_pause(response: Any, api: Api, context: RequestContext[UsesOverload]) -> Any:
    """Asks the client to pause if it has much waiting for the database."""
    pause = timedelta(milliseconds=context.parts.overload.of_lookup(api.name))
    if not pause or pause <= getattr(response, "throttle_time", pause):
        return response
    return replace(response, throttle_time=i32Timedelta.parse(pause))


class Dispatch:
    """Knows the APIs served. Holds no state of any request."""

    def __init__(self, apis: Iterable[Api], settings: AgentSettings) -> None:
        self._apis = {api.key: api for api in apis}
        self._settings = settings

    @property
    def apis(self) -> tuple[Api, ...]:
        return tuple(self._apis.values())

    def decode(self, frame: bytes | memoryview) -> Request:
        """Raises BadRequest. What is returned is independent of the frame's buffer, but for a Produce's records."""
        api_key, version, correlation_id = _FIXED_HEADER.unpack_from(frame)
        api = self._apis.get(api_key)
        if api is None:
            raise BadRequest(f"api key {api_key} is not served{_asked_by(frame)}")
        if not api.serves(version):
            if api_key != API_VERSIONS_KEY:
                raise BadRequest(f"{api.name} version {version} is not served{_asked_by(frame)}")
            return Request(
                api=api, version=0, correlation_id=correlation_id, client_id=None, payload=None, size_bytes=len(frame)
            )
        if len(frame) > self._settings.max_control_request_bytes and api_key != PRODUCE_KEY:
            raise BadRequest(f"{api.name} of {len(frame)} bytes exceeds max_control_request_bytes")
        codec = _codec(api_key, version)
        try:
            _check_header(frame, flexible=codec.read_header is _read_header_v2)
            header, body_start = codec.read_header(frame, 0)
            payload = self._payload(api, version, frame, body_start)
        except Exception as error:  # whatever a reader finds wrong with bytes from outside, they are wrong
            raise BadRequest(f"{api.name} version {version} cannot be read: {type(error).__name__}: {error}") from error
        return Request(
            api=api,
            version=version,
            correlation_id=correlation_id,
            client_id=header.client_id,
            payload=payload,
            size_bytes=len(frame),
        )

    def _payload(self, api: Api, version: int, frame: bytes | memoryview, body_start: int) -> Any:
        decode = api.code.decode
        if decode is not None:
            return decode(frame, body_start, version, self._settings)
        codec = _codec(api.key, version)
        complete(codec.schema, api.code.request)
        check_shape(frame, body_start, codec.schema, self._settings.max_entries_per_request)
        # Bytes after the payload are let pass, as by Kafka: librdkafka's Metadata v13 ends with three.
        payload, _ = codec.read(frame, body_start)
        return payload

    def begin(
        self, request: Request, context: RequestContext[UsesOverload], response: asyncio.Future[list[Chunk] | None]
    ) -> bool:
        """Take a request that needs no task: `response` is then what `answer` would return. False: it needs one."""
        begin = request.api.code.begin
        if begin is None:
            return False

        def respond(make: Callable[[], object]) -> None:
            if response.done():  # nobody waits for it any more
                return
            try:
                response.set_result(self.encode(request, make()))
            except Exception as error:  # noqa: BLE001 - raised where the answer is sent
                response.set_exception(error)

        try:
            return begin(request.payload, context, respond)
        except Exception as error:  # noqa: BLE001 - raised where the answer is sent
            if not response.done():
                response.set_exception(error)
            return True

    async def answer(self, request: Request, context: RequestContext[UsesOverload]) -> list[Chunk] | None:
        """The response's buffers, or None if the request wants none."""
        response = await request.api.code.handle(request.payload, context)
        if response is None:
            return None
        if request.api.order in _LOOKUPS:
            response = _with_pause(response, request.api, context)
        codec = _codec(request.api.key, request.version)
        response_class = load_response_schema(request.api.key, request.version)
        if isinstance(response, Encoded) or not is_long(response_class, response):
            return self.encode(request, response)
        buffer = ResponseBuffer()
        buffer.write(_response_header(request, codec))
        await write_in_slices(buffer, response_class, response)
        return buffer.buffers()

    def encode(self, request: Request, response: object) -> list[Chunk]:
        codec = _codec(request.api.key, request.version)
        buffer = ResponseBuffer()
        buffer.write(_response_header(request, codec))
        if isinstance(response, Encoded):
            buffer.write_encoded(response)
            return buffer.buffers()
        codec.write(buffer, response)  # type: ignore[arg-type]  # kio asks for IO[bytes] and calls write alone
        return buffer.buffers()
