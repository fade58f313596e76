"""Handles one request: from a frame by kio's reader to the handler, and by kio's writer to the response.

As in Kafka, a request of a version that is not served closes its connection. ApiVersions is the exception: it
is answered in version 0 with UNSUPPORTED_VERSION and the ranges (KIP-511), so that a newer client can step
down.

kio's writers take 10 to 30 µs per entry, and some responses have an entry for each partition of the cluster.
Such a response is written in slices, between which the event loop serves other clients. Its bytes are those
that kio writes.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import get_field_tag
from kio.serial._serialize import get_field_writer
from kio.serial.readers import Reader
from kio.serial.writers import Writer, write_unsigned_varint
from kio.static.primitive import i32Timedelta, uvarint

from agent.kafka.api import API_VERSIONS_KEY, Api, Handler, Order
from agent.kafka.audited_changes import CHANGES, OFFSET_COMMIT, changes_of
from agent.kafka.context import RequestContext, asker_of
from agent.kafka.older_requests import complete
from agent.kafka.transport.request_shape import check_shape
from agent.kafka.transport.vectored import Chunk, Encoded, ResponseBuffer
from agent.kafka.uses import UsesAudit, UsesOverload
from agent.security.sasl.session import SASL_AUTHENTICATE
from agent.settings import AgentSettings
from agent.slices import Slices
from agent.tenants.api_names import API_NAMES
from agent.tenants.translation import inward, outward

_FEW: Final = 200
"""Entries that are written in one go."""
_NO_TAGS: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    write: Writer[Any]
    entries: Any
    """The class of its entries, if it is an array of entities."""


@lru_cache(maxsize=1024)
def _fields_of(entity: Any) -> Sequence[_Field] | None:
    """Returns None if it has tagged fields: kio writes it."""
    if any(get_field_tag(field) is not None for field in fields(entity)):
        return None
    hints = get_type_hints(entity)
    return [
        _Field(
            field.name,
            get_field_writer(field, flexible=entity.__flexible__, is_request_header=False, is_tag=False),
            _entries_of(hints[field.name]),
        )
        for field in fields(entity)
    ]


def _entries_of(hint: Any) -> Any:
    found = next((one for one in (hint, *get_args(hint)) if get_origin(one) is tuple), None)
    return get_args(found)[0] if found is not None and is_dataclass(get_args(found)[0]) else None


def is_long(entity: Any, value: object) -> bool:
    """True if the response, of this class of kio's, has more entries than are written in one go."""
    return _left_of(_FEW, entity, value) < 0


def _left_of(most: int, entity: Any, value: object) -> int:
    """Returns how much of `most` remains after all entries are counted. The counting ends below 0."""
    for field in _fields_of(entity) or ():
        if field.entries is None:
            continue
        entries = getattr(value, field.name) or ()
        most -= len(entries)
        for entry in entries:
            if most < 0:
                return most
            most = _left_of(most, field.entries, entry)
    return most


async def write_in_slices(
    buffer: ResponseBuffer, entity: Any, value: object, slices: Slices | None = None
) -> None:
    """`value` has the fields of `entity`, a class of kio's."""
    slices = slices or Slices()
    layout = _fields_of(entity)
    if layout is None or all(field.entries is None for field in layout):
        entity_writer(entity)(buffer, value)  # type: ignore[arg-type]  # kio calls write alone
        await slices.look()
        return
    for field in layout:
        found = getattr(value, field.name)
        if field.entries is None or not found:
            field.write(buffer, found)  # type: ignore[arg-type]
            continue
        if entity.__flexible__:
            write_unsigned_varint(buffer, uvarint(len(found) + 1))  # type: ignore[arg-type]
        else:
            buffer.write(len(found).to_bytes(4, "big"))
        for entry in found:
            await write_in_slices(buffer, field.entries, entry, slices)
    if entity.__flexible__:
        buffer.write(_NO_TAGS)


PRODUCE_KEY: Final = 0
RAW_VERSION: Final = -1
"""Stands for the version of a SASL message that came without Kafka's header (after SaslHandshake v0)."""
_LOOKUPS: Final = (Order.READ, Order.ALONE)
"""Requests that may query the database. Produce and Fetch have their own pauses."""
_FIXED_HEADER: Final = struct.Struct(">hhi")


_MOST_LOGGED_BYTES: Final = 100
_MOST_HEADER_TAGS: Final = 32
"""The largest count that takes one byte."""
_read_header_v1: Final = entity_reader(HeaderV1)
_read_header_v2: Final = entity_reader(HeaderV2)


class BadRequest(Exception):
    """A frame is not a request that this agent can read. The connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decoded request. `payload` is kio's class of that version. None: ApiVersions in a version that is not
    served.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    payload: Any
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _RawMessage:
    """A SASL message. It is secret."""

    auth_bytes: bytes


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
    """Raises BadRequest for tagged fields in the header: Kafka defines none, and millions of them would block
    the event loop.
    """
    tags_at = _FIXED_HEADER.size + 2 + max(0, int.from_bytes(frame[8:10], "big", signed=True))
    if flexible and tags_at < len(frame) and frame[tags_at] > _MOST_HEADER_TAGS:
        raise BadRequest("its header has too many tagged fields")


def _asked_by(frame: bytes | memoryview) -> str:
    """Returns the client id for a log line. It has the same place in the headers of all versions."""
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


async def _audited(
    api: Api, handle: Handler, payload: Any, context: RequestContext[UsesAudit]
) -> object | None:
    """Handles a request that changes what administrators manage, and notes what it changed. It may have
    changed something even if it ends without an answer.
    """
    response: object | None = None
    try:
        response = await handle(payload, context)
        return response
    finally:
        audit = context.parts.audit
        with audit.guarded():
            resources = changes_of(api.key, payload, response)
            asker = asker_of(context.connection, context.client_id)
            audit.changed(asker, api.name, resources, of_offsets=api.key == OFFSET_COMMIT)


class Dispatch:
    """Knows the served APIs. Holds no state of any request."""

    def __init__(self, apis: Iterable[Api], settings: AgentSettings) -> None:
        self._apis = {api.key: api for api in apis}
        self._settings = settings

    @property
    def apis(self) -> tuple[Api, ...]:
        return tuple(self._apis.values())

    def decode(self, frame: bytes | memoryview) -> Request:
        """Decodes a frame. The result does not refer to the frame's buffer, except the records of a Produce.
        Raises BadRequest.
        """
        api_key, version, correlation_id = _FIXED_HEADER.unpack_from(frame)
        api = self._apis.get(api_key)
        if api is None:
            raise BadRequest(f"api key {api_key} is not served{_asked_by(frame)}")
        if not api.serves(version):
            if api_key != API_VERSIONS_KEY:
                raise BadRequest(f"{api.name} version {version} is not served{_asked_by(frame)}")
            return Request(
                api=api,
                version=0,
                correlation_id=correlation_id,
                client_id=None,
                payload=None,
                size_bytes=len(frame),
            )
        if len(frame) > self._settings.max_control_request_bytes and api_key != PRODUCE_KEY:
            raise BadRequest(f"{api.name} of {len(frame)} bytes exceeds max_control_request_bytes")
        codec = _codec(api_key, version)
        try:
            _check_header(frame, flexible=codec.read_header is _read_header_v2)
            header, body_start = codec.read_header(frame, 0)
            payload = self._payload(api, version, frame, body_start)
        except Exception as error:  # any failure of the reader means that the bytes from outside are wrong
            what = f"{api.name} version {version} cannot be read: {type(error).__name__}"
            if api.has_secrets:
                raise BadRequest(what) from None
            raise BadRequest(f"{what}: {error}") from error
        return Request(
            api=api,
            version=version,
            correlation_id=correlation_id,
            client_id=header.client_id,
            payload=payload,
            size_bytes=len(frame),
        )

    def decode_raw(self, frame: bytes | memoryview) -> Request:
        """Makes a SaslAuthenticate of a frame without a header."""
        return Request(
            api=self._apis[SASL_AUTHENTICATE],
            version=RAW_VERSION,
            correlation_id=0,
            client_id=None,
            payload=_RawMessage(auth_bytes=bytes(frame)),
            size_bytes=len(frame),
        )

    def _payload(self, api: Api, version: int, frame: bytes | memoryview, body_start: int) -> Any:
        decode = api.code.decode
        if decode is not None:
            return decode(frame, body_start, version, self._settings)
        codec = _codec(api.key, version)
        complete(codec.schema, api.code.request)
        check_shape(frame, body_start, codec.schema, self._settings.max_entries_per_request)
        # As in Kafka, bytes after the payload are ignored: librdkafka's Metadata v13 ends with three.
        payload, _ = codec.read(frame, body_start)
        return payload

    def begin(
        self,
        request: Request,
        context: RequestContext[UsesOverload],
        response: asyncio.Future[list[Chunk] | None],
    ) -> bool:
        """Takes a request that needs no task. `response` then gets what `answer` would return. False: the
        request needs a task.
        """
        begin = request.api.code.begin
        if begin is None:
            return False

        def respond(make: Callable[[], object]) -> None:
            if response.done():  # the client no longer waits for it
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
        """Returns the response's buffers, or None if the request wants no response."""
        response = await self.respond(request, context)
        if response is None:
            return None
        if request.version == RAW_VERSION:
            answer = cast(_RawMessage, response).auth_bytes
            return [len(answer).to_bytes(4, "big"), answer]
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

    async def respond(self, request: Request, context: RequestContext[Any]) -> object | None:
        """Returns the handler's response. A tenant's client says and sees its own names. None: the request
        wants no response.
        """
        handle: Handler = request.api.code.handle
        if request.api.key in CHANGES:
            handle = partial(_audited, request.api, handle)
        tenant = context.tenant
        response: object | None
        names = None if tenant is None else API_NAMES[request.api.key]
        if tenant is None or names is None or request.version == RAW_VERSION or request.payload is None:
            response = await handle(request.payload, context)
            return response
        key, version, payload = request.api.key, request.version, request.payload
        if request.api.code.decode is None:  # otherwise the handler translates what it has decoded itself
            payload = inward(key, version, names, payload, tenant)
        response = await handle(payload, context)
        if response is None or names.writes_itself:
            return response
        assert not isinstance(response, Encoded), "the bytes may have names that the tenant must not see"
        response = await outward(key, version, names, response, tenant)
        return response

    def encode(self, request: Request, response: object) -> list[Chunk]:
        codec = _codec(request.api.key, request.version)
        buffer = ResponseBuffer()
        buffer.write(_response_header(request, codec))
        if isinstance(response, Encoded):
            buffer.write_encoded(response)
            return buffer.buffers()
        codec.write(buffer, response)  # type: ignore[arg-type]  # kio only calls `write`
        return buffer.buffers()
