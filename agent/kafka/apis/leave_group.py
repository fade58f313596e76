"""Kafka API 13, LeaveGroup, v0-v5 (KIP-345 many members at once, also by instance id alone; KIP-800 reasons).

Carried out even if the client hangs up, as closing clients do. In a group that does not exist, every member
is unknown.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v5.request import MemberIdentity
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse

from agent.error_codes import group_code, member_code
from agent.groups.events import GroupFault, Leave, LeaveAnswer, LeavingMember
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, may
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator
from sequencer.security.acl import Operation

log = logging.getLogger("tidelog")

_FIRST_WITH_MANY: Final = 3


class LeaveGroupRequest(Protocol):
    """A request of any version."""

    group_id: str
    members: Sequence[MemberIdentity] = ()
    member_id: str = ""
    """Until version 2."""


async def handle(request: LeaveGroupRequest, context: RequestContext[UsesCoordinator]) -> LeaveGroupResponse:
    if not may(Operation.READ, GROUP, request.group_id, context):
        return _respond(LeaveAnswer(fault=GroupFault.NOT_AUTHORIZED), context)
    members = _members(request, context)
    for reason in {member.reason for member in request.members if member.reason}:
        log.info("members leave", extra={"group": request.group_id, "reason": reason[:255]})
    event = Leave(token=context.parts.coordinator.next_token(), members=members)
    answer = await context.parts.coordinator.ask(request.group_id, event, LeaveAnswer)
    if answer is GroupFault.GROUP_NOT_FOUND:
        answer = LeaveAnswer(members=tuple((member, GroupFault.UNKNOWN_MEMBER) for member in members))
    elif isinstance(answer, GroupFault):
        answer = LeaveAnswer(fault=answer)
    return _respond(answer, context)


def _members(
    request: LeaveGroupRequest, context: RequestContext[UsesCoordinator]
) -> tuple[LeavingMember, ...]:
    if context.api_version < _FIRST_WITH_MANY:
        return (LeavingMember(member_id=request.member_id, instance_id=None),)
    return tuple(
        LeavingMember(member_id=member.member_id, instance_id=member.group_instance_id)
        for member in request.members
    )


def _respond(answer: LeaveAnswer, context: RequestContext[UsesCoordinator]) -> LeaveGroupResponse:
    code = group_code(answer.fault)
    if context.api_version < _FIRST_WITH_MANY and code is ErrorCode.none:
        code = next((member_code(fault) for _, fault in answer.members if fault is not None), code)
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        members=tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                error_code=member_code(fault),
            )
            for member, fault in answer.members
        ),
    )
