"""A request that announces more than it can hold is refused before kio allocates memory for it. Requests that
kio writes pass.
"""

from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_request_schema

from agent.kafka.dispatch import BadRequest, Dispatch
from agent.kafka.forwarding.forwarding import encode_request
from agent.kafka.served import APIS
from agent.kafka.transport.request_shape import ImpossibleShape, _shape_of_class, _Walk, check_shape
from agent.settings import AgentSettings

MANY = 1_000_000
DISPATCH = Dispatch(APIS, AgentSettings())
EVERY_VERSION = [
    (api.key, version) for api in DISPATCH.apis for version in api.versions if api.serves(version)
]
LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\x01\x00\x00\x00",
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
)
"""Lengths of arrays and texts in either encoding, also null and zero."""
VALUES: dict[str, Any] = {
    "string": "é", "bytes": b"bytes", "records": b"records", "bool": True, "float64": 1.5,
    "uuid": UUID(int=1),
    "timedelta_i32": timedelta(milliseconds=5), "timedelta_i64": timedelta(milliseconds=5),
}  # fmt: skip


def a_value(annotation: Any, metadata: Any, entries: int) -> Any:
    """`entries` in each array. Without entries, null where it is allowed."""
    given = get_args(annotation) if get_origin(annotation) is not tuple else ()
    if NoneType in given:
        if not entries:
            return None
        annotation = next(one for one in given if one is not NoneType)
    if get_origin(annotation) is tuple:
        return tuple(a_value(get_args(annotation)[0], metadata, entries) for _ in range(entries))
    return (
        a_request(annotation, entries)
        if is_dataclass(annotation)
        else VALUES.get(metadata.get("kafka_type"), 3)
    )


def a_request(schema: Any, entries: int) -> Any:
    return schema(**{field.name: a_value(field.type, field.metadata, entries) for field in fields(schema)})


def a_frame(api_key: int, version: int, entries: int) -> bytes:
    return encode_request(
        api_key, version, 7, "me", a_request(load_request_schema(api_key, version), entries)
    )


def body_start(api_key: int, version: int) -> int:
    return 12 + load_request_schema(api_key, version).__flexible__  # the fixed header, the client id, no tags


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_requests_written_by_kio_pass_the_check(entries: int) -> None:
    for api_key, version in EVERY_VERSION:
        frame, start = a_frame(api_key, version, entries), body_start(api_key, version)

        check_shape(frame, start, load_request_schema(api_key, version), MANY)

        shape = _shape_of_class(load_request_schema(api_key, version))
        assert _Walk(memoryview(frame), MANY).along(start, shape) == len(frame), (api_key, version)
        DISPATCH.decode(frame)


def test_no_length_anywhere_takes_more_than_the_request() -> None:
    """If it reaches kio, the process ends: kio allocates what is announced, or is aborted."""
    refused = 0
    for api_key, version in EVERY_VERSION:
        frame = a_frame(api_key, version, 1)
        for at in range(body_start(api_key, version), len(frame)):
            for length in LENGTHS:
                try:
                    DISPATCH.decode(frame[:at] + length + frame[at + len(length) :])
                except BadRequest:
                    refused += 1
    assert refused > 1_000


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x05", b"\xff\xff\xff\xff"])
def test_an_impossible_array_is_refused(length: bytes) -> None:
    describe_groups = b"\x00\x0f\x00\x00\x00\x00\x00\x07\xff\xff" + length + b"\x00\x01a"

    with pytest.raises(ImpossibleShape):
        check_shape(describe_groups, 10, load_request_schema(15, 0), MANY)


@pytest.mark.parametrize(("entries", "most", "is_refused"), [(3, 12, False), (3, 11, True)])
def test_entries_are_counted_over_all_lists_of_a_request(entries: int, most: int, is_refused: bool) -> None:
    """ListOffsets: three topics of three partitions each are twelve entries."""
    frame, start = a_frame(2, 10, entries), body_start(2, 10)

    with (
        pytest.raises(ImpossibleShape, match="TIDELOG_MAX_ENTRIES_PER_REQUEST")
        if is_refused
        else nullcontext()
    ):
        check_shape(frame, start, load_request_schema(2, 10), most)
