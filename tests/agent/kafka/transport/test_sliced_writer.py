"""A long response is written in slices, in the bytes that kio writes."""

import asyncio
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import cycle
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from agent.kafka.dispatch import is_long, write_in_slices
from agent.kafka.served import APIS
from agent.kafka.transport.vectored import ResponseBuffer

VALUES: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"), 7),
    "string": "text",
    "bytes": b"bytes",
    "records": b"records",
    "bool": True,
    "float64": 0.5,
    "uuid": UUID(int=5),
    "error_code": ErrorCode.not_coordinator,
    "timedelta_i32": timedelta(seconds=1),
    "timedelta_i64": timedelta(seconds=2),
    "datetime_i64": datetime(2026, 1, 1, tzinfo=UTC),
}
RESPONSES = [
    pytest.param(load_response_schema(api.key, version), id=f"{api.name} v{version}")
    for api in APIS
    for version in api.versions
    if version >= api.served_from
]


def filled(entity: Any, sizes: Iterator[int]) -> Any:
    """An entity with a value in each field, and arrays of these sizes."""
    values: dict[str, Any] = {}
    for field in fields(entity):
        kind = next(
            (one for one in (field.type, *get_args(field.type)) if get_origin(one) is tuple), field.type
        )
        if get_origin(kind) is tuple:
            [element, _] = get_args(kind)
            size = next(sizes)
            values[field.name] = tuple(
                filled(element, sizes) if is_dataclass(element) else VALUES[field.metadata["kafka_type"]]
                for _ in range(size)
            )
        elif is_dataclass(kind) or any(map(is_dataclass, get_args(kind))):
            nested = kind if is_dataclass(kind) else next(filter(is_dataclass, get_args(kind)))
            values[field.name] = filled(nested, sizes)
        else:
            values[field.name] = VALUES[field.metadata["kafka_type"]]
    return entity(**values)


@pytest.mark.parametrize("response", RESPONSES)
def test_the_bytes_are_kios(response: Any) -> None:
    for sizes in ((2, 0, 1, 3), (0,), (130, 1, 2)):
        value = filled(response, cycle(sizes))
        by_kio, in_slices = BytesIO(), ResponseBuffer()
        entity_writer(response)(by_kio, value)

        asyncio.run(write_in_slices(in_slices, response, value))

        assert b"".join(map(bytes, in_slices.buffers()[1:])) == by_kio.getvalue()


def test_entries_count_wherever_they_stand() -> None:
    groups, offsets = load_response_schema(16, 5), load_response_schema(2, 7)

    assert not is_long(groups, filled(groups, cycle((200,))))
    assert is_long(groups, filled(groups, cycle((201,))))
    assert not is_long(offsets, filled(offsets, iter((1, 199))))
    assert is_long(offsets, filled(offsets, iter((1, 200))))
    assert is_long(offsets, filled(offsets, iter((2, 10, 200))))


async def test_others_get_their_turn_while_a_long_response_is_written() -> None:
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    groups = load_response_schema(16, 5)
    value = filled(groups, cycle((20_000,)))
    task = asyncio.create_task(another())
    await write_in_slices(ResponseBuffer(), groups, value)
    task.cancel()

    assert turns > 5
