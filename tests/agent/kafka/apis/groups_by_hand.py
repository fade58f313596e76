"""Requests of groups as a client sends them, frame by frame, in any version."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from tests.agent.read_path.wire import request
from tests.agent.running import Wire

SESSION = timedelta(seconds=30)


def a_join(group_id: str, member_id: str = "", *, version: int = 9, **values: Any) -> Any:
    given = {
        "session_timeout": SESSION,
        "rebalance_timeout": SESSION,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"subscription"}],
        "reason": None,
        **values,
    }
    return request(11, version, group_id=group_id, member_id=member_id, **given)


async def join(wire: Wire, group_id: str, member_id: str = "", *, version: int = 9, **values: Any) -> Any:
    """Joins. Uses the member id from the first answer where one is required (KIP-394)."""
    answer = await wire.ask(a_join(group_id, member_id, version=version, **values))
    if answer.error_code is ErrorCode.member_id_required:
        answer = await wire.ask(a_join(group_id, answer.member_id, version=version, **values))
    return answer


async def sync(wire: Wire, group_id: str, joined: Any, *, version: int = 5, **values: Any) -> Any:
    given = {
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": joined.member_id, "assignment": b"its part"}],
        **values,
    }
    return await wire.ask(request(14, version, group_id=group_id, **given))


async def member(wire: Wire, group_id: str, **values: Any) -> Any:
    """The only member of a stable group."""
    joined = await join(wire, group_id, **values)
    assert joined.error_code is ErrorCode.none
    assert (await sync(wire, group_id, joined)).error_code is ErrorCode.none
    return joined


def a_heartbeat(group_id: str, member_id: str, generation: int, *, version: int = 4) -> Any:
    return request(
        12, version, group_id=group_id, member_id=member_id, generation_id=generation, group_instance_id=None
    )  # fmt: skip


async def beat(wire: Wire, group_id: str, member_id: str, generation: int, *, version: int = 4) -> ErrorCode:
    answer = await wire.ask(a_heartbeat(group_id, member_id, generation, version=version))
    return answer.error_code  # type: ignore[no-any-return]


async def leave(
    wire: Wire, group_id: str, member_id: str, *, version: int = 5, instance_id: str | None = None
) -> Any:
    members = [{"member_id": member_id, "group_instance_id": instance_id, "reason": None}]
    return await wire.ask(request(13, version, group_id=group_id, member_id=member_id, members=members))


def a_commit(
    group_id: str,
    topic: Any,
    offset: int = 5,
    *,
    version: int = 9,
    partition: int = 0,
    metadata: str | None = "note",
    **values: Any,
) -> Any:
    partitions = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": 3,
            "committed_metadata": metadata,
        }
    ]
    given = {
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": [{"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions}],
        **values,
    }
    return request(8, version, group_id=group_id, **given)


async def commit(wire: Wire, group_id: str, topic: Any, offset: int = 5, **values: Any) -> ErrorCode:
    answer = await wire.ask(a_commit(group_id, topic, offset, **values))
    return answer.topics[0].partitions[0].error_code  # type: ignore[no-any-return]


async def fetch(
    wire: Wire,
    group_id: str,
    topic: Any,
    *partitions: int,
    version: int = 9,
    topics: Any = ...,
    **values: Any,
) -> Any:
    """Returns the group's part of the response. In v1-v7 that is the response."""
    named = [{"name": topic.name, "topic_id": topic.topic_id, "partition_indexes": partitions}]
    asked = named if topics is ... else topics
    if version >= 8:
        group = {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": asked, **values}
        return (await wire.ask(request(9, version, groups=[group], require_stable=True))).groups[0]
    return await wire.ask(request(9, version, group_id=group_id, topics=asked, require_stable=True))


def offsets(fetched: Any) -> dict[Any, tuple[int, str | None, ErrorCode]]:
    """Returns the offsets by topic (name or id) and partition."""
    return {
        (getattr(topic, "name", None) or topic.topic_id, part.partition_index): (
            part.committed_offset,
            part.metadata,
            part.error_code,
        )
        for topic in fetched.topics
        for part in topic.partitions
    }


async def describe(wire: Wire, group_id: str, *, version: int = 6) -> Any:
    asked = request(15, version, groups=(group_id,), include_authorized_operations=False)
    return (await wire.ask(asked)).groups[0]


async def delete(wire: Wire, *group_ids: str, version: int = 2) -> list[tuple[str, ErrorCode]]:
    answer = await wire.ask(request(42, version, groups_names=group_ids))
    return [(result.group_id, result.error_code) for result in answer.results]


async def consume(wire: Wire, group_id: str, epoch: int, *, version: int = 1, **values: Any) -> Any:
    """Sends a heartbeat of the new protocol. The first one has all fields."""
    joins = epoch == 0
    given = {
        "member_id": "ann" if version else "",
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": SESSION if joins else timedelta(milliseconds=-1),
        "subscribed_topic_names": ("orders",) if joins else None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [] if joins else None,
        **values,
    }
    return await wire.ask(request(68, version, group_id=group_id, member_epoch=epoch, **given))


async def describe_consumer(wire: Wire, group_id: str, *, version: int = 1) -> Any:
    asked = request(69, version, group_ids=(group_id,), include_authorized_operations=False)
    return (await wire.ask(asked)).groups[0]


def assigned(heartbeat: Any) -> dict[UUID, tuple[int, ...]] | None:
    if heartbeat.assignment is None:
        return None
    return {topic.topic_id: topic.partitions for topic in heartbeat.assignment.topic_partitions}
