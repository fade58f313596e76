"""A Metadata response as bytes, v0-v13, made in slices: it may have a million partitions.

kio's writer takes 25 µs of each partition. Here it writes one partition for each route, and one topic and one response
without partitions; the rest is put between. Promises the bytes that kio would have written for the whole, and that no
slice keeps the event loop for longer than some milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, get_args, get_type_hints
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.serial.writers import Writer, write_unsigned_varint
from kio.static.primitive import i32, uvarint

from agent.kafka.routing.routing import NO_NODE, Route
from agent.kafka.transport.vectored import Encoded
from agent.slices import Slices
from storage.identifiers import Partition, TopicId

_METADATA_KEY: Final = 3
_LEADER_EPOCH: Final = i32(0)
_FIRST_FLEXIBLE_VERSION: Final = 9
_PARTITIONS_AT_ONCE: Final = 32
"""Between two looks at the clock."""
_PIECES_OF_A_CHUNK: Final = 6_000
_NO_ID: Final = UUID(int=0)
_INDEX: Final = slice(2, 6)
"""Where a partition's number stands: after its error code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    write_response: Writer[Any]
    write_topic: Writer[Any]
    write_partition: Writer[Any]
    topics_end: int
    """Bytes of a response behind its topics."""
    partitions_end: int
    """Bytes of a topic behind its partitions."""
    is_flexible: bool


@lru_cache
def _format(version: int) -> _Format:
    response = load_response_schema(_METADATA_KEY, version)
    topic = _element_type(response, "topics")
    partition = _element_type(topic, "partitions")
    tags = 1 if version >= _FIRST_FLEXIBLE_VERSION else 0
    has_cluster_operations, has_topic_operations, has_error = version in range(8, 11), version >= 8, version >= 13
    return _Format(
        write_response=entity_writer(response),
        write_topic=entity_writer(topic),
        write_partition=entity_writer(partition),
        topics_end=(4 if has_cluster_operations else 0) + (2 if has_error else 0) + tags,
        partitions_end=(4 if has_topic_operations else 0) + tags,
        is_flexible=bool(tags),
    )


def _element_type(entity: Any, name: str) -> Any:
    return get_args(get_type_hints(entity)[name])[0]


class MetadataEncoder:
    """One response, topic by topic."""

    def __init__(self, version: int, route: Callable[[TopicId, Partition], Route]) -> None:
        self._format = _format(version)
        self._route = route
        self._around: dict[Route, tuple[bytes, bytes]] = {}
        """What stands before a partition's number and behind it, by its route."""
        self._slices = Slices()
        self._topics = 0
        self._chunks: list[bytes] = []
        self._pieces: list[bytes] = []
        """Of the chunk that comes next."""

    async def add(self, topic: MetadataResponseTopic, partitions: int) -> None:
        """`topic` comes without partitions; it gets this many, routed by its id."""
        topic_id = TopicId(topic.topic_id or _NO_ID)
        before_topic, behind_topic = self._around_entries(
            self._format.write_topic, topic, partitions, self._format.partitions_end
        )
        self._topics += 1
        self._pieces.append(before_topic)
        for start in range(0, partitions, _PARTITIONS_AT_ONCE):
            for number in range(start, min(start + _PARTITIONS_AT_ONCE, partitions)):
                route = self._route(topic_id, Partition(number))
                before, behind = self._around.get(route) or self._around_number(route)
                self._pieces += (before, number.to_bytes(4, "big"), behind)
            await self._end_piece()
        self._pieces.append(behind_topic)
        await self._end_piece()

    def response(self, response: object) -> Encoded:
        """`response` comes without topics; it gets those that were added."""
        before, behind = self._around_entries(
            self._format.write_response, response, self._topics, self._format.topics_end
        )
        buffers = [before, *self._chunks, b"".join(self._pieces), behind]
        return Encoded(buffers=buffers, size_bytes=sum(map(len, buffers)))

    def _around_entries(
        self, write: Writer[Any], whole: object, entries: int, bytes_behind: int
    ) -> tuple[bytes, bytes]:
        """What stands before and behind the entries of the array with which `whole` ends, but for these last bytes."""
        written = _written(write, whole)
        end = len(written) - bytes_behind
        if not self._format.is_flexible:
            return written[: end - 4] + entries.to_bytes(4, "big"), written[end:]
        length = BytesIO()
        write_unsigned_varint(length, uvarint(entries + 1))
        return written[: end - 1] + length.getvalue(), written[end:]

    def _around_number(self, route: Route) -> tuple[bytes, bytes]:
        replicas = tuple(BrokerId(node_id) for node_id in route.replicas)
        partition = MetadataResponsePartition(
            error_code=ErrorCode.leader_not_available if route.leader == NO_NODE else ErrorCode.none,
            partition_index=i32(0),
            leader_id=BrokerId(route.leader),
            leader_epoch=_LEADER_EPOCH,
            replica_nodes=replicas,
            isr_nodes=replicas,
            offline_replicas=(),
        )
        written = _written(self._format.write_partition, partition)
        around = self._around[route] = written[: _INDEX.start], written[_INDEX.stop :]
        return around

    async def _end_piece(self) -> None:
        if len(self._pieces) >= _PIECES_OF_A_CHUNK:
            self._chunks.append(b"".join(self._pieces))
            self._pieces.clear()
        await self._slices.look()


def _written(write: Writer[Any], entity: object) -> bytes:
    buffer = BytesIO()
    write(buffer, entity)
    return buffer.getvalue()
