"""Hand-made Kafka requests, in any version, to an agent in this process. kio's classes encode and decode
them.
"""

import asyncio
from dataclasses import fields
from datetime import timedelta
from io import BytesIO
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

FETCH, LIST_OFFSETS = 1, 2


async def ask(port: int, request: Any, client_id: str = "test") -> Any:
    """Returns the agent's answer to one request, on a separate connection."""
    flexible = request.__flexible__
    header_class = HeaderV2 if flexible else HeaderV1
    header = header_class(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(7),
        client_id=client_id,
    )
    buffer = BytesIO()
    entity_writer(header_class)(buffer, header)
    entity_writer(type(request))(buffer, request)
    body = buffer.getvalue()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(len(body).to_bytes(4, "big") + body)
        async with asyncio.timeout(60):
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    finally:
        writer.close()
    response_class = load_response_schema(request.__api_key__, request.__version__)
    skip = 5 if response_class.__header_schema__.__flexible__ else 4
    response, _ = entity_reader(response_class)(memoryview(answer), skip)
    return response


def request(api_key: int, version: int, **values: Any) -> Any:
    """Returns a request of a version. Values that the version does not know are left out, as a client of that
    version would do.
    """
    return _of(load_request_schema(api_key, version), values)


def a_fetch(version: int, topic: Any, *offsets: int, **values: Any) -> Any:
    """Returns a fetch of partitions 0, 1, ... of one topic."""
    partition = {"current_leader_epoch": -1, "partition_max_bytes": 1 << 20, **values.pop("partition", {})}
    partitions = [
        dict(partition, partition=number, fetch_offset=offset) for number, offset in enumerate(offsets)
    ]
    defaults = {"max_wait": timedelta(0), "min_bytes": 1, "forgotten_topics_data": (), "replica_id": -1}
    asked = [{"topic": topic.name, "topic_id": topic.topic_id, "partitions": partitions}]
    return request(FETCH, version, topics=asked, **{**defaults, **values})


def a_list_offsets(version: int, name: str, timestamp: int, partition: int = 0, **values: Any) -> Any:
    asked = [{"name": name, "partitions": [{"partition_index": partition, "timestamp": timestamp, **values}]}]
    return request(
        LIST_OFFSETS, version, replica_id=-1, isolation_level=0, timeout=timedelta(seconds=30), topics=asked
    )


def _of(entity: Any, values: dict[str, Any]) -> Any:
    known = {field.name: field for field in fields(entity)}
    taken = {}
    for name, value in values.items():
        if name not in known:
            continue
        taken[name] = (
            tuple(_nested(entity, name, part) for part in value) if isinstance(value, list) else value
        )
    return entity(**taken)


def _nested(entity: Any, name: str, value: Any) -> Any:
    """Returns the entity of a field that is an array of entities. Its class is in the entity's module."""
    import sys
    from typing import get_args, get_type_hints

    hint = get_type_hints(entity, vars(sys.modules[entity.__module__]))[name]
    array = next((part for part in get_args(hint) if get_args(part)), hint)  # of a nullable array, the array
    return _of(get_args(array)[0], value)
