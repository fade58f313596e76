"""Kafka API 15, DescribeGroups, v0-v6 (KIP-345 instance ids, KIP-1043 errors for groups that do not exist).

A group that does not exist, or has the new protocol, is Dead; from v6 on an error says so too.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from agent.error_codes import group_code
from agent.groups.events import DescribedMember, GroupDescription, GroupFault, GroupState
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, may
from agent.kafka.configs.authorized_operations import authorized_operations
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator
from sequencer.security.acl import Operation
from storage.stores.side_by_side import few_at_a_time

_FIRST_WITH_NOT_FOUND: Final = 6
_DEAD: Final = GroupDescription(
    state=GroupState.DEAD,
    kind="classic",
    generation=-1,
    assignment_epoch=-1,
    protocol_type="",
    protocol="",
    members=(),
)


async def handle(
    request: DescribeGroupsRequest, context: RequestContext[UsesCoordinator]
) -> DescribeGroupsResponse:
    groups = await few_at_a_time(partial(_describe, context=context), request.groups)
    if request.include_authorized_operations:
        groups = [
            replace(group, authorized_operations=authorized_operations(GROUP, group.group_id, context))
            if group.error_code is ErrorCode.none
            else group
            for group in groups
        ]
    return DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


async def _describe(group_id: str, context: RequestContext[UsesCoordinator]) -> DescribedGroup:
    if not may(Operation.DESCRIBE, GROUP, group_id, context):
        return _group(group_id, code=ErrorCode.group_authorization_failed)
    running = await context.parts.coordinator.group(group_id)
    if isinstance(running, GroupFault):
        if running in (GroupFault.GROUP_NOT_FOUND, GroupFault.INVALID_GROUP):
            return _dead(group_id, f"Group {group_id} not found.", context)
        return _group(group_id, code=group_code(running))
    description = running.machine.describe()
    if description.kind != "classic":
        return _dead(group_id, f"Group {group_id} is not a classic group.", context)
    return _group(group_id, description)


def _dead(group_id: str, message: str, context: RequestContext[UsesCoordinator]) -> DescribedGroup:
    if context.api_version < _FIRST_WITH_NOT_FOUND:
        return _group(group_id, _DEAD)
    return _group(group_id, _DEAD, ErrorCode.group_id_not_found, message)


def _group(
    group_id: str,
    description: GroupDescription | None = None,
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
) -> DescribedGroup:
    return DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=GroupId(group_id),
        group_state=description.state.value if description else "",
        protocol_type=description.protocol_type if description else "",
        protocol_data=description.protocol if description else "",
        members=tuple(map(_member, description.members)) if description else (),
    )


def _member(member: DescribedMember) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment_bytes,
    )
