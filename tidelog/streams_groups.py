"""Streams groups (KIP-1071), listed and described over connections of this module: librdkafka does not know
them. Every call raises `UserError`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest
from kio.schema.streams_group_describe.v0.response import Assignment, DescribedGroup, TaskIds
from kio.schema.streams_group_describe.v0.response import Member as DescribedMember
from kio.schema.streams_group_describe.v0.response import Subtopology as DescribedSubtopology
from kio.schema.types import GroupId
from kio.static.primitive import i8

from agent.kafka.forwarding.forwarding import BadResponse
from tidelog.agent_connection import Address, connected
from tidelog.errors import UserError
from tidelog.group_offsets import Place

_ATTEMPTS = 5
"""To find the coordinator, which may move meanwhile."""
_MOVING = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)
Tasks = tuple[tuple[str, int], ...]
"""Subtopologies and partitions, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    member_id: str
    member_epoch: int
    topology_epoch: int
    client_id: str
    host: str
    process_id: str
    rack: str | None
    tags: tuple[tuple[str, str], ...]
    active: Tasks
    standby: Tasks
    warmup: Tasks
    is_reconciling: bool
    """True if it does not have the tasks yet that it is to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    subtopology_id: str
    sources: tuple[str, ...]
    repartition_sources: tuple[str, ...]
    repartition_sinks: tuple[str, ...]
    changelogs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroup:
    """`subtopologies` are empty while topics are missing. `topology_epoch` -1: there is no topology yet."""

    name: str
    state: str
    group_epoch: int
    assignment_epoch: int
    topology_epoch: int
    subtopologies: tuple[Subtopology, ...]
    members: tuple[StreamsMember, ...]
    coordinator: int
    coordinator_address: str

    def places_of(self, member: StreamsMember) -> tuple[Place, ...]:
        """The partitions that the member's active tasks read."""
        read = {each.subtopology_id: each.sources + each.repartition_sources for each in self.subtopologies}
        return tuple((topic, number) for part, number in member.active for topic in read.get(part, ()))


def list_streams_groups(
    agents: Iterable[Address], options: Mapping[str, str], timeout_s: float
) -> dict[str, str]:
    """Names and states of the groups that these agents coordinate. `options`: of librdkafka."""
    asked = ListGroupsRequest(states_filter=(), types_filter=("streams",))
    found: dict[str, str] = {}
    for agent in agents:
        answer = _ask(agent, asked, options, timeout_s)
        if answer.error_code is not ErrorCode.none:
            raise _failed(answer.error_code)
        found |= {group.group_id: group.group_state for group in answer.groups}
    return found


def describe_streams_group(
    agents: Sequence[Address], name: str, options: Mapping[str, str], timeout_s: float
) -> StreamsGroup | None:
    """None if there is no such group."""
    code = ErrorCode.coordinator_not_available
    for attempt in range(_ATTEMPTS):
        asked = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(name,))
        [coordinator] = _ask(agents[attempt % len(agents)], asked, options, timeout_s).coordinators
        code = coordinator.error_code
        if code is ErrorCode.none:
            address = coordinator.host, coordinator.port
            wanted = StreamsGroupDescribeRequest(
                group_ids=(GroupId(name),), include_authorized_operations=False
            )
            [group] = _ask(address, wanted, options, timeout_s).groups
            code = group.error_code
            if code is ErrorCode.none:
                return _group(group, int(coordinator.node_id), address)
        if code is ErrorCode.group_id_not_found:
            return None
        if code not in _MOVING:
            break
    raise _failed(code)


def _ask(address: Address, payload: Any, options: Mapping[str, str], timeout_s: float) -> Any:
    try:
        with connected(address, options, timeout_s) as connection:
            return connection.ask(payload)
    except (OSError, BadResponse) as failed:
        raise UserError(
            f"No answer about streams groups from the agent at {address[0]}:{address[1]} ({failed}).",
            "Its /ready says what it waits for.",
        ) from None


def _failed(code: ErrorCode) -> UserError:
    return UserError(f"Kafka error {code.name.upper()} for a streams group.")


def _group(group: DescribedGroup, coordinator: int, address: Address) -> StreamsGroup:
    topology = group.topology
    return StreamsGroup(
        name=group.group_id,
        state=group.group_state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology_epoch=-1 if topology is None else topology.epoch,
        subtopologies=() if topology is None else tuple(map(_subtopology, topology.subtopologies or ())),
        members=tuple(map(_member, group.members)),
        coordinator=coordinator,
        coordinator_address=f"{address[0]}:{address[1]}",
    )


def _subtopology(one: DescribedSubtopology) -> Subtopology:
    return Subtopology(
        subtopology_id=one.subtopology_id,
        sources=tuple(one.source_topics),
        repartition_sources=tuple(topic.name for topic in one.repartition_source_topics),
        repartition_sinks=tuple(one.repartition_sink_topics),
        changelogs=tuple(topic.name for topic in one.state_changelog_topics),
    )


def _member(one: DescribedMember) -> StreamsMember:
    active, standby, warmup = _all_tasks(one.assignment)
    return StreamsMember(
        member_id=one.member_id,
        member_epoch=one.member_epoch,
        topology_epoch=one.topology_epoch,
        client_id=one.client_id,
        host=one.client_host.lstrip("/"),
        process_id=one.process_id,
        rack=one.rack_id,
        tags=tuple((tag.key, tag.value) for tag in one.client_tags),
        active=active,
        standby=standby,
        warmup=warmup,
        is_reconciling=(active, standby, warmup) != _all_tasks(one.target_assignment),
    )


def _all_tasks(assignment: Assignment) -> tuple[Tasks, Tasks, Tasks]:
    return (
        _tasks(assignment.active_tasks),
        _tasks(assignment.standby_tasks),
        _tasks(assignment.warmup_tasks),
    )


def _tasks(ids: Iterable[TaskIds]) -> Tasks:
    return tuple(sorted((one.subtopology_id, int(number)) for one in ids for number in one.partitions))
