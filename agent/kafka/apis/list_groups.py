"""Kafka API 16, ListGroups, v0-v5 (KIP-518 states, KIP-848 types).

Each agent lists the groups that the ring gives to it, so all agents together list each group once. Behind one
address, every agent lists all groups. The state of a loaded group is the present one, that of others was last
written to Postgres. An unknown state or type matches no group.
"""

import logging
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.types import GroupId

from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import CLUSTER, GROUP, is_silently_allowed
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator, UsesResponseMemory, UsesSequencer
from agent.slices import Slices
from sequencer.database.database import SequencerUnavailable
from sequencer.groups.groups import ListedGroup as StoredListing
from sequencer.security.acl import CLUSTER_NAME, Operation


class _Uses(UsesResponseMemory, UsesCoordinator, UsesSequencer, Protocol):
    """The parts that this API uses."""


log = logging.getLogger("tidelog")

_GROUP_BYTES: Final = 700
"""Reserved while the answer is made."""


async def handle(request: ListGroupsRequest, context: RequestContext[_Uses]) -> ListGroupsResponse:
    try:
        groups = await _list(request, context)
    except SequencerUnavailable as error:
        log.warning("groups cannot be listed", extra={"error": str(error)})
        return ListGroupsResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.coordinator_not_available, groups=()
        )  # fmt: skip
    return ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, groups=tuple(groups))


async def _list(request: ListGroupsRequest, context: RequestContext[_Uses]) -> list[ListedGroup]:
    states = frozenset(state.strip().lower() for state in request.states_filter)
    kinds = frozenset(kind.strip().lower() for kind in request.types_filter)
    memory = context.parts.response_memory
    await memory.reserve(memory.all_groups_bytes, context)
    listed = await context.parts.sequencer.groups.list(within=context.prefix)
    if context.tenant is None:  # a tenant's list says nothing about the length of others
        memory.all_groups_bytes = len(listed) * _GROUP_BYTES
    sees_all = is_silently_allowed(Operation.DESCRIBE, CLUSTER, CLUSTER_NAME, context)
    reaches = context.connection.rights.reaches
    found, slices = [], Slices()
    for one in listed:
        group = _now(one, context)
        if (
            group is not None
            and (not states or group.group_state.lower() in states)
            and (not kinds or group.group_type in kinds)
            and (
                (sees_all and reaches(group.group_id))
                or is_silently_allowed(Operation.DESCRIBE, GROUP, group.group_id, context)
            )
        ):
            found.append(group)
        await slices.look()
    return found


def _now(listed: StoredListing, context: RequestContext[_Uses]) -> ListedGroup | None:
    """Returns None if another agent lists the group."""
    coordinator = context.parts.coordinator
    if context.settings.one_address is None and not coordinator.coordinates(listed.group_id):
        return None
    kind, state = listed.kind, listed.state
    running = coordinator.loaded(listed.group_id)
    if running is not None:
        kind, state = running.machine.kind, running.machine.state.value
    return ListedGroup(
        group_id=GroupId(listed.group_id),
        protocol_type=listed.protocol_type,
        group_state=state,
        group_type=kind,
    )
