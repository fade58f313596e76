"""The embedded protocol of classic consumers (`consumer` protocol type, versions 0 to 3): subscriptions and
assignments inside the opaque bytes of JoinGroup and SyncGroup. Only clients read them, until a group is
converted.

Promises:
- An assignment is written in a version that its reader knows.
- Bytes of a newer version are read as the newest known version, as clients do.

Topics have names here and ids in the new protocol. A topic without a name or an id is left out.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment as AssignmentV0
from kio.schema.consumer_protocol_assignment.v0.data import TopicPartition as AssignedV0
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription as SubscriptionV0
from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription as SubscriptionV1
from kio.schema.consumer_protocol_subscription.v2.data import ConsumerProtocolSubscription as SubscriptionV2
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription as SubscriptionV3
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from agent.groups.events import Assignment
from agent.kafka.older_requests import complete
from agent.kafka.transport.request_shape import check_shape
from storage.identifiers import Partition, TopicId

Names = Mapping[str, frozenset[Partition]]
"""Partitions by topic name."""

_VERSION: Final = struct.Struct(">h")


class Malformed(Exception):
    """The bytes are not of the embedded consumer protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    topics: frozenset[str]
    owned: Names
    """The partitions that a cooperative member still has when it joins. An eager member has given all up."""
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedAssignment:
    partitions: Names
    user_data: bytes


def read_subscription(metadata: bytes) -> Subscription:
    """Raises `Malformed`."""
    version = _version(metadata)
    read: SubscriptionV3 = _parse(_SUBSCRIPTIONS[min(version, len(_SUBSCRIPTIONS) - 1)], metadata)
    return Subscription(
        topics=frozenset(_listed(read.topics)),
        owned=_by_name(read.owned_partitions),
        rack_id=read.rack_id or None,
    )


def read_assignment(data: bytes) -> EmbeddedAssignment:
    """Raises `Malformed`. No bytes at all are an empty assignment."""
    if not data:
        return EmbeddedAssignment(partitions={}, user_data=b"")
    _version(data)
    read: AssignmentV0 = _parse(AssignmentV0, data)
    return EmbeddedAssignment(partitions=_by_name(read.assigned_partitions), user_data=read.user_data or b"")


def write_assignment(partitions: Names, *, like: bytes) -> bytes:
    """Writes it for the member that subscribed with the bytes `like`. All versions of an assignment have the
    same content.
    """
    body = BytesIO()
    _write_assignment(
        body,
        AssignmentV0(
            assigned_partitions=tuple(
                AssignedV0(topic=TopicName(topic), partitions=tuple(map(i32, sorted(partitions[topic]))))
                for topic in sorted(partitions)
            ),
            user_data=None,
        ),
    )
    return _VERSION.pack(min(_version(like), _NEWEST_ASSIGNMENT)) + body.getvalue()


def by_id(partitions: Names, ids: Callable[[str], TopicId | None]) -> Assignment:
    found: dict[TopicId, frozenset[Partition]] = {}
    for topic, numbers in partitions.items():
        topic_id = ids(topic)
        if topic_id is not None and numbers:
            found[topic_id] = numbers
    return found


def by_name(assignment: Assignment, names: Callable[[TopicId], str | None]) -> Names:
    found: dict[str, frozenset[Partition]] = {}
    for topic_id, numbers in assignment.items():
        name = names(topic_id)
        if name is not None:
            found[name] = numbers
    return found


_SUBSCRIPTIONS: Final[tuple[Any, ...]] = (SubscriptionV0, SubscriptionV1, SubscriptionV2, SubscriptionV3)
for _schema in _SUBSCRIPTIONS:
    complete(_schema, SubscriptionV3)
_READERS: Final[Mapping[Any, Any]] = {
    schema: entity_reader(schema) for schema in (*_SUBSCRIPTIONS, AssignmentV0)
}
_write_assignment: Final = entity_writer(AssignmentV0)
_NEWEST_ASSIGNMENT: Final = 3


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise Malformed("no version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise Malformed(f"version {version}")
    return version


def _parse(schema: Any, data: bytes) -> Any:
    try:
        check_shape(data, _VERSION.size, schema)
        value, _ = _READERS[schema](data, _VERSION.size)
    except Exception as error:  # any failure of the reader means that the bytes from outside are wrong
        raise Malformed(str(error)) from error
    return value


def _listed(array: Any) -> Any:
    """Returns an array that must not be null: kio reads a null as None."""
    if array is None:
        raise Malformed("no array")
    return array


def _by_name(partitions: Any) -> Names:
    found: dict[str, frozenset[Partition]] = {}
    for one in _listed(partitions):
        if any(number < 0 for number in _listed(one.partitions)):
            raise Malformed("a negative partition")
        found[one.topic] = found.get(one.topic, frozenset()) | frozenset(map(Partition, one.partitions))
    return found
