"""Common rules of group requests: who asks, which of a client's values Postgres cannot keep, and how groups
of one kind are described.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from agent.error_codes import group_code
from agent.groups.events import GroupDescription, GroupFault
from agent.kafka.authorization import GROUP, may
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator, UsesTopics
from sequencer.groups.stored_groups import GroupKind
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import TopicId
from storage.stores.side_by_side import few_at_a_time

_LONGEST_CLIENT_ID: Final = 200
"""In characters. A classic member's id begins with its client's id, and must fit where ids are kept."""
_LONGEST_INSTANCE_ID_BYTES: Final = 900


HIDES_TOPICS: Final = (
    ErrorCode.topic_authorization_failed,
    "The group has described topic(s) that the client is not authorized to describe.",
)
"""The description of a group if the client may not describe one of its topics. The message is Kafka's."""


Described: TypeAlias = GroupDescription | tuple[ErrorCode, str | None]


class NamedTopic(Protocol):
    """An entry of a request that names a topic, by its name or its id."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> UUID | None: ...


def client_host(context: RequestContext[object]) -> str:
    """Returns the host as Kafka writes it: Java's text for an address without a name."""
    return "/" + context.connection.host


def client_id(context: RequestContext[object]) -> str:
    return (context.client_id or "").replace("\0", "\ufffd")[:_LONGEST_CLIENT_ID]


def can_be_instance_id(instance_id: str | None) -> bool:
    """Kafka's clients limit these to 249 letters, digits, `.`, `_` and `-`. A server only has to be able to
    keep them.
    """
    return instance_id is None or (
        "\0" not in instance_id and 0 < len(instance_id.encode()) <= _LONGEST_INSTANCE_ID_BYTES
    )


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def duration(duration_ms: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=duration_ms))


async def topics_named(
    asked: Sequence[NamedTopic], context: RequestContext[UsesTopics], *, by_id: bool
) -> list[Topic | None]:
    """Returns the topic of each entry of a request, by its `topic_id` or its `name`. None: there is no such
    topic. Raises SequencerUnavailable.
    """
    directory = context.parts.topics
    if by_id:
        found = await directory.by_id({TopicId(one.topic_id) for one in asked if one.topic_id is not None})
        return [None if one.topic_id is None else found.get(TopicId(one.topic_id)) for one in asked]
    named = await directory.by_name({one.name for one in asked})
    return [named.get(one.name) for one in asked]


async def described_groups(
    group_ids: Sequence[str], context: RequestContext[UsesCoordinator], kind: GroupKind
) -> Sequence[Described]:
    """Describes the groups of this kind. For others, for unknown ones, and for those that the client may not
    describe: the error and its message.
    """

    async def describe(group_id: str) -> Described:
        if not may(Operation.DESCRIBE, GROUP, group_id, context):
            return ErrorCode.group_authorization_failed, None
        running = await context.parts.coordinator.group(group_id)
        if isinstance(running, GroupFault):
            message = f"Group {group_id} not found." if running is GroupFault.GROUP_NOT_FOUND else None
            return group_code(running), message
        description = running.machine.describe()
        if description.kind != kind:
            return ErrorCode.group_id_not_found, f"Group {group_id} is not a {kind} group."
        return description

    return await few_at_a_time(describe, group_ids)
