"""Requests of streams groups as Kafka Streams sends them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.streams_group_heartbeat.v0 import request as schema
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from tests.agent.read_path.wire import request
from tests.agent.running import Wire


def a_topic_info(
    name: str, partition_count: int = 0, config: Mapping[str, str] | None = None
) -> schema.TopicInfo:
    return schema.TopicInfo(
        name=TopicName(name),
        partitions=i32(partition_count),
        replication_factor=i16(0),
        topic_configs=tuple(schema.KeyValue(key=key, value=value) for key, value in (config or {}).items()),
    )


def a_subtopology(subtopology_id: str, *sources: str, **values: Any) -> schema.Subtopology:
    given: dict[str, Any] = {
        "state_changelog_topics": (),
        "repartition_source_topics": (),
        "copartition_groups": (),
    }
    return schema.Subtopology(
        subtopology_id=subtopology_id, source_topics=tuple(map(TopicName, sources)), **(given | values)
    )


def a_topology(*subtopologies: schema.Subtopology, epoch: int = 0) -> schema.Topology:
    return schema.Topology(epoch=i32(epoch), subtopologies=subtopologies)


def a_word_count(name: str, config: Mapping[str, str] | None = None) -> schema.Topology:
    changelog = a_topic_info(f"{name}-counts", 0, config or {"cleanup.policy": "compact"})
    return a_topology(
        a_subtopology("0", f"{name}-lines", repartition_sink_topics=(TopicName(f"{name}-words"),)),
        a_subtopology(
            "1",
            repartition_source_topics=(a_topic_info(f"{name}-words"),),
            state_changelog_topics=(changelog,),
            copartition_groups=(schema.CopartitionGroup(repartition_source_topics=(i16(0),)),),
        ),
    )


def some_tasks(**tasks: Sequence[int]) -> tuple[schema.TaskIds, ...]:
    return tuple(
        schema.TaskIds(subtopology_id=name.removeprefix("t"), partitions=tuple(map(i32, numbers)))
        for name, numbers in tasks.items()
    )


async def beat(wire: Wire, group_id: str, member_id: str, epoch: int, **values: Any) -> Any:
    joins = epoch == 0
    nothing = () if joins else None
    given = {
        "endpoint_information_epoch": -1,
        "rebalance_timeout": timedelta(seconds=30) if joins else timedelta(milliseconds=-1),
        "process_id": f"process of {member_id}" if joins else None,
        "active_tasks": nothing,
        "standby_tasks": nothing,
        "warmup_tasks": nothing,
        "client_tags": None,
        "task_offsets": None,
        "task_end_offsets": None,
        **values,
    }
    return await wire.ask(request(88, 0, group_id=group_id, member_id=member_id, member_epoch=epoch, **given))


async def describe_streams(wire: Wire, group_id: str) -> Any:
    asked = request(89, 0, group_ids=(group_id,), include_authorized_operations=True)
    return (await wire.ask(asked)).groups[0]


def active(answer: Any) -> dict[str, tuple[int, ...]] | None:
    if answer.active_tasks is None:
        return None
    return {tasks.subtopology_id: tasks.partitions for tasks in answer.active_tasks}
