"""The asking side of Kafka's protocol: a request to bytes, bytes to its response, for an agent that asks another."""

from functools import lru_cache
from io import BytesIO
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.serial.readers import Reader
from kio.serial.writers import Writer
from kio.static.primitive import i16, i32

_CORRELATION_ID_BYTES: Final = 4
_write_header_v1: Final = entity_writer(HeaderV1)
_write_header_v2: Final = entity_writer(HeaderV2)


class BadResponse(Exception):
    """Bytes that are no response to the request."""


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, payload: Any) -> bytes:
    """A frame without its length."""
    write, is_flexible = _request_writer(api_key, version)
    where = {"request_api_key": i16(api_key), "request_api_version": i16(version)}
    buffer = BytesIO()
    if is_flexible:
        _write_header_v2(buffer, HeaderV2(**where, correlation_id=i32(correlation_id), client_id=client_id))
    else:
        _write_header_v1(buffer, HeaderV1(**where, correlation_id=i32(correlation_id), client_id=client_id))
    write(buffer, payload)
    return buffer.getvalue()


def decode_response(api_key: int, version: int, frame: bytes | memoryview) -> Any:
    """The response in a frame without its length. Raises BadResponse."""
    read, header_bytes = _response_reader(api_key, version)
    try:
        response, _ = read(frame, header_bytes)
    except Exception as error:  # whatever a reader finds wrong with bytes from outside, they are wrong
        raise BadResponse(f"{type(error).__name__}: {error}") from error
    return response


@lru_cache(maxsize=64)
def _request_writer(api_key: int, version: int) -> tuple[Writer[Any], bool]:
    schema = load_request_schema(api_key, version)
    return entity_writer(schema), schema.__flexible__


@lru_cache(maxsize=64)
def _response_reader(api_key: int, version: int) -> tuple[Reader[Any], int]:
    schema = load_response_schema(api_key, version)
    # A flexible header ends with its tagged fields, of which no agent sends any.
    return entity_reader(schema), _CORRELATION_ID_BYTES + schema.__header_schema__.__flexible__
