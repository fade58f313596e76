"""Consumer groups over the Kafka protocol, with errors a person can act on: every call raises `UserError`."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidelog.errors import UserError
from tidelog.group_offsets import Bounds, Place
from tidelog.kafka_client import as_user_error, client_config
from tidelog.streams_groups import StreamsGroup, describe_streams_group, list_streams_groups

_Result = TypeVar("_Result")

_LIST = "`tidelog groups list` shows those there are."
_GONE = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID})
_IN_USE = frozenset({KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID})
_STATIC = "A consumer with a group.instance.id stays a member after it stopped, until its session times out."
_LITTLE_BYTES = 16_384
_LATE_S = 5.0
"""librdkafka gives up first, and its error has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """`kind` is `classic`, `consumer` or `streams`."""

    name: str
    kind: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    name: str
    kind: str
    state: str
    assignor: str
    coordinator: int | None
    """The node that coordinates the group."""
    coordinator_address: str
    """`host:port`, or empty."""
    members: tuple[Member, ...]
    streams: StreamsGroup | None = None
    """What a streams group has besides."""


class GroupsClient:
    def __init__(
        self, bootstrap: str, timeout_s: float, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`options`: of librdkafka."""
        self._options = options
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._admin = AdminClient(client_config(bootstrap, None, options))

    def list(self) -> list[GroupRow]:
        """By name."""
        found = self._wait(self._admin.list_consumer_groups(request_timeout=self._timeout_s))
        for error in found.errors or ():
            raise as_user_error(error if isinstance(error, KafkaError) else error.args[0], self._bootstrap)
        rows = [
            GroupRow(name=group.group_id, kind=group.type.name.lower(), state=_spelled(group.state.name))
            for group in found.valid
            if group.type.name != "UNKNOWN"
        ]
        streams = list_streams_groups(self._agents(), self._options, self._timeout_s)
        rows += [GroupRow(name=name, kind="streams", state=state) for name, state in streams.items()]
        return sorted(rows, key=lambda row: row.name)

    def describe(self, name: str) -> GroupView | None:
        """None if there is no such group."""
        [future] = self._admin.describe_consumer_groups([name], request_timeout=self._timeout_s).values()
        try:
            found = self._wait(future, name)
        except _NoGroup:
            return self._describe_streams(name)
        if found.state.name == "DEAD":
            return self._describe_streams(name)
        return GroupView(
            name=name,
            kind=found.type.name.lower(),
            state=_spelled(found.state.name),
            assignor=found.partition_assignor,
            coordinator=None if found.coordinator is None else found.coordinator.id,
            coordinator_address=_address(found.coordinator),
            members=tuple(
                Member(
                    member_id=member.member_id,
                    instance_id=member.group_instance_id or None,
                    client_id=member.client_id,
                    host=member.host.lstrip("/"),
                    places=tuple(
                        (place.topic, place.partition) for place in member.assignment.topic_partitions
                    ),
                )
                for member in found.members
            ),
        )

    def _describe_streams(self, name: str) -> GroupView | None:
        found = describe_streams_group(self._agents(), name, self._options, self._timeout_s)
        if found is None:
            return None
        return GroupView(
            name=name,
            kind="streams",
            state=found.state,
            assignor="",
            coordinator=found.coordinator,
            coordinator_address=found.coordinator_address,
            members=tuple(
                Member(
                    member_id=member.member_id,
                    instance_id=None,
                    client_id=member.client_id,
                    host=member.host,
                    places=found.places_of(member),
                )
                for member in found.members
            ),
            streams=found,
        )

    def _agents(self) -> Sequence[tuple[str, int]]:
        try:
            brokers = self._admin.list_topics(timeout=self._timeout_s).brokers
        except KafkaException as failed:
            raise as_user_error(failed.args[0], self._bootstrap) from None
        return [(str(broker.host), broker.port) for broker in brokers.values()]

    def existing(self, name: str) -> GroupView:
        found = self.describe(name)
        if found is None:
            raise UserError(f"There is no group {name}.", _LIST)
        return found

    def committed(self, name: str) -> dict[Place, int]:
        asked = [ConsumerGroupTopicPartitions(name)]
        [future] = self._admin.list_consumer_group_offsets(asked, request_timeout=self._timeout_s).values()
        try:
            found = self._wait(future, name).topic_partitions
        except _NoGroup:
            return {}
        return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    def partitions(self, topic: str) -> range:
        asked = TopicCollection([topic])
        [future] = self._admin.describe_topics(asked, request_timeout=self._timeout_s).values()
        try:
            return range(len(future.result(self._timeout_s + _LATE_S).partitions))
        except KafkaException as failed:
            raise as_user_error(failed.args[0], self._bootstrap, topic) from None

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        """The offsets of those partitions that exist."""
        starts = self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {
            place: Bounds(log_start=starts[place], end=max(starts[place], ends[place]))
            for place in places
            if place in starts and place in ends
        }

    def offsets_at(self, places: Collection[Place], time_ms: int) -> dict[Place, int]:
        """The first offset at or after a time, for those partitions that have one."""
        found = self._offsets(places, OffsetSpec.for_timestamp(time_ms))
        return {place: offset for place, offset in found.items() if offset >= 0}

    def timestamps_at(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """The timestamp of the record at each offset, or of the next record. Reads it from the log."""
        if not offsets:
            return {}
        consumer = Consumer(
            client_config(
                self._bootstrap, None, self._options, **{
                    "group.id": "unused", "enable.auto.commit": False, "allow.auto.create.topics": False,
                    "auto.offset.reset": "earliest", "queued.min.messages": 1,
                    "max.partition.fetch.bytes": _LITTLE_BYTES,
                },
            )
        )  # fmt: skip
        try:
            consumer.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])
            return self._first_timestamps(consumer, set(offsets))
        finally:
            consumer.close()

    def _first_timestamps(self, consumer: Consumer, missing: set[Place]) -> dict[Place, int]:
        found: dict[Place, int] = {}
        until = time.monotonic() + self._timeout_s
        while missing and time.monotonic() < until:
            for message in consumer.consume(num_messages=len(missing), timeout=0.2):
                place = (str(message.topic()), message.partition() or 0)
                if message.error() is not None or place not in missing:
                    continue
                missing.discard(place)
                consumer.incremental_unassign([TopicPartition(*place)])
                kind, timestamp_ms = message.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE:
                    found[place] = timestamp_ms
        return found

    def commit(self, name: str, offsets: Mapping[Place, int]) -> None:
        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(name, places)]
        [future] = self._admin.alter_consumer_group_offsets(asked, request_timeout=self._timeout_s).values()
        for place in self._wait(future, name).topic_partitions:
            if place.error is not None:
                raise self._error(place.error, name)

    def delete(self, name: str) -> None:
        [future] = self._admin.delete_consumer_groups([name], request_timeout=self._timeout_s).values()
        try:
            self._wait(future, name)
        except _NoGroup:
            raise UserError(f"There is no group {name}.", _LIST) from None

    def _offsets(self, places: Iterable[Place], spec: OffsetSpec) -> dict[Place, int]:
        asked = {TopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        found = {}
        for place, future in self._admin.list_offsets(asked, request_timeout=self._timeout_s).items():
            try:
                found[place.topic, place.partition] = int(future.result(self._timeout_s + _LATE_S).offset)
            except KafkaException as failed:
                if failed.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise as_user_error(failed.args[0], self._bootstrap, place.topic) from None
        return found

    def _wait(self, future: "Future[Any]", group: str = "") -> Any:
        try:
            return future.result(self._timeout_s + _LATE_S)
        except KafkaException as failed:
            raise self._error(failed.args[0], group) from None
        except TimeoutError:
            raise UserError(
                f"No answer about groups within {self._timeout_s:g} s.", "Its /ready says why."
            ) from None

    def _error(self, error: KafkaError, group: str) -> UserError:
        if error.code() in _GONE:
            return _NoGroup(f"There is no group {group}.", _LIST)
        if error.code() in _IN_USE:
            return in_use(self.existing(group))
        return as_user_error(error, self._bootstrap)


class _NoGroup(UserError):
    """The group does not exist."""


def in_use(group: GroupView) -> UserError:
    """What to do about a group that has members. Names the members."""
    shown = [f"{member.client_id or member.member_id} ({member.host})" for member in group.members[:5]]
    more = len(group.members) - len(shown)
    who = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    static = any(member.instance_id for member in group.members)
    return UserError(
        f"Group {group.name} is in use" + (f" by {who}." if who else "."),
        "Stop its consumers first: their next commit would undo this." + (f" {_STATIC}" if static else ""),
    )


def _address(node: Any) -> str:
    return "" if node is None else f"{node.host}:{node.port}"


def _spelled(state: str) -> str:
    """`PREPARING_REBALANCING` as Kafka's tools write it: `PreparingRebalance`.

    librdkafka knows only the states of the classic protocol. `Assigning` and `Reconciling` of the new one
    are `UNKNOWN` to it.
    """
    if state == "UNKNOWN":
        return "Rebalancing"
    words = {"REBALANCING": "Rebalance"}
    return "".join(words.get(word, word.capitalize()) for word in state.split("_"))
