"""Kafka API 11, JoinGroup, v0-v9 (KIP-62 rebalance timeout, KIP-345 static members, KIP-394 member ids,
KIP-559 protocol type, KIP-800 reasons, KIP-814 leaders that skip the assignment).

The answer waits for the group's other members, up to their rebalance timeouts. Refused: instance ids that are
empty, contain a NUL or exceed 900 bytes (INVALID_REQUEST); protocol types with a NUL
(INCONSISTENT_GROUP_PROTOCOL); member ids that no member can have, with a NUL or longer than 1,024 bytes
(UNKNOWN_MEMBER_ID).
"""

import logging
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.static.primitive import i32

from agent.error_codes import member_code
from agent.groups.events import GroupFault, Join, JoinAnswer, OfferedProtocol
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, may
from agent.kafka.context import RequestContext
from agent.kafka.group_requests import can_be_instance_id, client_host, client_id, milliseconds
from agent.kafka.uses import UsesCoordinator
from sequencer.groups.groups import can_be_id
from sequencer.security.acl import Operation

log = logging.getLogger("tidelog")

_FIRST_WITH_REQUIRED_MEMBER_ID: Final = 4
_FIRST_WITH_NULL_PROTOCOL: Final = 7
_FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9


async def handle(request: JoinGroupRequest, context: RequestContext[UsesCoordinator]) -> JoinGroupResponse:
    event = _event(request, context)
    refused = _fault(event)
    if not may(Operation.READ, GROUP, request.group_id, context):
        refused = GroupFault.NOT_AUTHORIZED
    if refused is not None:
        return _respond(JoinAnswer(fault=refused, member_id=event.member_id), context)
    reason = request.reason
    if reason:
        log.info(
            "member joins",
            extra={"group": request.group_id, "member": event.member_id, "reason": reason[:255]},
        )
    assert context.turn is not None, "JoinGroup is parked"
    answer = await context.parts.coordinator.ask(
        request.group_id, event, JoinAnswer, create=not event.member_id, when_queued=context.turn.done
    )
    if isinstance(answer, GroupFault):
        answer = JoinAnswer(fault=answer, member_id=event.member_id)
    return _respond(answer, context)


def _fault(event: Join) -> GroupFault | None:
    """Returns the fault if Postgres could not keep a part of the request."""
    if not can_be_instance_id(event.instance_id):
        return GroupFault.INVALID_REQUEST
    if event.member_id and not can_be_id(event.member_id):
        return GroupFault.UNKNOWN_MEMBER
    return GroupFault.INCONSISTENT_PROTOCOL if "\0" in event.protocol_type else None


def _event(request: JoinGroupRequest, context: RequestContext[UsesCoordinator]) -> Join:
    session_timeout_ms = milliseconds(request.session_timeout)
    has_rebalance_timeout = context.api_version > 0
    return Join(
        token=context.parts.coordinator.next_token(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=client_id(context),
        client_host=client_host(context),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout)
        if has_rebalance_timeout
        else session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(
            OfferedProtocol(name=protocol.name, metadata=bytes(protocol.metadata))
            for protocol in request.protocols
        ),
        requires_known_member_id=context.api_version >= _FIRST_WITH_REQUIRED_MEMBER_ID,
        can_skip_assignment=context.api_version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )


def _respond(answer: JoinAnswer, context: RequestContext[UsesCoordinator]) -> JoinGroupResponse:
    protocol_name = answer.protocol_name
    if protocol_name is None and context.api_version < _FIRST_WITH_NULL_PROTOCOL:
        protocol_name = ""
    code = member_code(answer.fault)
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        generation_id=i32(answer.generation if code is ErrorCode.none else -1),
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in answer.members
        ),
    )
